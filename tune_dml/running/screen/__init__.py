"""Draw a running sweep on the terminal."""
