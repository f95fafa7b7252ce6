"""Measure the overhead of the training loop. Prints ratios of medians; contestants take turns.

    images/s of our loop over a bare PyTorch loop        same network, loss, optimizer, pictures in memory; goal >= 0.97
    cached pictures over decoding JPEG for every batch   crops of 227, and stored squares of 64; goal >= 5
    share of a default trial spent in evaluation         glyphs, 800 steps; goal < 0.10
    share of a trial spent on evidence                   snapshots of watched pictures, histogram, sheet; goal < 0.03
    two workers over one worker of two threads           elapsed time of the same steps; above 1 two workers are faster

Times on the CPU are processor times of this process, which other load hardly affects.
"""

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from gpu import medians, seconds, start_run
from PIL import Image
from program import run_program
from torch.multiprocessing.spawn import start_processes

from trainables import distributed, training
from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.data import build_dataset
from trainables.data.augment import build_augmentation
from trainables.data.formats.cache import create_ragged
from trainables.evidence import watched
from trainables.models.views import Views
from trainables.optimizers import build_optimizer
from trainables.resolve import Layer, resolve
from trainables.run import Run, update
from trainables.tasks import build_learner
from trainables.tasks.evaluation import evidence_of, neighbour_sheet
from tune_dml.catalogue import protocols
from tune_dml.planning.arms.settings import protocol_layer

SEC = {"loss.name": "semihard_triplet", "regularizer.name": "sec", "regularizer.eta": 0.5}


def configuration(**more: object) -> TrialConfig:
    protocol = protocol_layer(protocols()["glyphs/triplet"])
    return resolve(protocol, Layer("benchmark", {**SEC, **more})).config  # type: ignore[dict-item]


def take_steps(run: Run, count: int) -> None:
    for _ in range(count):
        run.recent.append(update(run))
        run.state.step += 1
        if run.state.step % training.LOG_EVERY == 0:
            training.training_figures(run)


def bare_loop(config: TrialConfig, run: Run, device: torch.device) -> Callable[[int], None]:
    """Return a plain PyTorch loop with the same steps; batches are drawn before, pictures are in memory."""
    learner = build_learner(config, run.context)
    network, loss, regularizer = learner.network, learner.loss, learner.regularizer
    optimizer = build_optimizer(config.optim, network, loss)
    images = torch.from_numpy(np.array(learner.pictures.images)).permute(0, 3, 1, 2)
    batches = [torch.from_numpy(learner.split.train[learner.sampler.batch(step)]) for step in range(200)]
    labels = torch.from_numpy(learner.pictures.labels)
    network.train()

    def run_loop(count: int) -> None:
        for step in range(count):
            batch = batches[step % len(batches)]
            pictures, classes = images[batch].to(device), labels[batch].to(device)
            embeddings = network(pictures)
            value = loss(embeddings, classes) + config.regularizer.eta * regularizer(embeddings)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

    return run_loop


def loop_overhead(device: torch.device, rounds: int) -> None:
    config = configuration() if device.type == "cpu" else configuration(**{"training.precision": "bf16"})
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(config, TrialContext(Path(folder), device))
        bare = bare_loop(config, run, device)
        # Many short blocks, so that other load affects both alike.
        times = medians({"ours": lambda: take_steps(run, 5), "bare": lambda: bare(5)}, 8 * rounds, device)
    rate, ratio = 5 * config.batch.batch_size / times["ours"], times["bare"] / times["ours"]
    print(f"loop over bare loop, {device.type}: {ratio:.3f}  ({rate:,.0f} images/s; goal >= 0.97)")


def photographs(count: int, width: int, height: int) -> list[Image.Image]:
    """Return smooth shapes with grain, which compress about as well as photographs."""
    draw = np.random.default_rng(0)
    pictures = []
    for _ in range(count):
        coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        grain = draw.integers(-12, 13, (height, width, 3))
        pictures.append(Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)))
    return pictures


