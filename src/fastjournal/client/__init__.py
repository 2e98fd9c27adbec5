"""Blocking and asyncio clients: two thin transport loops over one protocol."""
