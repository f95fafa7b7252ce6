"""The ledger's events: one frozen class for each kind of line.

    {"kind": "started", "time": 1.7e9, "key": "3f2a...", "body": {"host": "node-1", "away": false, "micro_batch": null}}

`Event.to_row` and `read_event` convert between an event and its line. Lines of other versions may lack fields or have
more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, dataclass_transform

from pydantic import Field, TypeAdapter, ValidationError

from tune_dml.planning.cells import Cell
from tune_dml.planning.request import Resources
from tune_dml.record.judging.race import Over, RaceRule, SettledCell
from tune_dml.text import TIME_LIMIT

if TYPE_CHECKING:
    from tune_dml.record.origin.provenance import Provenance
else:
    Provenance = dict  # pydantic accepts any JSON object; `SessionStarted` checks the keys that we read

JsonRow = dict[str, Any]  # a JSON object of one line

EndStatus = Literal["finished", "diverged", "failed", "stopped", "paused"]  # a pause has a `TrialPaused` in the ledger
Figures = Mapping[str, int | float]
Seconds = Annotated[float, Field(ge=0, le=TIME_LIMIT)]

_EVENT_CLASSES: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class TrialEnd:
    """The end of a trial."""

    status: EndStatus
    reason: str = ""  # why it failed, diverged or was stopped
    metrics: Figures = field(default_factory=dict)  # of the selected evaluation, without sealed test metrics
    step: int | None = None
    seconds: Seconds | None = None  # training time over all attempts
    kind: str = ""  # the kind of failure (`running.failures`)
    traceback: str = ""
    code: Mapping[str, str] = field(default_factory=dict)  # module of another package -> digest of its source
    at_rung: float | None = None  # the metric where the trial was stopped
    statistics: Figures = field(default_factory=dict)  # of the batch at which training diverged

    def to_json(self) -> dict[str, object]:
        """Return the fields with a value; status, reason and metrics are always included."""
        always = {"status", "reason", "metrics"}
        return {name: value for name, value in vars(self).items() if name in always or value not in (None, "", {})}

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> TrialEnd:
        """Return the end from the result of `to_json`."""
        end: TrialEnd = _adapter(cls).validate_python(body)
        return end


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of the ledger; each subclass becomes a dataclass, too."""

    kind: ClassVar[str]
    body_field: ClassVar[str]  # the only field, if its value is the whole `body` of the line; else empty
    key: str = ""  # of the trial; empty for events about the sweep
    time: Seconds = 0.0  # since the epoch; the ledger sets it
    end_offset: int = field(default=0, compare=False)  # offset in the ledger at which the line ends

    def __init_subclass__(cls, kind: str = "", body_field: str = "") -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        cls.kind, cls.body_field = kind, body_field
        if kind:
            _EVENT_CLASSES[kind] = cls

    def body(self) -> JsonRow:
        """Return the `body` of the line."""
        if self.body_field:
            value = getattr(self, self.body_field)
            return value.to_json() if isinstance(value, TrialEnd) else asdict(value)
        return {name: value for name, value in asdict(self).items() if name not in _ENVELOPE}

    def to_row(self, time: float) -> JsonRow:
        """Return the line of the event at a time."""
        return {"kind": self.kind, "time": time, "key": self.key, "body": self.body()}


_ENVELOPE = {item.name for item in fields(Event)}


class TrialEvent(Event):
    """An event about one trial."""


class TrialStarted(TrialEvent, kind="started"):
    """A trial started or restarted."""

    host: str = ""
    away: bool = False  # whether its files are in object storage
    micro_batch: int | None = None  # pictures that a worker holds at once; None if the session did not set it


class TrialResumed(TrialEvent, kind="resumed"):
    """A trial continued from the checkpoint of a step."""

    step: int


class TrialPaused(TrialEvent, kind="paused"):
    """A trial pauses at a step at which cells are compared."""

    seconds: Seconds


class TrialRetried(TrialEvent, kind="retry"):
    """A trial lost its process, and will continue from its checkpoint."""


class TrialEnded(TrialEvent, kind="ended", body_field="end"):
    """A trial ended."""

    end: TrialEnd


class FilesFetched(TrialEvent, kind="fetched"):
    """The files of a trial were fetched from object storage."""


class TrialReset(TrialEvent, kind="reset"):
    """A failed trial will run again."""


