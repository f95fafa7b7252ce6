"""Extract features with a frozen backbone: pooled features of every picture and view, stored as float16.

Each chunk of pictures is written and then noted in `progress.txt`, so that the next call continues a killed one. Chunks
do not depend on the number of workers, because each worker computes with one thread.
"""

import hashlib
import json
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from trainables import generators
from trainables.config import TrialConfig, identity_settings
from trainables.data.base import Indices, Pictures
from trainables.data.formats import cache as disk
from trainables.data.formats.decoding import available_cores
from trainables.data.formats.feature_store import (
    DIGEST,
    FEATURES,
    Rows,
    RowTable,
    StoreDigest,
    finish_store,
    non_finite_problems,
    store_problems,
)
from trainables.errors import ConfigError, DataError, Problem, raise_if_any
from trainables.files import write_whole
from trainables.models import BACKBONES, POOLINGS, Embedder
from trainables.models.views import Views
from trainables.registries import source_digest
from trainables.resolve import read_settings
from trainables.tasks import Task, task_of

_CHUNK = 256
"""Pictures per chunk. A killed pass may lose two chunks per worker, or a call of `_CALL` chunks on several GPUs."""
_CALL = 16
_PROGRESS = "progress.txt"
_PIXELS = 150_000  # embedded at a time on a CPU, to fit its cache
_ORIGIN_SETTINGS = ("data.", "augment.", "model.", "training.precision")
_HEAD_SETTINGS = ("model.head", "model.embedding_dim")
Progress = Callable[[int, int], None]
_T = TypeVar("_T")


@dataclass(frozen=True)
class FeaturePass:
    """Which features to extract, and the folder to write them to."""

    config: TrialConfig  # defines data, augmentation, backbone and pooling
    folder: Path
    views: int = 1
    cache_dir: Path | None = None

    @property
    def task(self) -> Task:
        return task_of(self.config)


def write_features(job: FeaturePass, *, workers: int = 0, progress: Progress | None = None) -> StoreDigest:
    """Write the features of every picture, or continue an interrupted pass.

    `workers` are processes, 0 for one per GPU, or else one per CPU core. `progress` is called with (pictures done,
    pictures in all), first for decoding. Raises DataError if the data, the weights or the folder do not fit, or a feature
    is not finite, and ConfigError if a process is killed.
    """
    pictures = job.task.dataset(job.cache_dir).prepare(progress)
    raise_if_any(_problems(job, pictures))
    network = _network(job, pictures)
    origin = _origin(job, pictures, network)
    if (job.folder / DIGEST).exists():
        finished = StoreDigest.read(job.folder)
        _require_same_origin(job.folder, dict(finished.origin), origin)
        raise_if_any(store_problems(job.folder), DataError)
        return finished
    written = _prepare_files(job, pictures, origin, network.backbone.out_channels)
    starts = [start for start in range(0, len(pictures), _CHUNK) if start not in written]
    count = len(pictures) - sum(min(_CHUNK, len(pictures) - start) for start in starts)
    with (job.folder / _PROGRESS).open("a", encoding="utf-8") as progress_file:
        for start in _chunks(job, starts, workers or torch.cuda.device_count() or available_cores()):
            progress_file.write(f"{start}\n")
            progress_file.flush()
            count += min(_CHUNK, len(pictures) - start)
            if progress:
                progress(count, len(pictures))
    digest = finish_store(job.folder, _row_table(pictures, job.views), job.views, origin)
    (job.folder / _PROGRESS).unlink()
    return digest


def _problems(job: FeaturePass, pictures: Pictures) -> list[Problem]:
    model = job.config.model
    problems = job.task.size_problems(pictures)
    problems += BACKBONES[model.backbone].file_problems(**model.knobs("backbone"))
    if job.views < 1:
        problems.append(Problem("--views", "must be at least 1", job.views))
    if job.views > 1 and job.task.augmentation() is None:
        remedy = "Example: --set augment.name=crop_flip --set augment.crop=64."
        problems.append(Problem("--views", "several views need an augmentation", job.views, remedy))
    if pictures.are_features:
        problems.append(Problem("DATASET", "these are features already", pictures.name))
    if "pairs" in pictures.extras:
        problems.append(Problem("DATASET", "a benchmark of pairs has no classes to train on", pictures.name))
    return problems


def _network(job: FeaturePass, pictures: Pictures) -> Embedder:
    """Build the network in evaluation mode; random weights come from the trial's seed."""
    generators.seed_all(job.config.seed_of("init"))
    return job.task.build_network(pictures).eval()


