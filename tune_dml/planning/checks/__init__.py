"""Checks before any worker starts: data, effects of knobs, a dry run, GPUs."""