class TrialRescored(TrialEvent, kind="rescored"):
    """Metrics were computed later from the embeddings that a trial stored."""

    metrics: Figures


class CellProposed(Event, kind="cell"):
    """A search proposed a cell."""

    cell: Cell


class SearchExhausted(Event, kind="exhausted"):
    """A search found no new cell to propose."""

    samples: int  # number of cells that were requested


class Note(Event, kind="note"):
    """A note for the terminal, tables and the report."""

    text: str
    of_session: bool = False  # whether the note is shown only until the next session starts

    def body(self) -> JsonRow:
        """Return the text, and `of_session` if it is set."""
        return {"text": self.text, **({"of_session": True} if self.of_session else {})}


class SessionStarted(Event, kind="session"):
    """A driver started to run the sweep."""

    provenance: Provenance = field(default_factory=Provenance)
    resources: Resources = field(default_factory=Resources)
    heard: Mapping[str, float] = field(default_factory=dict)  # trial key -> time of its last row, if its driver died
    trial_files: str | None = None  # address of the trials' files; None for the sweep's folder
    submitted_to: str | None = None  # the cluster that the session was submitted to
    floors: Mapping[str, Figures] = field(default_factory=dict)  # floor -> figures without training

    def __post_init__(self) -> None:
        for name, kind in (("argv", list), ("methods", dict), ("git", dict), ("host", str)):
            value = self.provenance.get(name, kind())
            if not isinstance(value, kind) or not all(isinstance(word, str) for word in value):
                raise ValueError(f"provenance.{name} has a wrong type")


class Waiting(Event, kind="waits"):
    """The sweep waits for the resource that `text` names; an empty text ends the wait."""

    text: str = ""


class Opened(Event, kind="opened"):
    """The test metrics were opened for a selection."""

    user: str
    host: str
    cell: str  # label of the cell that validation selected
    selection: str = ""  # the purpose of the selection

    def __str__(self) -> str:
        date = datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M UTC")
        reason = f" ({self.selection})" if self.selection else ""
        return f"opened on {date} by {self.user} on {self.host}, for the selection of {self.cell}{reason}"


class ConfirmationStarted(Event, kind="confirm"):
    """A confirmation started: cells are trained again with fresh seeds."""

    cells: tuple[str, ...]  # digests
    seeds: tuple[int, ...]


class RaceStarted(Event, kind="race", body_field="rule"):
    """A session started a race (`sweep --until-decided`), or changed its limits."""

    rule: RaceRule


class BlockAdded(Event, kind="block"):
    """Cells of a race got more seeds."""

    seeds: tuple[int, ...]  # all seeds of these cells so far
    cells: tuple[str, ...]  # digests


class BlockJudged(Event, kind="judged"):
    """The verdicts after a block of a race were computed."""

    seeds: int
    level: float


class CellSettled(Event, kind="settled", body_field="settled"):
    """A cell of a race gets no more seeds."""

    settled: SettledCell


class CellReopened(Event, kind="reopened"):
    """A settled cell gets seeds again, because the cell with which it was tied no longer leads."""

    cell: str  # digest
    seeds: int = 0


class RaceEnded(Event, kind="race_over"):
    """A race ended, so that no block follows."""

    why: Over


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(cls: type) -> TypeAdapter[Any]:
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def read_event(row: JsonRow) -> Event:
    """Return the event of a line. Raise ValueError if it is no event, or lacks a field of its kind."""
    kind, body = row.get("kind"), row.get("body", {})
    event_class = _EVENT_CLASSES.get(str(kind))
    if event_class is None and isinstance(kind, str) and kind:
        raise ValueError(f"this version of tune-dml knows no event {kind[:40]!r}")
    if event_class is None or not isinstance(body, dict):
        raise ValueError("it is no event")
    envelope = {"time": row.get("time"), "key": row.get("key", "")}
    if issubclass(event_class, TrialEvent) and not envelope["key"]:
        raise ValueError("it names no trial")
    try:
        event: Event = _adapter(event_class).validate_python(
            {**({event_class.body_field: body} if event_class.body_field else body), **envelope}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return event


Floors = Mapping[str, Mapping[str, float]]  # name of a floor (a score without training) -> validation figures


def recorded_floors(sessions: Sequence[SessionStarted]) -> Floors:
    """Return the floors of the first session that measured them; empty for older sweeps."""
    return next((session.floors for session in sessions if session.floors), {})
