"""The daemon: one asyncio process that serves journals to many hosts.

A request's way: `transport` moves the bytes of a connection, `fj` and `workq` make requests of
them, which wait in the connection's queue; at the end of a round of the event loop `journal_loop`
has all of them decided in one turn of the journal, written once and synced as the policy says; then
the answers are sent. `session` is what a turn and the functions of a protocol know of a connection,
`context` what all connections share. `server` opens journals and doors, `listener` lets peers in,
`auth` says who may come and do what. `main` puts all of it together and runs it.
"""
