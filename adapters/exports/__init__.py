"""Trainer-neutral data sets on disk, one module per format."""

__all__: list[str] = []
