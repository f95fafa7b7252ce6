"""Statistics of a sweep: pure functions from a cells x seeds table to frozen verdicts.

Every interval names its algorithm, and every family of comparisons is simultaneous.
docs/verdicts.md defines what each verdict claims.
"""

from tune_dml.stats.intervals.table import SeedTable
from tune_dml.stats.verdicts.best import judge_best
from tune_dml.stats.verdicts.isolation import IsolatedKnob, KnobPoint, isolate
from tune_dml.stats.verdicts.sensitivity import (
    Difference,
    SensitivityVerdict,
    compare_all_with,
    compare_all_with_best_of,
    judge_sensitivity,
)

__all__ = [
    "Difference",
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
