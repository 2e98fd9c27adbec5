"""The two protocols of the daemon as bytes and values: no sockets, no clock, no event loop.

`fj` frames the binary FJ protocol, `functions` is its table, `jobvalue`, `bulk` and `hello` code
the values inside; `errortext` turns errors into words and back; `conversation` numbers a client's
requests. `workq` and `workq_replies` are the Workq text protocol.
"""
