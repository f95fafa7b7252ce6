"""Read pickles of numbers and bytes without running code."""

import io
import pickle  # restricted below
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trainables.errors import DataError, Problem


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Encode text to bytes, as pickle protocol 2 stores them; only latin1 is needed."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


def _frombuffer(buffer: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]) -> Any:
    """Build an array from its protocol 5 form. Refuse arrays of objects."""
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)


def _allowed_names() -> dict[tuple[str, str], Any]:
    """Return the names a pickle may use: those that make numpy arrays and bytes."""
    array = np.empty(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    table: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
    }
    for core in ("numpy.core", "numpy._core"):
        table[f"{core}.multiarray", "_reconstruct"] = array
        table[f"{core}.multiarray", "scalar"] = scalar
        table[f"{core}.numeric", "_frombuffer"] = _frombuffer
    return table


class _RestrictedUnpickler(pickle.Unpickler):
    names = _allowed_names()

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.names[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed") from None


def load_pickle(path: Path, encoding: str = "latin1") -> Any:
    """Load lists, dicts, strings, numbers and numpy arrays. Raise DataError for anything else.

    `encoding` decodes Python 2 strings: `latin1`, or `bytes` to keep bytes.
    """
    try:
        return _RestrictedUnpickler(io.BytesIO(path.read_bytes()), encoding=encoding).load()
    except Exception as error:  # damaged pickles raise many kinds
        rule = "must be a pickle of plain numbers, text and numpy arrays"
        reason = f"{type(error).__name__}: {error}"
        raise DataError(Problem(str(path), rule, reason, "Download it again from a source you trust.")) from error
