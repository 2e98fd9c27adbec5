"""Decisions about jobs: request + state + now -> commands.

    ground    what all decisions share: ids, chance, limits, who holds what
    put       jobs that come in       merge   the rule of a repeated key
    lease     handing out, completing, failing, giving back
    timers    what time does: lost leases, expiry, the end of dead rows and tombstones
    operator  removing, ordered by timestamps; redriving; settings

Nothing changes here: a refused request leaves no trace. A decision gives a command, or None where
there is nothing to do; what else it means stands in fields of whoever decided.
"""
