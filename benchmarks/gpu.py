"""Measure the use of a CUDA device. Prints ratios of medians; contestants take turns in one run.

    python benchmarks/gpu.py [--rounds 5] [--steps 20]
    python benchmarks/gpu.py --small --device cpu        a small network, to check that the program runs

    our loop over a bare loop       bf16 ResNet-50, crops of 224, B = 120; the bare loop has its crops in pinned memory
    our loop over the model alone   forward, backward and update with pictures on the device, the upper limit
    our loop with training.compile  as CUDA graphs of fused kernels; also how far 200 losses are from those without,
                                    beside the distance that rounding in bf16 makes
    features pass                   `tune-dml features` of 16,384 pictures over the frozen network alone
    metrics at SOP's size           60,502 x 512, over half of the similarity matrix, which any exact program needs
    N trials at once                their steps per second over those of one trial: ResNet-50, which fills the device,
                                    and small_conv on pictures of 32, which does not; also with MPS if it can be started

The program needs trainables, torch, numpy, pydantic, pillow and typer, but not Ray. docs/log.md has the measurements.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from metrics import KS, half_matrix, sample
from PIL import Image
from program import run_program, take_turns
from torch.multiprocessing.spawn import start_processes

from trainables import training
from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.metrics import retrieval_metrics
from trainables.models.extraction import FeaturePass, write_features
from trainables.models.views import Views
from trainables.optimizers import build_optimizer
from trainables.resolve import Layer, resolve
from trainables.run import Run, update
from trainables.tasks import build_learner

WARM_UP = 5
TOGETHER = (1, 2, 4)
CLASSES, PICTURES = 64, 8
LOSSES = 200
COPIES = 32
"""Files with the same picture in the folder of the features pass."""
FULL: dict[str, Any] = {
    "data.size": 256,
    "augment.crop": 224,
    "augment.resize": 256,
    "model.backbone": "resnet50",
    "model.stem": "imagenet",
    "model.weights": None,
    "training.channels_last": True,
    "batch.batch_size": 120,
}
SMALL: dict[str, Any] = {
    "data.size": 40,
    "augment.crop": 32,
    "augment.resize": 40,
    "model.backbone": "small_conv",
    "batch.batch_size": 20,
}


def write_pictures(root: Path, size: int) -> None:
    """Write an image folder whose classes are smooth squares; pictures differ by grain."""
    draw = np.random.default_rng(0)
    for number in range(CLASSES):
        (root / f"class{number:02}").mkdir(parents=True)
        smooth = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((size, size))
        for picture in range(PICTURES):
            pixels = np.asarray(smooth).astype(int) + draw.integers(-12, 13, (size, size, 3))
            file = root / f"class{number:02}" / f"{picture}.png"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)


def copy_pictures(root: Path, target: Path) -> None:
    """Link every picture `COPIES` times."""
    for picture in root.glob("*/*.png"):
        (target / picture.parent.name).mkdir(parents=True, exist_ok=True)
        for number in range(COPIES):
            (target / picture.parent.name / f"{picture.stem}-{number}.png").hardlink_to(picture)


def configuration(root: Path, *, small: bool, **more: Any) -> TrialConfig:
    common: dict[str, Any] = {
        "data.name": "image_folder", "data.root": str(root), "augment.name": "crop_flip",
        "model.embedding_dim": 512, "loss.name": "multi_similarity", "batch.instances_per_class": 5,
        "training.precision": "bf16", "training.steps": 100_000, "training.eval_every": 100_000,
    }  # fmt: skip
    settings = {**common, **(SMALL if small else FULL), **{f"training.{name}": value for name, value in more.items()}}
    return resolve(Layer("benchmark", settings)).config


def start_run(config: TrialConfig, context: TrialContext, cache_dir: Path | None = None) -> Run:
    training.prepare_process(config, context)
    return training.start_or_resume(config, context, build_learner(config, context, cache_dir=cache_dir))


def take_steps(run: Run, count: int) -> None:
    for _ in range(count):
        run.recent.append(update(run))
        run.state.step += 1


def bare_loop(run: Run, cache_dir: Path, *, on_device: bool) -> Callable[[int], None]:
    """Return a plain PyTorch loop with the same network, loss and optimizer, and crops in memory or on the device."""
    config, device = run.config, run.context.device
    learner = build_learner(config, run.context, cache_dir=cache_dir)
    network, loss = learner.network, learner.loss
    optimizer = build_optimizer(config.optim, network, loss)
    drawn = learner.sampler.batch(0)
    pictures = learner.views.train(learner.split.train[drawn], step=0).detach()
    labels = torch.from_numpy(learner.train_labels[drawn]).to(device)
    source = pictures if on_device else _as_bytes(pictures)
    network.train()

    def run_loop(count: int) -> None:
        for _ in range(count):
            value = loss(network(source.to(device, non_blocking=True)), labels)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

    return run_loop


def _as_bytes(pictures: torch.Tensor) -> torch.Tensor:
    """Return pictures as a data loader provides them: bytes, in pinned memory for a CUDA device."""
    data = (pictures * 255).round().to(torch.uint8).cpu() if pictures.is_floating_point() else pictures.cpu()
    return data.pin_memory() if pictures.is_cuda else data


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return a clock of elapsed time for a CUDA device, or of processor time for a CPU."""

    def elapsed() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return elapsed if device.type == "cuda" else time.process_time


