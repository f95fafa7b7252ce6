"""Trials that run the user's own program: its command, and the client that reports its results."""
