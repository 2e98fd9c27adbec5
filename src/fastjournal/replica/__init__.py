"""Replication: a journal on several nodes, so that no acknowledged job goes with a machine.

An arbiter (`arbiter`: what is asked of it, and one in memory; `etcd`) decides who leads. Everything
else is the shipping of our own log bytes: `rules` says what is safe, each rule in one place;
`messages` are what nodes say to each other; `disk` is what a node keeps, beside the log and in it;
`member` is one node's part in one journal, a machine without I/O of its own; `lease` is how long a
node may trust the arbiter's word. `node` puts members on an event loop and on TCP.

`placement` says which nodes keep which journal.

It stands on `log` and carries bytes: of jobs it knows nothing. Who does not replicate never
imports it.
"""
