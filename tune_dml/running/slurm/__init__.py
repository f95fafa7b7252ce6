"""Submit sweeps to SLURM: batch scripts, jobs by name, a Ray over the allocation, arrays of trials."""