def _origin(job: FeaturePass, pictures: Pictures, network: Embedder) -> dict[str, Any]:
    """Describe data, settings, weights and code of the features; equal descriptions make equal features."""
    settings = identity_settings(job.config.settings())
    backbone, pooling = job.config.model.backbone, job.config.model.pooling
    modules = {BACKBONES[backbone].__module__, POOLINGS[pooling].__module__, Views.__module__}
    return {
        "dataset": pictures.name,
        "data": pictures.digest,
        "settings": {
            path: value
            for path, value in settings.items()
            if path.startswith(_ORIGIN_SETTINGS) and not path.startswith(_HEAD_SETTINGS)
        },
        "backbone": backbone,
        "weights": _weights_digest(network),
        "views": job.views,
        "code": {name: source_digest(str(sys.modules[name].__file__)) for name in sorted(modules)},
    }


def _weights_digest(network: Embedder) -> str:
    digest = hashlib.sha256()
    for part in (network.backbone, network.pooling):
        for name, tensor in part.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def _require_same_origin(folder: Path, found: dict[str, Any], origin: dict[str, Any]) -> None:
    """Raise DataError if a folder holds, or was begun with, other features."""
    differing = sorted(name for name in {*found, *origin} if found.get(name) != origin.get(name))
    if differing:
        rule = f"the folder holds other features: {', '.join(differing)} differ"
        raise DataError(Problem(str(folder), rule, None, "Choose another folder with -o, or delete this one."))


def _prepare_files(job: FeaturePass, pictures: Pictures, origin: dict[str, Any], dimension: int) -> set[int]:
    """Create the files; return the chunks that an interrupted pass has written."""
    job.folder.mkdir(parents=True, exist_ok=True)
    progress_file = job.folder / _PROGRESS
    shape = (len(pictures) * job.views, dimension)
    if progress_file.exists():
        first, *chunks = progress_file.read_text(encoding="utf-8").splitlines()
        _require_same_origin(job.folder, json.loads(first), origin)
        if chunks:
            return {int(line) for line in chunks if line.isdigit()}
    elif any(job.folder.iterdir()):
        raise DataError(Problem(str(job.folder), "the folder must be empty", None, "Choose another one with -o."))
    else:
        disk.require_space(job.folder, shape[0] * shape[1] * 2)
        write_whole(progress_file, json.dumps(origin) + "\n")
    np.lib.format.open_memmap(job.folder / FEATURES, mode="w+", dtype=np.float16, shape=shape)
    disk.reserve(job.folder / FEATURES)
    return set()


def _chunks(job: FeaturePass, starts: list[int], workers: int) -> Iterator[int]:
    """Write chunks and yield the first picture of each when it is on disk."""
    settings, location = job.config.settings(), (str(job.folder), job.views, job.cache_dir)
    if workers == 1 or len(starts) == 1:
        yield from _write_chunks(settings, location, starts)
        return
    size = _CALL if torch.cuda.is_available() else 1
    calls = [starts[first : first + size] for first in range(0, len(starts), size)]
    with ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(min(workers, max(len(calls), 1)), mp_context=context))
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        try:
            for future in as_completed([pool.submit(_write_call, settings, location, call) for call in calls]):
                yield from future.result()
        except BrokenProcessPool as error:
            rule = "a process was killed, perhaps for lack of memory"
            remedy = "Run the command again with fewer: it continues."
            raise ConfigError(Problem("--workers", rule, workers, remedy)) from error


