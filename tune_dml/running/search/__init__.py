"""Proposals of cells: grids, Optuna studies, early stopping, races."""
