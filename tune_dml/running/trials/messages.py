"""Send a trial's rows and notes to its driver from a thread, while training continues.

Example:
    with Messages(send, stall_limit) as messages:      # send(message) returns when the driver has it
        messages.row({"step": 25, "train/loss": 0.7})
        messages.at_work()
        messages.note("the storage does not answer")
        messages.ended(TrialEnd("finished"))
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NotRequired, Self, TypedDict

if TYPE_CHECKING:
    from trainables.context import Row
    from tune_dml.planning.plan import PlannedTrial
    from tune_dml.record.events import TrialEnd


class Message(TypedDict, total=False):
    """A message of a trial to its driver; an empty one only shows that the trial makes steps."""

    rows: list[Row]
    note: str
    resumed: int
    """The step of the checkpoint that the trial continues from."""
    ended: dict[str, object]
    """`TrialEnd.to_json`."""
    spent: bool
    """Whether the process can train no other trial."""
    placed: str
    """The placement group of a trial's workers."""
    key: str
    """The trial, in a group of several."""
    begun: float
    """Seconds since it began, in the first message of each later trial of a group."""
    age: float
    """Seconds since it ended, in a group."""
    several: list[Message]
    """Messages of a group's trials, in order."""
    over: bool
    """Whether the group's call ends."""


class TrialRequest(TypedDict):
    """The configuration that Tune passes to a trial's function."""

    key: str
    label: str
    seed: int
    settings: str
    """Settings of the cell and the seed, as JSON: Tune copies and flattens a mapping entry by entry."""
    until: int | None
    """The step at which the trial pauses; None to run to its end."""
    more: NotRequired[str]
    """Further trials that the same call runs, a JSON list of requests."""


TrialFunction = Callable[[TrialRequest], None]


_PAUSE = 1.0
"""Seconds between two messages of rows."""
_SIGNS = 4
"""Messages that a trial sends within the stall limit."""


def as_text(message: Message) -> dict[str, str]:
    """Return a message as one JSON text: of each number that it sees, Tune keeps 2 kB of statistics."""
    return {"message": json.dumps(message, default=float)}


def read_message(result: Mapping[str, object]) -> Message:
    """Return the message in one of Tune's results."""
    message: Message = json.loads(str(result.get("message", "{}")))
    return message


def messages_of(message: Message) -> list[Message]:
    """Return the messages of single trials."""
    return message.get("several") or [message]


def request_of(trial: PlannedTrial, until: int | None = None) -> TrialRequest:
    """Return the request of a trial that pauses at step `until`."""
    settings = json.dumps({**trial.cell.settings, "seed": trial.seed})
    return {"key": trial.key, "label": trial.cell.label, "seed": trial.seed, "settings": settings, "until": until}


def requests_of(config: TrialRequest) -> list[TrialRequest]:
    """Return the trials that a call runs, in order."""
    return [config, *json.loads(config.get("more") or "[]")]


class GroupOutbox:
    """Sends the messages of a group's trials together, once a second. One thread at a time may post.

    An end waits for the next message of a running trial, so that training never waits for the driver.
    """

    def __init__(self, send: Callable[[Message], None], last: str):
        """Take the function that sends, and the key of the group's last trial."""
        self._send, self._last = send, last
        self._waiting: list[tuple[float, Message]] = []
        self._sent = -math.inf
        self._begun: tuple[str, float] | None = None

    def begin(self, key: str, at: float | None = None) -> None:
        """Record that a later trial of the group begins, or began at a time; its first message reports it."""
        self._begun = (key, time.monotonic() if at is None else at)

    def post(self, key: str, message: Message, at: float | None = None) -> bool:
        """Take a trial's message, of now or an earlier time; return whether it was the group's last one."""
        now = time.monotonic()
        mine: Message = {**message, "key": key}
        if self._begun is not None and self._begun[0] == key:
            mine["begun"], self._begun = self._begun[1], None
        self._waiting.append((now if at is None else at, mine))
        over = "ended" in message and (key == self._last or "spent" in message)
        is_sign = "rows" not in message and "ended" not in message
        if over or is_sign or ("ended" not in message and now - self._sent >= _PAUSE):
            self._flush(now, over, spent="spent" in message)
        return over

    def _flush(self, now: float, over: bool, spent: bool) -> None:
        several = []
        for at, message in self._waiting:
            aged: Message = {**message, "age": round(now - at, 3)}
            if "begun" in message:
                aged["begun"] = round(now - message["begun"], 3)
            several.append(aged)
        self._waiting, self._sent = [], now
        self._send({"several": several, **({"over": True} if over else {}), **({"spent": True} if spent else {})})


