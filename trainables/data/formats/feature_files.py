"""Convert features in published file formats to a feature store; nothing is unpickled.

    folder of .npy + .parquet     embedding-reader, clip-retrieval: parts in the order of the numbers in their names
    .npy, .npz                    numpy, without objects
    .h5, .hdf5                    ILIAS: data sets `features` and `index` (needs h5py)
    .safetensors                  a JSON header, then the numbers
    .pt, .pth                     torch, loaded with weights_only

Labels are an array of the file, a column of the metadata, or a table `id,class` (--labels).
"""

import json
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from trainables.data.formats.cache import require_space
from trainables.data.formats.feature_store import FEATURES, RowTable, StoreDigest, finish_store, non_finite_problems
from trainables.data.formats.picture_table import part_of
from trainables.data.formats.table_rows import in_class_order, read_rows
from trainables.errors import DataError, Problem, raise_if_any
from trainables.files import sha256_of

_FEATURE_NAMES = ("features", "feats", "embeddings", "embedding", "image_embeds", "x")
_LABEL_NAMES = ("class", "label", "labels", "classes", "targets", "target", "y")
_ID_NAMES = ("index", "ids", "id", "image_path", "path", "filename", "key")
_BLOCK = 65_536  # rows converted at a time
_SMALLEST = float(np.finfo(np.float16).smallest_normal)  # below it float16 loses digits
Columns = Mapping[str, NDArray[Any]]
_SAFETENSOR_TYPES = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, BadZipFile,
               zlib.error, struct.error, OverflowError, MemoryError)  # fmt: skip
"""Exceptions that readers raise for damaged files."""
_TEXT_REMEDY = "Store text as text: np.savez(FILE, features=x, label=label.astype(str))."
_MAX_EXPANDED, _MAX_RATIO = 2**30, 100
"""A file may expand to this many bytes, or to this multiple of its size if that is more."""


def import_features(source: Path, folder: Path, *, labels: Path | None = None) -> StoreDigest:
    """Convert published features, a file or a folder of .npy parts with .parquet metadata, to a new folder of float16.

    `labels` is a table `id,class` (CSV or Parquet, optional column split), joined by the ids of the source, else by row
    numbers or order. Raises DataError if the files cannot be read or do not fit each other, or if a row is not finite or
    too small for float16.
    """
    if folder.exists() and any(folder.iterdir()):
        raise DataError(Problem(str(folder), "the folder must be empty", None, "Choose another one with -o."))
    try:
        features, columns = _read(source)
    except _UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = f"{type(error).__name__}: {reason}" if isinstance(error, LookupError) else reason  # only a key
        rule = f"must be readable as features ({reason})"
        remedy = _TEXT_REMEDY if reason.startswith("Object arrays") else "Store it or copy it again."
        raise DataError(Problem(str(source), rule, None, remedy)) from error
    classes, splits = _classes_and_splits(source, columns, labels, sum(len(part) for part in features))
    table = RowTable.of_pictures(classes, splits, 1)
    raise_if_any(table.problems(str(labels or source), 1), DataError)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write_rows(folder, features, source)
        names = [path for path in (source, labels) if path is not None and path.is_file()]
        origin = {"dataset": source.name, "backbone": "imported", "from": {p.name: sha256_of(p) for p in names}}
        return finish_store(folder, table, 1, origin)
    except BaseException:  # also a full disk or Ctrl-C: the next attempt needs an empty folder
        for file in folder.iterdir():
            file.unlink()
        raise


def _read(source: Path) -> tuple[list[NDArray[Any]], Columns]:
    """Return the parts of the features, in order, and the arrays that describe rows."""
    if source.is_dir():
        return _read_folder(source)
    readers: dict[str, Callable[[Path], Columns]] = {
        ".npy": lambda file: {"features": np.load(file, mmap_mode="r", allow_pickle=False)},
        ".npz": _read_npz,
        ".h5": _read_hdf5,
        ".hdf5": _read_hdf5,
        ".safetensors": _read_safetensors,
        ".pt": _read_torch,
        ".pth": _read_torch,
    }
    if source.suffix.lower() not in readers:
        rule = f"must be a folder or one of {', '.join(readers)}"
        raise DataError(Problem(str(source), rule, source.suffix or "no suffix"))
    arrays = readers[source.suffix.lower()](source)
    name = _find_features(arrays)
    if name is None:
        names = " or ".join(_FEATURE_NAMES[:3])
        rule = f"must have a float array (rows, dimension) named {names}, or only one such array"
        found = {key: f"{array.dtype}{array.shape}" for key, array in arrays.items()}
        raise DataError(Problem(str(source), rule, found))
    columns = {key: array[:, 0] if array.shape[1:] == (1,) else array for key, array in arrays.items() if key != name}
    vectors = {key: array for key, array in columns.items() if array.ndim == 1}
    if not any(key in _LABEL_NAMES for key in vectors):  # name labels of a wrong shape, such as one-hot rows
        vectors |= {key: array for key, array in columns.items() if key in _LABEL_NAMES and array.ndim}
    return [arrays[name]], vectors


