"""Cars196, in any of three published layouts."""

import csv
from collections.abc import Sequence
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trainables.data.formats.picture_files import PictureFiles, PictureListing, require_root, wrong_root
from trainables.errors import DataError, Problem

_LAYOUTS = ("cars_annos.mat", "devkit/cars_train_annos.mat", "anno_train.csv")


class Cars196(PictureFiles):
    """16,185 pictures of 196 car models; classes 1 to 98 train, 99 to 196 test, whatever the official flag says.

    Three layouts are read, each with its own annotations: car_ims/ with cars_annos.mat; cars_train/, cars_test/ with
    devkit/; or car_data/car_data/{train,test}/CLASS/ with names.csv, anno_train.csv and anno_test.csv.
    """

    name = "cars196"
    citation = "Krause et al., 3D Object Representations for Fine-Grained Categorization, 3dRR-13 2013"
    licence = "non-commercial research"
    source = "mirrors only: car_ims.tgz with cars_annos.mat, or the devkit's folders, or the by-class folders"
    dead = "ai.stanford.edu/~jkrause (404 since 2023), the imagenet.stanford.edu copies, torchvision's download"
    expected: ClassVar = {
        **{"images": 16_185, "classes": 196},
        **{"train_images": 8_054, "train_classes": 98, "test_images": 8_131, "test_classes": 98},
    }
    marker = ""
    folders = (".", "stanford_cars")
    archives: ClassVar = {"car_ims.tgz": "d5c8f0aa497503f355e17dc7886c3f14"}
    list_digests: ClassVar = {"cars_annos.mat": "b407c6086d669747186bd1d764ff9dbc"}

    @cached_property
    def folder(self) -> Path:
        """Return the first folder with a layout's annotations. Raise DataError if there is none."""
        if self.root.is_file():
            rule = "holds pictures but not their classes, which cars_annos.mat has"
            remedy = f"Extract it, put cars_annos.mat beside car_ims/ and pass that folder: {self.root.parent}."
            if self.root.suffix.lower() in (".mat", ".csv"):
                rule, remedy = "must be a folder", f"Pass the folder above, {self.root.absolute().parent}."
            raise DataError(Problem(str(self.root), rule, None, remedy))
        require_root(self.root, self.source)
        for folder in (self.root / name for name in self.folders):
            if any((folder / layout).exists() for layout in _LAYOUTS):
                return folder.resolve()
        rule = f"must hold {', '.join(_LAYOUTS[:-1])} or {_LAYOUTS[-1]}"
        raise wrong_root(self.root, rule, given=self.root, source=self.source, markers=_LAYOUTS)

    def read(self, folder: Path) -> PictureListing:
        if (folder / _LAYOUTS[0]).exists():
            return _read_original(folder)
        if (folder / _LAYOUTS[1]).exists():
            return _read_devkit(folder)
        return _read_by_class(folder)


def _read_original(folder: Path) -> PictureListing:
    data = _load_mat(folder / "cars_annos.mat")
    rows = _struct_rows(data, "annotations", folder / "cars_annos.mat", ("relative_im_path", "class"))
    names, class_names = [str(row["relative_im_path"]) for row in rows], _class_names(data, folder / "cars_annos.mat")
    labels = _labels(folder / "cars_annos.mat", [row["class"] for row in rows], len(class_names))
    return _make_listing(names, labels, class_names, ("cars_annos.mat",))


def _read_devkit(folder: Path) -> PictureListing:
    beside, inside = (folder / "cars_test_annos_withlabels.mat", folder / "devkit" / "cars_test_annos_withlabels.mat")
    test = beside if beside.exists() or not inside.exists() else inside
    if not test.exists():
        rule = "the labels of the test pictures are needed: cars_test_annos.mat has none"
        raise DataError(Problem(str(beside), rule, None, "Put cars_test_annos_withlabels.mat beside devkit/."))
    train = folder / "devkit" / "cars_train_annos.mat"
    meta = folder / "devkit" / "cars_meta.mat"
    class_names = _class_names(_load_mat(meta), meta)
    names, labels = [], []
    for part, path in (("cars_train", train), ("cars_test", test)):
        rows = _struct_rows(_load_mat(path), "annotations", path, ("fname", "class"))
        is_nested = (folder / part / part).is_dir()  # as some mirrors pack them
        names += [f"{part}/{part}/{row['fname']}" if is_nested else f"{part}/{row['fname']}" for row in rows]
        labels += _labels(path, [row["class"] for row in rows], len(class_names))
    lists = [path.relative_to(folder).as_posix() for path in (train, test, meta)]
    return _make_listing(names, labels, class_names, lists)


