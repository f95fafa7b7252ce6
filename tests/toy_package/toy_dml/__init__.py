"""A package of its own that adds to tune_dml through entry points."""
