"""Small trials that train in a folder, and can stop in the middle and resume."""

import torch

from trainables import training
from trainables.context import TrialContext
from trainables.resolve import Layer, resolve
from trainables.tasks import build_learner
from trainables.training import train

DIGITS = {"data.name": "digits", "model.embedding_dim": 8, "batch.sampler": "random"}
DIGITS |= {"training.steps": 60, "training.eval_every": 20}
TASKS = {
    "retrieval": {**DIGITS, "data.validation_fraction": 0.4, "batch.batch_size": 16},
    "face_recognition": {
        **{**DIGITS, "data.validation_fraction": 0.4, "batch.batch_size": 16},
        **{"task.name": "face_recognition", "task.mirror": False, "task.pairs": 400, "task.distractors": [10, 100]},
        **{"loss.name": "arcface", "loss.scale": 16.0, "optim.loss_lr_multiplier": 10.0},
        **{"regularizer.name": "sec", "regularizer.eta": 1.0, "regularizer.rho": 0.4},
        "regularizer.schedule": "capped_linear",
    },
    "contrastive": {
        **{**DIGITS, "data.split": "shared_classes", "batch.batch_size": 16},
        **{"task.name": "contrastive", "task.linear_epochs": 5, "loss.name": "nt_xent", "model.head": "mlp"},
        **{"augment.name": "simclr", "augment.crop": 16, "augment.resize": 16, "augment.flip": 0.0},
        **{"augment.scale": [0.5, 1.0], "optim.lr_schedule": "cosine"},
        **{"regularizer.name": "sec", "regularizer.eta": 0.25, "regularizer.schedule": "linear"},
    },
}


class Killed(Exception):
    pass


def config_of(base, **settings):
    """Return a configuration from flat settings; `__` stands for a dot in the overrides."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return resolve(Layer("base", base), Layer("test", dotted)).config


def run(config, folder, stop_after=None, cache_dir=None, threads=1):
    """Train in a folder; `stop_after` raises `Killed` at the report of that step, after its checkpoint."""
    rows = []

    def sink(row):
        rows.append(dict(row))
        if stop_after is not None and row["step"] == stop_after:
            raise Killed

    context = TrialContext(folder, torch.device("cpu"), threads=threads, sink=sink)
    return train(config, context, cache_dir=cache_dir), rows


def poison(monkeypatch, after):
    """Make a weight not finite after the update of this step."""
    update = training.update

    def poisoned(run):
        loss = update(run)
        if run.state.step == after:
            with torch.no_grad():
                next(run.network.parameters()).fill_(float("nan"))
        return loss

    monkeypatch.setattr(training, "update", poisoned)


def without_time(row):
    return {name: value for name, value in row.items() if not name.startswith("time/")}


def learner_of(config, folder):
    context = TrialContext(folder, torch.device("cpu"))
    training.prepare_process(config, context)
    return build_learner(config, context)