class _Ahead:
    """Makes tensors in the order of the calls: for a CUDA device in a thread with its own stream, else on request."""

    def __init__(self, device: torch.device) -> None:
        self._in_thread = device.type == "cuda"
        self._device = device
        if self._in_thread:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pictures")
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, make: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Begin to make a tensor. Return a function that waits for it and raises what `make` raised."""
        if not self._in_thread:
            return make
        begun = self._thread.submit(self._on_stream, make)

        def wait() -> Tensor:
            tensor, ready = begun.result()
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(ready)  # the device waits, not this thread
            tensor.record_stream(stream)
            return tensor

        return wait

    def _on_stream(self, make: Callable[[], Tensor]) -> tuple[Tensor, torch.cuda.Event]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            tensor, ready = make(), torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        return tensor, ready


@dataclass(frozen=True)
class _Extractor:
    """Network, pictures and views of a worker process."""

    network: Embedder
    pictures: Pictures
    views: Views
    batch: int
    device: torch.device
    ahead: _Ahead

    def begin_views(self, pictures: Indices, views: int) -> list[list[Callable[[], Tensor]]]:
        """Begin to make the views of a chunk: for each batch, functions that wait for one view of its pictures."""
        batches = [pictures[first : first + self.batch] for first in range(0, len(pictures), self.batch)]
        return [
            [
                self.ahead.begin(partial(self.views.evaluation, batch)),
                *(
                    self.ahead.begin(partial(self.views.train, batch, step=0, first=int(batch[0]), view=number))
                    for number in range(1, views)
                ),
            ]
            for batch in batches
        ]


@cache
def _extractor(settings: str, views: int, cache_dir: Path | None) -> _Extractor:
    job = FeaturePass(read_settings(json.loads(settings)), Path(), views, cache_dir)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        number = (multiprocessing.current_process()._identity or (1,))[0] - 1
        device = torch.device("cuda", number % torch.cuda.device_count())
    pictures = job.task.dataset(cache_dir).prepare()
    training = job.config.training
    network = _network(job, pictures).prepare(device, training.precision, channels_last=training.channels_last)
    picture_views = Views(pictures.images, job.task.augmentation(), seed=job.config.seed_of("order"), device=device)
    side = job.task.picture_size(pictures) or 1
    batch = _CHUNK if device.type == "cuda" else min(max(_PIXELS // side**2, 8), _CHUNK)
    return _Extractor(network, pictures, picture_views, batch, device, _Ahead(device))


def _write_call(settings: dict[str, Any], location: tuple[str, int, Path | None], starts: list[int]) -> list[int]:
    return list(_write_chunks(settings, location, starts))


def _write_chunks(settings: dict[str, Any], location: tuple[str, int, Path | None], starts: list[int]) -> Iterator[int]:
    """Compute and store the features of chunks; yield the first picture of each when it is on disk.

    A GPU computes a chunk while threads make the views of the next one and write the last one.
    """
    folder, views, cache_dir = location
    extractor = _extractor(json.dumps(settings), views, cache_dir)
    pictures = [np.arange(start, min(start + _CHUNK, len(extractor.pictures))) for start in starts]
    shown = _one_behind((indices, extractor.begin_views(indices, views)) for indices in pictures)
    with ThreadPoolExecutor(1) as writer:
        chunks = (_features(extractor, indices, batches) for indices, batches in shown)
        for stored in _one_behind(writer.submit(chunk.store, Path(folder), views) for chunk in chunks):
            yield stored.result()


def _one_behind(items: Iterable[_T]) -> Iterator[_T]:
    """Yield items, each after the next one exists."""
    waiting: deque[_T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


@dataclass(frozen=True)
class _Chunk:
    """Features of consecutive pictures, possibly still being computed."""

    pictures: Indices
    parts: list[Tensor]  # rows on the host, the views of each picture one after the other
    copied: torch.cuda.Event | None  # recorded behind the copies to the host

    def store(self, folder: Path, views: int) -> int:
        """Wait for the rows and write them; return the first picture."""
        if self.copied is not None:
            self.copied.synchronize()
        with np.errstate(over="ignore"):  # `non_finite_problems` reports infinite values
            rows: Rows = torch.cat(self.parts).numpy().astype(np.float16)
        start, last = int(self.pictures[0]), int(self.pictures[-1])
        raise_if_any(non_finite_problems(rows, f"features of pictures {start} to {last}"), DataError)
        header = np.lib.format.open_memmap(folder / FEATURES, mode="r").offset
        with (folder / FEATURES).open("r+b") as file:
            file.seek(header + start * views * rows.itemsize * rows.shape[1])
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())
        return start


@torch.no_grad()
def _features(extractor: _Extractor, pictures: Indices, batches: list[list[Callable[[], Tensor]]]) -> _Chunk:
    """Send the computation of pictures' features to the device; `batches` are their views, as `begin_views` returns."""
    parts = []
    for begun in batches:
        with extractor.network.precision(extractor.device):
            pooled = [extractor.network.features(wait().to(extractor.device)) for wait in begun]
        parts.append(torch.stack(pooled, dim=1).flatten(0, 1).float().to("cpu", non_blocking=True))
    copied = torch.cuda.Event() if extractor.device.type == "cuda" else None  # type: ignore[no-untyped-call]
    if copied is not None:
        copied.record()
    return _Chunk(pictures, parts, copied)


def _row_table(pictures: Pictures, views: int) -> RowTable:
    splits = np.where(np.isin(pictures.labels, pictures.test_classes), "test", "train").astype("<U7")
    for part in ("query", "gallery"):
        if part in pictures.extras:
            splits[pictures.extras[part]] = part
    names = np.asarray(pictures.class_names)
    return RowTable.of_pictures(list(names[pictures.labels]), list(splits), views)
