"""Learning-rate schedules against torch's own schedulers and the papers' rules."""

import itertools
import math

import pytest
import torch

from trainables.errors import ConfigError
from trainables.rates import RATES, Cosine, EpochMilestones, EveryEpochs, Milestones
from trainables.resolve import Layer, resolve


def factors(rule, total, per_epoch):
    return [rule.factor(step, total_steps=total, steps_per_epoch=per_epoch) for step in range(total)]


def scheduled(make, total, per_epoch=1):
    """Factors by a torch scheduler, stepped after every epoch."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    seen = []
    for step in range(total):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % per_epoch == 0:
            scheduler.step()
    return seen


def test_milestones_apply_before_the_step_of_their_index():
    mine = factors(Milestones(lr_milestones=(3, 6), lr_decay=0.1), 8, 2)
    assert mine == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])
    theirs = scheduled(lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6], 0.1), 8)
    assert mine == pytest.approx(theirs)


def test_decay_every_epochs_is_torchs_step_lr():
    mine = factors(EveryEpochs(lr_decay_epochs=2, lr_decay=0.5), 30, 3)
    assert mine == pytest.approx(scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5), 30, per_epoch=3))
    assert mine[5] == 1
    assert mine[6] == 0.5


def test_epoch_milestones_are_torchs_multi_step_lr():
    mine = factors(EpochMilestones(lr_epochs=(2, 5), lr_decay=0.1), 24, 4)
    theirs = scheduled(lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.1), 24, per_epoch=4)
    assert mine == pytest.approx(theirs)


def test_cosine_is_torchs_cosine_annealing_and_ends_at_its_share():
    mine = factors(Cosine(lr_final=0.0), 20, 5)
    assert mine == pytest.approx(scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20), 20), abs=1e-12)
    assert Cosine(lr_final=0.1).factor(20, total_steps=20, steps_per_epoch=5) == pytest.approx(0.1)


@pytest.mark.parametrize("name", RATES)
def test_every_schedule_starts_at_one_and_never_grows(name):
    knobs = {
        "milestones": {"lr_milestones": (2, 5)},
        "epoch_milestones": {"lr_epochs": (1, 2)},
        "every_epochs": {"lr_decay_epochs": 1},
    }.get(name, {})
    seen = factors(RATES[name](**knobs), 12, 4)
    assert seen[0] == 1
    assert all(math.isfinite(f) and 0 <= f <= before for before, f in itertools.pairwise(seen))


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"optim.lr_schedule": "milestones"}, r"optim\.lr_milestones: a value is required"),
        ({"optim.lr_schedule": "milestones", "optim.lr_milestones": [5, 3]}, r"optim\.lr_milestones.*increase"),
        ({"optim.lr_schedule": "cosine", "optim.lr_milestones": [5]}, r"optim\.lr_milestones.*unknown"),
        ({"optim.lr_schedule": "cosinus"}, "Did you mean 'cosine'"),
        ({"optim.momentum": 0.5}, r"optim\.momentum.*unknown setting"),
    ],
)
def test_a_schedule_takes_its_own_knobs_only(settings, place):
    with pytest.raises(ConfigError, match=place):
        resolve(Layer("test", settings))
