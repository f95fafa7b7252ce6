"""Run the trials of a plan with Ray Tune and Optuna, on one machine or a cluster."""
