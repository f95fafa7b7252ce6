"""What the papers say: what is cited of each, and the numbers that they print."""
