"""A plan -> Ray Tune and Optuna -> trials, on one machine or a cluster."""
