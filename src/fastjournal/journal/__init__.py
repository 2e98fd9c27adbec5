"""The journal: a state machine whose every change is one record of a log."""
