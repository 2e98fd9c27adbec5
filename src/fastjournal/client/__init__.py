"""Clients of the daemon: `sync` blocks, `aio` awaits, both speak through `protocol`."""
