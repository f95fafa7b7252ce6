"""Verdicts about knobs, arms and published curves."""
