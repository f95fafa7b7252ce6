"""Read a program's reports: JSON lines, merged into one row per step, and a results file at its end."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tune_dml.text import is_measurable, is_number

Figures = dict[str, float]

_MAX_ROWS = 2000  # most rows that may lack the sweep's metric; the ledger stores no more rows of a trial
_MAX_STEP = 2**53  # JSON and MLflow represent whole numbers exactly up to this one
_RENAMED = {"time": "program/time"}  # figure -> its name in the ledger, where `time` already means the time of the row


@dataclass
class ProgramLog:
    """Reads a growing log; passes rows to `sink`, and a note about each kind of skipped input to `say`.

    The log may hold rows of a killed attempt. Those before the first step of this attempt count; if it reports nothing,
    all of them count.
    """

    path: Path
    metric: str
    sink: Callable[[Figures], None]
    say: Callable[[str], None]
    last: Figures = field(default_factory=dict)  # the last finite value of each figure, test figures included
    step: int = 0
    divergence: str = ""  # the non-finite metric and its step; empty if it did not diverge
    metric_error: str = ""  # what the metric was last reported as, if it was not a number
    _row: Figures = field(default_factory=dict)
    _own_steps: dict[str, int] = field(default_factory=dict)  # figure -> the step of its last report
    _earlier: list[dict[str, object]] = field(default_factory=list)
    """Rows of a killed attempt, until this attempt reports."""
    _offset: int = 0
    _last_line: bytes = b""  # the line that ends at `_offset`
    _rows: int = 0
    _lines: int = 0
    _said_about: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for line in self._new_lines(to_end=True):
            with contextlib.suppress(ValueError):
                self._earlier.append(_parse_object(line))

    def read(self, *, to_end: bool = False) -> bool:
        """Read new complete lines, and `to_end` an incomplete last one; return whether there were any."""
        lines = list(self._new_lines(to_end))
        for line in lines:
            self._lines += 1
            try:
                row = _parse_object(line)
            except ValueError:
                self._say_once("lines", f"line {self._lines} of its log is no JSON object; such lines are left out")
                continue
            self.take(row)
        return bool(lines)

    def take(self, row: Mapping[str, object]) -> None:
        """Add the figures of a row. Without a step they belong to the step after the last one.

        Some figures may count batches and others epochs. So a figure of a lower step is added to the current step,
        unless its own steps decrease.
        """
        if self.divergence:  # the program may still write until it is killed
            return
        if self._earlier:
            self._take_earlier_rows(row.get("step"))
        step = self._step_of(row)
        if step is None:
            return
        if self._row and step > self.step:
            self.flush()
        self.step = max(step, self.step)
        for reported_name, value in sorted(row.items(), key=lambda item: _RENAMED.get(item[0], item[0]) != self.metric):
            name = _RENAMED.get(reported_name, reported_name)
            if reported_name == "step" or (number := self._number(name, value)) is None or self._goes_back(name, step):
                continue
            if not is_measurable(number):
                self._take_non_finite(name, number)
                continue
            self.last[name] = number
            if not name.startswith("test/"):
                self._row[name] = number

    def finish(self, results: Path) -> None:
        """Read the rest of the log, and the results file if the program wrote one."""
        self.read(to_end=True)
        self._take_earlier_rows(math.inf)
        try:
            final = _parse_object(results.read_bytes())
        except FileNotFoundError:
            final = {}
        except (OSError, ValueError) as error:
            self.say(f"its results file cannot be read ({error})")
            final = {}
        if final:
            self.take(final if "step" in final else {**final, "step": self.step or 1})
        self.flush()

    def _take_earlier_rows(self, step: object) -> None:
        """Add the rows of a killed attempt before this step; none if the step is unknown."""
        earlier, self._earlier = self._earlier, []
        for row in earlier:
            last_step = row.get("step")
            if step == math.inf or (is_number(step) and is_number(last_step) and last_step < step):
                self.take(row)

    def flush(self) -> None:
        """Pass the row of the current step to `sink`."""
        if not self._row:
            return
        self._rows += 1
        if self.metric in self._row or self._rows <= _MAX_ROWS:
            self.sink({"step": self.step, **self._row})
        else:
            self._say_once("rows", f"it reports more than {_MAX_ROWS} rows; later ones count only with {self.metric}")
        self._row = {}

    def _step_of(self, row: Mapping[str, object]) -> int | None:
        step = row.get("step")
        if step is None:
            return self.step + 1
        if not is_number(step) or not 0 <= step <= _MAX_STEP:
            self._say_once("steps", f"step {step!r:.40} is no whole number from 0 to 2^53; such rows are left out")
            return None
        if step != int(step):
            self._say_once("fractions", f"step {step} is no whole number; such steps are rounded down")
        return int(step)

    def _goes_back(self, name: str, step: int) -> bool:
        last_step = self._own_steps.get(name, 0)
        if step < last_step:
            self._say_once("order", f"step {step} of {name} came after step {last_step}; such figures are left out")
            return True
        self._own_steps[name] = step
        return False

    def _number(self, name: str, value: object) -> float | None:
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            value_text = f"{json.dumps(value):.40}"
            if name == self.metric:
                self.metric_error = f"At step {self.step} it was {value_text}, which is no number."
            self._say_once(name, f"{name} is no number ({value_text}) and is left out")
            return None

    def _take_non_finite(self, name: str, number: float) -> None:
        if name == self.metric:
            self.divergence = self.divergence or f"{name} is {number} at step {self.step}"
        elif not self.divergence:  # a diverged trial already has its reason
            self._say_once(name, f"{name} is {number} at step {self.step}; such values are left out")

    def _say_once(self, about: str, text: str) -> None:
        if about not in self._said_about:
            self._said_about.add(about)
            self.say(text)

    def _new_lines(self, to_end: bool) -> Iterator[bytes]:
        """Yield each new line; an incomplete last line only `to_end`. The log may not exist yet.

        A program that opens the log in mode "w" replaces its lines; then all of them are new.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._last_line))
                if file.read(len(self._last_line)) != self._last_line:
                    self._offset = file.seek(0)
                for line in file:
                    if not line.endswith(b"\n") and not to_end:
                        return
                    self._offset, self._last_line = self._offset + len(line), line
                    if line.strip():
                        yield line
        except FileNotFoundError:
            return


def _parse_object(line: bytes) -> dict[str, object]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it holds no JSON object")
    return _flatten(row)


def _flatten(row: dict[str, object]) -> dict[str, object]:
    """Return {"val": {"accuracy": 0.4}} as {"val/accuracy": 0.4}. A top-level figure of the same name wins."""
    nested = {
        f"{name}/{inner}": value
        for name, part in row.items()
        if isinstance(part, dict)
        for inner, value in _flatten(part).items()
    }
    return nested | {name: value for name, value in row.items() if not isinstance(value, dict)}