def _read_folder(source: Path) -> tuple[list[NDArray[Any]], Columns]:
    from pyarrow import concat_tables, parquet

    parts, tables = (_files_by_number(source, suffix) for suffix in (".npy", ".parquet"))
    if not parts:
        remedy = "For a folder of pictures: `tune-dml features image_folder --data-root FOLDER --backbone NAME`."
        raise DataError(Problem(str(source), "the folder must hold .npy files with features", None, remedy))
    features = [np.load(part, mmap_mode="r", allow_pickle=False) for part in parts]
    if any(part.ndim != 2 or part.dtype.kind != "f" or part.shape[1] != features[0].shape[1] for part in features):
        found = [f"{part.dtype}{part.shape}" for part in features]
        raise DataError(Problem(str(source), "all parts must be floats of the shape (rows, dimension)", found[:3]))
    if not tables:
        return features, {}
    rows = [parquet.read_table(file) for file in tables]
    pairs = zip(parts, features, tables, rows, strict=True) if len(parts) == len(tables) else ()
    if unequal := [pair for pair in pairs if len(pair[1]) != len(pair[3])]:
        part, array, file, own_rows = unequal[0]
        rule = f"{part.relative_to(source)} and {file.relative_to(source)} must have the same number of rows"
        raise DataError(Problem(str(source), rule, f"{len(array)} and {len(own_rows)}"))
    table = concat_tables(rows, promote_options="default")
    return features, {name: table[name].to_numpy() for name in table.column_names}


def _files_by_number(source: Path, suffix: str) -> list[Path]:
    """Return the visible files of this suffix, sorted by name; part_2 comes before part_10."""

    def parts_of_name(path: Path) -> list[str | int]:
        texts = re.split(r"(\d+)", path.relative_to(source).as_posix())  # text, number, text ...
        return [int(text) if number % 2 else text for number, text in enumerate(texts)]

    return sorted((path for path in source.rglob(f"*{suffix}") if path.name[0] != "."), key=parts_of_name)


def _require_plausible(source: Path, size: int) -> None:
    """Raise ValueError for a small file that would fill the memory."""
    if size > max(_MAX_EXPANDED, _MAX_RATIO * source.stat().st_size):
        raise ValueError(f"it would expand to {size / 1e9:.1f} GB, more than {_MAX_RATIO} times its size")


def _read_npz(source: Path) -> Columns:
    with ZipFile(source) as archive:
        _require_plausible(source, sum(part.file_size for part in archive.infolist()))
    return {name: array for name, array in np.load(source, allow_pickle=False).items() if isinstance(array, np.ndarray)}


def _read_hdf5(source: Path) -> Columns:
    try:
        import h5py
    except ImportError:
        raise DataError(Problem(str(source), "HDF5 needs h5py", None, "Run `pip install h5py`.")) from None
    with h5py.File(source, "r") as file:
        found = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset) and item.shape}
        for name, item in found.items():
            if item.external or item.is_virtual or item.file.filename != file.filename:
                raise ValueError(f"{name} lies in another file")
        _require_plausible(source, sum(item.nbytes for item in found.values()))
        return {name: item.asstr()[:] if item.dtype.kind == "O" else item[:] for name, item in found.items()}


def _read_safetensors(source: Path) -> Columns:
    """Map the tensors of a safetensors file into memory: 8 bytes length, a JSON header, the tensors."""
    size = source.stat().st_size
    with source.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
    arrays = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if about["dtype"] not in _SAFETENSOR_TYPES:
            raise ValueError(f"tensor {name} has the type {about['dtype']}")
        kind = np.dtype(_SAFETENSOR_TYPES[about["dtype"]])
        begin, end = about["data_offsets"]
        if end - begin != int(np.prod(about["shape"])) * kind.itemsize or begin < 0 or 8 + length + end > size:
            raise ValueError(f"tensor {name} does not fit the file")
        array = np.memmap(source, kind, "r", offset=8 + length + begin, shape=tuple(about["shape"]))
        widened = about["dtype"] == "BF16"  # the upper half of a float32
        arrays[name] = (array.astype(np.uint32) << 16).view(np.float32) if widened else array
    return arrays