def encode(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def cache_gain(rounds: int) -> None:
    """Compare cached with decoded pictures: crops of 227 from 500 x 375, and squares of 64 without augmentation."""
    pictures, device = photographs(64, 500, 375), torch.device("cpu")
    encoded = [encode(picture) for picture in pictures]
    augmentation = build_augmentation("crop_flip")
    assert augmentation is not None
    batch, sizes = np.arange(64), np.tile([375, 500], (64, 1))

    def decode_crops() -> torch.Tensor:
        drawn = augmentation.decide(sizes, seed=0, step=0)
        rows = []
        for data, (top, left, height, width), flip in zip(encoded, drawn.windows.tolist(), drawn.flips, strict=True):
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
        times = medians(
            {
                "cached crops": lambda: crops.train(batch, step=0),
                "decoded crops": decode_crops,
                "cached squares": lambda: [squares.train(batch, step=0) for _ in range(20)],
                "decoded squares": decode_squares,
            },
            rounds,
            device,
        )
    gain = times["decoded crops"] / times["cached crops"]
    print(f"cache over decoding JPEG, crops of 227: {gain:.1f}  (goal >= 5)")
    print(f"cache over decoding JPEG, squares of 64: {20 * times['decoded squares'] / times['cached squares']:.0f}")


def evaluation_share() -> None:
    config, device = configuration(), torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(config, TrialContext(Path(folder), device))
        training_time = seconds(lambda: take_steps(run, run.learner.total_steps), device)
        evaluations = run.learner.total_steps // config.training.eval_every
        validated = run.learner.validate()
        evaluation_time = evaluations * seconds(run.learner.validate, device)
        evaluation_time += seconds(lambda: run.learner.test(validated), device)
    share = evaluation_time / (evaluation_time + training_time)
    print(f"evaluation's share of a default trial: {share:.3f}  (goal < 0.10)")


def evidence_share(rounds: int) -> None:
    """Time snapshots of watched pictures, the evidence of every evaluation and the files of the last one."""
    config, device = configuration(), torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(config, TrialContext(Path(folder), device))
        learner, total = run.learner, run.learner.total_steps
        part, count = learner.split.validation, config.evaluation.sheet_queries
        embeddings, _ = learner.embed(part)
        evidence = learner.validate().evidence
        interval = watched.interval(total, training.LOG_EVERY)
        times = medians(
            {
                "ten steps": lambda: take_steps(run, 10),
                "snapshot": lambda: learner.embed(learner.watched_pictures()),
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
    extra = (1 + total // interval) * times["snapshot"] + evaluations * times["evidence"] + times["files"]
    steps = total / 10 * times["ten steps"]
    per_thousand = times["snapshot"] / (100 * times["ten steps"])
    print(f"evidence's share of a trial of {total} steps: {extra / (steps + extra):.3f}  (goal < 0.03)")
    print(f"one snapshot over 1000 steps: {per_thousand:.4f}")


def worker(rank: int, world_size: int, folder: str, count: int) -> None:
    torch.set_num_threads(3 - world_size)
    config = configuration()
    rendezvous = f"file://{folder}/meet-{world_size}"
    with distributed.process_group(rank=rank, world_size=world_size, init_method=rendezvous):
        threads = 3 - world_size
        run = start_run(config, TrialContext(Path(folder), torch.device("cpu"), rank, world_size, threads))
        take_steps(run, 5)
        torch.distributed.barrier()
        start = time.perf_counter()
        take_steps(run, count)
        torch.distributed.barrier()
        if rank == 0:
            (Path(folder) / f"seconds-{world_size}").write_text(str(time.perf_counter() - start))


def parallel_gain(rounds: int) -> None:
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for world_size, found in times.items():
            with tempfile.TemporaryDirectory() as folder:
                start_processes(worker, (world_size, folder, 60), nprocs=world_size)  # type: ignore[no-untyped-call]
                found.append(float((Path(folder) / f"seconds-{world_size}").read_text()))
    print(f"two workers over one with two threads: {median(times[1]) / median(times[2]):.2f}")


def main(rounds: int = 9) -> None:
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
    run_program(main, __doc__)
