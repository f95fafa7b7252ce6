"""CUB-200-2011: birds."""

from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np

from trainables.data.formats.picture_files import PictureFiles, PictureListing, read_columns
from trainables.data.formats.stored import list_names
from trainables.errors import DataError, Problem, raise_if_any


class Cub200(PictureFiles):
    """11,788 pictures of 200 bird species; classes 1 to 100 train, 101 to 200 test (zero-shot split).

    The official train_test_split.txt splits within classes and is not used.
    """

    name = "cub200"
    citation = "Wah et al., The Caltech-UCSD Birds-200-2011 Dataset, CNS-TR-2011-001"
    licence = "non-commercial research"
    source = "data.caltech.edu/records/65de6-vp158 (CUB_200_2011.tgz)"
    dead = "www.vision.caltech.edu/visipedia-data"
    expected: ClassVar = {
        **{"images": 11_788, "classes": 200},
        **{"train_images": 5_864, "train_classes": 100, "test_images": 5_924, "test_classes": 100},
    }
    marker = "images.txt"
    folders = (".", "CUB_200_2011")
    archives: ClassVar = {"CUB_200_2011.tgz": "97eceeb196236b17998738112f37df78"}

    def read(self, folder: Path) -> PictureListing:
        lists = ("images.txt", "image_class_labels.txt", "classes.txt")
        images, labels, classes = (read_columns(folder / name, 2) for name in lists)
        problems = [
            Problem(str(folder / name), "a number may be listed once", f"{number}, {times} times", "Extract it again.")
            for name, rows in zip(lists, (images, labels, classes), strict=True)
            for number, times in Counter(row[0] for row in rows).items()
            if times > 1
        ]
        class_of, class_names = dict(labels), dict(classes)
        if lost := [f"{number} {path}" for number, path in images if class_of.get(number) not in class_names]:
            rule = f"{len(lost)} of {len(images)} pictures of images.txt have no class"
            problems.append(Problem(str(folder / lists[1]), rule, list_names(lost), "Extract it again."))
        problems += [
            Problem(str(folder / lists[2]), "classes must be numbered", number, "Extract it again.")
            for number in class_names
            if not number.isdecimal()
        ]
        raise_if_any(problems[:10], DataError)
        order = sorted(class_names, key=int)
        label = {number: i for i, number in enumerate(order)}
        return PictureListing(
            names=[f"images/{path}" for _, path in images],
            labels=np.array([label[class_of[number]] for number, _ in images], dtype=np.int64),
            class_names=tuple(class_names[number] for number in order),
            test_classes=tuple(range((len(order) + 1) // 2, len(order))),
            lists=lists,
        )
