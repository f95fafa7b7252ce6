"""What the papers printed, beside what was measured here: whether the two compare, and a printed table with our numbers."""
