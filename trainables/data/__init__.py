"""Data sets by name: the registry `DATASETS` and `build_dataset`. Imports no torch."""

from pathlib import Path

from trainables.data.base import DataSet, Pictures, open_pictures
from trainables.data.formats.cache import default_cache_dir
from trainables.files import expand_home
from trainables.methods import Registry, build

__all__ = ["DATASETS", "DataSet", "Pictures", "build_dataset", "default_cache_dir", "open_pictures"]

DATASETS = Registry(__name__, DataSet, group="tune_dml.datasets")  # type: ignore[type-abstract]


def build_dataset(
    name: str, *, root: str | Path | None = None, cache_dir: str | Path | None = None, **knobs: object
) -> DataSet:
    """Create the data set called `name` without reading a file; `root` is the user's folder or archive, if it needs one.

    Raises ConfigError for an unknown name or a wrong knob.

    Example:
        >>> from trainables.data import build_dataset
        >>> build_dataset("digits", scale=4).counts()
        {'images': 1797, 'classes': 10}
    """
    context = {
        "root": None if root is None else expand_home(root),
        "cache_dir": default_cache_dir() if cache_dir is None else expand_home(cache_dir),
    }
    return build(DATASETS, "data set", name, knobs, context, "data")
