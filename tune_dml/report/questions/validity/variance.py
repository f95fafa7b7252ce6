"""Where does the noise come from? Compare sweeps of the same cells that each vary one source of randomness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainables.config import FREE_SEEDS, SOURCES, canonical, identifying
from trainables.errors import ConfigError
from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan
from tune_dml.record.results import Results, results_of
from tune_dml.report.analysis import Analysis
from tune_dml.report.naming import MetricName
from tune_dml.report.questions import question
from tune_dml.report.section import Section, Table, Text, metric_cell, text_cell, value_cell
from tune_dml.space import Value
from tune_dml.stats import SeedTable
from tune_dml.stats.intervals.components import Spread, difference_spread, sum_of_spreads, trial_spread

_NAMES = {"init": "initial weights", "order": "batch order", "split": "class split", "all": "all of them"}


_FRAME = ("data_digest", "protocol_version", "metric")
"""What sweeps share whose cells are compared."""


@dataclass(frozen=True)
class _Component:
    """One source of randomness, measured by one sweep."""

    source: str
    """init, order, split or all."""
    sweep: str
    cells: int
    seeds: int
    trial: Spread
    """Spread of a trial's result over seeds."""
    difference: Spread
    """Spread of the difference of two cells under one seed, which verdicts use."""


@question(order=345, unanswered={"variance": None})
def variance(analysis: Analysis) -> Section | None:
    """Measure the spread of each source; None if every sweep varies all of them at once."""
    own = _varied(analysis.results.plan)
    beside, shared = _beside(analysis.results)
    if own == "all" and not set(beside) - {"all"}:
        return None
    components = tuple(_component(source, results, shared) for source, results in beside.items())
    sentences, metric = _sentences(own, components, analysis), analysis.metric
    title = "Where does the noise come from?"
    return Section(
        "variance",
        title,
        "Sources of noise",
        (Text(" ".join(sentences)), _table(metric, components)),
        verdicts=() if own == "all" else (sentences[0],),
        data={"variance": {"varied": own, "components": components, "sum": _sum(components)}},
    )


def _varied(plan: Plan) -> str:
    """Return the sources that a seed of this plan changes: `all`, or their names."""
    free = [source for source in SOURCES if plan.base_settings.get(f"seeds.{source}") is None]
    return "all" if len(free) == len(SOURCES) else " and ".join(free)


def _beside(results: Results) -> tuple[dict[str, Results], frozenset[str]]:
    """Return one sweep for each source, this one or one in the same folder, and the cells that they share.

    Of several sweeps of one source, prefer the one with most shared cells, then with most seeds.
    """
    mine = shared = _kinds(results.plan)
    own, found = _varied(results.plan), dict[str, tuple[int, int, Path]]()
    for path in sorted(results.folder.parent.glob("*/plan.json")):
        try:
            plan = Plan.load(path)
            common, source = len(mine & _kinds(plan)), _varied(plan)
        except (ConfigError, ValueError):  # damaged; reported when that sweep is opened
            continue
        alike = all(getattr(plan, part) == getattr(results.plan, part) for part in _FRAME)
        if alike and common and source != own and (common, len(plan.seeds)) > found.get(source, (0, 0, path))[:2]:
            found[source] = common, len(plan.seeds), path.parent
    beside = {own: results} | {source: results_of(folder) for source, (_, _, folder) in found.items()}
    for other in beside.values():
        shared = shared & _kinds(other.plan)
    ordered = [source for source in (*SOURCES, "all") if source in beside and shared]
    return {source: beside[source] for source in ordered}, shared


def _kinds(plan: Plan) -> frozenset[str]:
    return frozenset(_kind(cell) for cell in plan.cells)


def _kind(cell: Cell) -> str:
    return canonical({path: value for path, value in identifying(cell.settings).items() if path not in FREE_SEEDS})


def _component(source: str, results: Results, shared: frozenset[str]) -> _Component:
    kinds = {cell.digest: _kind(cell) for cell in results.cells}
    values: dict[str, dict[int, float]] = {}
    for trial in results.trials:
        kind, metric = kinds[trial.cell.digest], results.plan.metric
        if kind in shared and trial.status == "finished" and metric in trial.metrics:
            values.setdefault(kind, {})[trial.seed] = float(trial.metrics[metric])
    table = SeedTable.of(values, results.plan.seeds)
    return _Component(
        source,
        results.name,
        len(values),
        len(results.plan.seeds),
        trial_spread(table.values),
        difference_spread(table.values),
    )


def _sum(components: tuple[_Component, ...]) -> Mapping[str, Spread] | None:
    single = [component for component in components if component.source != "all"]
    if len(single) < len(SOURCES):
        return None
    return {
        "trial": sum_of_spreads([component.trial for component in single]),
        "difference": sum_of_spreads([component.difference for component in single]),
    }


def _sentences(own: str, components: tuple[_Component, ...], analysis: Analysis) -> list[str]:
    metric, first = analysis.metric, analysis.seeds[0]
    sentences = []
    if own != "all":
        changed = " and ".join(_NAMES[source] for source in SOURCES if source in own.split(" and "))
        sentences.append(
            f"A seed of this sweep changes {f'only the {changed}' if changed else 'nothing'}, so its verdicts hold for "
            f"{_held(analysis.results.plan)}."
        )
    known = [component for component in components if component.trial.is_known]
    sentences += [
        f"{_NAMES[c.source].capitalize()}: a trial spreads by {_spread(metric, c.trial)} over {c.seeds} seeds."
        for c in known
    ]
    missing = [source for source in SOURCES if source not in {component.source for component in known}]
    if missing:
        asked = " and ".join(_NAMES[source] for source in missing)
        flags = " and ".join(f"--vary {source}" for source in missing)
        sentences.append(f"Unknown: the effect of {asked}. Run the same sweep with {flags} and two or more seeds.")
    if (total := _sum(components)) and total["trial"].is_known:
        sentences.append(
            f"Sum: {_spread(metric, total['trial'])}. Each was measured with the others fixed to seed {first}, so the sum may "
            "differ from the spread of a seed that changes all of them."
        )
    return sentences


def _held(plan: Plan) -> str:
    """Return the fixed sources: `the batch order and the class split of seed 0`."""
    seeds: dict[Value, list[str]] = {}
    for source in SOURCES:
        if (seed := plan.base_settings.get(f"seeds.{source}")) is not None:
            seeds.setdefault(seed, []).append(_NAMES[source])
    return " and ".join(f"the {' and the '.join(names)} of seed {seed}" for seed, names in seeds.items())


def _spread(metric: MetricName, spread: Spread) -> str:
    return f"{metric.amount(spread.sd)} ({metric.number(spread.low)} to {metric.number(spread.high)})"


def _table(metric: MetricName, components: tuple[_Component, ...]) -> Table:
    rows = tuple(
        (text_cell(_NAMES.get(c.source, c.source)), text_cell(c.sweep), value_cell(c.cells), value_cell(c.seeds),
         *(metric_cell(metric, value) for s in (c.trial, c.difference) for value in (s.sd, s.low, s.high)))
        for c in components
    )  # fmt: skip
    columns = (
        "a seed changes",
        "sweep",
        "cells",
        "seeds",
        "of a trial",
        "low",
        "high",
        "of a difference",
        "low ",
        "high ",
    )
    caption = (
        f"Standard deviation of {metric.axis} over seeds, of a trial and of the difference of two cells under one seed, with 95% "
        "intervals (Graybill and Wang), over the cells that all of these sweeps have."
    )
    return Table("variance", caption, columns, rows)