def seconds(work: Callable[[], object], device: torch.device) -> float:
    clock = clock_of(device)
    start = clock()
    work()
    return clock() - start


def medians(contestants: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Return the median seconds of each contestant; contestants take turns."""
    times = take_turns([*contestants.values()], rounds, clock_of(device))
    return dict(zip(contestants, map(median, times), strict=True))


def show_loop(folder: Path, device: torch.device, count: int, rounds: int, *, small: bool) -> None:
    cache = folder / "cache"
    config, compiled_config = (configuration(folder / "pictures", small=small, compile=on) for on in (False, True))
    run = start_run(config, TrialContext(folder / "loop", device), cache)
    compiled = start_run(compiled_config, TrialContext(folder / "compiled", device), cache)
    start = time.perf_counter()
    seconds(lambda: take_steps(compiled, WARM_UP), device)
    print(f"first steps with training.compile: {time.perf_counter() - start:.0f} s")
    bare, model = bare_loop(run, cache, on_device=False), bare_loop(run, cache, on_device=True)
    times = medians(
        {
            "ours": lambda: take_steps(run, count),
            "compiled": lambda: take_steps(compiled, count),
            "bare": lambda: bare(count),
            "model": lambda: model(count),
        },
        rounds,
        device,
    )
    rate = {name: count * config.batch.batch_size / value for name, value in times.items()}
    print(f"our loop: {rate['ours']:,.0f} images/s; over a bare loop {rate['ours'] / rate['bare']:.3f} (goal >= 0.97)")
    print(f"our loop over the model alone: {rate['ours'] / rate['model']:.3f} ({rate['model']:,.0f} images/s)")
    text = f"{rate['compiled']:,.0f} images/s (goal >= 4,000), {rate['compiled'] / rate['ours']:.2f} x without"
    print(f"our loop with training.compile: {text}", flush=True)


def show_losses(folder: Path, device: torch.device, *, small: bool) -> None:
    """Print how far the losses with training.compile are from those without it, over 200 steps.

    Beside them stand runs whose initial weights are moved by up to half a unit in bf16's last place.
    """

    def losses(name: str, *, moved: int | None = None, compile: bool = False) -> torch.Tensor:
        config = configuration(folder / "pictures", small=small, compile=compile)
        run = start_run(config, TrialContext(folder / name, device), folder / "cache")
        random = torch.Generator(device).manual_seed(moved or 0)
        for parameter in run.learner.network.parameters() if moved is not None else ():
            noise = torch.rand(parameter.shape, generator=random, device=device) * 2 - 1
            parameter.data.mul_(1 + noise * 2**-9)
        take_steps(run, LOSSES)
        return torch.stack(run.recent).float().cpu()

    plain = losses("plain")
    others = {"a second time": losses("again"), "with training.compile": losses("in graphs", compile=True)}
    others |= {f"from weights moved by rounding, {seed}": losses(f"moved{seed}", moved=seed) for seed in range(3)}
    print(f"{LOSSES} losses, mean of the last quarter {float(plain[-LOSSES // 4 :].mean()):.4f}; others:")
    for name, other in others.items():
        distance, last = float((other - plain).abs().mean()), float(other[-LOSSES // 4 :].mean())
        print(f"    {name}: mean distance {distance:.4f}, mean of the last quarter {last:.4f}", flush=True)


def show_features(folder: Path, device: torch.device, rounds: int, *, small: bool) -> None:
    """Print pictures/s of the features pass, from its first to its last chunk, over the frozen network alone."""
    copy_pictures(folder / "pictures", folder / "many")
    job = FeaturePass(configuration(folder / "many", small=small), folder / "features", cache_dir=folder / "cache")
    pictures = job.task.dataset(job.cache_dir).prepare()
    done: list[tuple[float, int]] = []
    write_features(job, workers=1, progress=lambda count, _: done.append((time.perf_counter(), count)))
    chunks = done[-(len(pictures) // 256) :]  # decoding reports progress too
    (first, few), (last, many) = chunks[0], chunks[-1]
    training = job.config.training
    network = job.task.build_network(pictures).eval()
    network.prepare(device, training.precision, channels_last=training.channels_last)
    shown = Views(pictures.images, job.task.augmentation(), seed=0, device=device).evaluation(np.arange(256))

    @torch.no_grad()
    def alone() -> None:
        with network.precision(device):
            for _ in range(8):
                network.features(shown)

    rate, ceiling = (many - few) / (last - first), 8 * len(shown) / medians({"alone": alone}, rounds, device)["alone"]
    print(f"features pass: {rate:,.0f} pictures/s, {rate / ceiling:.3f} of the network alone (goal >= 0.9)", flush=True)


def show_metrics(device: torch.device, size: int, rounds: int) -> None:
    embeddings, labels = sample(size)
    embeddings, labels = embeddings.to(device), labels.to(device)
    times = medians(
        {
            "ours": lambda: retrieval_metrics(embeddings, labels, KS, metrics=("recall", "ndcg", "map_at_r")),
            "product": lambda: half_matrix(embeddings),
        },
        rounds,
        device,
    )
    ratio = times["ours"] / times["product"]
    print(f"metrics of {size} x 512: {times['ours']:.2f} s, {ratio:.2f} x half of the similarity matrix")


@dataclass(frozen=True)
class Block:
    """Steps that several processes train at the same time."""

    config: TrialConfig
    device: torch.device
    folder: Path
    steps: int


def _train_block(rank: int, block: Block, ready: Barrier) -> None:
    context = TrialContext(block.folder / f"trial{rank}", block.device)
    run = start_run(block.config, context, block.folder / "cache")
    take_steps(run, WARM_UP)
    ready.wait()
    start = time.perf_counter()
    seconds(lambda: take_steps(run, block.steps), block.device)
    ready.wait()
    if rank == 0:
        (block.folder / "seconds").write_text(str(time.perf_counter() - start))


@contextmanager
def mps(folder: Path) -> Iterator[bool]:
    """Run NVIDIA's MPS for the processes that the block starts; yield False if it cannot be started."""
    program = shutil.which("nvidia-cuda-mps-control")
    folders = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for path in folders.values():
        Path(path).mkdir(parents=True)
    os.environ.update(folders)
    try:
        started = program is not None and subprocess.run([program, "-d"], check=False).returncode == 0
        yield started
        if started:
            subprocess.run([program or "", "quit"], check=False)
    finally:
        for name in folders:
            os.environ.pop(name, None)


def show_parallel(config: TrialConfig, device: torch.device, folder: Path, count: int, sharing: str) -> None:
    alone, backbone = 0.0, config.model.backbone
    for number in TOGETHER:
        ready = get_context("spawn").Barrier(number)
        block = Block(config, device, folder / f"{backbone}, {sharing}, {number}", count)
        block.folder.mkdir()
        start_processes(_train_block, (block, ready), nprocs=number)  # type: ignore[no-untyped-call]
        rate = number * count / float((block.folder / "seconds").read_text())
        alone = alone or rate
        label = f"{number} trials of {backbone} at once, {sharing}"
        print(f"{label}: {rate:.1f} steps/s in all, {rate / alone:.2f} x one trial", flush=True)


def main(
    device_name: Annotated[str, typer.Option("--device")] = "cuda",
    small: Annotated[bool, typer.Option(help="small network, few pictures, 2,000 embeddings")] = False,
    rounds: int = 5,
    steps: int = 20,
) -> None:
    if device_name == "cuda" and not torch.cuda.is_available():
        print("This machine has no CUDA device. To check that the program runs, use `--small --device cpu`.")
        return
    device = torch.device(device_name)
    print(torch.cuda.get_device_name() if device.type == "cuda" else f"on {device}; the numbers do not apply to a GPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = configuration(folder / "pictures", small=small)
        write_pictures(folder / "pictures", int((SMALL if small else FULL)["data.size"]))
        show_loop(folder, device, steps, rounds, small=small)
        show_losses(folder, device, small=small)
        show_features(folder, device, rounds, small=small)
        show_metrics(device, 2_000 if small else 60_502, rounds)
        trials = [(configuration(folder / "pictures", small=True), 10 * steps)]
        trials += [] if small else [(config, steps)]
        for packed, count in trials:
            show_parallel(packed, device, folder, count, "taking turns")
        with mps(folder / "mps") as has_mps:
            if not has_mps:
                print("with MPS: nvidia-cuda-mps-control is missing or cannot be started")
            for packed, count in trials if has_mps else ():
                show_parallel(packed, device, folder, count, "with MPS")


if __name__ == "__main__":
    run_program(main, __doc__)
