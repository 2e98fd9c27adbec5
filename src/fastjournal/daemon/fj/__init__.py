"""The FJ protocol over a journal.

`connection` reads messages and knows who the peer is (HELLO, tokens, roles), `dispatch` finds the
handler of a function, `jobs` and `entries` carry functions out on the session they are given.
`standby` is the connection to a node that does not lead, `looks` what it answers.
"""
