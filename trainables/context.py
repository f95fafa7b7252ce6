"""The interface of training to the engine that runs it: rank, reporting, files and checkpoints.

The same training code runs bare, in a Tune actor, or as one of several Ray Train workers; only the context differs.
"""

from __future__ import annotations

import io
import json
import pickle  # for the error that torch raises
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

from trainables.errors import DataError, Problem
from trainables.files import retry_storage
from trainables.trial_files import FolderFiles, files_at

if TYPE_CHECKING:
    import torch

    from trainables.bucket import BucketFiles
    from trainables.generators import GeneratorStates

_Result = TypeVar("_Result")

_CHECKPOINTS = ("checkpoint.pt", "checkpoint.2.pt")
"""Checkpoints, written alternately so that one survives damage to the other; the larger step is the later one."""
NETWORK = "network.pt2"
"""The network of the selected evaluation, if the trial stores it."""
EVIDENCE = "evidence"
EVIDENCE_FILES = ("evidence.json", "sheet.jpg", "maps.jpg")
"""Folder of the evidence within a trial's folder, and its files; see `trainables.evidence.record`."""

SEALED = "sealed.json"
"""Private file with the `test/...` figures of the selected evaluation; no other file has them."""

UNTESTED = "untested.pt"
"""Private file with the head of the selected evaluation, until it is evaluated on the test half."""

Row = dict[str, float]
"""One report: `step` and figures `train/...`, `val/...` or `time/...`; never `test/...`."""


class Checkpoint(TypedDict):
    """Everything that resuming a trial needs."""

    task: dict[str, object]
    optimizer: dict[str, object]
    scaler: dict[str, object]
    rng: GeneratorStates
    step: int
    seconds: float
    rows: list[Row]
    best: Row
    directions: torch.Tensor | None
    looks: Sequence[object]
    """Snapshots of the watched pictures."""
    cosines: list[float]
    trial: str
    """Identity of the trial."""


def is_cut_off(context: TrialContext) -> bool:
    """Return whether the trial's process group is gone, as when Ray Train drains a node during training.

    Collective operations then fail or return a rank's own data, so this rank's results and errors do not count.
    """
    if context.world_size == 1:
        return False
    from trainables.distributed import is_distributed

    return not is_distributed()


def read_sealed(folder: Path) -> Row:
    """Return the sealed test figures in a trial's folder, empty without any. Raise DataError if they are damaged."""
    file = folder / SEALED
    try:
        figures: Row = json.loads(file.read_text())
        if not all(isinstance(number, int | float) for number in figures.values()):
            raise TypeError("a value is no number")
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        rule = f"the test figures of a trial must be readable as they were sealed ({error})"
        raise DataError(Problem(str(file), rule, None, "Restore the file from a copy.")) from error
    return figures


