"""Read and write a feature store: a folder with rows of float16, a table that describes them, and their digest.

    features.npy       (pictures * views, D) float16, the views of a picture one after the other
    metadata.parquet   a line per row: class, split (train, test, query or gallery), picture, view
    digest.json        sizes and SHA-256 of both files, and what made them: data, backbone, weights, views, code

Evaluation sees view 0 of a picture. The digest is written last, so a folder without it is incomplete.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trainables.data.formats.cache import fingerprint
from trainables.errors import DataError, Problem, raise_if_any
from trainables.files import sha256_of, write_whole

FEATURES, METADATA, DIGEST = "features.npy", "metadata.parquet", "digest.json"
_FORMAT = "tune_dml features 1"
_COLUMNS = ("class", "split", "picture", "view")
SPLITS = ("train", "test", "query", "gallery")
_MAKE_AGAIN = "Delete the folder and make it again with `tune-dml features`."
_CHECKED_ROWS = 65_536  # rows tested for finite numbers at a time

Rows = NDArray[np.float16]


@dataclass(frozen=True)
class StoreDigest:
    """Content of `digest.json`: shape, origin and files of a folder of features."""

    rows: int
    dimension: int
    views: int
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Data set, backbone, weights, augmentation and code; or the imported file."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """File name -> bytes, sha256 and the fingerprint of sampled blocks."""

    @property
    def network(self) -> str:
        """The backbone that made the features, and whether its weights were random."""
        random = "settings" in self.origin and self.origin["settings"].get("model.weights") is None
        return f"{self.origin.get('backbone', 'an unnamed backbone')}{' with random weights' if random else ''}"

    @property
    def pictures(self) -> int:
        return self.rows // self.views

    def to_json(self) -> dict[str, Any]:
        return {"format": _FORMAT, **{name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read `digest.json`. Raise DataError if it is missing or invalid."""
        file = folder / DIGEST
        if not folder.is_dir():
            rule = "the folder of features must exist"
            raise DataError(Problem(str(folder), rule, None, "`tune-dml features` makes one."))
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("format") != _FORMAT:
                raise ValueError("another format")
            digest = cls(**content)
            shape = (digest.rows, digest.dimension, digest.views)
            if not all(type(n) is int and n > 0 for n in shape) or digest.rows % digest.views:
                raise ValueError(f"rows, dimension, views: {shape}")
            if not isinstance(digest.origin, dict) or not isinstance(digest.origin.get("settings", {}), dict):
                raise TypeError("origin")
            for name in (FEATURES, METADATA):
                about = digest.files[name]
                if not (isinstance(about["sha256"], str) and isinstance(about["bytes"], int)):
                    raise TypeError(f"entry of {name}")
        except FileNotFoundError:
            rule = "the folder has no digest.json: it has no features, or `tune-dml features` was interrupted"
            raise DataError(Problem(str(folder), rule, None, "Run the same `tune-dml features` again.")) from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            rule = f"must be the digest of a folder of features ({type(error).__name__}: {error})"
            raise DataError(Problem(str(file), rule, None, _MAKE_AGAIN)) from error
        return digest


@dataclass(frozen=True)
class RowTable:
    """Class, split, picture and view of each row of features; the views of a picture are consecutive."""

    classes: NDArray[np.str_]  # class name of each row
    splits: NDArray[np.str_]
    pictures: NDArray[np.int64]
    views: NDArray[np.int64]

    @classmethod
    def of_pictures(cls, classes: Sequence[str], splits: Sequence[str], views: int) -> Self:
        """Describe `views` rows for each picture."""
        numbers = np.arange(len(classes))
        return cls(
            np.repeat(np.asarray(classes, dtype=str), views),
            np.repeat(np.asarray(splits, dtype=str), views),
            np.repeat(numbers, views),
            np.tile(np.arange(views), len(classes)),
        )

    def __len__(self) -> int:
        return len(self.classes)

    def problems(self, place: str, views: int) -> list[Problem]:
        """Return the problems that make the table unfit for training."""
        expected = np.arange(len(self))
        if not np.array_equal(self.views, expected % views) or (np.diff(self.pictures.reshape(-1, views)) != 0).any():
            rule = f"the {views} views of a picture must be consecutive rows, numbered from 0"
            return [Problem(place, rule, None, _MAKE_AGAIN)]
        if wrong := sorted(set(self.splits.tolist()) - set(SPLITS)):
            return [Problem(place, f"column split must hold {', '.join(SPLITS)}", wrong[:3])]
        is_test = np.isin(self.splits, SPLITS[1:])
        if shared := sorted(set(self.classes[is_test].tolist()) & set(self.classes[~is_test].tolist())):
            rule = f"a class must be a training or a test class, but {len(shared)} are both"
            return [Problem(place, rule, shared[:3], "Rename the classes, or correct column split.")]
        return self._search_problems(place)

    def _search_problems(self, place: str) -> list[Problem]:
        """Return the problem of queries and a gallery that do not fit each other."""
        query, gallery = (set(self.classes[self.splits == part].tolist()) for part in SPLITS[2:])
        if not query and not gallery:
            return []
        if count := int((self.splits == "test").sum()):
            rule = "beside queries and gallery no row may be test, because no search would use it"
            return [Problem(place, rule, f"{count} rows", "Write query or gallery.")]
        return [] if query & gallery else [Problem(place, "no query has a gallery picture of its class")]