class _Unsent:
    """Rows and notes that wait to be sent, and when the next message may go."""

    def __init__(self, stall_limit: float | None, longest: float = math.inf):
        self._longest = min(stall_limit / _SIGNS if stall_limit else math.inf, longest)
        """Seconds without a message while the trial makes steps."""
        self._said: deque[Row | str] = deque()
        """Rows and notes, in order."""
        self._is_sign_due = False
        self._sent = -math.inf
        self.resumed: int | None = None
        """The step that the trial resumed at, until it is sent."""

    def say(self, what: Row | str) -> None:
        """Add a row or a note."""
        self._said.append(what)

    def is_silent(self, now: float) -> bool:
        """Return whether the trial may soon count as stalled."""
        return now - self._sent > self._longest

    def give_a_sign(self) -> None:
        """Send the next message at once, even an empty one."""
        self._is_sign_due = True

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next message; infinite without anything to send."""
        if self._is_sign_due or self.has_notes:
            return 0.0
        return max(self._sent + _PAUSE - now, 0.0) if self._said else math.inf

    @property
    def has_notes(self) -> bool:
        """Whether a note waits."""
        return any(isinstance(what, str) for what in self._said)

    def take(self, now: float) -> Message:
        """Return the next message: the rows up to the next note, and that note."""
        message: Message = {} if self.resumed is None else {"resumed": self.resumed}
        self.resumed = None
        while self._said and "note" not in message:
            what = self._said.popleft()
            if isinstance(what, str):
                message["note"] = what
            else:
                message.setdefault("rows", []).append(what)
        self._is_sign_due, self._sent = False, now
        return message

    def rest(self, last: Message) -> Iterator[Message]:
        """Yield each waiting note with the rows before it, then the other rows with `last`."""
        while self.has_notes:
            yield self.take(0.0)
        message = self.take(0.0)
        message.update(last)
        if message:
            yield message


class Transcript:
    """Keeps the messages of a trial that trains together with others, until all of them have ended."""

    def __init__(self, at_work: Callable[[], None]):
        """Take the function to call at each step."""
        self.at_work = at_work
        self._unsent = _Unsent(None)

    def row(self, row: Row) -> None:
        """Keep a row of metrics."""
        self._unsent.say(row)

    def note(self, text: str) -> None:
        """Keep a note for people."""
        self._unsent.say(text)

    def resumed(self, step: int) -> None:
        """Keep the step that the trial resumed at."""
        self._unsent.resumed = step

    def messages(self, end: TrialEnd) -> Iterator[Message]:
        """Yield the trial's messages, the last with its end."""
        return self._unsent.rest({"ended": end.to_json()})


class Messages:
    """Sends a trial's messages. After a lost process, the restarted trial sends the missing ones again.

    The next call raises an error of sending, by which Ray ends a trial.
    """

    def __init__(self, send: Callable[[Message], None], stall_limit: float | None, *, longest: float = math.inf):
        self._send = send
        self._is_watched = stall_limit is not None
        self._unsent = _Unsent(stall_limit, longest)
        self._changed = threading.Condition()
        self._is_over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._send_when_due, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._error is None:
            self._send_rest({})

    @property
    def is_watched(self) -> bool:
        """Whether a stall limit makes each message a sign of life."""
        return self._is_watched

    def row(self, row: Row) -> None:
        """Send a row of metrics."""
        self._say(row)

    def note(self, text: str) -> None:
        """Send a note for people."""
        self._say(text)

    def resumed(self, step: int) -> None:
        """Send the step that the trial resumed at, with its next rows."""
        self._unsent.resumed = step

    def at_work(self) -> None:
        """Record a step; send an empty message if nothing was sent for long."""
        if self._unsent.is_silent(time.monotonic()):
            self.sign()
        self._raise_error()

    def sign(self) -> None:
        """Send an empty message, which only shows that the trial lives."""
        with self._changed:
            self._unsent.give_a_sign()
            self._changed.notify()

    def ended(self, end: TrialEnd, *, spent: bool = False) -> None:
        """Send the closing report, from the trial's own thread: Ray may end the trial within it.

        Args:
            end: How the trial ended.
            spent: Whether this process can train no other trial.
        """
        self._stop()
        self._raise_error()
        self._send_rest({"ended": end.to_json(), **({"spent": True} if spent else {})})

    def _say(self, what: Row | str) -> None:
        self._raise_error()
        with self._changed:
            self._unsent.say(what)
            self._changed.notify()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _send_when_due(self) -> None:
        try:
            while (message := self._next()) is not None:
                self._send(message)
        except BaseException as error:
            self._error = error

    def _next(self) -> Message | None:
        """Wait for the next message; None when the trial is over."""
        with self._changed:
            while not self._is_over and (left := self._unsent.seconds_left(time.monotonic())):
                self._changed.wait(None if left == math.inf else left)
            return None if self._is_over else self._unsent.take(time.monotonic())

    def _stop(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    def _send_rest(self, last: Message) -> None:
        for message in self._unsent.rest(last):
            self._send(message)
