"""Norm and cosine statistics against loops."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainables.errors import ConfigError
from trainables.metrics import cosine_statistics, norm_statistics


def test_norm_statistics():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    assert norm_statistics(vectors) == pytest.approx(
        {"norm_mean": 2.0, "norm_variance": (9 + 4 + 1) / 3, "norm_min": 0.0, "norm_max": 5.0}
    )
    half = norm_statistics(torch.full((4, 10000), 30.0, dtype=torch.float16))  # 3000: squares leave float16
    assert half["norm_mean"] == 3000
    assert half["norm_variance"] == 0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 1000))
def test_cosine_statistics_equal_loops(count, classes, seed):
    rng = np.random.default_rng(seed)
    vectors, labels = rng.standard_normal((count, 3)), rng.integers(0, classes, count)
    cosines: dict[str, list[float]] = {
        "mean_cosine": [],
        "mean_positive_cosine": [],
        "mean_negative_cosine": [],
    }
    for i, j in permutations(range(count), 2):
        a, b = vectors[i], vectors[j]
        cosine = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
        cosines["mean_cosine"].append(cosine)
        cosines["mean_positive_cosine" if labels[i] == labels[j] else "mean_negative_cosine"].append(cosine)
    want = {name: sum(values) / len(values) for name, values in cosines.items() if values}
    assert cosine_statistics(vectors, labels) == pytest.approx(want, abs=1e-12)


def test_a_collapsed_embedding_has_mean_cosine_1():
    found = cosine_statistics(torch.ones(50, 8) * torch.arange(1.0, 51)[:, None], torch.arange(50) // 5)
    assert found == pytest.approx(dict.fromkeys(found, 1.0), abs=1e-6)
    assert len(found) == 3


@pytest.mark.parametrize("statistics", [norm_statistics, lambda v: cosine_statistics(v, torch.zeros(1).long())])
def test_bad_input_is_named(statistics):
    with pytest.raises(ConfigError, match="embeddings: must be finite"):
        statistics(torch.tensor([[torch.nan]]))
    with pytest.raises(ConfigError, match="embeddings: must be a float"):
        statistics(torch.ones(3))
