"""The commands, in one module for each theme; `trajgym.cli._app` puts them together.

A command declares what it takes, and imports what implements it when it runs: `trajgym --help` and
the completion of words in a shell need only the declarations.
"""

__all__: list[str] = []
