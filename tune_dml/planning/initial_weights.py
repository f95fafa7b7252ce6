"""What the networks of a sweep start from: tried and said before any worker starts.

The driver fetches weights once and builds each network on its own machine, so that a wrong address, digest, shape or size
of pictures is known before the first trial; on a cluster each node then fetches for itself, into its own cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trainables.config import TrialConfig, canonical
from trainables.errors import ConfigError, Problem

if TYPE_CHECKING:
    from trainables.data.base import Pictures
    from tune_dml.space import Protocol


def absolute(weights: str) -> str:
    """A path that workers, who have working directories of their own, find too."""
    from trainables.models import weights as files

    return files.absolute(weights)


def file_problems(configs: Iterable[TrialConfig]) -> list[Problem]:
    """Files and packages that are not on this machine; nothing is fetched."""
    from trainables.models import BACKBONES

    problems = [
        problem
        for config in _networks(configs)
        for problem in BACKBONES[config.model.backbone].file_problems(**config.model.knobs("backbone"))
    ]
    return list(dict.fromkeys(problems))


def network_problems(configs: Iterable[TrialConfig], pictures: Pictures) -> list[Problem]:
    """Build each different network as a trial does, weights and all, and show it two blank pictures."""
    import torch

    from trainables.tasks import task_of

    problems: list[Problem] = []
    for config in _networks(configs):
        task = task_of(config)
        size = task.picture_size(pictures) or 1
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                network = task.build_network(pictures).eval()
                network(torch.zeros(2, pictures.in_channels, size, size, dtype=torch.uint8))
        except ConfigError as error:
            problems += error.problems
        except (RuntimeError, AssertionError, ValueError) as error:  # what networks say of sizes they cannot take
            rule = f"{config.model.backbone} must take pictures of {size} x {size} pixels"
            problems.append(Problem("model.backbone", rule, str(error)[:200]))
    return list(dict.fromkeys(problems))


def notes(configs: Iterable[TrialConfig], protocol: Protocol | None) -> list[str]:
    """Where each network starts from, and that the protocol's networks start from other weights."""
    from trainables.models import BACKBONES

    meant = protocol.settings.get("model.weights") if protocol else None
    lines = []
    for config in _networks(configs):
        knobs = config.model.knobs("backbone")
        used = knobs.get("weights")
        if "weights" not in knobs and meant is None:
            continue  # nobody has weights for it
        note = BACKBONES[config.model.backbone].start(**knobs)
        if meant is not None and (used is None or _file(str(used)) != _file(str(meant))):
            name = protocol.name if protocol else ""
            note += f" Protocol {name} starts from {meant}: figures compare with other starts only with care."
        lines.append(note)
    return list(dict.fromkeys(lines))


def _file(weights: str) -> str:
    from trainables.models.weights import source_of

    return source_of(weights).path.name


def _networks(configs: Iterable[TrialConfig]) -> Sequence[TrialConfig]:
    """One configuration for each different network and size of pictures."""
    different: dict[str, TrialConfig] = {}
    for config in configs:
        key = canonical([config.model.flat, config.augment.flat, config.task.name])
        different.setdefault(key, config)
    return list(different.values())
