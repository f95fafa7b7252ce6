"""Losses and regularizers of other packages whose state a checkpoint would not store."""

import numpy as np
import pytest
import torch

from trainables.losses import LOSSES, Loss
from trainables.losses.base import normalise
from trainables.regularizers import REGULARIZERS, Regularizer
from trainables.samplers import SAMPLERS
from trainables.samplers.random import RandomBatches
from trainables.testing import loss_checks
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request


class Remembering(Loss):
    """Pairs of a batch with itself and the batch before."""

    name, citation, section = "remembering", "A. Author, A Memory, 2020", "1"

    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.zeros(0), torch.zeros(0, dtype=torch.long)

    def value(self, embeddings, labels):
        unit, (old, old_labels) = normalise(embeddings), self.memory
        known = torch.cat([unit, old.to(unit.dtype).view(-1, unit.shape[1])])
        same = labels[:, None] == torch.cat([labels, old_labels])
        self.memory = unit.detach(), labels
        similarity = unit @ known.T
        return torch.where(same, 1 - similarity, similarity.relu()).mean()


class Buffered(Remembering):
    """The same memory as buffers."""

    name = "buffered"

    def __init__(self) -> None:
        Loss.__init__(self)
        self.register_buffer("old", torch.zeros(64, 64))
        self.register_buffer("old_labels", torch.full((64,), -1))

    @property
    def memory(self):
        return self.old[:12], self.old_labels[:12]

    @memory.setter
    def memory(self, new):
        self.old[: len(new[0])], self.old_labels[: len(new[1])] = new


class Growing(Buffered):
    """A buffer that has the shape of the batches only after the first."""

    name = "growing"

    @property
    def memory(self):
        return self.old[:0], self.old_labels[:0]

    @memory.setter
    def memory(self, new):
        self.old = new[0]


class Noisy(Remembering):
    """A loss that draws from numpy's generator, whose state a checkpoint stores."""

    name = "noisy"

    @property
    def memory(self):
        return torch.zeros(0), torch.zeros(0, dtype=torch.long)

    @memory.setter
    def memory(self, new):
        pass

    def value(self, embeddings, labels):
        return super().value(embeddings, labels) * np.random.rand()


class RunningMean(Regularizer):
    """Distance of the norms from their running mean."""

    name, citation, section = "running_mean", "A. Author, A Mean, 2020", "1"

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.tensor(0.0)

    def value(self, norms):
        self.mean = 0.9 * self.mean + 0.1 * norms.detach().mean()
        return (norms - self.mean).square().mean()


@pytest.mark.parametrize(
    ("registry", "method", "said"),
    [
        (LOSSES, Remembering, "loss Remembering: must give the same value after a resumption.*register_buffer"),
        (LOSSES, Growing, "loss Growing: its stored state must fit a new instance.*size mismatch for old"),
        (REGULARIZERS, RunningMean, "regularizer RunningMean: must give the same value after a resumption"),
        (LOSSES, Buffered, None),
        (LOSSES, Noisy, None),
    ],
)
def test_state_that_a_checkpoint_does_not_store_is_refused_before_the_first_trial(
    monkeypatch, cache_dir, registry, method, said
):
    monkeypatch.setitem(registry.data, method.name, method)
    section = "loss" if registry is LOSSES else "regularizer"
    quick = {f"{section}.name": method.name, "training.steps": 2, "training.eval_every": 1}
    space = "sec_rho" if registry is LOSSES else "npair_scale"
    request = Request(space, dataset="digits", seeds=1, settings=quick, name="w")
    if said is None:
        prepare(request, cache_dir=cache_dir)
        return
    with pytest.raises(Exception, match=said):
        prepare(request, cache_dir=cache_dir)


def test_a_mean_that_is_measured_before_training_goes_with_a_sampler_of_another_package(monkeypatch, cache_dir):
    own = type("Own", (RandomBatches,), {"name": "own", "__module__": __name__})
    monkeypatch.setitem(SAMPLERS.data, "own", own)
    regularizer = {"regularizer.name": "sec_fixed", "regularizer.mu": "initial_train_mean", "regularizer.eta": 1.0}
    settings = {**regularizer, "batch.sampler": "own", "training.steps": 2, "training.eval_every": 1}
    request = Request("npair_scale", dataset="digits", seeds=1, settings=settings, name="w")
    cells = prepare(request, cache_dir=cache_dir).plan.cells
    assert {cell.settings["regularizer.mu"] for cell in cells} == {"initial_train_mean"}


@pytest.mark.parametrize(("loss", "is_kept"), [(Remembering, False), (Buffered, True)])
def test_the_contract_finds_a_memory_that_is_no_buffer(monkeypatch, loss, is_kept):
    monkeypatch.setattr("trainables.testing.DIMENSION", 64)
    (check,) = [check for check in loss_checks(loss) if str(check) == "repeats exactly, also as a copy"]
    if is_kept:
        check()
        return
    with pytest.raises(AssertionError, match="a copy continues as the original does"):
        check()
