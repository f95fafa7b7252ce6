"""Train a trial in a Ray process, and report its progress."""
