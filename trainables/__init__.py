"""Training and evaluation of a model: losses, regularizers, samplers, metrics, data, models and the training loop.

Needs torch, but neither Ray Tune, Optuna nor MLflow. Importing this package imports no torch.
"""
