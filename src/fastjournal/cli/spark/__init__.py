"""`fastjournal spark`: the data pipeline from the command line."""
