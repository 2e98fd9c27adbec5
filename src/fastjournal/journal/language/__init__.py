"""The language of the log: what can be said about rows, and the bytes that say it.

    varint    numbers, lengths and instants, read and written
    commands  each command as a value that writes itself
    codec     a record's payload <-> a command; the table of types
    settings_codec  the settings of a queue <-> bytes
    transitions     which command may follow on which state

A command states a result and asks nothing. `decide` makes them, `codec` carries them, `state.apply`
is the only reader that changes rows.
"""
