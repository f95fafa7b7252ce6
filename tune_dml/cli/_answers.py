"""The state of a sweep in a few words, and its answer, as `list`, `show` and `status` print them.

Answers are stored beside sweeps, so that no statistics are computed. An answer is computed again if the ledger, the
plan, the installed code or the spelling of commands has changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.files import write_whole
from tune_dml.record.ledger import LEDGER, is_running
from tune_dml.text import age

if TYPE_CHECKING:
    from tune_dml.record.results import Results
    from tune_dml.report import SweepSummary

_FILE = ".answers.json"
_PACKAGES = ("tune_dml", "trainables", "search_spaces")


@dataclass(frozen=True)
class SweepAnswer:
    """The answer at the head of a sweep's report, in words."""

    sentences: list[str]
    floors: list[str]  # a line with the results without training; empty if they were not measured
    facts: dict[str, str]  # best configuration, baseline, seeds, failures, cost
    step: list[str]  # the next command, then its cost and reason; empty if no step is worth its cost
    commands: list[str]  # candidates for the next command, the most urgent first

    @classmethod
    def of(cls, summary: SweepSummary) -> SweepAnswer:
        """Return the answer in a report's summary."""
        from tune_dml.report.summary import WITHOUT_TRAINING

        answer, facts = summary.answer, dict(summary.answer.facts)
        floors = [f"{WITHOUT_TRAINING}: {facts[WITHOUT_TRAINING]}"] if WITHOUT_TRAINING in facts else []
        step = [answer.step.command, f"{answer.cost}. {answer.step.sentence}"] if answer.step else []
        return cls([*answer.sentences], floors, facts, step, [*summary.commands])

    def lines(self, *, running: bool) -> Iterator[str]:
        """Yield the answer for the terminal and, unless the sweep runs, its next step."""
        yield from (*self.sentences, *self.floors)
        if not running:
            yield from (f"{label:<8} {text}" for label, text in zip(("Next:", ""), self.step, strict=False))


@dataclass(frozen=True)
class _AnswerFile:
    digest: str
    headline: str = ""
    answer: SweepAnswer | None = None


def answer_of(results: Results) -> SweepAnswer | None:
    """Return the answer of the last look; None without results or before the first look (see `why_no_answer`)."""
    if not _is_judged(results):
        return None
    stored = _read(results)
    if stored.answer is None:
        from tune_dml import report

        stored = _write(results, replace(stored, answer=SweepAnswer.of(report.summary(results))))
    return stored.answer


def headline_of(results: Results) -> str:
    """Return the first sentence of the answer; empty if there is none."""
    if not _is_judged(results):
        return ""
    stored = _read(results)
    if not stored.headline:
        from tune_dml import report

        stored = _write(results, replace(stored, headline=report.headline(results)))
    return stored.headline


def why_no_answer(results: Results) -> str:
    """Return why a sweep with results has no answer yet; empty if it has one.

    Without a recorded look, up to 14 % of sweeps with equal cells would get a wrong verdict.
    """
    from tune_dml.record.origin.commands import command

    if results.has_current_look or not _has_numbers(results):
        return ""
    when = "comes when the sweep ends" if is_running(results.folder) else "comes when a session ends"
    now = f"{command(results, 'report')} judges the present trials now: a look, which spends part of the 5 % error"
    return f"Not judged yet. The answer {when}; {now}."


def _is_judged(results: Results) -> bool:
    return _has_numbers(results) and bool(results.has_current_look)


def _has_numbers(results: Results) -> bool:
    return any(math.isfinite(trial.metrics.get(results.plan.metric, math.nan)) for trial in results.trials)


def _read(results: Results) -> _AnswerFile:
    """Return the stored answer; an empty one if the file is missing, damaged or not current."""
    from pydantic import TypeAdapter

    digest = _digest(results)
    with suppress(OSError, ValueError):
        stored: _AnswerFile = TypeAdapter(_AnswerFile).validate_json((results.folder / _FILE).read_bytes())
        if stored.digest == digest:
            return stored
    return _AnswerFile(digest)


def _write(results: Results, answers: _AnswerFile) -> _AnswerFile:
    with suppress(OSError):  # a read-only folder
        write_whole(results.folder / _FILE, json.dumps(asdict(answers)))
    return answers


def _digest(results: Results) -> str:
    """Return a digest of everything that an answer depends on."""
    from tune_dml.record.origin.commands import program

    parts = [results.folder, str(Path.cwd()), program(), _code_times()]
    for name in (LEDGER, "plan.json"):
        with suppress(OSError):
            stat = (results.folder / name).stat()
            parts += [stat.st_mtime_ns, stat.st_size]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@cache
def _code_times() -> tuple[float, ...]:
    """Return the times at which the installed packages, and ours, last changed."""
    folders = [folder for package in _PACKAGES for folder in os.walk(Path(__file__).parents[2] / package)]
    files = [os.path.join(folder, name) for folder, _, names in folders for name in names if name[-4:] != ".pyc"]
    return os.path.getmtime(sysconfig.get_path("purelib")), max(map(os.path.getmtime, files))


def state_of(results: Results) -> str:
    """Return a state such as `complete`, `running 5/18`, `not begun`, `2 of 18 diverged`, `confirmation interrupted 2/10`."""
    ended = sum(trial.status not in {"running", "missing"} for trial in results.trials)
    failed, diverged = results.count("failed"), results.count("diverged")
    if is_running(results.folder):
        if results.confirmation_left and not results.is_incomplete:
            return f"confirming {len(results.confirmed) - results.confirmation_left}/{len(results.confirmed)}"
        return f"running {ended}/{results.planned_trials}"
    if results.is_incomplete:
        begun = ended or results.count("running")
        return f"interrupted {ended}/{results.planned_trials}" if begun else "not begun"
    if remaining := results.confirmation_left:
        return f"confirmation interrupted {len(results.confirmed) - remaining}/{len(results.confirmed)}"
    outcomes = " or ".join(word for word, count in (("failed", failed), ("diverged", diverged)) if count)
    return f"{failed + diverged} of {len(results.trials)} {outcomes}" if outcomes else "complete"


def last_update_time(results: Results) -> float:
    """Return the time of the last ledger entry, in seconds since the epoch."""
    files = [results.folder / LEDGER, results.folder / "plan.json"]
    return max(path.stat().st_mtime for path in files if path.exists())


def age_of(results: Results) -> str:
    """Return the time since the last ledger entry, in words."""
    return age(time.time() - last_update_time(results))
