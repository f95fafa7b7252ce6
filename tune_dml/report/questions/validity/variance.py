"""Where does the noise come from? Compare sweeps of the same cells, each of which varies one source of randomness."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainables.config import FREE_SEEDS, SOURCES, canonical, identity_settings
from trainables.errors import ConfigError
from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan
from tune_dml.record.results import Results, results_of
from tune_dml.report.analysis import Analysis
from tune_dml.report.cells import metric_cells
from tune_dml.report.naming import MetricName
from tune_dml.report.questions import question
from tune_dml.report.section import Section, Table, Text
from tune_dml.space import Value
from tune_dml.stats import SeedTable
from tune_dml.stats.intervals.components import Spread, difference_spread, sum_of_spreads, trial_spread

_NAMES = {"init": "initial weights", "order": "batch order", "split": "class split", "all": "all of them"}
_COMMON = ("data_digest", "protocol_version", "metric")  # properties of a plan in which compared sweeps must agree


@dataclass(frozen=True)
class _Component:
    source: str  # `init`, `order`, `split` or `all`
    sweep: str
    cells: int
    seeds: int  # seeds that every cell has finished
    trial: Spread  # spread of a trial's result over seeds
    difference: Spread  # spread of the difference of two cells under one seed, which verdicts use


@question(order=345, unanswered={"variance": None})
def variance(analysis: Analysis) -> Section | None:
    """Measure the spread of each source of randomness; None if every sweep varies all sources at once."""
    own = _varied_sources(analysis.results.plan)
    by_source, shared = _sweeps_by_source(analysis.results)
    if own == "all" and not set(by_source) - {"all"}:
        return None
    components = tuple(_component(source, results, shared) for source, results in by_source.items())
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


def _varied_sources(plan: Plan) -> str:
    """Return the sources that a seed of this plan changes: `all`, or their names."""
    free = [source for source in SOURCES if plan.base_settings.get(f"seeds.{source}") is None]
    return "all" if len(free) == len(SOURCES) else " and ".join(free)


def _sweeps_by_source(results: Results) -> tuple[dict[str, Results], frozenset[str]]:
    """Return a sweep for each source, this sweep or one in the same folder, and the cells that all of them share.

    If several sweeps vary the same source, the one with the most shared cells is returned, then the one with the most
    seeds.
    """
    own_cells = shared = _cell_keys(results.plan)
    own, found = _varied_sources(results.plan), dict[str, tuple[int, int, Path]]()
    for path in sorted(results.folder.parent.glob("*/plan.json")):
        try:
            plan = Plan.load(path)
            source = _varied_sources(plan)
            if source == own or any(getattr(plan, part) != getattr(results.plan, part) for part in _COMMON):
                continue
            rank = (len(own_cells & _cell_keys(plan)), len(plan.seeds))  # last, as it takes long for many cells
        except (ConfigError, ValueError):  # a damaged plan is reported when its sweep is opened
            continue
        if rank[0] and rank > found.get(source, (0, 0, path))[:2]:
            found[source] = *rank, path.parent
    by_source = {own: results} | {source: results_of(folder) for source, (_, _, folder) in found.items()}
    for sweep in by_source.values():
        shared = shared & _cell_keys(sweep.plan)
    ordered = [source for source in (*SOURCES, "all") if source in by_source and shared]
    return {source: by_source[source] for source in ordered}, shared


def _cell_keys(plan: Plan) -> frozenset[str]:
    return frozenset(_cell_key(cell) for cell in plan.cells)


def _cell_key(cell: Cell) -> str:
    """Return the settings of a cell without its seeds, as text."""
    settings = identity_settings(cell.settings)
    return canonical({path: value for path, value in settings.items() if path not in FREE_SEEDS})


def _component(source: str, results: Results, shared: frozenset[str]) -> _Component:
    keys = {cell.digest: _cell_key(cell) for cell in results.cells}
    values: dict[str, dict[int, float]] = {}
    for trial in results.trials:
        key, metric = keys[trial.cell.digest], results.plan.metric
        if key in shared and trial.status == "finished" and metric in trial.metrics:
            values.setdefault(key, {})[trial.seed] = float(trial.metrics[metric])
    numbers = SeedTable.of(values, results.plan.seeds).values
    seeds = int(np.isfinite(numbers).all(0).sum()) if values else 0
    return _Component(source, results.name, len(values), seeds, trial_spread(numbers), difference_spread(numbers))


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
            f"{_fixed_sources(analysis.results.plan)}."
        )
    measured = [component for component in components if component.trial.is_known]
    spreads = [
        f"a trial spreads by {_spread(metric, c.trial)}" if c.trial.sd else "not measurable, equal" for c in measured
    ]
    sentences += [
        f"{_NAMES[c.source].capitalize()}: {spread} over {c.seeds} seeds."
        for c, spread in zip(measured, spreads, strict=True)
    ]
    missing = [source for source in SOURCES if source not in {component.source for component in measured}]
    if missing:
        names = " and ".join(_NAMES[source] for source in missing)
        flags = " and ".join(f"--vary {source}" for source in missing)
        sentences.append(f"Unknown: the effect of {names}. Run the same sweep with {flags} and two or more seeds.")
    if (total := _sum(components)) and total["trial"].is_known and total["trial"].sd:
        sentences.append(
            f"Sum: {_spread(metric, total['trial'])}. Each was measured with the others fixed to seed {first}, so the sum may "
            "differ from the spread of a seed that changes all of them."
        )
    return sentences


def _fixed_sources(plan: Plan) -> str:
    """Return the fixed sources: `the batch order and the class split of seed 0`."""
    seeds: dict[Value, list[str]] = {}
    for source in SOURCES:
        if (seed := plan.base_settings.get(f"seeds.{source}")) is not None:
            seeds.setdefault(seed, []).append(_NAMES[source])
    return " and ".join(f"the {' and the '.join(names)} of seed {seed}" for seed, names in seeds.items())


def _spread(metric: MetricName, spread: Spread) -> str:
    return f"{metric.amount(spread.sd)} ({metric.number(spread.low)} to {metric.number(spread.high)})"


def _table(metric: MetricName, components: tuple[_Component, ...]) -> Table:
    rows = [
        (_NAMES.get(c.source, c.source), c.sweep, c.cells, c.seeds,
         *(cell for s in (c.trial, c.difference)
           for cell in metric_cells(metric, *((s.sd, s.low, s.high) if s.sd else (math.nan,) * 3))))
        for c in components
    ]  # fmt: skip
    spreads = ("of a trial", "low", "high", "of a difference", "low ", "high ")
    columns = ("a seed changes", "sweep", "cells", "seeds", *spreads)
    caption = (
        f"Standard deviation of {metric.axis} over seeds, of a trial and of the difference of two cells under one seed, with 95% "
        "intervals (Graybill and Wang; wide enough for moderately heavy tails, too narrow if single trials collapse), over the "
        "cells that all of these sweeps have."
    )
    return Table("variance", caption, columns, rows)
