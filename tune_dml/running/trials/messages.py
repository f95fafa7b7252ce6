"""Send a trial's rows and notes to its driver from a thread, while training continues."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NotRequired, Self, TypedDict

if TYPE_CHECKING:
    from trainables.context import Row
    from tune_dml.planning.plan import PlannedTrial
    from tune_dml.record.events import TrialEnd


class Message(TypedDict, total=False):
    """A message of a trial to its driver. An empty one only shows that the trial is at work."""

    rows: list[Row]
    note: str
    resumed: int  # the step of the checkpoint that the trial continues from
    ended: dict[str, object]  # `TrialEnd.to_json`
    spent: bool  # whether the process must not train another trial
    placed: str  # the placement group of a trial's workers
    key: str  # of the trial, if it belongs to a group
    begun: float  # seconds since the trial began; in the first message of later trials of a group
    age: float  # seconds since the message was created; only in a group
    several: list[Message]  # messages of a group's trials, in order
    over: bool  # whether the group's call ends


class TrialRequest(TypedDict):
    """The configuration that Tune passes to a trial's function."""

    key: str
    label: str
    seed: int
    settings: str  # settings and seed as JSON, because Tune copies and flattens each entry of a mapping
    until: int | None  # the step at which the trial pauses; None to run to its end
    more: NotRequired[str]  # further trials that the same call runs, as a JSON list of requests


TrialFunction = Callable[[TrialRequest], None]

_MIN_INTERVAL = 1.0  # seconds between two messages of rows
_SIGNS_PER_LIMIT = 4  # number of messages that a trial sends within the stall limit


def as_text(message: Message) -> dict[str, str]:
    """Return a message as one JSON string, because Tune stores 2 kB of statistics for each number in a result."""
    return {"message": json.dumps(message, default=float)}


def parse_message(result: Mapping[str, object]) -> Message:
    """Return the message in one of Tune's results."""
    message: Message = json.loads(str(result.get("message", "{}")))
    return message


def split_messages(message: Message) -> list[Message]:
    """Return the messages of single trials that a message holds."""
    return message.get("several") or [message]


def request_of(trial: PlannedTrial, until: int | None = None) -> TrialRequest:
    """Return the request of a trial that pauses at step `until`."""
    settings = json.dumps({**trial.cell.settings, "seed": trial.seed})
    return {"key": trial.key, "label": trial.cell.label, "seed": trial.seed, "settings": settings, "until": until}


def requests_of(config: TrialRequest) -> list[TrialRequest]:
    """Return the trials that a call runs, in order."""
    return [config, *json.loads(config.get("more") or "[]")]


class GroupOutbox:
    """Sends the messages of a group's trials together, once a second. Not thread-safe.

    The end of a trial is sent with the next message of a running one, so that training does not wait for the driver.
    """

    def __init__(self, send: Callable[[Message], None], last: str):
        """Create the outbox; `send` sends a message, `last` is the key of the group's last trial."""
        self._send, self._last = send, last
        self._waiting: list[tuple[float, Message]] = []
        self._sent = -math.inf
        self._begun: tuple[str, float] | None = None

    def begin(self, key: str, at: float | None = None) -> None:
        """Record that a later trial of the group began, at time `at` or now. Its first message reports it."""
        self._begun = (key, time.monotonic() if at is None else at)

    def post(self, key: str, message: Message, at: float | None = None) -> bool:
        """Add a trial's message, created at time `at` or now. Return whether it ends the group's call."""
        now = time.monotonic()
        labelled: Message = {**message, "key": key}
        if self._begun is not None and self._begun[0] == key:
            labelled["begun"], self._begun = self._begun[1], None
        self._waiting.append((now if at is None else at, labelled))
        ends_call = "ended" in message and (key == self._last or "spent" in message)
        is_sign = "rows" not in message and "ended" not in message
        if ends_call or is_sign or ("ended" not in message and now - self._sent >= _MIN_INTERVAL):
            self._flush(now, ends_call, spent="spent" in message)
        return ends_call

    def _flush(self, now: float, ends_call: bool, spent: bool) -> None:
        several = []
        for at, message in self._waiting:
            message_with_age: Message = {**message, "age": round(now - at, 3)}
            if "begun" in message:
                message_with_age["begun"] = round(now - message["begun"], 3)
            several.append(message_with_age)
        self._waiting, self._sent = [], now
        self._send({"several": several, **({"over": True} if ends_call else {}), **({"spent": True} if spent else {})})


