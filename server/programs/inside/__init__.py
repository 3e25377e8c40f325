"""Programs that run agents inside the sandbox; they are copied there, and never imported here."""
