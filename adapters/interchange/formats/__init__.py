"""Foreign formats, one module each."""

__all__: list[str] = []
