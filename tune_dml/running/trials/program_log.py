"""Read a program's reports: JSON lines, merged into one row per step, and a results file at its end."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from tune_dml.text import is_measurable

Figures = dict[str, float]

_MOST_ROWS = 2000
"""Rows without the sweep's metric; the ledger keeps no more of a trial."""
_MOST_NAMES = 200
_LAST_STEP = 2**53
"""JSON and MLflow keep whole numbers exactly up to here."""
_RENAMED = {"time": "program/time"}
"""Figure -> its name in the ledger, where `time` is that of the row."""


@dataclass
class ProgramLog:
    """Reads a growing log; passes rows to `sink`, and each kind of omission once to `say`.

    The log may hold rows of a killed attempt. They count up to the first step of this attempt, or all of them if it
    reports nothing.
    """

    path: Path
    metric: str
    sink: Callable[[Figures], None]
    say: Callable[[str], None]
    last: Figures = field(default_factory=dict)
    """The last finite value of each figure, test figures included."""
    step: int = 0
    """Step of the last row."""
    broken: str = ""
    """Reason of divergence: the non-finite metric and its step; empty otherwise."""
    no_number: str = ""
    """How the metric was last reported if that was no number; empty otherwise."""
    _row: Figures = field(default_factory=dict)
    _own_steps: dict[str, int] = field(default_factory=dict)
    """The last step that each figure was reported with."""
    _earlier: list[dict[str, object]] = field(default_factory=list)
    """Rows of a killed attempt, until this one reports."""
    _offset: int = 0
    _rows: int = 0
    _lines: int = 0
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for line in self._new_lines(to_its_end=True):
            with contextlib.suppress(ValueError, RecursionError):
                self._earlier.append(_object(line))

    def read(self, *, to_its_end: bool = False) -> bool:
        """Read new whole lines, `to_its_end` the last part too; return whether there were any."""
        lines = list(self._new_lines(to_its_end))
        for line in lines:
            self._lines += 1
            try:
                row = _object(line)
            except (ValueError, RecursionError):
                self._once("lines", f"line {self._lines} of its log is no JSON object; such lines are left out")
                continue
            self.take(row)
        return bool(lines)

    def take(self, row: Mapping[str, object]) -> None:
        """Take figures of a step; without one they belong to the step after the last.

        Figures may count their steps differently, as batches and epochs do: one of a lower step counts at the present
        step, unless the figure itself goes back.
        """
        if self.broken:  # the program may write until it is ended
            return
        if self._earlier:
            self._go_on_at(row.get("step"))
        step = self._step_of(row)
        if step is None:
            return
        if self._row and step > self.step:
            self.flush()
        self.step = max(step, self.step)
        for given, value in sorted(row.items(), key=lambda item: _RENAMED.get(item[0], item[0]) != self.metric):
            name = _RENAMED.get(given, given)
            if given == "step" or (number := self._number(name, value)) is None or self._goes_back(name, step):
                continue
            if not is_measurable(number):
                self._not_finite(name, number)
            elif name in self.last or len(self.last) < _MOST_NAMES or name == self.metric:
                self.last[name] = number
                if not name.startswith("test/"):
                    self._row[name] = number
            else:
                self._once("names", f"it reports more than {_MOST_NAMES} figures; those after {name} are left out")

    def finish(self, results: Path) -> None:
        """Read the rest of the log, and the results file if the program wrote one."""
        self.read(to_its_end=True)
        self._go_on_at(math.inf)
        try:
            final = _object(results.read_bytes())
        except FileNotFoundError:
            final = {}
        except (OSError, ValueError, RecursionError) as error:
            self.say(f"its results file cannot be read ({error})")
            final = {}
        if final:
            self.take(final if "step" in final else {**final, "step": self.step or 1})
        self.flush()

    def _go_on_at(self, step: object) -> None:
        """Take the rows of a killed attempt before this step; none of them if it is unknown."""
        earlier, self._earlier = self._earlier, []
        for row in earlier:
            before = row.get("step")
            if step == math.inf or (_is_number(step) and _is_number(before) and before < step):
                self.take(row)

    def flush(self) -> None:
        """Report the row of the present step."""
        if not self._row:
            return
        self._rows += 1
        if self.metric in self._row or self._rows <= _MOST_ROWS:
            self.sink({"step": self.step, **self._row})
        else:
            self._once("rows", f"it reports more than {_MOST_ROWS} rows; later ones count only with {self.metric}")
        self._row = {}

    def _step_of(self, row: Mapping[str, object]) -> int | None:
        step = row.get("step")
        if step is None:
            return self.step + 1
        if not _is_number(step) or not 0 <= step <= _LAST_STEP:
            self._once("steps", f"step {step!r} is no whole number from 0 to 2^53; such rows are left out")
            return None
        if step != int(step):
            self._once("fractions", f"step {step} is no whole number; such steps are rounded down")
        return int(step)

    def _goes_back(self, name: str, step: int) -> bool:
        before = self._own_steps.get(name, 0)
        if step < before:
            self._once("order", f"step {step} of {name} came after step {before}; such figures are left out")
            return True
        self._own_steps[name] = step
        return False

    def _number(self, name: str, value: object) -> float | None:
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            said = f"{json.dumps(value):.40}"
            if name == self.metric:
                self.no_number = f"At step {self.step} it was {said}, which is no number."
            self._once(name, f"{name} is no number ({said}) and is left out")
            return None

    def _not_finite(self, name: str, number: float) -> None:
        if name == self.metric:
            self.broken = self.broken or f"{name} is {number} at step {self.step}"
        elif not self.broken:  # a diverged trial has its reason
            self._once(name, f"{name} is {number} at step {self.step}; such values are left out")

    def _once(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.say(text)

    def _new_lines(self, to_its_end: bool) -> Iterator[bytes]:
        """Yield each new line; one that is still being written only at the end. The log may not exist yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n") and not to_its_end:
                        return
                    self._offset += len(line)
                    if line.strip():
                        yield line
        except (FileNotFoundError, IsADirectoryError):
            return


def _object(line: bytes) -> dict[str, object]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it holds no JSON object")
    return _joined(row)


def _joined(row: dict[str, object]) -> dict[str, object]:
    """Return {"val": {"accuracy": 0.4}} as {"val/accuracy": 0.4}; a figure that is named so itself has precedence."""
    nested = {
        f"{name}/{inner}": value
        for name, part in row.items()
        if isinstance(part, dict)
        for inner, value in _joined(part).items()
    }
    return nested | {name: value for name, value in row.items() if not isinstance(value, dict)}


def _is_number(step: object) -> TypeGuard[float]:
    return isinstance(step, int | float) and not isinstance(step, bool)
