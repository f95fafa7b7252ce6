"""Data sets by name: `DATASETS` maps each configuration name to its class, `build_dataset` makes one from checked knobs.

Imports no torch.
"""

from __future__ import annotations

from pathlib import Path

from trainables.data.base import DataSet, Pictures, open_pictures
from trainables.data.formats.cache import default_cache_dir
from trainables.files import expanded
from trainables.methods import Registry, build

__all__ = ["DATASETS", "DataSet", "Pictures", "build_dataset", "default_cache_dir", "open_pictures"]

DATASETS = Registry(__name__, DataSet, group="tune_dml.datasets")  # type: ignore[type-abstract]


def build_dataset(
    name: str, *, root: str | Path | None = None, cache_dir: str | Path | None = None, **knobs: object
) -> DataSet:
    """The data set called `name`, e.g. `build_dataset("image_folder", root="~/birds", size=64)`.

    `root` is where the user's files are (needed by sets that are not made from installed packages); `cache_dir` is where
    decoded pictures are kept (default: `default_cache_dir()`). Reads nothing yet: call `check()` and `prepare()`.
    Raises ConfigError.
    """
    context = {
        "root": None if root is None else expanded(root),
        "cache_dir": default_cache_dir() if cache_dir is None else expanded(cache_dir),
    }
    return build(DATASETS, "data set", name, knobs, context, "data")
