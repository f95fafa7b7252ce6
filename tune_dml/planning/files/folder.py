"""Describe the training part of a user's pictures or stored features from their listing, before decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError
from trainables.files import expand_home
from tune_dml.catalogue import RETRIEVAL
from tune_dml.space import Space, Value

if TYPE_CHECKING:
    from trainables.data.base import Labels

_CONTRASTIVE = "contrastive"
_FOLDER, _FEATURES = "image_folder", "features"
_SPLIT = ("validation_fraction", "folds", "fold", "split")


@dataclass(frozen=True)
class TrainingPart:
    """Sizes of the part of the data that a trial trains on."""

    classes: int
    """Number of classes, the same for every seed."""
    pictures: int
    """Number of pictures of the largest class."""
    fewest: int
    """Number of pictures of the smallest training part of any seed."""
    task: str = RETRIEVAL
    """The task whose split this is."""


def part_of(space: Space, dataset: str, settings: Mapping[str, Value]) -> TrainingPart | None:
    """Return the sizes of a picture folder's part that trials of a space train on; None if unknown."""
    task = str({**space.fixed, **settings}.get("task.name", RETRIEVAL))
    return None if space.program else training_part(dataset, settings, task)


def training_part(dataset: str, settings: Mapping[str, Value], task: str = RETRIEVAL) -> TrainingPart | None:
    """Return the sizes of the part of a user's pictures or of stored features that a trial of a task trains on.

    Return None for other data sets, for wrong settings, and for pictures that cannot be listed or split: checks of
    settings and data report them.
    """
    root = settings.get("data.root")
    if dataset not in {_FOLDER, _FEATURES} or not root or not expand_home(str(root)).exists():
        return None
    import numpy as np

    from trainables.tasks.splits import class_disjoint_split, shared_class_split

    chosen = {name: value for name in _SPLIT if (value := settings.get(f"data.{name}")) is not None}
    if "split" in chosen:
        chosen["protocol"] = chosen.pop("split")
    try:
        labels, test = _classes(dataset, expand_home(str(root)), settings.get("data.split_file"))
        most = int(str(settings.get("data.pictures_per_class") or len(labels)))
        if task == _CONTRASTIVE:
            shared = {name: value for name, value in chosen.items() if name in {"validation_fraction", "protocol"}}
            split, test = shared_class_split(labels, seed=0, **shared), ()  # type: ignore[arg-type]
        else:
            split = class_disjoint_split(labels, test, seed=0, **chosen)  # type: ignore[arg-type]
    except (ConfigError, ValueError, TypeError, OSError):
        return None
    _, counts = np.unique(labels[split.train], return_counts=True)
    sizes = counts if task == _CONTRASTIVE else np.bincount(labels)[np.setdiff1d(labels, test)]
    fewest = int(np.sort(np.minimum(sizes, most))[: len(counts)].sum())
    return TrainingPart(len(counts), int(counts.max()), fewest, task)


def _classes(dataset: str, root: Path, split_file: Value) -> tuple[Labels, tuple[int, ...]]:
    """Return the class of each picture, and the test classes."""
    import numpy as np

    from trainables.data import default_cache_dir
    from trainables.data.features import Features
    from trainables.data.image_folder import ImageFolder

    if dataset == _FEATURES:
        stored = Features(root=root, cache_dir=default_cache_dir()).listed()
        return stored.labels, stored.test_classes
    folder = ImageFolder(
        root=root, cache_dir=default_cache_dir(), split_file=None if split_file is None else str(split_file)
    )
    contents = folder.contents(np.arange(folder.counts()["images"]))
    return contents.labels, folder.test_classes(contents.class_names)