@dataclass
class TrialContext:
    """The interface between training and the engine that runs it. All ranks read the trial's files; rank 0 writes."""

    folder: Path | str
    """Folder of the trial's files, or their address in object storage."""
    device: torch.device
    rank: int = 0
    world_size: int = 1
    threads: int = 1
    """CPU threads for torch; results are bit-identical only for equal numbers."""
    sink: Callable[[Row], None] = lambda row: None
    """Called with each reported row."""
    say: Callable[[str], None] = lambda text: None
    """Called with messages for the user."""
    until: int | None = None
    """Step of an evaluation at which to pause, to continue from its checkpoint; None trains to the end."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Data set -> digest of the data to read, if known."""
    on_resume: Callable[[int], None] = lambda step: None
    """Called on rank 0 with the step of the checkpoint that the trial resumes from."""
    at_work: Callable[[], None] = lambda: None
    """Called at every step and at every retry of failing storage."""
    defers_test: bool = False
    """Whether a small head may be stored instead of evaluating it on the test half; see `training.evaluate_test`."""
    _files: FolderFiles | BucketFiles = field(init=False)
    _next_checkpoint: str = _CHECKPOINTS[0]
    """The checkpoint to overwrite next."""

    def __post_init__(self) -> None:
        if isinstance(self.folder, Path):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._files = files_at(self.folder)

    def heartbeat(self) -> None:
        """Tell the engine that the trial is alive; called at every step. Raise ConnectionError without the other ranks."""
        self._require_group()
        if self.rank == 0:
            self.at_work()

    def report(self, row: Row, state: Checkpoint | None = None) -> None:
        """Report one row; with `state`, first save it as the checkpoint to resume from."""
        self._require_group()
        if state is not None and self.rank == 0:
            import torch

            content = io.BytesIO()  # torch reports a full disk as a broken file
            torch.save(dict(state), content)
            self._write(self._next_checkpoint, content.getvalue())
            self._next_checkpoint = _alternate(self._next_checkpoint)
        self.sink(row)

    def _require_group(self) -> None:
        if is_cut_off(self):
            raise ConnectionError("the process group of this trial's ranks is gone")

    def _write(self, name: str, content: bytes, *, private: bool = False) -> None:
        self._require_group()
        self._retry_storage(lambda: self._files.put(name, content, private=private))

    def _retry_storage(self, act: Callable[[], _Result]) -> _Result:
        # Send heartbeats while waiting, so that the trial does not count as stalled.
        return retry_storage(act, self._files.storage, self.say, self.heartbeat)

    def seal(self, figures: Row) -> None:
        """Store test figures in the sealed file, replacing earlier ones."""
        self.store(SEALED, f"{json.dumps(figures)}\n".encode())

    def store(self, name: str, data: bytes) -> None:
        """Store a private file of the selected evaluation, replacing an earlier one."""
        if self.rank == 0:
            self._write(name, data, private=True)

    def replace_evidence(self, files: Mapping[str, bytes]) -> None:
        """Write the evidence files, then delete those that are not among them."""
        if self.rank != 0:
            return
        for name, data in files.items():
            self._write(f"{EVIDENCE}/{name}", data)
        for name in self._retry_storage(self._files.names):
            if name.startswith(f"{EVIDENCE}/") and name.removeprefix(f"{EVIDENCE}/") not in files:
                self._retry_storage(lambda old=name: self._files.delete(old))  # type: ignore[misc]

    def latest_checkpoint(self, trial: str = "") -> Checkpoint | None:
        """Return the last readable state, without executing anything it contains; None on a fresh start.

        If a checkpoint is damaged, or of another trial than `trial`, report it and load the earlier one.
        """
        import torch

        found: dict[int, tuple[str, bytes]] = {}
        for name in self._retry_storage(self._files.names):
            if name not in _CHECKPOINTS:
                continue
            content = self._retry_storage(lambda name=name: self._files.get(name)) or b""  # type: ignore[misc]
            why = "damaged"
            try:
                if _is_intact(content):
                    loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                    step = loaded["step"]
                    if not trial or loaded["trial"] == trial:
                        found[step] = (name, content)
                        continue
                    why = "of another trial"
            except pickle.UnpicklingError:  # torch's message would advise to load it without checks
                why = "not a checkpoint of ours: it holds code"
            except (RuntimeError, KeyError, TypeError, ValueError):  # an intact archive of other content
                why = "not a checkpoint of ours"
            if self.rank == 0:
                self.say(f"{name} cannot be read ({len(content)} bytes, {why}) and is skipped")
        if not found:
            return None
        last, content = found[max(found)]
        self._next_checkpoint = _alternate(last)
        if self.rank == 0:
            self.on_resume(max(found))
        state: Checkpoint = torch.load(io.BytesIO(content), map_location=self.device, weights_only=True)
        return state


def _alternate(checkpoint: str) -> str:
    return _CHECKPOINTS[checkpoint == _CHECKPOINTS[0]]


def _is_intact(content: bytes) -> bool:
    """Return whether every part of a checkpoint matches its checksum, which torch does not verify."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError):
        return False
