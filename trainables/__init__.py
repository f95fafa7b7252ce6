"""How a model is trained and judged: losses, regularizers, samplers, metrics, data, models and the training loop.

Torch only: knows nothing of Ray Tune, Optuna or MLflow, and runs bare. Importing this package imports no torch.
"""
