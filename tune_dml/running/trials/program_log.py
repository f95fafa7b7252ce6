"""Read a program's reports: JSON lines, merged into one row per step, and a results file at its end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Figures = dict[str, float]

_MOST_ROWS = 2000
"""Rows without the sweep's metric; the ledger keeps no more of a trial."""
_MOST_NAMES = 200
_RENAMED = {"time": "program/time"}
"""Figure -> its name in the ledger, where `time` is that of the row."""


@dataclass
class ProgramLog:
    """Reads a growing log; passes rows to `sink`, and each kind of omission once to `say`."""

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
    _row: Figures = field(default_factory=dict)
    _offset: int = 0
    _rows: int = 0
    _lines: int = 0
    _said: set[str] = field(default_factory=set)

    def read(self) -> bool:
        """Read new lines; return whether there were any."""
        lines = list(self._new_lines())
        for line in lines:
            self._lines += 1
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("no object")
            except (ValueError, RecursionError):
                self._once("lines", f"line {self._lines} of its log is no JSON object; such lines are left out")
                continue
            self.take(row)
        return bool(lines)

    def take(self, row: Mapping[str, object]) -> None:
        """Take figures of a step; without one they belong to the step after the last."""
        step = self._step_of(row)
        if step is None:
            return
        if self._row and step != self.step:
            self.flush()
        self.step = step
        for given, value in row.items():
            name = _RENAMED.get(given, given)
            if given == "step" or (number := self._number(name, value)) is None:
                continue
            if not math.isfinite(number):
                self._not_finite(name, number)
            elif name in self.last or len(self.last) < _MOST_NAMES or name == self.metric:
                self.last[name] = number
                if not name.startswith("test/"):
                    self._row[name] = number
            else:
                self._once("names", f"it reports more than {_MOST_NAMES} figures; those after {name} are left out")

    def finish(self, results: Path) -> None:
        """Read the rest of the log, and the results file if the program wrote one."""
        self.read()
        try:
            final = json.loads(results.read_bytes())
        except FileNotFoundError:
            final = {}
        except (OSError, ValueError, RecursionError) as error:
            self.say(f"its results file cannot be read ({error})")
            final = {}
        if isinstance(final, dict) and final:
            self.take(final if "step" in final else {**final, "step": self.step or 1})
        self.flush()

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
        if not isinstance(step, int | float) or isinstance(step, bool) or not math.isfinite(step) or step < 0:
            self._once("steps", f"step {step!r} is no whole number; such rows are left out")
            return None
        if step < self.step:
            self._once("order", f"step {step:g} came after step {self.step}; such rows are left out")
            return None
        return int(step)

    def _number(self, name: str, value: object) -> float | None:
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            self._once(name, f"{name} is no number ({value!r:.40}) and is left out")
            return None

    def _not_finite(self, name: str, number: float) -> None:
        if name == self.metric:
            self.broken = self.broken or f"{name} is {number} at step {self.step}"
        else:
            self._once(name, f"{name} is {number} at step {self.step}; such values are left out")

    def _once(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.say(text)

    def _new_lines(self) -> Iterator[bytes]:
        """Yield each whole new line; the log may not exist yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    if line.strip():
                        yield line
        except FileNotFoundError:
            return
