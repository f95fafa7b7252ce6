"""How well a CUDA device is used. Prints ratios measured in one run; contestants take turns and medians are taken.

    python benchmarks/gpu.py [--rounds 5] [--steps 20]
    python benchmarks/gpu.py --small --device cpu        the same with a small network, to see that it runs

    our loop over a bare loop         bf16 ResNet-50, crops of 224, B = 120; the bare loop has its crops in pinned memory
    our loop over the model alone     forward, backward and update of pictures that lie on the device: the ceiling
    metrics at SOP's size             60,502 x 512, over half the similarity product, which any exact program needs
    N trials at once                  their steps a second over those of one alone; of ResNet-50, which fills the device,
                                      and of small_conv on pictures of 32, which does not; with MPS too, where it can be started

Needs trainables, torch, numpy, pydantic and pillow, no Ray. docs/log.md says what was measured on which device.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.multiprocessing as mp
from metrics import half_matrix, sample
from PIL import Image

from trainables import training
from trainables.config import TrialConfig
from trainables.context import FolderContext
from trainables.metrics import retrieval_metrics
from trainables.optimizers import build_optimizer
from trainables.resolve import Layer, resolve
from trainables.tasks import build_learner

WARM_UP = 5
TOGETHER = (1, 2, 4)
CLASSES, PICTURES = 64, 8
FULL = {
    "data.size": 256,
    "augment.crop": 224,
    "augment.resize": 256,
    "model.backbone": "resnet50",
    "model.stem": "imagenet",
    "model.weights": None,
    "training.channels_last": True,
    "batch.batch_size": 120,
}
SMALL = {
    "data.size": 40,
    "augment.crop": 32,
    "augment.resize": 40,
    "model.backbone": "small_conv",
    "batch.batch_size": 20,
}


def write_pictures(root: Path, size: int) -> None:
    """Classes of smooth squares with grain."""
    draw = np.random.default_rng(0)
    for number in range(CLASSES):
        (root / f"class{number:02}").mkdir(parents=True)
        smooth = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((size, size))
        for picture in range(PICTURES):
            pixels = np.asarray(smooth).astype(int) + draw.integers(-12, 13, (size, size, 3))
            file = root / f"class{number:02}" / f"{picture}.png"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)


def configuration(root: Path, *, small: bool) -> TrialConfig:
    common = {
        "data.name": "image_folder", "data.root": str(root), "augment.name": "crop_flip",
        "model.embedding_dim": 512, "loss.name": "multi_similarity", "batch.instances_per_class": 5,
        "training.precision": "bf16", "training.steps": 100_000, "training.eval_every": 100_000,
    }  # fmt: skip
    return resolve(Layer("benchmark", {**common, **(SMALL if small else FULL)})).config


def begin(config: TrialConfig, device: torch.device, folder: Path) -> training.Run:
    context = FolderContext(folder, device)
    training.prepare_process(config, context)
    return training.start_or_resume(config, context, build_learner(config, context, cache_dir=folder.parent / "cache"))


def steps(run: training.Run, count: int) -> None:
    for _ in range(count):
        run.recent.append(training.update(run))
        run.state.step += 1


def bare_loop(run: training.Run, *, on_device: bool) -> Callable[[int], None]:
    """The same network, loss and optimizer without us: crops cut beforehand, in memory or on the device."""
    config, device = run.config, run.context.device
    learner = build_learner(config, run.context, cache_dir=Path(run.context.folder).parent / "cache")
    network, loss = learner.network, learner.loss
    optimizer = build_optimizer(config.optim, network, loss)
    drawn = learner.sampler.batch(0)
    pictures = learner.views.train(learner.split.train[drawn], step=0).detach()
    labels = torch.from_numpy(learner.train_labels[drawn]).to(device)
    held = pictures if on_device else _as_bytes(pictures)
    network.train()

    def go(count: int) -> None:
        for _ in range(count):
            value = loss(network(held.to(device, non_blocking=True)), labels)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

    return go


def _as_bytes(pictures: torch.Tensor) -> torch.Tensor:
    """As a loader hands them over: bytes, in memory that a device fetches by itself."""
    held = (pictures * 255).round().to(torch.uint8).cpu() if pictures.is_floating_point() else pictures.cpu()
    return held.pin_memory() if pictures.is_cuda else held


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Until the device is done."""
    finish = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    finish()
    start = time.perf_counter()
    work()
    finish()
    return time.perf_counter() - start


