"""Keeping a log whole: after a crash, beside a running appender, by hand.

    recovery  what an opening mends: the torn tail of the newest segment, and nothing else
    probe     whether a file system can do what a log needs
    check     what is wrong with a log, without changing it
    repair    what an operator may accept as lost
    cleaner   segments written anew without the records that are no longer needed

Torn is normal, corrupt is not.
"""
