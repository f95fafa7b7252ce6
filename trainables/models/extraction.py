"""One pass of a frozen backbone over a data set: pooled features of every picture and view, stored as float16.

A chunk of pictures is written at a time and then noted in `progress.txt`, so that the next call continues a killed one. A
chunk's numbers do not depend on the number of workers: each worker computes with one thread.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainables import generators
from trainables.config import TrialConfig, identifying
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
from trainables.errors import DataError, Problem, raise_if_any
from trainables.files import write_whole
from trainables.models import BACKBONES, POOLINGS, Embedder
from trainables.models.views import Views
from trainables.registries import source_digest
from trainables.resolve import read_settings
from trainables.tasks import Task, task_of

_CHUNK = 256
"""Pictures per chunk, which is what a killed pass may lose per worker."""
_PROGRESS = "progress.txt"
_PIXELS = 150_000  # embedded at a time on a CPU: what fits its cache
_DESCRIBED = ("data.", "augment.", "model.", "training.precision")
_OF_THE_HEAD = ("model.head", "model.embedding_dim")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FeaturePass:
    """Which features to extract, and the folder to write them to."""

    config: TrialConfig
    """Defines data, augmentation, backbone and pooling."""
    folder: Path
    views: int = 1
    cache_dir: Path | None = None

    @property
    def task(self) -> Task:
        """The task that opens the data and builds the network."""
        return task_of(self.config)


def write_features(order: FeaturePass, *, workers: int = 0, progress: Progress | None = None) -> StoreDigest:
    """Write the features of every picture, or continue an interrupted pass.

    Args:
        order: data, backbone, views and folder.
        workers: processes; 0 for one per GPU, or else one per CPU core.
        progress: called with (pictures done, pictures in all), first for decoding.

    Raises:
        DataError: the data, the weights or the folder do not fit; a feature is not finite.
    """
    pictures = order.task.dataset(order.cache_dir).prepare(progress)
    raise_if_any(_problems(order, pictures))
    network = _network(order, pictures)
    origin = _origin(order, pictures, network)
    if (order.folder / DIGEST).exists():
        finished = StoreDigest.read(order.folder)
        _refuse_other(order.folder, dict(finished.origin), origin)
        raise_if_any(store_problems(order.folder), DataError)
        return finished
    done = _begin(order, pictures, origin, network.backbone.out_channels)
    starts = [start for start in range(0, len(pictures), _CHUNK) if start not in done]
    count = len(pictures) - sum(min(_CHUNK, len(pictures) - start) for start in starts)
    with (order.folder / _PROGRESS).open("a", encoding="utf-8") as noted:
        for start in _chunks(order, starts, workers or _usual_workers()):
            noted.write(f"{start}\n")
            noted.flush()
            count += min(_CHUNK, len(pictures) - start)
            if progress:
                progress(count, len(pictures))
    digest = finish_store(order.folder, _table(pictures, order.views), order.views, origin)
    (order.folder / _PROGRESS).unlink()
    return digest


def _problems(order: FeaturePass, pictures: Pictures) -> list[Problem]:
    model = order.config.model
    problems = order.task.size_problems(pictures)
    problems += BACKBONES[model.backbone].file_problems(**model.knobs("backbone"))
    if order.views < 1:
        problems.append(Problem("--views", "must be at least 1", order.views))
    if order.views > 1 and order.task.augmentation() is None:
        remedy = "Example: --set augment.name=crop_flip --set augment.crop=64."
        problems.append(Problem("--views", "several views need an augmentation", order.views, remedy))
    if pictures.are_features:
        problems.append(Problem("DATASET", "these are features already", pictures.name))
    if "pairs" in pictures.extras:
        problems.append(Problem("DATASET", "a benchmark of pairs has no classes to train on", pictures.name))
    return problems


def _network(order: FeaturePass, pictures: Pictures) -> Embedder:
    """Build the network in evaluation mode; random weights come from the trial's seed."""
    generators.seed_all(order.config.seed_of("init"))
    return order.task.build_network(pictures).eval()


def _origin(order: FeaturePass, pictures: Pictures, network: Embedder) -> dict[str, Any]:
    """Describe data, settings, weights and code of the features; equal descriptions make equal features."""
    settings = identifying(order.config.settings())
    backbone, pooling = order.config.model.backbone, order.config.model.pooling
    modules = {BACKBONES[backbone].__module__, POOLINGS[pooling].__module__, Views.__module__}
    return {
        "dataset": pictures.name,
        "data": pictures.digest,
        "settings": {
            path: value
            for path, value in settings.items()
            if path.startswith(_DESCRIBED) and not path.startswith(_OF_THE_HEAD)
        },
        "backbone": backbone,
        "weights": _weights_digest(network),
        "views": order.views,
        "code": {name: source_digest(str(sys.modules[name].__file__)) for name in sorted(modules)},
    }


