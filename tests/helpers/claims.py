"""Find contradictions between the claims of a report, for sweeps with given numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from helpers.toys import METRIC
from tune_dml.planning.plan import Plan
from tune_dml.record.judging.looks import Look
from tune_dml.record.judging.race import Race, RaceRule
from tune_dml.record.results import Results, TrialResult
from tune_dml.report.analysis import Analysis
from tune_dml.report.questions.configurations.configuration import configuration
from tune_dml.report.questions.knobs.optimum import optimum
from tune_dml.report.questions.methods.arms import arms
from tune_dml.report.section import Section
from tune_dml.stats.sequential.looks import race_level
from tune_dml.stats.sequential.racing import Outcomes, judge_block

BLOCKS = (3, 4, 5, 6, 8, 10)
_SLACK = 1e-9


def results_with(plan: Plan, values: np.ndarray, race: Race | None = None, ran: np.ndarray | None = None) -> Results:
    """Return results of a plan with values (cells, seeds). NaN is a trial that failed or, if `ran` says so, did not run."""
    trials = []
    for trial in plan.trials():
        at = plan.cells.index(trial.cell), plan.seeds.index(trial.seed)
        number = float(values[at])
        held = np.isfinite(number)
        status = "finished" if held else "failed" if ran is None or ran[at] else "missing"
        metrics = {METRIC: number} if held else {}
        trials.append(TrialResult(trial.key, trial.cell, trial.seed, status, metrics=metrics, seconds=1.0, attempts=1))
    return Results(Path("toy"), plan, tuple(trials), {}, (), race=race)


def raced(plan: Plan, values: np.ndarray, margin: float, blocks: Sequence[int] = BLOCKS, step: float = 0.0) -> Results:
    """Return the results of a race that adds seeds in blocks to unsettled cells, with its looks. NaN is a failed trial."""
    ran, runs = np.zeros(values.shape, dtype=bool), np.ones(len(values), dtype=bool)
    race, state, since, looks = Race(RaceRule(margin, blocks[-1])), None, 0, []
    compared = np.array([not cell.baseline for cell in plan.cells])
    sign = 1.0 if plan.space.goal == "maximize" else -1.0
    for block in blocks:
        ran[runs, since:block] = True
        race.judged.append((block, race_level([*(seeds for seeds, _ in race.judged), block], planned=blocks[-1])))
        looks.append(Look(block, blocks[-1], "race", 0.0, int(ran.sum()), str(block), cells=len(values)))
        seen = Outcomes(np.where(ran, sign * values, np.nan), np.zeros_like(ran), ran & np.isnan(values)).first(block)
        level = race.judged[-1][1]
        state, since = judge_block(seen, since, margin, level, state, compared=compared, resolution=step), block
        runs = state.runs
        if state.ended:
            break
    race.over = "decided" if state.decided else "failed" if state.ended else "max_seeds"
    so_far = replace(plan, seeds=plan.seeds[:since])
    return replace(results_with(so_far, np.where(ran, values, np.nan), race, ran), looks=tuple(looks))


def contradictions(analysis: Analysis) -> list[str]:
    """Return pairs of claims in a report's data that cannot both be true."""
    sections = [one.section(analysis, None) for one in (arms, configuration)]
    ahead = _LowerBounds()
    for low, better, worse in _of_cells(analysis, sections):
        ahead.add(better, worse, low)
    found = []
    for knob in analysis.knobs:
        data, at = vars(knob.sensitivity), optimum.section(analysis, knob).data["optimum"]
        names = dict(zip(knob.labels, knob.cells or [f"{knob.key} {label}" for label in knob.labels], strict=True))
        own = ahead if knob.cells else _LowerBounds()
        for low, better, worse in _differences(data["differences"], analysis.sign):
            own.add(names[better], names[worse], low)
        found += _of_knob(knob.key, data, at, names, own)
    best = next((s.data["configuration"] for s in sections if s.data.get("configuration")), None)
    if best and best["candidates"]:
        worse = [label for label in best["candidates"] if ahead.lost(label)]
        found += [f"{label} may be the best configuration, and is worse" for label in worse]
        if best["label"] not in best["candidates"]:
            found.append(f"the best configuration {best['label']} cannot be the best")
    rows = next((s.data["arms"]["rows"] for s in sections if s.data.get("arms")), ())
    if rows and ahead.lost(rows[0].configuration) and not ahead.cyclic:
        found.append(f"{rows[0].arm} leads, and is worse")
    return found + (["a circle of values that are each better than the next"] if ahead.cyclic else [])


