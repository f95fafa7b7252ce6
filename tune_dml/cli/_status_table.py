"""The output of `tune-dml status`: a line of counts, a table of cells by seeds, and the reasons of failures."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from statistics import fmean

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tune_dml.cli._answers import state_of
from tune_dml.cli.screen import number
from tune_dml.planning.grouping import grouped
from tune_dml.record.ledger import is_running
from tune_dml.record.results import Results, TrialResult
from tune_dml.running.screen.progress import PLAIN_MARKS, STYLES
from tune_dml.text import one_line, value_text

_CELLS_SHOWN = 60
_COLUMN_GAP = 3  # width of the gap between columns


def status_table(results: Results) -> RenderableType:
    """Return the counts, and the metric of each finished trial by cell and seed.

    Of more than 60 cells only the unfinished ones are listed.
    """
    rows = grouped(results.trials, lambda trial: trial.cell.digest)
    listed = list(rows.values())
    if results.plan.search.num_samples:  # cells that a search proposed have no declared order
        sign = -1 if results.plan.space.goal == "maximize" else 1
        listed.sort(key=lambda trials: sign * fmean(scores) if (scores := _scores(results, trials)) else math.inf)
    if len(listed) > _CELLS_SHOWN:
        listed = [trials for trials in listed if any(trial.status != "finished" for trial in trials)]
    parts: list[RenderableType] = [Text(_status_line(results))]
    if listed or len(rows) <= _CELLS_SHOWN:
        columns = tuple(f"seed {seed}" for seed in results.plan.seeds)
        cells = tuple(
            (trials[0].cell.label, tuple(_entry(results, trial) for trial in trials))
            for trials in listed[:_CELLS_SHOWN]
        )
        parts.append(_SeedTable(f"{results.name}: {results.plan.metric}", columns, cells))
    if (hidden := len(rows) - min(len(listed), _CELLS_SHOWN)) > 0:
        parts.append(Text(f"{hidden} of {len(rows)} cells are not listed", style="dim"))
    return Group(*parts, *_reasons(results))


def _scores(results: Results, trials: Sequence[TrialResult]) -> list[float]:
    metric = results.plan.metric
    return [trial.metrics[metric] for trial in trials if trial.status == "finished" and metric in trial.metrics]


@dataclass(frozen=True)
class _SeedTable:
    """A table of cells by seeds, split into several if it is wider than the terminal."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, tuple[Text, ...]], ...]
    """Label and entries of each cell; a cell that a race stopped has fewer entries."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        longest = max((cell_len(label) for label, _ in self.cells), default=0)
        room = options.max_width - min(longest, options.max_width // 3) - _COLUMN_GAP
        rows = zip_longest(map(Text, self.columns), *(entries for _, entries in self.cells), fillvalue=Text())
        widths = [max(text.cell_len for text in column) + _COLUMN_GAP for column in rows]
        start = 0
        while start < len(widths):
            end = start + max(1, bisect_right([*accumulate(widths[start:])], room))
            title = None if start else self.title
            table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
            table.add_column("cell", overflow="fold")
            for column in self.columns[start:end]:
                table.add_column(column, justify="right", no_wrap=True)
            for label, entries in self.cells:
                table.add_row(escape(label), *entries[start:end])
            yield table
            start = end


def _entry(results: Results, trial: TrialResult) -> Text:
    text: str = trial.status
    if trial.status == "finished":
        value, of_program = trial.metrics.get(results.plan.metric), results.plan.space.program is not None
        short = value is None or of_program or abs(value) < 1000
        text = number(value, of_program=of_program) or "done" if short else value_text(value)
    elif trial.status == "stopped":
        text = f"behind at {trial.step}"
    elif trial.status == "missing":
        text = PLAIN_MARKS["missing"]
    elif trial.status == "running" and (rows := results.history(trial.key)):
        steps = trial.cell.settings.get("training.steps")
        text = f"at {rows[-1]['step']}/{steps}" if steps else f"at {rows[-1]['step']}"
    if trial.status == "running" and not is_running(results.folder):
        text = f"stopped {text}" if text != "running" else "stopped"
    return Text(text, style=STYLES[trial.status])


def _status_line(results: Results) -> str:
    counts = Counter(trial.status for trial in results.trials)
    parts = [f"{state_of(results)}: {counts['finished']} of {results.planned_trials} trials finished"]
    state = "running" if is_running(results.folder) else "interrupted"
    parts += [f"{counts['running']} {state}"] if counts["running"] else []
    parts += [f"{counts[status]} {status}" for status in ("diverged", "failed") if counts[status]]
    parts += [f"{counts['stopped']} stopped early"] if counts["stopped"] else []
    if missing := results.count("missing"):
        parts.append(f"{missing} not run yet")
    if fresh := results.confirmed:
        parts.append(f"{sum(trial.status == 'finished' for trial in fresh)} of {len(fresh)} confirming trials finished")
    return ", ".join(parts)


def _reasons(results: Results) -> list[RenderableType]:
    """Return one line per reason, with its first trial and the number of further ones."""
    lost = [trial for trial in results.trials if trial.status in {"failed", "diverged"}]
    by_reason = grouped(lost, lambda trial: (trial.status, one_line(trial.reason)))
    lines: list[RenderableType] = []
    for (status, reason), trials in list(by_reason.items())[:_CELLS_SHOWN]:
        where = f"{trials[0].cell.label}, seed {trials[0].seed}"
        more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
        lines.append(Text(f"{status}: {reason or 'no reason was recorded'} [{where}{more}]", style=STYLES[status]))
    return lines
