"""The server: listeners, sessions and waiters around one journal."""
