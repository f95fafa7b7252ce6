"""Statistics of a sweep: pure functions from a cells x seeds table to frozen verdicts.

Every interval says its algorithm, every family of comparisons is simultaneous, and every cell left out is named.
docs/verdicts.md has what each verdict claims.
"""

from tune_dml.stats.best import Best, judge_best
from tune_dml.stats.isolation import IsolatedKnob, KnobPoint, isolate
from tune_dml.stats.sensitivity import (
    Difference,
    SensitivityVerdict,
    compare_all_with,
    compare_all_with_best_of,
    judge_sensitivity,
)
from tune_dml.stats.table import ExcludedCell, SeedTable

__all__ = [
    "Best",
    "Difference",
    "ExcludedCell",
    "IsolatedKnob",
    "KnobPoint",
    "SeedTable",
    "SensitivityVerdict",
    "compare_all_with",
    "compare_all_with_best_of",
    "isolate",
    "judge_best",
    "judge_sensitivity",
]
