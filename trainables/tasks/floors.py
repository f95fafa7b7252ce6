"""Measure retrieval without training: of raw pixels or stored features, and of the untrained network."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.data.base import Indices
from trainables.tasks import build_learner
from trainables.tasks.evaluation import Figures, with_part
from trainables.tasks.retrieval import RetrievalLearner
from trainables.training import prepare_process

_PIXELS, _FEATURES, _UNTRAINED = "raw_pixels", "raw_features", "untrained_network"
_LARGEST_SIDE = 64  # larger pictures are averaged down before their pixels are compared
_MAX_PIXELS = 50_000_000  # of all validation pictures at the network's input size; more would take minutes on a CPU


def measure_floors(config: TrialConfig, seeds: Sequence[int], *, cache_dir: Path | None = None) -> dict[str, Figures]:
    """Return floor -> `val/...` figures of raw pixels (or features) and of the untrained network.

    They are means over the seeds. Return an empty dictionary for another task or too many pictures.
    """
    found: dict[str, list[Figures]] = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="tune-dml-") as folder, torch.random.fork_rng(devices=[]):
            context = TrialContext(Path(folder), torch.device("cpu"), threads=torch.get_num_threads())
            trial = config.model_copy(update={"seed": seed})
            prepare_process(trial, context)
            learner = build_learner(trial, context, cache_dir=cache_dir)
            if not isinstance(learner, RetrievalLearner) or _pixels_of(learner) > _MAX_PIXELS:
                return {}
            raw = _FEATURES if learner.pictures.are_features else _PIXELS
            pixels = with_part("val", learner.judge_vectors(_flat_pixels(learner), learner.split.validation))
            found.setdefault(raw, []).append(pixels)
            found.setdefault(_UNTRAINED, []).append(learner.validate().figures)
    return {
        name: {key: float(np.mean([seed[key] for seed in figures])) for key in figures[0]}
        for name, figures in found.items()
    }


def _pixels_of(learner: RetrievalLearner) -> int:
    size = learner.task.picture_size(learner.pictures) or 1
    return len(learner.split.validation) * size**2


def _flat_pixels(learner: RetrievalLearner) -> Tensor:
    """Return each validation picture as the network sees it, minus its mean, (N, D); stored features as they are."""

    def flat(part: Indices) -> Tensor:
        pixels = learner.views.evaluation(part).float()
        if pixels.shape[-1] > _LARGEST_SIDE:
            pixels = functional.adaptive_avg_pool2d(pixels, _LARGEST_SIDE)
        rows = pixels.flatten(1)
        if learner.pictures.are_features:
            return rows
        return rows - rows.mean(dim=1, keepdim=True)

    return learner.compute_rows(flat, learner.split.validation)
