"""Gains at the end of training: how often chance is called a gain, and whether true gains are found."""

import numpy as np
import pytest
from helpers.costly import slow_after

from tune_dml.stats.verdicts.late_gains import judge_late_gains

KINDS = ("iid", "t3", "one row 5x", "holes")


def gains_of(kind: str, rows: int, seeds: int, random: np.random.Generator) -> np.ndarray:
    noise = random.standard_t(3, (rows, seeds)) if kind == "t3" else random.standard_normal((rows, seeds))
    if kind == "one row 5x":
        noise[rows // 2] *= 5
    elif kind == "holes":
        noise[random.random(noise.shape) < 0.15] = np.nan
    return noise


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
@pytest.mark.parametrize("rows", [1, 6])
def test_converged_training_rarely_gains(kind: str, rows: int) -> None:
    """The largest mean gain of six converged cells exceeds the margin in half of the sweeps."""
    random, claimed, large = np.random.default_rng(rows), [], []
    for _ in range(250):
        gains = gains_of(kind, rows, 3, random)
        judged = judge_late_gains(gains, 1.0, 0.05, comparisons=rows)
        claimed.append(judged.rises.any())
        large.append((np.nanmean(gains, axis=1) > 1.0).any() if np.isfinite(gains).any(axis=1).all() else False)
    assert np.mean(claimed) <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 250)
    assert rows == 1 or np.mean(large) > 0.2


def test_a_row_that_collapses_under_few_seeds_rarely_gains() -> None:
    """It gains 0 on average; at the whole level 7.5 % of these are called a gain above 1."""
    random, claimed = np.random.default_rng(3), []
    for _ in range(600):
        gains = random.standard_normal((1, 5)) + 0.4 - 8 * (random.random((1, 5)) < 0.05)
        rises = judge_late_gains(gains, 1.0, 0.05, comparisons=1).rises
        claimed.append(rises.any() and gains.mean() > 1.0)
    assert np.mean(claimed) <= 0.055


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_a_gain_of_what_matters_is_rarely_called_small(kind: str) -> None:
    random, small = np.random.default_rng(1), []
    for _ in range(250):
        gains = gains_of(kind, 4, 3, random)
        gains[0] += 1.0
        small.append(judge_late_gains(gains, 1.0, 0.05, comparisons=4).small.all())
    assert np.mean(small) <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 250)


def test_a_clear_gain_is_found_and_still_training_is_small() -> None:
    random = np.random.default_rng(2)
    found, small = [], []
    for _ in range(100):
        gains = gains_of("iid", 6, 3, random)
        small.append(judge_late_gains(gains, 12.0, 0.05, comparisons=6).small.all())
        gains[3] += 8
        found.append(judge_late_gains(gains, 1.0, 0.05, comparisons=6).rises[3])
    assert np.mean(found) > 0.9
    assert np.mean(small) > 0.9


def test_one_seed_and_few_queries_show_no_gain() -> None:
    one = judge_late_gains(np.array([[5.0], [0.0]]), 1.0, 0.05, comparisons=2)
    assert not one.known.any()
    assert not one.rises.any()
    assert not one.small.any()
    equal = np.full((2, 3), 5.0)
    assert judge_late_gains(equal, 1.0, 0.05, comparisons=2).rises.all()
    assert not judge_late_gains(equal, 1.0, 0.05, comparisons=2, resolution=5.0).rises.any()
