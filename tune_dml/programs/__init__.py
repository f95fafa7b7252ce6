"""Trials that are your own program: its command, and the client that it reports with."""
