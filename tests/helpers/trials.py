"""Small trials for tests: train in a folder, or die on the way and be resumed."""

from __future__ import annotations

import torch

from trainables.config import Layer, TrialConfig
from trainables.context import FolderContext
from trainables.training import train


class Killed(Exception):
    pass


def config_of(base, **settings):
    """A configuration from flat settings; `__` stands for a dot in the overrides."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return TrialConfig.from_settings(Layer("base", base), Layer("test", dotted))[0]


def run(config, folder, stop_after=None, cache_dir=None, threads=1):
    """Train in a folder; with `stop_after`, die while reporting that step, after its checkpoint was written."""
    rows = []

    def sink(row):
        rows.append(dict(row))
        if stop_after is not None and row["step"] == stop_after:
            raise Killed

    context = FolderContext(folder, torch.device("cpu"), threads=threads, sink=sink)
    return train(config, context, cache_dir=cache_dir), rows


def without_time(row):
    return {name: value for name, value in row.items() if not name.startswith("time/")}
