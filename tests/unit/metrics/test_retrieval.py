"""Retrieval metrics against sorted lists and loops."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
import oracles

from trainables.errors import ConfigError
from trainables.metrics import retrieval_metrics

KS = (1, 2, 4, 8)


def assert_same(got: dict[str, float], want: dict[str, float], tolerance: float = 1e-9) -> None:
    assert {key: got[key] for key in want} == pytest.approx(want, rel=tolerance, abs=tolerance)


@st.composite
def labelled(draw):
    """Few distinct vectors (many duplicates and exact ties, zero vectors too) with few or many classes."""
    count, dim = draw(st.integers(2, 40)), draw(st.integers(1, 5))
    row = st.lists(st.integers(-1, 1), min_size=dim, max_size=dim)
    vectors = draw(st.lists(row, min_size=count, max_size=count))
    labels = draw(st.lists(st.integers(0, draw(st.integers(0, count))), min_size=count, max_size=count))
    return np.array(vectors, dtype=np.float64), np.array(labels)


TIES = st.sampled_from(["pessimistic", "optimistic"])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(labelled(), TIES, st.sampled_from([np.float32, np.float64]))
def test_equals_sorted_loops_under_ties_and_duplicates(data, ties, dtype):
    vectors, labels = data
    lists = oracles.relevance_lists(vectors, labels, ties=ties)
    if not lists:
        with pytest.raises(ConfigError, match="at least one query"):
            retrieval_metrics(vectors.astype(dtype), labels)
        return
    got = retrieval_metrics(vectors.astype(dtype), labels, KS, ties=ties)
    assert_same(got, oracles.metrics(lists, KS))
    assert got["queries"] == len(lists)
    assert got["queries"] + got["queries_without_match"] == len(labels)
