"""The archive: a journal's history on another store, restorable to any instant.

`store` is the only module that talks to a store. `manifest` says what an archive holds, `source`
what there is to ship, `shipping` decides what comes next without doing it, `shipper` does it on a
thread of its own. `restore` makes a journal of it again; `care` lists, verifies and prunes.

It stands on `log` and carries bytes: of jobs it knows nothing.
"""
