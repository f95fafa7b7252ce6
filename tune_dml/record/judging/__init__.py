"""Looks and races, which decide when verdicts are computed, and the findings that MLflow shows."""
