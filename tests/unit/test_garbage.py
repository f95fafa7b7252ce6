"""How often a driver looks for garbage."""

import gc

import pytest

from tune_dml.running.process import RARELY, seldom_collected


@pytest.fixture
def threshold():
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


@pytest.mark.parametrize(("given", "meanwhile"), [(700, RARELY), (2 * RARELY, 2 * RARELY), (0, 0)])
def test_garbage_is_looked_for_no_more_often_than_before_and_not_where_it_was_not(threshold, given, meanwhile):
    threshold(given, 10, 10)
    with seldom_collected():
        assert gc.get_threshold() == (meanwhile, 10, 10)
    assert gc.get_threshold() == (given, 10, 10)