class MessageQueue:
    """Holds rows and notes that wait to be sent, and decides when the next message is due."""

    def __init__(self, stall_limit: float | None = None, max_silence: float = math.inf):
        self._max_silence = min(stall_limit / _SIGNS_PER_LIMIT if stall_limit else math.inf, max_silence)
        """Longest time without a message while the trial makes steps, in seconds."""
        self._items: deque[Row | str] = deque()  # rows and notes, in order
        self._is_sign_due = False
        self._sent = -math.inf
        self._resumed: int | None = None

    def row(self, row: Row) -> None:
        """Add a row of metrics."""
        self._add(row)

    def note(self, text: str) -> None:
        """Add a note for the user."""
        self._add(text)

    def _add(self, item: Row | str) -> None:
        self._items.append(item)

    def resumed(self, step: int) -> None:
        """Add the step at which the trial resumed to the next message."""
        self._resumed = step

    def needs_sign(self, now: float) -> bool:
        """Return whether the trial must send a message soon, or it would count as stalled."""
        return now - self._sent > self._max_silence

    def request_sign(self) -> None:
        """Make the next message due at once, even an empty one."""
        self._is_sign_due = True

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until the next message is due; infinity if there is nothing to send."""
        if self._is_sign_due or self.has_notes:
            return 0.0
        return max(self._sent + _MIN_INTERVAL - now, 0.0) if self._items else math.inf

    @property
    def has_notes(self) -> bool:
        """Whether a note waits."""
        return any(isinstance(item, str) for item in self._items)

    def take(self, now: float) -> Message:
        """Remove and return the next message: the rows before the next note, and this note."""
        message: Message = {} if self._resumed is None else {"resumed": self._resumed}
        self._resumed = None
        while self._items and "note" not in message:
            item = self._items.popleft()
            if isinstance(item, str):
                message["note"] = item
            else:
                message.setdefault("rows", []).append(item)
        self._is_sign_due, self._sent = False, now
        return message

    def drain(self, last: Message) -> Iterator[Message]:
        """Yield all waiting rows and notes as messages; the last one includes `last`."""
        while self.has_notes:
            yield self.take(0.0)
        message = self.take(0.0)
        message.update(last)
        if message:
            yield message


class Messages(MessageQueue):
    """Sends a trial's messages from a thread. After a lost process, the restarted trial repeats the missing ones.

    `send` returns when the driver has the message. If it failed, the next call raises the error; Ray ends trials in
    this way.
    """

    def __init__(self, send: Callable[[Message], None], stall_limit: float | None, *, max_silence: float = math.inf):
        super().__init__(stall_limit, max_silence)
        self._send = send
        self.is_watched = stall_limit is not None  # by the driver, for stalls
        self._changed = threading.Condition()
        self._is_stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._send_when_due, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        if self._error is None:
            self._send_remaining({})

    def _add(self, item: Row | str) -> None:
        self._raise_error()
        with self._waking():
            super()._add(item)

    def request_sign(self) -> None:
        """Send an empty message, which shows that the trial is at work."""
        with self._waking():
            super().request_sign()

    def at_work(self) -> None:
        """Record that the trial is at work; send an empty message if none was sent for long."""
        if self.needs_sign(time.monotonic()):
            self.request_sign()
        self._raise_error()

    def ended(self, end: TrialEnd, *, spent: bool = False) -> None:
        """Send the closing report. If `spent`, this process must not train another trial.

        The trial's own thread sends it, because Ray may end the trial during the call.
        """
        self._stop()
        self._raise_error()
        self._send_remaining({"ended": end.to_json(), **({"spent": True} if spent else {})})

    @contextmanager
    def _waking(self) -> Iterator[None]:
        """Lock the queue, and wake the thread after the block."""
        with self._changed:
            yield
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
        """Wait for the next message and return it; None when the trial has ended."""
        with self._changed:
            while not self._is_stopped and (seconds := self.seconds_until_due(time.monotonic())):
                self._changed.wait(None if seconds == math.inf else seconds)
            return None if self._is_stopped else self.take(time.monotonic())

    def _stop(self) -> None:
        with self._waking():
            self._is_stopped = True
        self._thread.join()

    def _send_remaining(self, last: Message) -> None:
        for message in self.drain(last):
            self._send(message)
