import numpy as np

from tune_dml.stats import SeedTable


def table_of(values: np.ndarray) -> SeedTable:
    """Return a table of cells c0, c1, ... and seeds 0, 1, ..."""
    m, n = values.shape
    return SeedTable(tuple(f"c{i}" for i in range(m)), tuple(range(n)), values.astype(float))
