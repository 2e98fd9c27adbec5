"""The commands for a journal: put and finish jobs, look at them, steer queues, keep entries."""
