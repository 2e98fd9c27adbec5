"""The producer's side: append a job to a local file, carry the file to the daemon."""
