"""Intervals end where a metric can be."""

import math

from tune_dml.report.naming import metric_name


def test_ends_of_percentages_are_cut_and_unknown_ones_stay_unknown() -> None:
    percent, loss = metric_name("val/recall_at_1"), metric_name("val/loss")
    assert percent.level_ends(-3.0, 120.0) == (0, 100)
    assert percent.change_ends(-120.0, 3.0) == (-100, 3)
    assert loss.level_ends(-3.0, 120.0) == loss.change_ends(-3.0, 120.0) == (-3, 120)
    assert percent.change_ends(-math.inf, math.inf) == (-math.inf, math.inf)
    assert all(map(math.isnan, percent.level_ends(math.nan, math.nan)))
