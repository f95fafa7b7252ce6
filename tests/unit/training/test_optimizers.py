"""Learning rates and weight decay of parameters; optimizers and schedules against torch's."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trainables.losses import build_loss
from trainables.models import build_model
from trainables.optimizers import OPTIMIZERS, build_optimizer
from trainables.rates import RATES, Cosine, EpochMilestones, EveryEpochs, Milestones
from trainables.resolve import Layer, resolve


def optim_of(**settings):
    dotted = {f"optim.{key}": value for key, value in settings.items()}
    return resolve(Layer("test", dotted)).config.optim


def network(**knobs):
    torch.manual_seed(0)
    return build_model(backbone="bn_inception", head="bn_fc", embedding_dim=8, **knobs)


def groups(optimizer):
    return {group["name"]: group for group in optimizer.param_groups}


def test_backbone_head_and_proxies_have_separate_rates():
    loss = build_loss("proxy_anchor", num_classes=3, embedding_dim=8)
    optim = optim_of(lr=0.1, backbone_lr_multiplier=0.5, loss_lr_multiplier=7, weight_decay=0.01, loss_weight_decay=0.3)
    found = groups(build_optimizer(optim, network(), loss))
    assert {name: group["lr"] for name, group in found.items()} == pytest.approx(
        {"backbone": 0.05, "backbone_no_decay": 0.05, "head": 0.1, "head_no_decay": 0.1, "loss": 0.7}
    )
    assert {name: group["weight_decay"] for name, group in found.items()} == pytest.approx(
        {"backbone": 0.01, "backbone_no_decay": 0, "head": 0.01, "head_no_decay": 0, "loss": 0.3}
    )
    assert found["loss"]["params"] == list(loss.parameters())


@pytest.mark.parametrize("decayed", ["weights", "all_but_norms", "all"])
def test_weight_decay_excludes_the_named_parameters(decayed):
    net = network()
    found = groups(build_optimizer(optim_of(weight_decay_on=decayed), net, nn.Identity()))
    spared = {id(p) for name in found if name.endswith("no_decay") for p in found[name]["params"]}
    for name, parameter in net.named_parameters():
        norm = "_bn." in name or ".bn." in name
        expected = {"weights": norm or name.endswith("bias"), "all_but_norms": norm, "all": False}[decayed]
        assert (id(parameter) in spared) == expected, name


def test_every_trainable_parameter_is_in_exactly_one_group():
    net = network(freeze_bn=True, freeze_bn_affine=True)
    found = build_optimizer(optim_of(), net, nn.Identity()).param_groups
    inside = [id(parameter) for group in found for parameter in group["params"]]
    assert len(inside) == len(set(inside))
    for name, parameter in net.named_parameters():
        frozen = name.startswith("backbone.") and "_bn." in name
        assert (id(parameter) in inside) == (not frozen), name


def parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


FUSED = {"fused": True}
ALPHA = {"alpha": 0.9, "momentum": 0.9, "eps": 1e-4}
NESTEROV = {"momentum": 0.5, "nesterov": True}
PEERS = {
    "adamw": ({"beta1": 0.8, "beta2": 0.95}, torch.optim.AdamW, {"betas": (0.8, 0.95), **FUSED}),
    "adam": ({"eps": 0.01}, torch.optim.Adam, {"eps": 0.01, **FUSED}),
    "sgd": (NESTEROV, torch.optim.SGD, NESTEROV | FUSED),
    "rmsprop": (ALPHA, torch.optim.RMSprop, ALPHA),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_equals_that_of_torch_bit_for_bit(name):
    knobs, peer, theirs = PEERS[name]
    one, two = (nn.Linear(3, 3) for _ in range(2))
    two.load_state_dict(one.state_dict())
    settings = {"lr": 0.1, "weight_decay": 0.2, "weight_decay_on": "all", **knobs}
    mine = build_optimizer(optim_of(name=name, **settings), one, nn.Identity())
    other = peer(two.parameters(), lr=0.1, weight_decay=0.2, **theirs)
    for optimizer in (mine, other):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.3, "weight_decay": 0.2})
    data = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        for net, optimizer in ((one, mine), (two, other)):
            optimizer.zero_grad()
            net(data).square().sum().backward()
            optimizer.param_groups[-1]["params"][0].square().sum().backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
    for p, q in zip(parameters(mine), parameters(other), strict=True):
        assert torch.equal(p, q)
        for kept, theirs in zip(mine.state[p].values(), other.state[q].values(), strict=True):
            assert torch.equal(kept, theirs)


def test_another_optimizer_drops_the_first_ones_knobs_and_keeps_the_schedules():
    printed = {"optim.name": "adam", "optim.eps": 0.01, "optim.lr_schedule": "every_epochs", "optim.lr_decay_epochs": 5}
    both = resolve(Layer("protocol", printed), Layer("--set", {"optim.name": "sgd"}))
    assert both.config.optim.knobs() == {"momentum": 0.9, "nesterov": False}
    assert both.config.optim.knobs("lr_schedule") == {"lr_decay_epochs": 5, "lr_decay": 0.5}
    assert both.origins["optim.lr_decay_epochs"] == "protocol"


def scheduled(make, total, stepped_after):
    """Factors by a torch scheduler, stepped after every so many steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    seen = []
    for step in range(total):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % stepped_after == 0:
            scheduler.step()
    return seen


@pytest.mark.parametrize(
    ("mine", "theirs", "total", "stepped_after"),
    [
        (Milestones(lr_milestones=(3, 6), lr_decay=0.1), lambda o: lr_scheduler.MultiStepLR(o, [3, 6], 0.1), 8, 1),
        (EveryEpochs(lr_decay_epochs=2, lr_decay=0.5), lambda o: lr_scheduler.StepLR(o, 2, 0.5), 30, 3),
        (EpochMilestones(lr_epochs=(2, 5), lr_decay=0.1), lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.1), 24, 3),
        (Cosine(lr_final=0.0), lambda o: lr_scheduler.CosineAnnealingLR(o, 20), 20, 1),
        (Cosine(lr_final=0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.1), 21, 1),
    ],
)
def test_a_schedule_is_that_of_torch(mine, theirs, total, stepped_after):
    """In epochs of three steps; of torch's schedulers some are stepped after each step."""
    length = 20 if isinstance(mine, Cosine) else total
    found = [mine.factor(step, total_steps=length, steps_per_epoch=3) for step in range(total)]
    assert found == pytest.approx(scheduled(theirs, total, stepped_after), abs=1e-12)


@pytest.mark.parametrize("name", RATES)
def test_every_schedule_starts_at_one_and_never_grows(name):
    knobs = {
        "milestones": {"lr_milestones": (2, 5)},
        "epoch_milestones": {"lr_epochs": (1, 2)},
        "every_epochs": {"lr_decay_epochs": 1},
    }.get(name, {})
    seen = [RATES[name](**knobs).factor(step, total_steps=12, steps_per_epoch=4) for step in range(12)]
    assert seen[0] == 1
    assert all(math.isfinite(f) and 0 <= f <= before for before, f in itertools.pairwise(seen))
