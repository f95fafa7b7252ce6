"""Comparison of published numbers with the sweep's results."""
