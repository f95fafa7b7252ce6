"""Fixtures of the tests of data sets."""

import pytest

from trainables.data import build_dataset


@pytest.fixture
def build(tmp_path):
    """Build a data set from a small copy, with a separate cache."""

    def make(name, root, **knobs):
        knobs = {"strict": False, "shorter_side": 16, **knobs}
        return build_dataset(name, root=root, cache_dir=tmp_path / "cache", **knobs)

    return make