def _read_by_class(folder: Path) -> PictureListing:
    class_names = [row[0].strip() for row in _read_csv(folder / "names.csv", 1)]
    names, labels = [], []
    for part in ("train", "test"):
        path = folder / f"anno_{part}.csv"
        rows = _read_csv(path, 2)
        own_labels = _labels(path, [int(row[-1]) for row in rows], len(class_names))
        folders = [class_names[label].replace("/", "-") for label in own_labels]
        names += [f"car_data/car_data/{part}/{name}/{row[0]}" for name, row in zip(folders, rows, strict=True)]
        labels += own_labels
    return _make_listing(names, labels, class_names, ("names.csv", "anno_train.csv", "anno_test.csv"))


def _labels(path: Path, numbers: list[Any], classes: int) -> list[int]:
    """Return class numbers, from 1, as labels, from 0. Raise DataError for other values."""
    wrong = [number for number in numbers if not (isinstance(number, Real) and number in range(1, classes + 1))]
    if wrong:
        rule = f"class numbers must be whole and lie in 1 .. {classes}, but {len(wrong)} of {len(numbers)} do not"
        raise DataError(Problem(str(path), rule, wrong[:5], "Get it from the source of the other files."))
    return [int(number) - 1 for number in numbers]


def _make_listing(names: list[str], labels: list[int], class_names: list[str], lists: Sequence[str]) -> PictureListing:
    test_classes = tuple(range((len(class_names) + 1) // 2, len(class_names)))
    return PictureListing(names, np.array(labels, dtype=np.int64), tuple(class_names), test_classes, lists=tuple(lists))


def _load_mat(path: Path) -> dict[str, object]:
    from scipy.io import loadmat

    try:
        data: dict[str, object] = loadmat(path, simplify_cells=True)
    except Exception as error:  # scipy raises many kinds for damaged files
        rule = "must be there" if not path.exists() else "must be a readable MATLAB file"
        reason = None if not path.exists() else str(error)
        raise DataError(Problem(str(path), rule, reason, "Get it from the source of the other files.")) from error
    return data


def _struct_rows(data: dict[str, object], key: str, path: Path, fields: tuple[str, ...]) -> list[dict[str, object]]:
    rows: list[Any] = np.atleast_1d(np.asarray(data.get(key, []), dtype=object)).tolist()
    if not rows or not all(isinstance(row, dict) and row.keys() >= {*fields} for row in rows):
        has = sorted(rows[0]) if rows and isinstance(rows[0], dict) else sorted(k for k in data if k[0] != "_")
        rule = f"must hold the struct array {key!r} with fields {', '.join(fields)}"
        remedy = "Do not mix layouts, and use a test file with labels."
        raise DataError(Problem(str(path), rule, has, remedy))
    return rows


def _class_names(data: dict[str, object], path: Path) -> list[str]:
    if "class_names" not in data:
        has = sorted(key for key in data if key[0] != "_")
        raise DataError(Problem(str(path), "must hold class_names", has, "Get it from the source of the other files."))
    return [str(name) for name in np.atleast_1d(np.asarray(data["class_names"], dtype=object)).tolist()]


def _read_csv(path: Path, columns: int) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        rule, remedy = "the list must be there and readable", "Extract the archive again."
        raise DataError(Problem(str(path), rule, getattr(error, "strerror", None) or str(error), remedy)) from error
    for number, row in enumerate(rows, start=1):
        if len(row) < columns or (columns > 1 and not row[-1].strip().isdecimal()):
            rule, remedy = "must start with a file name and end with a class number", "Extract the archive again."
            raise DataError(Problem(f"{path}:{number}", rule, row, remedy))
    return rows
