"""How often a driver looks for garbage."""

import gc

import pytest

from tune_dml.running.process import RELAXED, relaxed_gc


@pytest.fixture
def threshold():
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


@pytest.mark.parametrize(("given", "meanwhile"), [(700, RELAXED), (2 * RELAXED, 2 * RELAXED), (0, 0)])
def test_garbage_is_looked_for_no_more_often_than_before_and_not_where_it_was_not(threshold, given, meanwhile):
    threshold(given, 10, 10)
    with relaxed_gc():
        assert gc.get_threshold() == (meanwhile, 10, 10)
    assert gc.get_threshold() == (given, 10, 10)
