"""A method that draws from the generators of torch, numpy and Python draws the same in every trial of a seed."""

import random

import numpy as np
import pytest
import torch
from helpers.trials import DIGITS, Killed, config_of, run, without_time

from trainables import generators
from trainables.losses import LOSSES, Loss

SMALL = {**DIGITS, "data.validation_fraction": 0.4, "batch.batch_size": 16, "loss.name": "drawing"}


class RandomLoss(Loss):
    """A cosine loss times random numbers, like reference code that samples its negatives by numpy."""

    name, citation, section = "drawing", "nobody", "1"

    def value(self, embeddings, labels):
        chance = np.random.random() + np.random.standard_normal() + random.random() + float(torch.rand(()))
        same = labels[:, None] == labels
        return (embeddings @ embeddings.T).where(same, -(embeddings @ embeddings.T)).tanh().mean() * chance


@pytest.fixture(autouse=True)
def drawing(monkeypatch):
    monkeypatch.setitem(LOSSES.data, "drawing", RandomLoss)


@pytest.mark.slow
def test_random_numbers_of_a_trial_depend_only_on_its_seed(tmp_path):
    (first, rows), (again, others) = (run(config_of(SMALL), tmp_path / name) for name in ("first", "again"))
    assert again.metrics == first.metrics
    assert list(map(without_time, others)) == list(map(without_time, rows))
    assert run(config_of(SMALL, seed=1), tmp_path / "other")[0].metrics != first.metrics


@pytest.mark.slow
def test_a_resumed_trial_continues_its_random_numbers(tmp_path):
    uncut, _ = run(config_of(SMALL), tmp_path / "uncut")
    with pytest.raises(Killed):
        run(config_of(SMALL), tmp_path / "cut", stop_after=40)
    np.random.standard_normal(3)  # of which the second half of a pair stays behind
    assert run(config_of(SMALL), tmp_path / "cut")[0].metrics == uncut.metrics


def test_an_old_checkpoint_has_only_the_state_of_torch():
    older = torch.get_rng_state()
    expected = torch.rand(3)
    generators.restore(older)
    assert torch.equal(torch.rand(3), expected)


def test_generator_states_survive_a_checkpoint(tmp_path):
    np.random.standard_normal(1)
    torch.save(generators.states(), tmp_path / "states.pt")
    expected = np.random.standard_normal(3), random.random(), torch.rand(3)
    generators.restore(torch.load(tmp_path / "states.pt", weights_only=True))
    again = np.random.standard_normal(3), random.random(), torch.rand(3)
    assert all(np.array_equal(one, other) for one, other in zip(expected, again, strict=True))
