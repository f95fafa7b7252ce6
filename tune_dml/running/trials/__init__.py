"""Train a trial in a process of Ray's, and report what it does."""
