"""One question of the report a file."""
