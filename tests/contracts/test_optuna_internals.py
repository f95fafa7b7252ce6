"""The private class of Optuna on which our CMA-ES depends."""

import numpy as np
import pytest
from optuna.distributions import FloatDistribution, IntDistribution


def test_ranges_are_mapped_to_a_unit_box_and_back():
    """If this fails under a new version of Optuna, replace the class in `running.search.samplers`."""
    from optuna._transform import _SearchSpaceTransform

    ranges = {
        "float": FloatDistribution(0.0, 4.0),
        "log": FloatDistribution(0.01, 1.0, log=True),
        "int": IntDistribution(1, 4),
    }
    box = _SearchSpaceTransform(ranges, transform_0_1=True)
    assert box.bounds.tolist() == [[0.0, 1.0]] * 3
    point = {"float": 1.0, "log": 0.1, "int": 3}
    assert box.transform(point) == pytest.approx([0.25, 0.5, 0.625])
    back = box.untransform(np.array([0.25, 0.5, 0.625]))
    assert back == pytest.approx(point)
    assert type(back["int"]) is int
