"""Find mistakes in the user's copy of a data set that change results but raise no error in training."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainables.config import Settings
from trainables.errors import ConfigError
from tune_dml.planning.checks.data import training_data
from tune_dml.planning.grouping import grouped
from tune_dml.text import counted

if TYPE_CHECKING:
    from trainables.data.base import DataSet, Pictures

_OTHER_RELEASES: Mapping[tuple[str, int], str] = {
    ("cub200", 6_033): "CUB-200 of 2010; CUB-200-2011 has 11,788 pictures"
}
"""(data set, number of pictures) -> release with that number."""
_SHIFTS = range(-3, 4)
_MOSTLY = 0.5


def data_findings(settings: Settings, cache_dir: Path | None) -> tuple[str, ...]:
    """Return notes on unusual files, counts, labels and duplicate pictures of a configuration's data.

    Decode the pictures on first use. Data that cannot be opened cause no findings; the sweep refuses them.
    """
    try:
        dataset = training_data(settings, cache_dir)
        if dataset.check():
            return (*_file_findings(dataset), *_count_findings(dataset))
        pictures = dataset.prepare()
    except ConfigError:
        return ()
    return (*_file_findings(dataset), *_count_findings(dataset), *_label_findings(dataset), *_copy_findings(pictures))


def _file_findings(dataset: DataSet) -> list[str]:
    """Return a note on files that macOS adds to archives; some readers mistake them for pictures."""
    root = getattr(dataset, "root", None)
    if root is None or not Path(root).is_dir():
        return []
    found = [path for path in Path(root).rglob("._*") if path.is_file()]
    example = found[0].relative_to(root).as_posix() if found else ""
    files = counted(len(found), "file") + (" begins" if len(found) == 1 else " begin")
    return [f"{files} with `._` ({example}): left by macOS, not pictures"] if found else []


def _count_findings(dataset: DataSet) -> list[str]:
    """Return notes on counts that differ from the published ones or belong to another release."""
    try:
        counts = dataset.counts()
    except ConfigError:
        return []
    if release := _OTHER_RELEASES.get((dataset.name, counts.get("images", 0))):
        return [f"these {counts['images']} pictures are those of {release}"]
    notes = []
    for name, expected in dataset.expected.items():
        own = counts.get(name, 0)
        if own == expected or not own:
            continue
        factor = "twice" if own == 2 * expected else "half of" if 2 * own == expected else ""
        how = f", {factor} the published {expected}" if factor else f"; {expected} are published"
        notes.append(f"{own} {name.replace('_', ' ')}{how}")
    return notes


def _label_findings(dataset: DataSet) -> list[str]:
    """Return a note if labels of pictures differ from the classes of their folders."""
    listing = getattr(dataset, "listing", None)
    if listing is None:
        return []
    folders = [PurePosixPath(name).parent.name for name in listing.names]
    return _label_shift(folders, np.asarray(listing.labels), listing.class_names)


def _label_shift(folders: Sequence[str], labels: NDArray[np.int64], class_names: Sequence[str]) -> list[str]:
    """Return a note on labels that differ from the folder's class, and their shift if most have the same."""
    number = {name: index for index, name in enumerate(class_names)}
    pairs = [(number[folder], int(label)) for folder, label in zip(folders, labels, strict=True) if folder in number]
    wrong = Counter(label - own for own, label in pairs if label != own)
    total = sum(wrong.values())
    if not total:
        return []
    shift, count = wrong.most_common(1)[0]
    if shift in _SHIFTS and count > _MOSTLY * len(pairs):
        return [
            f"labels are shifted by {shift:+d}: {count} of {len(pairs)} pictures are labelled as a neighbouring class"
        ]
    return [f"{total} of {len(pairs)} pictures are labelled as another class than that of their folder"]


def _copy_findings(pictures: Pictures) -> list[str]:
    """Return notes on equal pictures: within the test half, across halves and under different labels."""
    contents = (np.ascontiguousarray(pictures.images[index]).tobytes() for index in range(len(pictures)))
    digests = [hashlib.blake2b(content, digest_size=16).digest() for content in contents]
    test = np.isin(pictures.labels, pictures.test_classes)
    copies = [same for same in grouped(range(len(digests)), digests.__getitem__).values() if len(same) > 1]
    within = sum(int(test[same].sum()) - 1 for same in copies if test[same].sum() > 1)
    across = sum(bool(test[same].any() and not test[same].all()) for same in copies)
    mixed = sum(len(set(pictures.labels[same].tolist())) > 1 for same in copies)
    notes = []
    if within:
        notes.append(f"{within} of {int(test.sum())} test pictures are copies of others, which find each other first")
    if across:
        notes.append(
            f"{counted(across, 'picture')} of the test half also trains"
            if across == 1
            else f"{across} pictures of the test half also train"
        )
    if mixed:
        notes.append(f"{counted(mixed, 'picture')} with copies under other labels")
    return notes
