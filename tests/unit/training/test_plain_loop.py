"""Whole trials against a training loop written from the papers' formulas with torch's own parts, step by step."""

import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from helpers.costly import slow_after
from helpers.oracles import ORACLES
from helpers.trials import TASKS, Killed, config_of
from sklearn.datasets import load_digits
from torch import nn

from trainables.context import TrialContext
from trainables.run import update
from trainables.training import training

STEPS, LR, BATCH = 20, 1e-3, 12
PLAIN = {
    **TASKS["retrieval"],
    **{"batch.sampler": "m_per_class", "batch.batch_size": BATCH, "batch.instances_per_class": 4, "optim.lr": LR},
    **{"training.precision": "float64", "training.steps": STEPS, "training.eval_every": 10},
    "evaluation.clustering": False,
}
CASES = {
    "SEC-EMA, coupled decay, warm-up": {
        **{"loss.name": "semihard_triplet", "optim.name": "adam", "optim.weight_decay": 0.05},
        **{"regularizer.name": "sec", "regularizer.rho": 0.1, "regularizer.eta": 0.5, "regularizer.schedule": "linear"},
        **{"optim.lr_schedule": "cosine", "optim.freeze_backbone_steps": 6},
    },
    "proxies, clipping": {
        **{"loss.name": "mpa", "loss.proxies_per_class": 3, "optim.backbone_lr_multiplier": 0.5},
        **{"optim.loss_lr_multiplier": 7.0, "optim.loss_weight_decay": 0.1, "optim.clip_norm": 0.5},
    },
    "SEC, micro-batches, milestones": {
        **{"loss.name": "npair", "regularizer.name": "sec", "regularizer.eta": 1.0, "training.micro_batch": 5},
        **{"optim.lr_schedule": "milestones", "optim.lr_milestones": [5, 12], "optim.lr_decay": 0.3},
    },
}
RATES = {
    "constant": lambda step: 1.0,
    "cosine": lambda step: (1 + math.cos(math.pi * step / STEPS)) / 2,
    "milestones": lambda step: 0.3 ** ((step >= 5) + (step >= 12)),
}


def trial_losses(config, folder, cache_dir):
    """Return loss and pictures of each step; the trial is killed before step 15, and resumes from step 10."""
    losses, drawn = {}, {}
    for last in (15, STEPS):
        trial = training(config, TrialContext(folder, torch.device("cpu")), cache_dir=cache_dir)
        with suppress(StopIteration, Killed):
            while run := next(trial):
                step = run.state.step
                if step == last:
                    raise Killed
                losses[step] = float(update(run))
                run.recent.append(torch.tensor(losses[step]))
                drawn[step] = run.learner.split.train[run.learner.sampler.batch(step)]
        trial.close()
    return losses, drawn, run


def plain_network(dimension):
    layers, widths = [], (1, 16, 32, 64, 64)
    for i in range(4):
        layers.append(nn.Conv2d(widths[i], widths[i + 1], 3, padding=1))
        layers += [nn.MaxPool2d(2)] if i < 3 else []
        layers += [nn.GroupNorm(4, widths[i + 1]), nn.ReLU()]
    head = nn.Linear(64, dimension)
    nn.init.kaiming_normal_(head.weight, mode="fan_out")
    nn.init.zeros_(head.bias)
    return nn.Sequential(*layers), head


def groups_of(config, body, head, proxies):
    """Decay weights, not biases and norms; proxies have a decay of their own."""
    optim, groups = config.optim, []
    for part, multiplier in ((body, optim.backbone_lr_multiplier), (head, 1.0)):
        for parameter in part.parameters():
            decay = optim.weight_decay if parameter.ndim > 1 else 0.0
            groups.append({"params": [parameter], "base": LR * multiplier, "weight_decay": decay})
    for parameter in proxies:
        rate = LR * optim.loss_lr_multiplier
        groups.append({"params": [parameter], "base": rate, "weight_decay": optim.loss_weight_decay})
    return groups


def clip(gradients, limit):
    length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    for gradient in gradients:
        gradient.mul_(min(1.0, (limit or math.inf) / (length + 1e-6)))


def plain_losses(config, drawn):
    """Train from the formulas, on the pictures that the trial drew; return losses and embeddings of a few pictures."""
    digits = load_digits()
    pictures = torch.from_numpy((digits.images * (255 / 16)).round().astype(np.uint8).repeat(2, 1).repeat(2, 2))
    classes = sorted({int(label) for indices in drawn.values() for label in digits.target[indices]})
    torch.manual_seed(config.seed)
    body, head = plain_network(config.model.embedding_dim)
    knobs, proxies = config.loss.knobs(), {}
    if count := knobs.get("proxies_per_class"):
        shape = (len(classes), count, config.model.embedding_dim)
        start = torch.empty(shape).normal_(std=math.sqrt(2 / (shape[0] * count)))
        proxies["proxies"] = start.double().requires_grad_()
    groups = groups_of(config, body.double(), head.double(), proxies.values())
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optim.name]
    optimizer, mu, losses = kind(groups, lr=LR, foreach=False), None, {}

    def embed(indices):
        return head(body(pictures[indices, None].double() / 255).mean(dim=(2, 3)))

    for step in range(STEPS):
        for parameter in body.parameters():
            parameter.requires_grad_(step >= config.optim.freeze_backbone_steps)
        embeddings = embed(drawn[step])
        labels = torch.tensor([classes.index(label) for label in digits.target[drawn[step]]])
        loss = ORACLES[config.loss.name](embeddings, labels, **proxies, **knobs)
        if config.regularizer.name == "sec":
            rho, norms = config.regularizer.knobs()["rho"], embeddings.norm(dim=1)
            mean = norms.detach().mean()
            mu = mean if mu is None else (1 - rho) * mu + rho * mean
            eta = config.regularizer.eta * (step / STEPS if config.regularizer.schedule == "linear" else 1)
            loss = loss + eta * (norms - mu).square().mean()
        optimizer.zero_grad()
        loss.backward()
        clip([p.grad for group in groups for p in group["params"] if p.grad is not None], config.optim.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = group["base"] * RATES[config.optim.lr_schedule](step)
        optimizer.step()
        losses[step] = loss.item()
    return losses, embed(np.arange(0, 1797, 30)).detach()


@pytest.mark.parametrize("case", slow_after(1, CASES))
def test_a_resumed_trial_equals_a_plain_loop_step_by_step(case, tmp_path, cache_dir):
    config = config_of(PLAIN, **CASES[case])
    losses, drawn, run = trial_losses(config, tmp_path / "trial", cache_dir)
    expected, embeddings = plain_losses(config, drawn)
    assert [losses[step] for step in range(STEPS)] == pytest.approx([*expected.values()], abs=1e-10, rel=0)
    found = run.learner.embed(np.arange(0, 1797, 30))[0]
    torch.testing.assert_close(found, embeddings, atol=1e-9, rtol=0)