class FeatureRows:
    """Stored features, view 0, that index like pictures of one pixel and D channels: (N, 1, 1, D)."""

    def __init__(self, rows: Rows, views: int) -> None:
        self.rows, self.views = rows, views
        self.shape: tuple[int, ...] = (len(rows) // views, 1, 1, rows.shape[1])
        self.dtype = rows.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Rows:
        chosen: Rows = self.rows[np.arange(len(self))[index] * self.views]
        return chosen[..., None, None, :]


def open_rows(folder: Path, digest: StoreDigest) -> FeatureRows:
    """Open the features, memory-mapped read-only. Raise DataError if they do not fit the digest."""
    try:
        rows = np.load(folder / FEATURES, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(Problem(str(folder / FEATURES), f"must be a .npy file ({error})", None, _MAKE_AGAIN)) from error
    if rows.shape != (digest.rows, digest.dimension) or rows.dtype != np.float16:
        rule = f"must hold {digest.rows} rows of {digest.dimension} float16, as digest.json says"
        got = f"{rows.dtype} of shape {rows.shape}"
        raise DataError(Problem(str(folder / FEATURES), rule, got, _MAKE_AGAIN))
    return FeatureRows(rows, digest.views)


def read_table(folder: Path) -> RowTable:
    """Read the table of rows. Raise DataError if it is missing or invalid."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(folder / METADATA, columns=list(_COLUMNS))
        classes, splits, pictures, views = (table[name].to_numpy() for name in _COLUMNS)
        return RowTable(classes.astype(str), splits.astype(str), pictures.astype(np.int64), views.astype(np.int64))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        rule = f"must be a Parquet table with the columns {', '.join(_COLUMNS)} ({str(error).splitlines()[0]})"
        raise DataError(Problem(str(folder / METADATA), rule, None, _MAKE_AGAIN)) from error


def finish_store(folder: Path, table: RowTable, views: int, origin: Mapping[str, Any]) -> StoreDigest:
    """Check the features in `folder/features.npy`, then write table and digest. Raise DataError if a check fails."""
    import pyarrow as pa
    from pyarrow import parquet

    file = folder / FEATURES
    rows = np.load(file, mmap_mode="r", allow_pickle=False)
    problems = [] if len(table) == len(rows) else [_length_problem(folder, len(rows), len(table))]
    raise_if_any(problems or table.problems(str(folder), views) or non_finite_problems(rows, str(file)), DataError)
    columns = [pa.array(part) for part in (table.classes, table.splits, table.pictures, table.views)]
    parquet.write_table(pa.table(columns, names=list(_COLUMNS)), folder / METADATA, compression="zstd")
    files = {name: _describe_file(folder / name) for name in (FEATURES, METADATA)}
    digest = StoreDigest(len(rows), rows.shape[1], views, origin, files)
    write_whole(folder / DIGEST, json.dumps(digest.to_json(), indent=2, ensure_ascii=False) + "\n")
    return digest


def _length_problem(folder: Path, rows: int, lines: int) -> Problem:
    rule = "features and metadata must have the same number of rows"
    return Problem(str(folder), rule, f"{rows} and {lines}", "Take both from one source.")


def non_finite_problems(rows: NDArray[Any], place: str) -> list[Problem]:
    """Return a problem that names the first row with a number that is not finite in float16."""
    for start in range(0, len(rows), _CHECKED_ROWS):
        finite = np.isfinite(rows[start : start + _CHECKED_ROWS]).all(axis=1)
        if not finite.all():
            number = start + int(np.flatnonzero(~finite)[0])
            rule = f"every feature must be a finite float16 (at most 65504), but row {number} has one that is not"
            return [Problem(place, rule, None, "Leave the row out, or scale the features.")]
    return []


def store_problems(folder: Path, *, whole: bool = False) -> list[Problem]:
    """Return how a folder differs from its digest. Compare sizes and sampled blocks, or every byte if `whole`."""
    try:
        digest = StoreDigest.read(folder)
        for name in (FEATURES, METADATA):
            _require_unchanged(folder / name, digest.files[name], whole=whole or name == METADATA)
        rows, table = open_rows(folder, digest), read_table(folder)
    except DataError as error:
        return list(error.problems)
    if len(table) != digest.rows:
        return [_length_problem(folder, digest.rows, len(table))]
    found = table.problems(str(folder / METADATA), digest.views)
    return found + (non_finite_problems(rows.rows, str(folder / FEATURES)) if whole else [])


def _require_unchanged(file: Path, about: Mapping[str, Any], *, whole: bool) -> None:
    """Raise DataError unless a file is the one that the digest describes."""
    try:
        now = _describe_file(file) if whole else {"bytes": file.stat().st_size, "fingerprint": fingerprint(file)}
    except OSError as error:
        raise DataError(Problem(str(file), f"must be readable ({error.strerror})", None, _MAKE_AGAIN)) from error
    for name, value in now.items():
        if value != about.get(name):
            rule = f"{name} must be {str(about.get(name))[:16]}, as digest.json says: the file was changed or cut"
            raise DataError(Problem(str(file), rule, str(value)[:16], _MAKE_AGAIN))


def _describe_file(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": sha256_of(file), "fingerprint": fingerprint(file)}
