"""Run the same trial on a CUDA device and on the CPU.

Needs only trainables, torch, numpy, pydantic, pillow and pytest, not Ray:
`python -m pytest --confcutdir=tests/gpu -m gpu tests/gpu`. TUNE_DML_DEVICE names another kind of device.
"""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from trainables.context import TrialContext, read_sealed
from trainables.resolve import Layer, resolve
from trainables.training import train

DEVICE = torch.device(os.environ.get("TUNE_DML_DEVICE", "cuda"))
CPU = torch.device("cpu")
ON_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
]
SMALL = {
    **{"data.name": "image_folder", "data.size": 32, "data.validation_fraction": 0.4, "model.embedding_dim": 8},
    **{"batch.batch_size": 9, "batch.sampler": "random"},  # 9 does not divide by 2: ranks hold 5 and 4 pictures
    **{"training.steps": 6, "training.eval_every": 3},
}
SEC = {"regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": 0.4}
EXACT = {**SMALL, **SEC, "training.precision": "float64"}
CROPS = {"augment.name": "simclr", "augment.crop": 24, "augment.resize": 28}


def write_pictures(root, classes=12, each=12, size=32):
    """Write classes of smooth pictures with grain."""
    random = np.random.default_rng(0)
    for number in range(classes):
        (root / f"class{number:02}").mkdir()
        base = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        for picture in range(each):
            noise = random.integers(0, 40, (size, size, 3))
            pixels = np.asarray(Image.fromarray(base).resize((size, size))).astype(int) + noise
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"class{number:02}" / f"{picture}.png")


def config_of(pictures, *layers):
    settings = {"data.root": str(pictures)}
    for layer in layers:
        settings |= layer
    return resolve(Layer("test", settings)).config


def figures_of(config, folder, device, *, cache, **context):
    """Return the reported and sealed metrics of a trial, without times."""
    outcome = train(config, TrialContext(folder, device, **context), cache_dir=cache)
    figures = outcome.metrics | (read_sealed(folder) if context.get("until") is None else {})
    return {name: value for name, value in figures.items() if not name.endswith("seconds")}
