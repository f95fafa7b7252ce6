"""Several sweeps side by side: what differs first, then paired differences where data and seeds match, or why there are none."""

from tune_dml.report.comparison.comparison import SweepComparison, compare_sweeps, on_the_same_data
from tune_dml.report.comparison.page import write_comparison

__all__ = ["SweepComparison", "compare_sweeps", "on_the_same_data", "write_comparison"]
