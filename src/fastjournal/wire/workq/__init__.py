"""The Workq text protocol.

Server: `parse` cuts a stream into requests, `commands` makes a command of the words of one, with
Workq's own checks and texts, `replies` writes the answers byte for byte. Client: `client` writes
commands and reads the answers; tests and tools talk to real Workq servers with it.
"""
