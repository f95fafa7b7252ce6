"""Read MXNet's indexed RecordIO files without MXNet."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainables.errors import DataError, Problem, raise_if_any

_MAGIC = 0xCED7230A
HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2


@dataclass(frozen=True)
class Record:
    """Labels (one or several floats) and payload of one record."""

    labels: tuple[float, ...]
    payload: bytes


class RecordFile:
    """Random access to `train.rec`; `train.idx` has a line `key<TAB>byte offset` per record.

    A record is uint32 magic, uint32 with 3 bits continuation flag and 29 bits length, then the bytes padded to 4; a
    record that contains the magic number is split there. The bytes start with (uint32 flag, float label, uint64 id,
    uint64 id2), then `flag` floats if flag > 0, then the payload. Little-endian.
    """

    def __init__(self, path: Path, index: Path) -> None:
        self.path = path
        self._index = index
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
        self.offsets = _read_index(index)

    def __reduce__(self) -> tuple[type[RecordFile], tuple[Path, Path]]:
        return RecordFile, (self.path, self._index)  # pickle the paths, never the bytes

    def read(self, key: int) -> Record:
        """Return a record. Raise DataError if its bytes are invalid."""
        data = self._join_parts(key)
        if len(data) < HEADER.size:
            raise self._record_error(key, "is shorter than its header")
        flag, label, _, _ = HEADER.unpack_from(data)
        if flag == 0:
            return Record((label,), data[HEADER.size :])
        end = HEADER.size + 4 * flag
        if len(data) < end:
            raise self._record_error(key, f"is too short for {flag} labels")
        return Record(struct.unpack_from(f"<{flag}f", data, HEADER.size), data[end:])

    def label(self, key: int) -> float:
        """Return the first label of a record without reading its payload."""
        start = self._offset(key) + 8
        flag, label, _, _ = HEADER.unpack(self._slice(start, HEADER.size, key))
        if flag == 0:
            return float(label)
        return float(struct.unpack("<f", self._slice(start + HEADER.size, 4, key))[0])

    def problems(self) -> list[Problem]:
        """Return a problem if offsets do not point to records."""
        wrong = [key for key in self.offsets if not self._is_record(key)]
        if not wrong:
            return []
        rule = f"the offsets of {len(wrong)} keys point to no record (truncated file, or the index of another file)"
        return [Problem(str(self.path), rule, wrong[:5], "Download both files again.")]

    def _is_record(self, key: int) -> bool:
        start = self.offsets[key]
        if not 0 <= start <= len(self._bytes) - 8:
            return False
        magic, word = struct.unpack("<II", self._bytes[start : start + 8].tobytes())
        return bool(magic == _MAGIC and start + 8 + (word & 0x1FFFFFFF) <= len(self._bytes))

    def _offset(self, key: int) -> int:
        if key not in self.offsets:
            raise DataError(Problem(str(self.path), "the index must contain the key", key))
        return self.offsets[key]

    def _join_parts(self, key: int) -> bytes:
        start, parts = self._offset(key), []
        while True:
            magic, word = struct.unpack("<II", self._slice(start, 8, key))
            if magic != _MAGIC:
                raise self._record_error(key, "does not start with the magic number")
            flag, length = word >> 29, word & 0x1FFFFFFF
            parts.append(self._slice(start + 8, length, key))
            if flag in (0, 3):  # whole, or the last part
                return struct.pack("<I", _MAGIC).join(parts)
            start += 8 + (length + 3) // 4 * 4

    def _slice(self, start: int, length: int, key: int) -> bytes:
        if start < 0 or start + length > len(self._bytes):
            raise self._record_error(key, "reaches past the end of the file")
        return self._bytes[start : start + length].tobytes()

    def _record_error(self, key: int, fault: str) -> DataError:
        return DataError(Problem(f"{self.path}[{key}]", f"the record {fault}", None, "Download the file again."))


def _read_index(path: Path) -> dict[int, int]:
    offsets, problems = {}, []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        cells = line.split("\t")
        if len(cells) == 2 and all(cell.strip().isdecimal() for cell in cells):
            offsets[int(cells[0])] = int(cells[1])
        elif line.strip():
            problems.append(Problem(f"{path}:{number}", "must be `key<TAB>byte offset`", line, "Download it again."))
    raise_if_any(problems[:10], DataError)
    return offsets
