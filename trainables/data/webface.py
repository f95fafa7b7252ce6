"""Face training sets: CASIA-WebFace and others with the same layout."""

import io
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from PIL import Image

from trainables.data.base import Contents, Indices, Labels, Progress, digest_of, problems_raised
from trainables.data.formats.decoding import EncodedPictures, SquarePictures, find_undecodable
from trainables.data.formats.files import encoded_files, find_pictures
from trainables.data.formats.picture_files import number_ids, require_root, wrong_root
from trainables.data.formats.record_io import RecordFile
from trainables.data.formats.stored import FaceSize, SkipCorrupt, StoredPictures, list_names, other_file_notes
from trainables.errors import DataError, Problem, raise_if_any

_RECORDS = ("train.rec", "train.idx", "property")
_MIN_PEOPLE = 4
"""Fewer folders of folders are no people, but parts of the data."""
_AGAIN = "Download the files again."


class WebFace(StoredPictures):
    """Aligned faces of persons: train.rec + train.idx + property, or folders PERSON/*.jpg; CASIA-WebFace has 10,575.

    All people train; verification sets (lfw_bin, agedb30, cfp_fp ...) evaluate. Pictures are stored as squares of
    `size` pixels: half a million take 17 GiB at 112.
    """

    name = "webface"
    citation = "Yi et al., Learning Face Representation from Scratch, arXiv:1411.7923, 2014"
    licence = "research"
    source = (
        "faces_webface_112x112 of the data-set zoo of github.com/deepinsight/insightface, or folders PERSON/*.jpg "
        "(CASIA-WebFace: 10,575 people, about 0.49 million pictures)"
    )
    dead = "the authors' own download; the zoo's Google Drive and Baidu links vanish at times; MS-Celeb-1M is withdrawn"

    def __init__(self, *, root: Path, cache_dir: Path, size: FaceSize = 112, skip_corrupt: SkipCorrupt = False) -> None:
        super().__init__(cache_dir=cache_dir, form=SquarePictures(size), skip_corrupt=skip_corrupt)
        self.path = root
        self.size = size

    @cached_property
    def folder(self) -> Path:
        """Return the root, the folder of a train.rec, or the only folder below that holds one."""
        root = self.path
        if root.name in _RECORDS and root.is_file():
            return root.parent
        below = sorted(root.glob(f"*/{_RECORDS[0]}")) if root.is_dir() and not (root / _RECORDS[0]).exists() else []
        return below[0].parent if len(below) == 1 else root

    def check(self) -> list[Problem]:
        problems = problems_raised(self._require_people)
        return problems or (self._property_problems(len(self._faces[2])) if self._is_records else [])

    def _require_people(self) -> None:
        require_root(self.folder, self.source)
        if not self.folder.is_dir():
            raise DataError(Problem(str(self.folder), "must be a folder", None, "Unpack it, and give its folder."))
        names, people = self.encoded.names, self._faces[2]
        if 0 < len(people) < _MIN_PEOPLE and all(name.count("/") > 1 for name in names):  # such as train and val
            rule = "holds folders of folders, where the folders of the people are expected"
            remedy = f"If the inner folders are the people, give {self.folder / people[0]}"
            remedy += " or put them into one folder." if len(people) > 1 else "."
            raise DataError(Problem(str(self.folder), rule, list_names(people), remedy))
        if len(people) < 2:
            rule = f"must hold {', '.join(_RECORDS)}, or a folder of pictures for each of two people or more"
            raise wrong_root(self.folder, rule, given=self.path, source=self.source)

    def undecodable(self, progress: Progress | None) -> dict[int, str]:
        """Read records each time; results for files are cached."""
        return find_undecodable(self.encoded, progress) if self._is_records else super().undecodable(progress)

    def counts(self) -> dict[str, int]:
        return {"images": len(self._faces[1]), "classes": len(self._faces[2])}

    def passed_over(self) -> list[str]:
        if self._is_records:
            return []
        pictures, other_files = self._files
        notes = other_file_notes(self.folder, [path for path in other_files if path.parent != self.folder])
        if loose := [path.name for path in pictures if path.parent == self.folder]:
            notes.append(f"pictures in no person's folder were passed over ({len(loose)}): {list_names(loose)}")
        if inner := [name for name in self.encoded.names if name.count("/") > 1]:
            note = "folders in a person's folder are no separate people"
            notes.append(f"{note}: {len(inner)} pictures lie in some, as {inner[0]}")
        return notes

    def digest(self) -> str:
        names = _RECORDS if self._is_records else self.encoded.names
        return digest_of(self.name, 1, self.size, self.skip_corrupt, self.digests(names))

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        return ()

    @property
    def encoded(self) -> EncodedPictures:
        return self._faces[0]

    def contents(self, indices: Indices) -> Contents:
        return Contents(self._faces[1][indices], self._faces[2])

    @property
    def _is_records(self) -> bool:
        return any((self.folder / name).exists() for name in _RECORDS)

    @cached_property
    def _faces(self) -> tuple[EncodedPictures, Labels, tuple[str, ...]]:
        return self._read_records() if self._is_records else self._read_folders()

    @cached_property
    def _files(self) -> tuple[list[Path], list[Path]]:
        return find_pictures(self.folder, linked=True)

    def _read_folders(self) -> tuple[EncodedPictures, Labels, tuple[str, ...]]:
        names = [path.relative_to(self.folder).as_posix() for path in self._files[0] if path.parent != self.folder]
        return encoded_files(self.folder, names), *number_ids([name.split("/")[0] for name in names])

    def _read_records(self) -> tuple[EncodedPictures, Labels, tuple[str, ...]]:
        missing = [name for name in _RECORDS if not (self.folder / name).exists()]
        if missing:
            rule = f"{', '.join(_RECORDS)} belong together; missing: {', '.join(missing)}"
            raise DataError(Problem(str(self.folder), rule, None, "Extract the archive again."))
        records = RecordFile(self.folder / "train.rec", self.folder / "train.idx")
        raise_if_any(records.problems(), DataError)
        keys = _picture_keys(records)
        encoded = EncodedPictures([f"train.rec[{key}]" for key in keys], partial(_open_record, records, keys))
        labels = [records.label(key) for key in keys]
        if wrong := [label for label in labels if not label.is_integer()]:  # also infinity and NaN
            rule = f"labels must be whole numbers, but {len(wrong)} of {len(labels)} are not"
            raise DataError(Problem(str(records.path), rule, wrong[:3], _AGAIN))
        return encoded, *number_ids([int(label) for label in labels])

    def _property_problems(self, people: int) -> list[Problem]:
        path = self.folder / "property"
        cells = path.read_text(encoding="utf-8", errors="replace").strip().split(",")
        if len(cells) != 3 or not all(cell.strip().isdecimal() for cell in cells):
            return [Problem(str(path), "must be `classes,height,width`", ",".join(cells), _AGAIN)]
        if int(cells[0]) != people:
            return [Problem(str(path), f"declares {cells[0]} people", people, _AGAIN)]
        return []


def _picture_keys(records: RecordFile) -> list[int]:
    """Return records 1 .. label[0]-1 if record 0 is a header (flag > 0), else every record."""
    first = records.read(0) if 0 in records.offsets else None
    if first is None or len(first.labels) < 2 or first.payload:
        return sorted(records.offsets)
    end = first.labels[0]
    keys = sorted(key for key in records.offsets if 0 < key < end)
    if len(keys) != end - 1:
        rule = f"the header declares pictures 1 to {end - 1:g}"
        raise DataError(Problem(str(records.path), rule, f"{len(keys)} in the index", _AGAIN))
    return keys


def _open_record(records: RecordFile, keys: Sequence[int], i: int) -> Image.Image:
    return Image.open(io.BytesIO(records.read(keys[i]).payload))
