"""Statistics of a sweep: pure functions from a cells x seeds table to frozen verdicts.

Every interval says its algorithm, every family of comparisons is simultaneous, and every cell left out is named.
"""

from tune_dml.stats.agreement import Agreement, PointGap, judge_agreement
from tune_dml.stats.baseline import AgainstBaseline, BaselineComparison, compare_with_baseline
from tune_dml.stats.blocks import BlockFit, fit_blocks
from tune_dml.stats.isolation import Isolated, Point, isolate
from tune_dml.stats.optimum import Optimum, judge_optimum
from tune_dml.stats.paired import Interval, cell_interval, mean_interval, paired_difference
from tune_dml.stats.power import detectable_difference, half_width, seeds_needed
from tune_dml.stats.sensitivity import Difference, Sensitivity, judge_sensitivity
from tune_dml.stats.table import Excluded, SeedTable

__all__ = [
    "AgainstBaseline",
    "Agreement",
    "BaselineComparison",
    "BlockFit",
    "Difference",
    "Excluded",
    "Interval",
    "Isolated",
    "Optimum",
    "Point",
    "PointGap",
    "SeedTable",
    "Sensitivity",
    "cell_interval",
    "compare_with_baseline",
    "detectable_difference",
    "fit_blocks",
    "half_width",
    "isolate",
    "judge_agreement",
    "judge_optimum",
    "judge_sensitivity",
    "mean_interval",
    "paired_difference",
    "seeds_needed",
]
