"""Statistics of sweeps that grow: error levels of looks, and races between cells."""
