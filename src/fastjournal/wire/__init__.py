"""The two protocols of the daemon as bytes and values: no sockets, no clock, no event loop.

`fj` is the binary protocol, `workq` the text protocol of Workq. Both take bytes however they were
cut, and write bytes into a buffer that is handed in; who reads and sends them is the business of
daemon, client and spool.
"""
