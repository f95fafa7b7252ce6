"""Connect to a Ray cluster, check it, submit jobs to it."""
