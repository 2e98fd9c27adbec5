"""`python -m fastjournal`: the command line."""

from fastjournal.cli.app import main

__all__: list[str] = []

main()
