"""Decisions about jobs: request + state + now -> commands.

    base    what all decisions share: ids, chance, limits
    put     jobs that come in       merge   the rule of a repeated key
    lease   handing out, completing, failing, giving back
    delete  removing, ordered by timestamps
    timers  what time does: lost leases, expiry, the end of dead rows and tombstones
    jobs    all of them together, and what operators ask for

Nothing changes here: a refused request leaves no trace.
"""