class _LowerBounds:
    """Proven lower bounds of differences, and their transitive closure."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.least: dict[tuple[str, str], float] = {}

    def add(self, better: str, worse: str, low: float) -> None:
        self.names += [name for name in (better, worse) if name not in self.names]
        self.least[better, worse] = max(low, self.least.get((better, worse), -np.inf))

    def closed(self) -> np.ndarray:
        low = np.full((len(self.names),) * 2, -np.inf)
        for (better, worse), least in self.least.items():
            low[self.names.index(better), self.names.index(worse)] = least
        for through in range(len(low)):
            low = np.maximum(low, low[:, [through]] + low[[through], :])
        return low

    @property
    def cyclic(self) -> bool:
        return bool((np.diag(self.closed()) > _SLACK).any())

    def behind(self, name: str, among: Iterable[str] | None = None) -> float:
        """Return how far a name is provably behind the best of `among`, of all by default."""
        if name not in self.names:
            return 0.0
        column = self.closed()[:, self.names.index(name)]
        others = set(self.names if among is None else among) & set(self.names) - {name}
        return max((0.0, *(float(column[self.names.index(other)]) for other in others)))

    def lost(self, name: str, among: Iterable[str] | None = None) -> bool:
        return self.behind(name, among) > _SLACK


def _differences(rows: Iterable[Any], sign: float) -> Iterable[tuple[float, str, str]]:
    for row in rows:
        low, high = sorted((sign * row.low, sign * row.high))
        yield low, row.first, row.second
        yield -high, row.second, row.first


def _of_cells(analysis: Analysis, sections: Sequence[Section]) -> Iterable[tuple[float, str, str]]:
    """Return claims about pairs of cells: against the baseline, and between arms of one cell."""
    if analysis.baseline is not None:
        for row in analysis.against_baseline or ():
            low, high = sorted((analysis.sign * row.low, analysis.sign * row.high))
            yield low, row.label, analysis.baseline.label
            yield -high, analysis.baseline.label, row.label
    data = next((section.data["arms"] for section in sections if section.data.get("arms")), None)
    if data and all(len(arm.trained) == 1 for arm in analysis.arms):
        cells = {row.arm: row.configuration for row in data["rows"]}
        for low, better, worse in _differences(data["pairs"], analysis.sign):
            yield low, cells[better], cells[worse]


def _of_knob(key: str, data: Any, at: Any, names: dict[str, str], ahead: _LowerBounds) -> list[str]:
    found = []
    values = set(names.values())  # the baseline is none of them: it may be better than all
    mine = [name for name in ahead.names if name in values]
    if data["verdict"] == "insensitive":
        closed = ahead.closed()
        wide = [closed[ahead.names.index(a), ahead.names.index(b)] for a in mine for b in mine if a != b]
        if max(wide, default=0.0) > data["margin"] + _SLACK:
            found.append(f"{key} does not matter, and a difference is larger than the margin")
    if not at or not at["candidates"]:
        return found
    candidates, within = at["candidates"], at["within"]
    worse = [label for label in candidates if ahead.lost(names[label], values)]
    found += [f"{key}: {label} may be the best, and is worse" for label in worse]
    if at["best"] not in candidates:
        found.append(f"{key}: the best mean {at['best']} cannot be the best")
    ends = (at["behind"][0][0], at["behind"][-1][0])
    if at["verdict"] == "edge" and list(candidates) != [ends[at["side"] == "high"]]:
        found.append(f"{key}: an edge is the best, and so may be {candidates}")
    if at["verdict"] == "interior" and set(ends) & set(candidates):
        found.append(f"{key}: interior, and an edge may be the best")
    if at["verdict"] == "undecided" and len(candidates) == 1 and len(at["behind"]) > 2:
        found.append(f"{key}: one value is the best, and it is open where it lies")
    for label, behind in at["behind"]:
        if ahead.behind(names[label], values) > behind + _SLACK:
            found.append(f"{key}: {label} is behind by at most {behind:.3g}, and by more")
    rows = [label for label, _ in at["behind"]]
    places = [rows.index(label) for label in within]
    if any(second != first + 1 for first, second in pairwise(places)):
        found.append(f"{key}: what is within the margin has gaps")
    return found