def _weights_digest(network: Embedder) -> str:
    digest = hashlib.sha256()
    for part in (network.backbone, network.pooling):
        for name, tensor in part.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def _refuse_other(folder: Path, found: dict[str, Any], origin: dict[str, Any]) -> None:
    """Raise DataError if a folder holds, or was begun with, other features."""
    differing = sorted(name for name in {*found, *origin} if found.get(name) != origin.get(name))
    if differing:
        rule = f"the folder holds other features: {', '.join(differing)} differ"
        raise DataError(Problem(str(folder), rule, None, "Choose another folder with -o, or delete this one."))


def _begin(order: FeaturePass, pictures: Pictures, origin: dict[str, Any], dimension: int) -> set[int]:
    """Create the files; return the chunks that an interrupted pass has written."""
    order.folder.mkdir(parents=True, exist_ok=True)
    noted = order.folder / _PROGRESS
    shape = (len(pictures) * order.views, dimension)
    if noted.exists():
        first, *chunks = noted.read_text(encoding="utf-8").splitlines()
        _refuse_other(order.folder, json.loads(first), origin)
        if chunks:
            return {int(line) for line in chunks if line.isdigit()}
    elif any(order.folder.iterdir()):
        raise DataError(Problem(str(order.folder), "the folder must be empty", None, "Choose another one with -o."))
    else:
        disk.require_space(order.folder, shape[0] * shape[1] * 2)
        write_whole(noted, json.dumps(origin) + "\n")
    np.lib.format.open_memmap(order.folder / FEATURES, mode="w+", dtype=np.float16, shape=shape)
    disk.reserve(order.folder / FEATURES)
    return set()


def _usual_workers() -> int:
    return torch.cuda.device_count() or available_cores()


def _chunks(order: FeaturePass, starts: list[int], workers: int) -> Iterator[int]:
    """Write chunks and yield the first picture of each when it is on disk."""
    settings, place = order.config.settings(), (str(order.folder), order.views, order.cache_dir)
    if workers == 1 or len(starts) == 1:
        yield from (_write_chunk(settings, place, start) for start in starts)
        return
    with ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(min(workers, max(len(starts), 1)), mp_context=context))
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        for future in as_completed([pool.submit(_write_chunk, settings, place, start) for start in starts]):
            yield future.result()


@dataclass(frozen=True)
class _Extractor:
    """Network, pictures and views of a worker process."""

    network: Embedder
    pictures: Pictures
    views: Views
    batch: int
    device: torch.device


@cache
def _extractor(settings: str, views: int, cache_dir: Path | None) -> _Extractor:
    order = FeaturePass(read_settings(json.loads(settings)), Path(), views, cache_dir)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        number = (multiprocessing.current_process()._identity or (1,))[0] - 1
        device = torch.device("cuda", number % torch.cuda.device_count())
    pictures = order.task.dataset(cache_dir).prepare()
    network = _network(order, pictures).to(device)
    shown = Views(pictures.images, order.task.augmentation(), seed=order.config.seed_of("order"), device=device)
    side = order.task.picture_size(pictures) or 1
    batch = _CHUNK if device.type == "cuda" else min(max(_PIXELS // side**2, 8), _CHUNK)
    return _Extractor(network, pictures, shown, batch, device)


def _write_chunk(settings: dict[str, Any], place: tuple[str, int, Path | None], start: int) -> int:
    """Compute and store the features of the chunk that begins at picture `start`; return `start`."""
    folder, views, cache_dir = place
    maker = _extractor(json.dumps(settings), views, cache_dir)
    indices = np.arange(start, min(start + _CHUNK, len(maker.pictures)))
    rows = _features(maker, indices, views)
    raise_if_any(non_finite_problems(rows, f"features of pictures {start} to {int(indices[-1])}"), DataError)
    target = np.lib.format.open_memmap(Path(folder) / FEATURES, mode="r+")
    target[start * views : (start + len(indices)) * views] = rows
    target.flush()
    return start


@torch.no_grad()
def _features(maker: _Extractor, indices: Indices, views: int) -> Rows:
    """Return the features of pictures, the views of each one after the other."""
    parts = []
    for begin in range(0, len(indices), maker.batch):
        some = indices[begin : begin + maker.batch]
        shown = [maker.views.evaluation(some)]
        shown += [maker.views.train(some, step=0, first=int(some[0]), view=view) for view in range(1, views)]
        pooled = torch.stack([maker.network.features(each.to(maker.device)) for each in shown], dim=1)
        parts.append(pooled.flatten(0, 1).float().cpu().numpy())
    with np.errstate(over="ignore"):  # `non_finite_problems` reports infinite values
        return np.concatenate(parts).astype(np.float16)


def _table(pictures: Pictures, views: int) -> RowTable:
    """Describe each row by its class and its part of the data set."""
    splits = np.where(np.isin(pictures.labels, pictures.test_classes), "test", "train").astype("<U7")
    for part in ("query", "gallery"):
        if part in pictures.extras:
            splits[pictures.extras[part]] = part
    names = np.asarray(pictures.class_names)
    return RowTable.of_pictures(list(names[pictures.labels]), list(splits), views)
