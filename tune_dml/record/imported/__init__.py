"""Import results of other programs: each reader returns the same rows, which become results for the report.

    data = read_csv(path, request)                    # or read_optuna, read_ray; for MLflow `tune_dml.tracking.experiments`
    results = results_of_rows(data, request, folder)  # raises ConfigError with all problems

Metric, goal, seed, knobs and margin are given by the user, not guessed.
"""

from tune_dml.record.imported.conversion import results_of_rows
from tune_dml.record.imported.ray_folder import read_ray
from tune_dml.record.imported.rows import ImportRequest
from tune_dml.record.imported.studies import read_optuna
from tune_dml.record.imported.tables import read_csv

__all__ = ["ImportRequest", "read_csv", "read_optuna", "read_ray", "results_of_rows"]
