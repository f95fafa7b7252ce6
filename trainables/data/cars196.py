"""Cars196: three layouts in circulation, one split."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trainables.data.picture_files import Listing, PictureFiles
from trainables.errors import DataError, Problem

__all__ = ["Cars196"]


class Cars196(PictureFiles):
    """16,185 pictures of 196 car models; classes 1 to 98 train, 99 to 196 test. The official train/test flag is ignored.

    Read from whichever layout is there (they number pictures differently, so each is read with its own annotations):
    the original car_ims/ with cars_annos.mat; cars_train/, cars_test/ with devkit/; or the by-class folders
    car_data/car_data/{train,test}/CLASS/ with names.csv, anno_train.csv and anno_test.csv.
    """

    name = "cars196"
    citation = "Krause et al., 3D Object Representations for Fine-Grained Categorization, 3dRR-13 2013"
    licence = "non-commercial research"
    source = "car_ims.tgz with cars_annos.mat, or a mirror of the devkit or of the by-class folders"
    expected: ClassVar = {
        "images": 16_185,
        "classes": 196,
        "train_images": 8_054,
        "train_classes": 98,
        "test_images": 8_131,
        "test_classes": 98,
    }
    marker = ""
    archives: ClassVar = {"car_ims.tgz": "d5c8f0aa497503f355e17dc7886c3f14"}

    def read(self, folder: Path) -> Listing:
        """The first layout whose annotations are there."""
        if (folder / "cars_annos.mat").exists():
            return _original(folder)
        if (folder / "devkit" / "cars_train_annos.mat").exists():
            return _devkit(folder)
        if (folder / "anno_train.csv").exists():
            return _by_class(folder)
        rule = "must hold cars_annos.mat, devkit/cars_train_annos.mat or anno_train.csv"
        raise DataError(Problem(str(folder), rule, None, f"Get it from: {self.source}."))


def _original(folder: Path) -> Listing:
    data = _mat(folder / "cars_annos.mat")
    rows = _structs(data, "annotations", folder / "cars_annos.mat", ("relative_im_path", "class"))
    names = [str(row["relative_im_path"]) for row in rows]
    return _listing(names, [row["class"] for row in rows], _names(data), ("cars_annos.mat",))


def _devkit(folder: Path) -> Listing:
    beside, inside = (
        folder / "cars_test_annos_withlabels.mat",
        folder / "devkit" / "cars_test_annos_withlabels.mat",
    )
    test = beside if beside.exists() or not inside.exists() else inside
    if not test.exists():
        rule = "the labels of the test pictures are needed: cars_test_annos.mat has none"
        raise DataError(
            Problem(str(beside), rule, None, "Put cars_test_annos_withlabels.mat beside devkit/.")
        )
    train = folder / "devkit" / "cars_train_annos.mat"
    names, numbers = [], []
    for part, path in (("cars_train", train), ("cars_test", test)):
        rows = _structs(_mat(path), "annotations", path, ("fname", "class"))
        names += [f"{part}/{row['fname']}" for row in rows]
        numbers += [row["class"] for row in rows]
    meta = _mat(folder / "devkit" / "cars_meta.mat")
    lists = [
        path.relative_to(folder).as_posix() for path in (train, test, folder / "devkit" / "cars_meta.mat")
    ]
    return _listing(names, numbers, _names(meta), lists)


def _by_class(folder: Path) -> Listing:
    class_names = [row[0] for row in _csv(folder / "names.csv", 1)]
    names, numbers = [], []
    for part in ("train", "test"):
        for row in _csv(folder / f"anno_{part}.csv", 2):
            number = int(row[-1])
            known = class_names[number - 1] if 0 < number <= len(class_names) else "?"
            names.append(f"car_data/car_data/{part}/{known.replace('/', '-')}/{row[0]}")
            numbers.append(number)
    return _listing(names, numbers, class_names, ("names.csv", "anno_train.csv", "anno_test.csv"))


def _listing(names: list[str], numbers: list[Any], class_names: list[str], lists: Any) -> Listing:
    labels = np.array([int(number) for number in numbers], dtype=np.int64) - 1
    wrong = sorted({int(label) + 1 for label in labels if not 0 <= label < len(class_names)})
    if wrong:
        raise DataError(Problem(lists[0], f"class numbers must lie in 1 .. {len(class_names)}", wrong[:5]))
    classes = len(class_names)
    return Listing(
        names, labels, tuple(class_names), tuple(range((classes + 1) // 2, classes)), lists=tuple(lists)
    )


def _mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        data: dict[str, Any] = loadmat(path, simplify_cells=True)
    except Exception as error:  # damaged files raise whatever they like
        raise DataError(Problem(str(path), "must be a readable MATLAB file", str(error))) from error
    return data


def _structs(data: dict[str, Any], key: str, path: Path, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: list[Any] = np.atleast_1d(np.asarray(data.get(key, []), dtype=object)).tolist()
    if not rows or any(field not in rows[0] for field in fields):
        has = (
            sorted(rows[0]) if rows and isinstance(rows[0], dict) else sorted(k for k in data if k[0] != "_")
        )
        rule = f"must hold the struct array {key!r} with fields {', '.join(fields)}"
        raise DataError(Problem(str(path), rule, has, "A test file without labels will not do."))
    return rows


def _names(data: dict[str, Any]) -> list[str]:
    return [
        str(name) for name in np.atleast_1d(np.asarray(data.get("class_names", []), dtype=object)).tolist()
    ]


def _csv(path: Path, columns: int) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except OSError as error:
        raise DataError(Problem(str(path), "the list must be readable", str(error))) from error
    for number, row in enumerate(rows, start=1):
        if len(row) < columns or (columns > 1 and not row[-1].strip().isdigit()):
            raise DataError(
                Problem(f"{path}:{number}", "must start with a file name and end with a class number", row)
            )
    return rows
