"""The outcome of a race, as `status` and the end of a session print it: stopped cells, reasons and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tune_dml.record.judging.race import Race
    from tune_dml.record.results import Results

_CELLS_SHOWN = 60


def race_lines(results: Results) -> Iterator[str]:
    """Yield a line for each stopped cell in order of stopping, then a summary; nothing if the sweep is no race."""
    race = results.race
    if race is None:
        return
    labels = {cell.digest: cell.label for cell in results.cells}
    stops = sorted(race.settled.values(), key=lambda settled: settled.seeds)
    yield from (f"Stopped: {labels[settled.cell]} {settled.sentence}" for settled in stops[:_CELLS_SHOWN])
    if (hidden := len(stops) - _CELLS_SHOWN) > 0:
        from tune_dml.record.origin.commands import command

        yield f"Stopped: {hidden} more cells (`{command(results, 'status')} --json` lists them)"
    seeds, used = len(results.plan.seeds), _trials(results)
    line = f"Race:    {_outcome(race, labels)} after {seeds} seeds, {used} trials (uniform allocation: {seeds * len(labels)})"
    open_cells = [label for digest, label in labels.items() if digest not in race.settled]
    yield f"{line}; still open: {', '.join(open_cells[:_CELLS_SHOWN])}" if open_cells else line


def race_data(results: Results) -> dict[str, object] | None:
    """Return the outcome as data for JSON; None if the sweep is no race."""
    race = results.race
    if race is None:
        return None
    labels = {cell.digest: cell.label for cell in results.cells}
    return {
        "over": race.over,
        **asdict(race.rule),
        "trials": _trials(results),
        "uniform_trials": len(results.plan.seeds) * len(labels),
        "failed": [labels[cell] for cell in race.failed],
        "settled": [{**asdict(settled), "cell": labels[settled.cell]} for settled in race.settled.values()],
    }


def _trials(results: Results) -> int:
    return sum(trial.status not in {"missing", "running"} for trial in results.trials)


def _outcome(race: Race, labels: Mapping[str, str]) -> str:
    failed = ", ".join(labels[cell] for cell in race.failed)
    return {
        "": "under way",
        "decided": "decided",
        "failed": f"not decided, because trials of {failed} failed repeatedly; the other cells are decided",
        "max_seeds": f"ended by --max-seeds {race.rule.max_seeds}",
        "budget": f"ended by --budget {race.rule.budget or 0:g}",
    }[race.over]
