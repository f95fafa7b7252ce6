"""Figures of test classes: sealed until they are opened."""
