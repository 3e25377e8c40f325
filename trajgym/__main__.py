"""`python -m trajgym`."""

from trajgym.cli import main

main()
