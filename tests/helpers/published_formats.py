"""Write small data sets in the published formats."""

import io
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

MAGIC = 0xCED7230A


def picture(path: Path, seed: int, size: tuple[int, int] = (24, 18), mode: str = "RGB") -> None:
    """Write a smooth random picture of (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(seed, size).convert(mode).save(path)


def draw(seed: int, size: tuple[int, int] = (24, 18)) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def jpeg(seed: int, size: tuple[int, int] = (112, 112)) -> bytes:
    buffer = io.BytesIO()
    draw(seed, size).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def image_folder(folder: Path, classes: int = 8, each: int = 5) -> Path:
    """Write class0/0.jpg, class0/1.png, ..."""
    for c in range(classes):
        for i in range(each):
            picture(folder / f"class{c}" / f"{i}.{'png' if i % 2 else 'jpg'}", seed=c * each + i, size=(36, 40))
    return folder


def cub(folder: Path, classes: int = 4, each: int = 3) -> Path:
    """Write CUB_200_2011/: space-separated lists, numbered from 1; one picture is grey."""
    folder.mkdir(parents=True)
    images, labels, names, boxes = [], [], [], []
    number = 0
    for c in range(1, classes + 1):
        name = f"{c:03d}.Bird_{c}"
        names.append(f"{c} {name}")
        for i in range(each):
            number += 1
            path = f"{name}/Bird_{c}_{i:04d}.jpg"
            picture(folder / "images" / path, number, (40, 26), mode="L" if number == 1 else "RGB")
            images.append(f"{number} {path}")
            labels.append(f"{number} {c}")
            boxes.append(f"{number} 1.0 2.0 10.0 12.0")
    for file, lines in [
        ("images.txt", images),
        ("image_class_labels.txt", labels),
        ("classes.txt", names),
        ("bounding_boxes.txt", boxes),
        ("train_test_split.txt", [f"{n} {n % 2}" for n in range(1, number + 1)]),
    ]:
        (folder / file).write_text("\n".join(lines) + "\n")
    return folder


CARS = ["AM General Hummer SUV 2000", "Ram C/V Cargo Van 2012", "Audi TT 2011", "BMW M3 2012"]


def _struct(rows: list[dict[str, object]]) -> np.ndarray:
    """Return a MATLAB struct array as in the annotation files."""
    array = np.zeros((1, len(rows)), dtype=[(key, object) for key in rows[0]])
    for i, row in enumerate(rows):
        for key, value in row.items():
            array[0, i][key] = value
    return array


def cars_original(
    folder: Path, names: list[str] = CARS, each: int = 2, numbers: Sequence[object] | None = None
) -> Path:
    """Write car_ims/ and cars_annos.mat; `numbers` are the class numbers of the first pictures."""
    from scipy.io import savemat

    rows, given = [], dict(enumerate(numbers or (), start=1))
    for i in range(1, len(names) * each + 1):
        path = f"car_ims/{i:06d}.jpg"
        picture(folder / path, i)
        box = {f"bbox_{k}": 1 for k in ("x1", "y1", "x2", "y2")}
        rows.append({"relative_im_path": path, **box, "class": given.get(i, (i - 1) // each + 1), "test": i % 2})
    savemat(folder / "cars_annos.mat", {"annotations": _struct(rows), "class_names": np.array([names], dtype=object)})
    return folder


def cars_devkit(folder: Path, *, labelled: bool = True) -> Path:
    from scipy.io import savemat

    (folder / "devkit").mkdir(parents=True)
    for part, target in [("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")]:
        rows = []
        for i in range(1, 5):
            picture(folder / f"cars_{part}" / f"{i:05d}.jpg", i)
            row = {**{f"bbox_{k}": 1 for k in ("x1", "y1", "x2", "y2")}, "class": i, "fname": f"{i:05d}.jpg"}
            rows.append(row)
        if labelled or part == "train":
            savemat(folder / target, {"annotations": _struct(rows)})
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array([CARS], dtype=object)})
    return folder


def cars_by_class(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "names.csv").write_text("\n".join(CARS) + "\n")
    for part in ("train", "test"):
        lines = []
        for i, name in enumerate(CARS, start=1):
            picture(folder / "car_data/car_data" / part / name.replace("/", "-") / f"{i:05d}.jpg", i)
            lines.append(f"{i:05d}.jpg,1,2,3,4,{i}")
        (folder / f"anno_{part}.csv").write_text("\n".join(lines) + "\n")
    return folder


def sop(folder: Path, train: int = 3, test: int = 2, each: int = 2) -> Path:
    folder.mkdir(parents=True)
    number = 0
    every = range(1, train + test + 1)
    for part, classes in [("train", every[:train]), ("test", every[train:])]:
        lines = ["image_id class_id super_class_id path"]
        for c in classes:
            for i in range(each):
                number += 1
                path = f"bicycle_final/{c}_{i}.JPG"
                picture(folder / path, number, mode="L" if number == 2 else "RGB")
                lines.append(f"{number} {c} {c % 2 + 1} {path}")
        (folder / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


INSHOP = [(1, ["train"] * 3), (2, ["train"] * 2), (7, ["query", "gallery", "gallery"]), (9, ["gallery", "query"])]


def inshop(folder: Path, lists: str = "", items: list[tuple[int, list[str]]] = INSHOP) -> Path:
    rows = []
    for item, parts in items:
        for i, part in enumerate(parts):
            path = f"img/WOMEN/Dresses/id_{item:08d}/0{i}_1_front.jpg"
            picture(folder / path, 10 * item + i, (24, 24))
            rows.append(f"{path:<78}id_{item:08d}    {part}")
    target = folder / lists / "list_eval_partition.txt"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{len(rows)}\nimage_name item_id evaluation_status\n" + "\n".join(rows) + "\n")
    return folder


def lfw(folder: Path, below: str = "lfw_funneled") -> Path:
    people = {"Ann_Bee": 3, "Cy_Dee": 2, "Eve": 1}
    for p, (name, count) in enumerate(people.items()):
        for i in range(1, count + 1):
            picture(folder / below / name / f"{name}_{i:04d}.jpg", 10 * p + i, (50, 50))
    same = ["Ann_Bee\t1\t2", "Cy_Dee\t1\t2", "Ann_Bee\t1\t3", "Ann_Bee\t2\t3"]
    different = ["Ann_Bee\t1\tEve\t1", "Cy_Dee\t2\tEve\t1", "Ann_Bee\t3\tCy_Dee\t1", "Ann_Bee\t2\tCy_Dee\t2"]
    lines = ["2\t2", *same[:2], *different[:2], *same[2:], *different[2:]]
    (folder / "pairs.txt").write_text("\n".join(lines) + "\n")
    return folder


def cifar10(folder: Path, each: int = 4) -> Path:
    """Write five batches and a test batch, pickled in protocol 2 with Python 2 text keys."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        data = rng.integers(0, 256, (each, 3072), dtype=np.uint8)
        batch = {"batch_label": name, "data": data, "filenames": ["x"] * each}
        batch["labels"] = rng.integers(0, 10, each).tolist()
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {"label_names": [f"kind{i}" for i in range(10)], "num_cases_per_batch": each, "num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return folder


def cifar100(folder: Path, each: int = 0) -> Path:
    """Write `each` pictures per batch of 20 of the 100 classes; by default a few of any."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for name, count in [("train", 12), ("test", 5)]:
        batch = {
            "fine_labels": (np.arange(each) % 20).tolist() if each else rng.integers(0, 100, count).tolist(),
            "coarse_labels": rng.integers(0, 20, each or count).tolist(),
            "data": rng.integers(0, 256, (each or count, 3072), dtype=np.uint8),
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {"fine_label_names": [f"f{i}" for i in range(100)], "coarse_label_names": [f"c{i}" for i in range(20)]}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    return folder


def face_bin(path: Path, pairs: int = 10) -> list[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = [jpeg(i) for i in range(2 * pairs)]
    path.write_bytes(pickle.dumps((encoded, [i % 2 == 0 for i in range(pairs)]), protocol=2))
    return encoded


def record(labels: float | list[float], payload: bytes, number: int, *, split_at: int | None = None) -> bytes:
    """Return one record as MXNet writes it; `split_at` cuts it at a magic number inside the bytes."""
    flag = 0 if isinstance(labels, float) else len(labels)
    head = struct.pack("<IfQQ", flag, labels if flag == 0 else 0.0, number, 0)
    body = head + (b"" if flag == 0 else struct.pack(f"<{flag}f", *labels)) + payload
    if split_at is None:
        return _part(0, body)
    cut = len(body) - len(payload) + split_at
    assert body[cut : cut + 4] == struct.pack("<I", MAGIC)
    return _part(1, body[:cut]) + _part(3, body[cut + 4 :])


def _part(flag: int, body: bytes) -> bytes:
    return struct.pack("<II", MAGIC, flag << 29 | len(body)) + body + b"\0" * (-len(body) % 4)


def webface(folder: Path, people: tuple[int, ...] = (3, 2, 2)) -> Path:
    """Write train.rec: header record 0, pictures 1 .. n, then one identity record per person."""
    folder.mkdir(parents=True)
    count = sum(people)
    records = [record([float(count + 1), float(count + 1 + len(people))], b"", 0)]
    number = 1
    for person, pictures in enumerate(people):
        for _ in range(pictures):
            label = float(person) if number % 2 else [float(person), 0.0]  # both forms occur
            records.append(record(label, jpeg(number), number))
            number += 1
    records += [record([1.0, 2.0], b"", number + i) for i in range(len(people))]
    offsets = np.cumsum([0, *map(len, records)])
    (folder / "train.rec").write_bytes(b"".join(records))
    (folder / "train.idx").write_text("".join(f"{i}\t{offsets[i]}\n" for i in range(len(records))))
    (folder / "property").write_text(f"{len(people)},112,112\n")
    return folder
