"""The command line: typer commands, each importing what it needs when it runs."""
