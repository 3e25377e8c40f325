"""`python -m trajgym.cli`."""

from trajgym.cli import main

main()
