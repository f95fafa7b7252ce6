"""A third-party package that extends tune_dml through entry points."""
