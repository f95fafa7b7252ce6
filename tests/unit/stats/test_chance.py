"""The probability of being the best: what it must be where it is known, and that it can be taken at its word."""

import numpy as np
import pytest

from tune_dml.stats.verdicts import chance
from tune_dml.stats.verdicts.chance import p_best


def test_equal_cells_share_it_and_a_lead_takes_it():
    random = np.random.default_rng(3)
    noise = random.normal(size=(4, 400))
    equal = p_best(noise - noise.mean(1, keepdims=True))
    assert equal == pytest.approx([0.25] * 4, abs=0.03)
    ahead = p_best(noise + np.array([0.0, 0.0, 0.0, 3.0])[:, None])
    assert ahead[3] == pytest.approx(1.0, abs=1e-3)
    assert ahead.sum() == pytest.approx(1.0)


def test_two_cells_have_students_probability():
    """With one pair the posterior is Student's t on its own degrees of freedom."""
    from scipy.stats import t as student

    values = np.array([[1.0, 2.0, 4.0, 3.0], [0.5, 1.9, 3.0, 3.1]])
    gap = values[0] - values[1]
    expected = student.cdf(gap.mean() / (gap.std(ddof=1) / 2), 3)
    assert p_best(values)[0] == pytest.approx(expected, abs=0.03)


def test_seeds_move_all_cells_together_and_change_nothing():
    random = np.random.default_rng(4)
    values = random.normal(size=(5, 4))
    assert p_best(values + 100 * random.normal(size=4)) == pytest.approx(p_best(values), abs=0.02)


@pytest.mark.parametrize("holes", [(), ((0, 1), (2, 0), (4, 2))], ids=["whole", "holes"])
def test_the_root_for_many_cells_gives_the_same_chances(holes, monkeypatch):
    values = 0.7 * np.arange(12)[:, None] + 3 * np.random.default_rng(6).normal(size=(12, 4))
    for place in holes:
        values[place] = np.nan
    few = p_best(values, 40_000)
    monkeypatch.setattr(chance, "_FEW", 1)
    assert p_best(values, 40_000) == pytest.approx(few, abs=0.015)


def test_what_cannot_be_told_is_nan_and_what_was_lost_has_none():
    assert np.isnan(p_best(np.array([[1.0], [2.0]]))).all()
    assert np.isnan(p_best(np.full((3, 3), np.nan))).all()
    one = np.full((3, 3), np.nan)
    one[1] = [1.0, 2.0, 3.0]
    assert p_best(one).tolist() == [0.0, 1.0, 0.0]
    lost = np.array([[1.0, 2.0, 1.5], [np.nan] * 3, [0.0, 1.0, 0.7]])
    assert p_best(lost)[1] == 0.0


def test_it_can_be_taken_at_its_word():
    """Of cells said to be the best with a probability around p, about p are; cells as far apart as noise lets tell."""
    random = np.random.default_rng(5)
    said, was = [], []
    for _ in range(300):
        truth = 1.5 * random.normal(size=6)
        values = truth[:, None] + random.normal(size=(6, 4)) + 3 * random.normal(size=4)
        said.append(p_best(values, draws=500))
        was.append(np.arange(6) == truth.argmax())
    probability, best = np.concatenate(said), np.concatenate(was)
    for low, high in ((0.0, 0.1), (0.1, 0.4), (0.4, 0.8), (0.8, 1.01)):
        among = (probability >= low) & (probability < high)
        assert among.sum() > 50
        spread = np.sqrt(0.25 / among.sum())
        assert best[among].mean() == pytest.approx(probability[among].mean(), abs=3 * spread)