def _read_torch(source: Path) -> Columns:
    import pickle

    import torch

    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        rule, remedy = "must hold only tensors and lists", 'Store these: torch.save({"features": x, "label": y}, FILE).'
        raise DataError(Problem(str(source), rule, None, remedy)) from error
    except LookupError as error:  # the unpickler knows no such instruction
        raise ValueError("torch.save did not write it") from error
    if isinstance(content, torch.Tensor):
        content = {"features": content}
    if not isinstance(content, dict):
        raise TypeError(f"it holds {type(content).__name__}, not a tensor or a dictionary of tensors")
    arrays = {}
    for name, value in content.items():
        if isinstance(value, torch.Tensor):
            arrays[str(name)] = (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
        elif isinstance(value, list):
            arrays[str(name)] = np.asarray(value)
    return arrays


def _find_features(arrays: Columns) -> str | None:
    """Return the name of the first 2-d array with a known name if it has floats, else of the only 2-d float array."""
    tables = [name for name, array in arrays.items() if array.ndim == 2]
    floats = [name for name in tables if arrays[name].dtype.kind == "f"]
    named = [name for name in _FEATURE_NAMES if name in tables]
    chosen = named[:1] or (floats if len(floats) == 1 else [])
    return chosen[0] if chosen and chosen[0] in floats else None


def _text_entries(column: NDArray[Any], place: str) -> list[str]:
    """Return the entries of a column of classes, splits or ids as text. Raise DataError for a missing one."""
    words = []
    for row, value in enumerate(column.tolist()):
        try:
            word = value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError as error:  # replaced letters could make two classes one
            raise DataError(Problem(place, f"text must be UTF-8, but that of row {row} is not", value)) from error
        if word == "" or value is None or value != value:  # noqa: PLR0124 - NaN
            raise DataError(Problem(place, f"every row needs a value, but row {row} has none", None, "Fill it in."))
        words.append(word)
    return words


def _classes_and_splits(source: Path, columns: Columns, labels: Path | None, rows: int) -> tuple[list[str], list[str]]:
    """Return class and split of each row; without splits the second half of the sorted classes is the test half."""
    if labels is not None:
        table = _label_table(labels)
        without_labels = {name: column for name, column in columns.items() if name not in _LABEL_NAMES}
        described = without_labels if any(name in table for name in _LABEL_NAMES) else columns
        columns = _join_labels(described, table, labels)
    for name, column in columns.items():
        if name in (*_LABEL_NAMES, "split") and len(column) != rows:
            rule = "features and metadata must have the same number of rows"
            remedy = "Move away .npy files of other arrays, such as text embeddings." if source.is_dir() else ""
            raise DataError(Problem(str(labels or source), rule, f"{rows} and {len(column)} ({name})", remedy))
    label = next((name for name in _LABEL_NAMES if name in columns), None)
    if label is None:
        rule = f"each row needs a class: an array or column called {', '.join(_LABEL_NAMES[:3])}"
        raise DataError(Problem(str(source), rule, list(columns), "Pass a table of id,class with --labels FILE."))
    place = str(labels or source)
    if columns[label].ndim != 1:
        rule, remedy = "the classes must have one dimension", "For one-hot rows: store label.argmax(1)."
        raise DataError(Problem(f"{place}, {label}", rule, columns[label].shape, remedy))
    classes = _text_entries(columns[label], f"{place}, {label}")
    if "split" in columns:
        return classes, [part_of(word) for word in _text_entries(columns["split"], f"{place}, split")]
    sorted_classes = in_class_order(classes)
    test_classes = set(sorted_classes[(len(sorted_classes) + 1) // 2 :])
    return classes, ["test" if name in test_classes else "train" for name in classes]


def _label_table(labels: Path) -> Columns:
    """Read a table of labels with a header, or lines `id,class`."""
    lines = [[cell.strip() for cell in cells] for _, cells in read_rows(labels)]
    if not lines:
        raise DataError(Problem(str(labels), "must be a table of labels, but it is empty"))
    header = [name.casefold() for name in lines[0]]
    if any(name in header for name in _LABEL_NAMES):
        del lines[0]
    else:
        header = ["id", "class", *(f"column {n}" for n in range(3, len(header) + 1))]
    if wrong := next((line for line in lines if len(line) != len(header)), None):
        rule = f"every line must have {len(header)} cells"
        raise DataError(Problem(str(labels), rule, ",".join(wrong)))
    return {name: np.asarray([line[position] for line in lines]) for position, name in enumerate(header)}


def _join_labels(columns: Columns, table: Columns, labels: Path) -> Columns:
    """Put a table of labels in the order of the features: by id if both have ids, or if the table's number the rows."""
    own, theirs = (next((name for name in _ID_NAMES if name in part), None) for part in (columns, table))
    other_columns = [name for name in table if name not in (*_LABEL_NAMES, "split")]
    if own is not None and theirs is None and other_columns:
        rule = f"no column is called as the ids of the features are ({', '.join(_ID_NAMES[:3])} ...)"
        raise DataError(Problem(str(labels), rule, other_columns, f"Call the column of ids {own}."))
    place = f"{labels}, {theirs}"
    if theirs is None or (own is None and not _number_rows(table[theirs], place)):
        return {**columns, **table}
    ids = _text_entries(table[theirs], place)
    ids = ids if own else [str(int(float(word))) for word in ids]  # such as 03 or 3.0
    positions = {key: number for number, key in enumerate(ids)}
    if len(positions) < len(ids):
        repeated = [key for key, count in Counter(ids).items() if count > 1]
        rule = f"every id must be listed once, but {len(repeated)} are listed several times"
        raise DataError(Problem(str(labels), rule, repeated[:3]))
    keys = _text_entries(columns[own], own) if own else [str(row) for row in range(len(ids))]
    if missing := [key for key in keys if key not in positions]:
        rule = f"every id of the features must be listed, but {len(missing)} are missing"
        raise DataError(Problem(str(labels), rule, missing[:3]))
    order = np.asarray([positions[key] for key in keys])
    return {**columns, **{name: column[order] for name, column in table.items() if name != theirs}}


def _number_rows(ids: NDArray[np.str_], place: str) -> bool:
    """Return whether ids are 0, 1, 2 ..., in any order. Raise DataError for 1, 2, 3 ... or repeats in another order."""
    if not all(re.fullmatch(r"\d{1,15}(\.0+)?", word) for word in ids.tolist()):
        return False
    numbers = ids.astype(np.float64)
    number_rows, is_sorted = np.array_equal(np.sort(numbers), np.arange(len(ids))), (np.diff(numbers) >= 0).all()
    in_order = "or leave the ids out if the lines are in the order of the rows."
    if not is_sorted and np.array_equal(np.sort(numbers), np.arange(1, len(ids) + 1)):
        rule = "ids that number rows begin at 0, but these begin at 1 and are not sorted"
        raise DataError(Problem(place, rule, ids[:5].tolist(), f"Subtract 1, {in_order}"))
    if not (is_sorted or number_rows) and numbers.max() < len(ids):
        rule, (repeated, _) = "ids that number rows must be listed once", Counter(ids.tolist()).most_common(1)[0]
        raise DataError(Problem(place, rule, repeated, f"Correct the ids, {in_order}"))
    return number_rows


def _write_rows(folder: Path, features: Sequence[NDArray[Any]], source: Path) -> None:
    shape = (sum(len(part) for part in features), features[0].shape[1])
    if not all(shape):
        raise DataError(Problem(str(source), "must hold at least one row and one column", shape))
    require_space(folder, shape[0] * shape[1] * 2)
    target = np.lib.format.open_memmap(folder / FEATURES, mode="w+", dtype=np.float16, shape=shape)
    row = 0
    for part in features:
        for start in range(0, len(part), _BLOCK):
            block = part[start : start + _BLOCK]
            with np.errstate(over="ignore"):  # `finish_store` reports infinite values
                target[row : row + len(block)] = block
            if len(lost := np.flatnonzero(np.abs(block).max(axis=1) < _SMALLEST)):
                rule = f"the numbers of row {row + int(lost[0])} are all 0, or below {_SMALLEST:.1g}: too small for float16"
                remedy = "Leave the row out, which has no direction, or scale the features."
                raise DataError(Problem(str(source), rule, None, remedy))
            row += len(block)
    target.flush()
    raise_if_any(non_finite_problems(target, str(source)), DataError)
