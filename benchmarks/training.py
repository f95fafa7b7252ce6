"""What the training loop costs beside the mathematics. Prints ratios; blocks are interleaved and medians taken.

    images/s of our loop over a bare PyTorch loop        same network, loss, optimizer, pictures in memory; goal >= 0.97
    cached pictures over decoding JPEG for every batch   crops of 227, and stored squares of 64; goal >= 5
    share of a default trial spent in evaluation         glyphs, 400 steps; goal < 0.10
    share spent on what it leaves to look at             looks at directions, histogram, sheet; goal < 0.03
    two workers over one worker of two threads           wall time of the same steps; 1 is a draw

CPU figures are CPU seconds of this process, which other programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.multiprocessing as mp
from PIL import Image

from trainables import distributed, training
from trainables.config import TrialConfig
from trainables.context import FolderContext
from trainables.data import build_dataset
from trainables.data.augment import build_augmentation
from trainables.data.formats.cache import create_ragged
from trainables.evidence import directions
from trainables.models.views import Views
from trainables.optimizers import build_optimizer
from trainables.resolve import Layer, resolve
from trainables.tasks import build_learner
from trainables.tasks.evaluation import evidence_of, neighbour_sheet
from tune_dml.catalogue import protocols
from tune_dml.planning.arms.protocol_choice import protocol_layer

SEC = {"loss.name": "semihard_triplet", "regularizer.name": "sec", "regularizer.eta": 0.5}


def configuration(**more: object) -> TrialConfig:
    layers = [protocol_layer(protocols()["glyphs/triplet"]), Layer("benchmark", {**SEC, **more})]  # type: ignore[dict-item]
    return resolve(*layers).config


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """CPU seconds, or seconds until a CUDA device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(contestants: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each, taking turns."""
    for work in contestants.values():
        work()
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            taken[name].append(seconds(work, device))
    return {name: median(values) for name, values in taken.items()}


def begin(config: TrialConfig, device: torch.device, folder: str, **context: int) -> training.Run:
    own = FolderContext(Path(folder), device, **context)  # type: ignore[arg-type]
    training.prepare_process(config, own)
    return training.start_or_resume(config, own, build_learner(config, own))


def steps(run: training.Run, count: int) -> None:
    for _ in range(count):
        run.recent.append(training.update(run))
        run.state.step += 1
        if run.state.step % training.LOG_EVERY == 0:
            training.training_figures(run)


def bare_loop(config: TrialConfig, run: training.Run, device: torch.device) -> Callable[[int], None]:
    """The same step without us: batches drawn beforehand, pictures in memory as one tensor."""
    learner = build_learner(config, run.context)
    network, loss, regularizer = learner.network, learner.loss, learner.regularizer
    optimizer = build_optimizer(config.optim, network, loss)
    images = torch.from_numpy(np.array(learner.pictures.images)).permute(0, 3, 1, 2)
    batches = [torch.from_numpy(learner.split.train[learner.sampler.batch(step)]) for step in range(200)]
    labels = torch.from_numpy(learner.pictures.labels)
    network.train()

    def go(count: int) -> None:
        for step in range(count):
            batch = batches[step % len(batches)]
            pictures, classes = images[batch].to(device), labels[batch].to(device)
            embeddings = network(pictures)
            value = loss(embeddings, classes) + config.regularizer.eta * regularizer(embeddings)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

    return go


def loop_overhead(device: torch.device, rounds: int) -> None:
    config = configuration() if device.type == "cpu" else configuration(**{"training.precision": "bf16"})
    with tempfile.TemporaryDirectory() as folder:
        run = begin(config, device, folder)
        bare = bare_loop(config, run, device)
        # Short blocks and many of them: both meet the same neighbours on the machine.
        taken = interleaved({"ours": lambda: steps(run, 5), "bare": lambda: bare(5)}, 8 * rounds, device)
    rate = 5 * config.batch.batch_size / taken["ours"]
    print(
        f"loop over bare loop, {device.type}: {taken['bare'] / taken['ours']:.3f}  ({rate:,.0f} images/s; goal >= 0.97)"
    )


def photographs(count: int, width: int, height: int) -> list[Image.Image]:
    """Smooth shapes with grain, which compress about as photographs do."""
    draw = np.random.default_rng(0)
    made = []
    for _ in range(count):
        coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        grain = draw.integers(-12, 13, (height, width, 3))
        made.append(Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)))
    return made


def encode(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def cache_gain(rounds: int) -> None:
    """Random crops of 227 from pictures of 500 x 375, and squares of 64 without augmentation."""
    pictures, device = photographs(64, 500, 375), torch.device("cpu")
    encoded = [encode(picture) for picture in pictures]
    augmentation = build_augmentation("crop_flip")
    assert augmentation is not None
    everyone, sizes = np.arange(64), np.tile([375, 500], (64, 1))

    def decode_crops() -> torch.Tensor:
        made = augmentation.decide(sizes, seed=0, step=0)
        rows = []
        for data, (top, left, height, width), flip in zip(encoded, made.windows.tolist(), made.flips, strict=True):
            picture = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + width, top + height))
            picture = picture.resize((227, 227), Image.Resampling.BILINEAR)
            rows.append(np.asarray(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else picture))
        return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2)

    def decode_squares() -> torch.Tensor:
        rows = [
            np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((85, 64)).crop((10, 0, 74, 64)))
            for data in encoded
        ]
        return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2)

    with tempfile.TemporaryDirectory() as folder:
        small = [np.asarray(picture.resize((341, 256))) for picture in pictures]
        ragged = create_ragged(Path(folder), np.array([[256, 341]] * 64, dtype=np.int32), 3)
        for i, pixels in enumerate(small):
            ragged[i][:] = pixels
        crops = Views(ragged, augmentation, seed=0)
        squares = Views(np.stack([np.asarray(p.resize((64, 64))) for p in pictures]), None, seed=0)
        taken = interleaved(
            {
                "cached crops": lambda: crops.train(everyone, step=0),
                "decoded crops": decode_crops,
                "cached squares": lambda: [squares.train(everyone, step=0) for _ in range(20)],
                "decoded squares": decode_squares,
            },
            rounds,
            device,
        )
    gain = taken["decoded crops"] / taken["cached crops"]
    print(f"cache over decoding JPEG, crops of 227: {gain:.1f}  (goal >= 5)")
    print(f"cache over decoding JPEG, squares of 64: {20 * taken['decoded squares'] / taken['cached squares']:.0f}")


def evaluation_share() -> None:
    config, device = configuration(), torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = begin(config, device, folder)
        training_time = seconds(lambda: steps(run, run.learner.total_steps), device)
        judged = run.learner.total_steps // config.training.eval_every
        validated = run.learner.validate()
        judging = judged * seconds(run.learner.validate, device)
        judging += seconds(lambda: run.learner.test(validated), device)
    print(f"evaluation's share of a default trial: {judging / (judging + training_time):.3f}  (goal < 0.10)")


def evidence_share(rounds: int) -> None:
    """Looks at directions and the evidence of every evaluation, the last of which is drawn and written."""
    config, device = configuration(), torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = begin(config, device, folder)
        learner, total = run.learner, run.learner.total_steps
        part, count = learner.split.validation, config.evaluation.sheet_queries
        embeddings, _ = learner.embed(part)
        evidence = learner.validate().evidence
        every = directions.interval(total, training.LOG_EVERY)
        taken = interleaved(
            {
                "ten steps": lambda: steps(run, 10),
                "look": learner.directions,
                "evidence": lambda: evidence_of(
                    learner.split,
                    embeddings,
                    neighbour_sheet(embeddings, part, learner.pictures, count=count, seed=config.seed),
                ),
                "files": lambda: training.write_evidence(run, evidence),
            },
            rounds,
            device,
        )
    evaluations = -(-total // config.training.eval_every)
    extra = (1 + total // every) * taken["look"] + evaluations * taken["evidence"] + taken["files"]
    loop = total / 10 * taken["ten steps"]
    per_thousand = taken["look"] / (100 * taken["ten steps"])
    print(f"evidence's share of a trial of {total} steps: {extra / (loop + extra):.3f}  (goal < 0.03)")
    print(f"a look every 1000 steps over those steps: {per_thousand:.4f}")


def worker(rank: int, world_size: int, folder: str, count: int) -> None:
    torch.set_num_threads(3 - world_size)
    config = configuration()
    meeting = f"file://{folder}/meet-{world_size}"
    with distributed.process_group(rank=rank, world_size=world_size, init_method=meeting):
        run = begin(config, torch.device("cpu"), folder, rank=rank, world_size=world_size, threads=3 - world_size)
        steps(run, 5)
        distributed.barrier()
        start = time.perf_counter()
        steps(run, count)
        distributed.barrier()
        if rank == 0:
            (Path(folder) / f"seconds-{world_size}").write_text(str(time.perf_counter() - start))


def parallel_gain(rounds: int) -> None:
    taken: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for world_size, found in taken.items():
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(worker, (world_size, folder, 60), nprocs=world_size)
                found.append(float((Path(folder) / f"seconds-{world_size}").read_text()))
    print(f"two workers over one with two threads: {median(taken[1]) / median(taken[2]):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    build_dataset("glyphs").prepare()
    loop_overhead(torch.device("cpu"), rounds)
    if torch.cuda.is_available():
        loop_overhead(torch.device("cuda"), rounds)
    cache_gain(rounds)
    evaluation_share()
    evidence_share(rounds)
    parallel_gain(max(1, rounds // 3))


if __name__ == "__main__":
    main()
