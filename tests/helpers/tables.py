import numpy as np

from tune_dml.stats import SeedTable


def table_of(values: np.ndarray) -> SeedTable:
    """Cells c0, c1, ... under seeds 0, 1, ..."""
    m, n = values.shape
    return SeedTable(tuple(f"c{i}" for i in range(m)), tuple(range(n)), values.astype(float))
