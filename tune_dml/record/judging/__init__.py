"""What decides when verdicts are computed: looks, races, and the numbers that MLflow shows."""
