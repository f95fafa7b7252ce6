"""What training knows of the world that runs it: who it is, where it reports, where its last checkpoint lies.

The same training code runs bare, inside a Tune actor, or as one of several Ray Train workers; only the context differs.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainables.files import existing, patiently, write_whole

if TYPE_CHECKING:
    import torch


CHECKPOINT, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
"""The last state, and the one before, which counts when the last cannot be read."""
NETWORK = "network.pt2"
"""The network of the evaluation that counts, where a trial keeps it."""
EVIDENCE = "evidence"
EVIDENCE_FILES = ("evidence.json", "sheet.jpg", "maps.jpg")
"""Folder, within the trial's, and names of the files left to look at; `trainables.evidence.record` says what is in them."""

ALIVE = "alive"
"""An empty file in the trial's folder; its time says when the trial last made a step, to a second."""

SEALED = "sealed.json"
"""In the trial's folder, its owner's to read: `test/...` at the evaluation that counts, and no other file has them."""

Row = dict[str, float]
"""One report: `step` and figures named `train/...`, `val/...` or `time/...` (not reproducible); never `test/...`."""


class TrialContext(Protocol):
    """The interface between training and the engine that runs it."""

    rank: int
    world_size: int
    device: torch.device
    threads: int
    """CPU threads for torch; part of what makes two runs equal to the last digit."""
    until: int | None
    """An evaluation before the end at which to pause: another context goes on from its checkpoint. None: train to the end."""

    def alive(self) -> None:
        """A step was made; cheap enough for every step."""

    def report(self, row: Row, state: Mapping[str, Any] | None = None) -> None:
        """Hand over one row; with a state, first make it the checkpoint to resume from."""

    def seal(self, figures: Row) -> None:
        """Keep test figures where nobody sees them before they are opened, in place of those sealed before; rank 0's count."""

    def keep(self, name: str, data: bytes) -> None:
        """Keep a file of the evaluation that counts, its owner's to read, in place of an earlier one; rank 0's counts."""

    def leave(self, files: Mapping[str, bytes]) -> None:
        """Leave small files for people to look at, in place of those left before; rank 0's count."""

    def latest_checkpoint(self) -> dict[str, Any] | None:
        """The last state handed to `report`, or None on a fresh start."""


def read_sealed(folder: Path) -> Row:
    """The test figures that a trial has sealed in its folder; none where it has not come to that."""
    try:
        figures: Row = json.loads((folder / SEALED).read_text())
    except FileNotFoundError:
        return {}
    return figures


@dataclass
class FolderContext:
    """Checkpoints in a folder that all ranks can read; rank 0 writes them and its rows go to `sink`."""

    folder: Path
    device: torch.device
    rank: int = 0
    world_size: int = 1
    threads: int = 1
    sink: Callable[[Row], None] = lambda row: None
    say: Callable[[str], None] = lambda text: None
    """Told what a person should know."""
    until: int | None = None
    _marked: float = 0.0

    def __post_init__(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)

    def alive(self) -> None:
        """Leave a mark that whoever waits for this trial can see, once a second."""
        now = time.monotonic()
        if self.rank == 0 and now - self._marked >= 1.0:
            self._marked = now
            with contextlib.suppress(OSError):  # a row or a checkpoint will say what is wrong, and wait
                self._make_folder()
                (self.folder / ALIVE).touch()

    def report(self, row: Row, state: Mapping[str, Any] | None = None) -> None:
        """Save the state (whole or not at all), then report: a row is never known without its checkpoint."""
        if state is not None and self.rank == 0:
            import torch

            content = io.BytesIO()  # torch's writer takes a full disk for a broken file
            torch.save(dict(state), content)
            self._wait_for_folder()
            if (last := self.folder / CHECKPOINT).exists():
                patiently(lambda: last.replace(self.folder / PREVIOUS), self.folder, self.say)
            self._write(CHECKPOINT, content.getvalue())
        self.sink(row)

    def _write(self, name: str, content: bytes | str, *, private: bool = False) -> None:
        def write() -> None:
            self._make_folder()
            write_whole(self.folder / name, content, private=private)

        patiently(write, self.folder.parent, self.say)

    def _make_folder(self) -> None:
        existing(self.folder.parent)
        self.folder.mkdir(exist_ok=True)

    def _wait_for_folder(self) -> None:
        patiently(self._make_folder, self.folder.parent, self.say)

    def seal(self, figures: Row) -> None:
        """Write the sealed file, whole or not at all."""
        if self.rank == 0:
            self._write(SEALED, json.dumps(figures) + "\n", private=True)

    def keep(self, name: str, data: bytes) -> None:
        """Write it beside the sealed file, whole or not at all."""
        if self.rank == 0:
            self._write(name, data, private=True)

    def leave(self, files: Mapping[str, bytes]) -> None:
        """Write each file whole or not at all, then take away what is no longer among them."""
        if self.rank != 0:
            return
        for name, data in files.items():
            self._write(f"{EVIDENCE}/{name}", data)
        for old in (self.folder / EVIDENCE).glob("*"):
            if old.name not in files:
                old.unlink()

    def latest_checkpoint(self) -> dict[str, Any] | None:
        """The saved state, on this context's device; loaded without executing anything it contains.

        One that cannot be read (a full disk, a lost node's file system) is skipped for the one before, and that is said.
        """
        import torch

        self._wait_for_folder()
        for path in (self.folder / CHECKPOINT, self.folder / PREVIOUS):
            try:
                state: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
            except FileNotFoundError:
                continue
            except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
                if isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path):
                    raise  # whole, and not of our making: it would run code
                if self.rank == 0:
                    self.say(f"{path.name} cannot be read ({type(error).__name__}) and is skipped")
                continue
            return state
        return None