def medians(contestants: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each, taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, work in contestants.items():
            needed = seconds(work, device)
            if turn:  # the first one warms up
                taken[name].append(needed)
    return {name: median(values) for name, values in taken.items()}


def show_loop(config: TrialConfig, device: torch.device, folder: Path, count: int, rounds: int) -> None:
    run = begin(config, device, folder / "loop")
    bare, model = bare_loop(run, on_device=False), bare_loop(run, on_device=True)
    contestants = {"ours": lambda: steps(run, count), "bare": lambda: bare(count), "model": lambda: model(count)}
    taken = medians(contestants, rounds, device)
    rate = {name: count * config.batch.batch_size / value for name, value in taken.items()}
    print(f"our loop: {rate['ours']:,.0f} images/s; over a bare loop {rate['ours'] / rate['bare']:.3f} (goal >= 0.97)")
    print(f"our loop over the model alone: {rate['ours'] / rate['model']:.3f} ({rate['model']:,.0f} images/s)")


def show_metrics(device: torch.device, size: int, rounds: int) -> None:
    embeddings, labels = sample(size)
    embeddings, labels = embeddings.to(device), labels.to(device)
    taken = medians(
        {
            "ours": lambda: retrieval_metrics(embeddings, labels, (1, 10, 100, 1000), metrics=("recall", "ndcg", "map_at_r")),
            "product": lambda: half_matrix(embeddings),
        },
        rounds,
        device,
    )  # fmt: skip
    print(
        f"metrics of {size} x 512: {taken['ours']:.2f} s, {taken['ours'] / taken['product']:.2f} x half the similarity product"
    )


@dataclass(frozen=True)
class Block:
    """What each of several processes trains at the same time."""

    config: TrialConfig
    device: torch.device
    folder: Path
    steps: int


def _together(rank: int, block: Block, ready: Barrier) -> None:
    run = begin(block.config, block.device, block.folder / f"own{rank}")
    steps(run, WARM_UP)
    ready.wait()
    start = time.perf_counter()
    seconds(lambda: steps(run, block.steps), block.device)
    ready.wait()
    if rank == 0:
        (block.folder / "seconds").write_text(str(time.perf_counter() - start))


@contextmanager
def mps(folder: Path) -> Iterator[bool]:
    """NVIDIA's MPS for the processes started within; False where it is not there or cannot be started."""
    program = shutil.which("nvidia-cuda-mps-control")
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for place in places.values():
        Path(place).mkdir(parents=True)
    os.environ.update(places)
    try:
        started = program is not None and subprocess.run([program, "-d"], check=False).returncode == 0
        yield started
        if started:
            subprocess.run([program or "", "quit"], check=False)
    finally:
        for name in places:
            os.environ.pop(name, None)


def show_together(config: TrialConfig, device: torch.device, folder: Path, count: int, how: str) -> None:
    alone, backbone = 0.0, config.model.backbone
    for number in TOGETHER:
        ready = mp.get_context("spawn").Barrier(number)
        place = folder / f"{backbone}, {how}, {number}"
        place.mkdir()
        mp.spawn(_together, (Block(config, device, place, count), ready), nprocs=number)
        rate = number * count / float((place / "seconds").read_text())
        alone = alone or rate
        print(
            f"{number} trials of {backbone} at once, {how}: {rate:.1f} steps/s in all, {rate / alone:.2f} x one alone",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small network, few pictures, 2,000 embeddings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("No CUDA device is here: nothing was measured. `--small --device cpu` shows that the script runs.")
        return
    device = torch.device(asked.device)
    print(torch.cuda.get_device_name() if device.type == "cuda" else f"on {device}, which says nothing of a GPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pictures(folder / "pictures", int((SMALL if asked.small else FULL)["data.size"]))
        config = configuration(folder / "pictures", small=asked.small)
        show_loop(config, device, folder, asked.steps, asked.rounds)
        show_metrics(device, 2_000 if asked.small else 60_502, asked.rounds)
        packed = [(configuration(folder / "pictures", small=True), 10 * asked.steps)]
        packed += [] if asked.small else [(config, asked.steps)]
        for packable, count in packed:
            show_together(packable, device, folder, count, "taking turns")
        with mps(folder / "mps") as shared:
            if not shared:
                print("with MPS: nvidia-cuda-mps-control is not here or cannot be started")
            for packable, count in packed if shared else ():
                show_together(packable, device, folder, count, "with MPS")


if __name__ == "__main__":
    main()
