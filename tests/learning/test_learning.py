"""Training improves a network: mean metrics over several seeds, against the same networks untrained.

One run says little: the luck of a seed moves recall by ten points. So every test here asks for the mean over its seeds, in
settings where an untrained network is poor, and for about half of the gain that was measured. `make test-learning` runs
these tests with each of torch's CPU kernels and with one and two threads, which round differently.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from helpers.trials import TASKS, config_of, run

from search_spaces.protocols.faces import GLYPHS_FACE
from search_spaces.protocols.simclr import GLYPHS_SIMCLR
from trainables.context import read_sealed

pytestmark = [pytest.mark.learning, pytest.mark.slow]

THREADS = int(os.environ["OMP_NUM_THREADS"])

DIGITS_RETRIEVAL = {
    "data.name": "digits",
    "data.split": "paper_test_selection",  # five classes to train on, five never seen to judge by
    "loss.name": "multi_similarity",
    "model.width": 4,  # a poor network, so that what it learns shows
    "model.embedding_dim": 16,
    "batch.batch_size": 20,
    "batch.instances_per_class": 4,
    "optim.lr": 3e-3,
    "training.steps": 60,
    "training.eval_every": 60,
}
LONGER = {"task.linear_epochs": 10, "batch.batch_size": 64, "training.steps": 100, "training.eval_every": 100}
DIGITS_CONTRASTIVE = {**TASKS["contrastive"], **LONGER, "model.width": 4}


class Gains:
    """Means over seeds of the gain of training."""

    def __init__(self, settings: Mapping[str, Any], *, seeds: int, folder: Path, cache_dir: Path):
        first_step_only = {"training__steps": 1, "training__eval_every": 1}

        def figures(seed: int, steps: Mapping[str, int]) -> dict[str, float]:
            own = folder / f"{seed}-{len(steps)}"
            outcome, _ = run(config_of(settings, seed=seed, **steps), own, None, cache_dir, THREADS)
            return {**outcome.metrics, **read_sealed(own)}

        self.untrained, self.trained = (
            [figures(seed, steps) for seed in range(seeds)] for steps in (first_step_only, {})
        )

    def of(self, figure: str) -> float:
        """Return the mean gain; it is printed, so that `pytest -rP` shows the basis of each margin."""
        before, after = ([end[figure] for end in ends] for ends in (self.untrained, self.trained))
        print(f"{figure}: untrained {before}, trained {after}, gain {mean(after) - mean(before):.1f}")  # noqa: T201
        return mean(after) - mean(before)


@pytest.fixture
def gains(tmp_path, cache_dir):
    return lambda settings, *, seeds: Gains(settings, seeds=seeds, folder=tmp_path, cache_dir=cache_dir)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_training_improves_retrieval_of_unseen_classes(gains, precision):
    assert gains({**DIGITS_RETRIEVAL, "training.precision": precision}, seeds=4).of("val/recall_at_1") > 7


def test_contrastive_training_beats_the_untrained_encoder_on_digits(gains):
    """A linear classifier reads digits better from features pretrained without labels."""
    assert gains(DIGITS_CONTRASTIVE, seeds=3).of("val/linear_top1") > 10


def test_contrastive_training_beats_the_untrained_encoder_on_glyphs(gains):
    """A linear classifier of 583 characters, without labels in pretraining."""
    assert gains(GLYPHS_SIMCLR.settings, seeds=2).of("val/linear_top1") > 10


def test_unseen_characters_are_verified_well_above_chance(gains):
    """Same character or not, of 73 characters not trained on, in 20 typefaces; chance is 50%."""
    learnt = gains(GLYPHS_FACE.settings, seeds=2)
    for part in ("val", "test"):
        assert learnt.of(f"{part}/verification_accuracy") > 10
        assert mean(end[f"{part}/verification_accuracy"] for end in learnt.trained) > 90
    assert mean(end["val/rank1_at_100"] for end in learnt.trained) > 50
