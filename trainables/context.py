"""What training knows of the world that runs it: who it is, where it reports, where its files lie, its last checkpoint first.

The same training code runs bare, inside a Tune actor, or as one of several Ray Train workers; only the context differs.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trainables.files import patiently
from trainables.trial_files import TrialFiles, files_at

if TYPE_CHECKING:
    import torch


_Result = TypeVar("_Result")

_CHECKPOINTS = ("checkpoint.pt", "checkpoint.2.pt")
"""Two that take turns: the last state and the one before, which counts when the last cannot be read. Their steps tell which."""
NETWORK = "network.pt2"
"""The network of the evaluation that counts, where a trial keeps it."""
EVIDENCE = "evidence"
EVIDENCE_FILES = ("evidence.json", "sheet.jpg", "maps.jpg")
"""Folder, within the trial's, and names of the files left to look at; `trainables.evidence.record` says what is in them."""

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
    digests: Mapping[str, str]
    """Data set -> digest of what the trial must read, as far as it is known."""

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


def is_cut_off(context: TrialContext) -> bool:
    """Whether the process group of a trial's ranks was taken away: Ray Train does so, as a node is drained, while they train.

    From then on exchanges fail in any words, or give back what a rank has itself, as for one alone: whatever it finds, a result
    or an error, is no result and no error of the trial.
    """
    if context.world_size == 1:
        return False
    from trainables.distributed import is_distributed

    return not is_distributed()


def _is_checkpoint(name: str) -> bool:
    """Whether a file of a trial is a state to go on from; of an older version's too."""
    return name.startswith("checkpoint") and name.endswith(".pt")


def read_sealed(folder: Path) -> Row:
    """The test figures that a trial has sealed in its folder; none where it has not come to that."""
    try:
        figures: Row = json.loads((folder / SEALED).read_text())
    except FileNotFoundError:
        return {}
    return figures


@dataclass
class FolderContext:
    """Files in a folder, on disk or in object storage, that all ranks can read; rank 0 writes them and its rows go to `sink`."""

    folder: Path | str
    device: torch.device
    rank: int = 0
    world_size: int = 1
    threads: int = 1
    sink: Callable[[Row], None] = lambda row: None
    say: Callable[[str], None] = lambda text: None
    """Told what a person should know."""
    until: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    resumed: Callable[[int], None] = lambda step: None
    """Told, on rank 0, of the step of the checkpoint that the trial goes on from."""
    at_work: Callable[[], None] = lambda: None
    """Told of every step, and of every try while storage is waited for."""
    _files: TrialFiles = field(init=False)
    _oldest: str = _CHECKPOINTS[0]
    """The checkpoint whose turn it is to be replaced."""

    def __post_init__(self) -> None:
        if isinstance(self.folder, Path):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._files = files_at(self.folder)

    def alive(self) -> None:
        """Pass it on; one rank speaks for all."""
        self._require_the_others()
        if self.rank == 0:
            self.at_work()

    def report(self, row: Row, state: Mapping[str, Any] | None = None) -> None:
        """Save the state (whole or not at all), then report: a row is never known without its checkpoint."""
        self._require_the_others()
        if state is not None and self.rank == 0:
            import torch

            content = io.BytesIO()  # torch's writer takes a full disk for a broken file
            torch.save(dict(state), content)
            self._put(self._oldest, content.getvalue())
            self._oldest = _other(self._oldest)
        self.sink(row)

    def _require_the_others(self) -> None:
        """Raises ConnectionError where they are lost."""
        if is_cut_off(self):
            raise ConnectionError("the process group of this trial's ranks is gone")

    def _put(self, name: str, content: bytes, *, private: bool = False) -> None:
        self._require_the_others()
        self._patiently(lambda: self._files.put(name, content, private=private))

    def _patiently(self, act: Callable[[], _Result]) -> _Result:
        return patiently(act, self._files.place, self.say, self.alive)  # who waits for storage does not hang

    def seal(self, figures: Row) -> None:
        """Write the sealed file, whole or not at all."""
        if self.rank == 0:
            self._put(SEALED, f"{json.dumps(figures)}\n".encode(), private=True)

    def keep(self, name: str, data: bytes) -> None:
        """Write it beside the sealed file, whole or not at all."""
        if self.rank == 0:
            self._put(name, data, private=True)

    def leave(self, files: Mapping[str, bytes]) -> None:
        """Write each file whole or not at all, then take away what is no longer among them."""
        if self.rank != 0:
            return
        for name, data in files.items():
            self._put(f"{EVIDENCE}/{name}", data)
        for name in self._patiently(self._files.names):
            if name.startswith(f"{EVIDENCE}/") and name.removeprefix(f"{EVIDENCE}/") not in files:
                self._patiently(lambda old=name: self._files.delete(old))  # type: ignore[misc]

    def latest_checkpoint(self) -> dict[str, Any] | None:
        """The saved state, on this context's device; loaded without executing anything it contains.

        One that cannot be read (a full disk, a lost node's file system) is skipped for the one before, and that is said.
        """
        import torch

        found: dict[int, tuple[str, bytes]] = {}
        for name in filter(_is_checkpoint, self._patiently(self._files.names)):
            content = self._patiently(lambda name=name: self._files.get(name)) or b""  # type: ignore[misc]
            if _is_whole(content):
                step = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)["step"]
                found[step] = (name, content)
            elif self.rank == 0:
                self.say(f"{name} cannot be read ({len(content)} bytes, damaged) and is skipped")
        if not found:
            return None
        last, content = found[max(found)]
        self._oldest = _other(last)
        if self.rank == 0:
            self.resumed(max(found))
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=self.device, weights_only=True)
        return state


def _other(checkpoint: str) -> str:
    """Whose turn it is after this one."""
    return _CHECKPOINTS[checkpoint == _CHECKPOINTS[0]]


def _is_whole(content: bytes) -> bool:
    """Whether every part of a checkpoint has its checksum, at which torch itself does not look."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError):
        return False
