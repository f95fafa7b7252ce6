"""Results that no sweep of ours made: each reader gives the same rows, which become results that the report reads.

    data = read_csv(path, request)                    # or read_optuna, read_ray; for MLflow `tune_dml.tracking.experiments`
    results = results_of_rows(data, request, folder)  # raises ConfigError with everything that is wrong

A reader guesses nothing that can be asked for: the metric, its goal, the seed, the knobs and the margin are the user's.
"""

from tune_dml.record.imported.ray_folder import read_ray
from tune_dml.record.imported.rows import ImportedRows, ImportRequest, Row
from tune_dml.record.imported.settled import results_of_rows
from tune_dml.record.imported.studies import read_optuna
from tune_dml.record.imported.tables import read_csv

__all__ = ["ImportRequest", "ImportedRows", "Row", "read_csv", "read_optuna", "read_ray", "results_of_rows"]
