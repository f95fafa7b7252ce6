"""Analysis of a sweep: the numbers of each cell, the curve of each knob, and the comparisons that questions share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trainables.errors import raise_if_any
from tune_dml.planning.request import margin_problems, paper_sd_problems
from tune_dml.record.results import Results, TrialResult
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.analysis.comparisons import BaselineDifference, CellComparisons
from tune_dml.report.analysis.knob import KnobAnalysis, analyse_knob
from tune_dml.report.analysis.traces import Candidate, Histories, LoggedRows, Pair, choose_evidence, group_histories
from tune_dml.report.naming import metric_name

__all__ = ["Analysis", "BaselineDifference", "analyse"]


@dataclass(frozen=True, eq=False)
class Analysis(CellComparisons):
    """Results of a sweep, with the comparisons that several questions of the report use."""

    @cached_property
    def knobs(self) -> tuple[KnobAnalysis, ...]:
        """Analyses of the scientific knobs of each arm, or of all knobs if none is scientific.

        The error is divided among the knobs (Bonferroni).
        """
        space = self.results.plan.space
        searched = [
            (arm, knob) for arm in self.arms if not arm.baseline for knob in space.scientific_of(space.arm(arm.name))
        ]
        return tuple(analyse_knob(self, arm, knob, self.looks.level / len(searched)) for arm, knob in searched)

    logged = cached_property(lambda self: LoggedRows(self.results))
    """Reader of the rows that trials logged."""

    @cached_property
    def histories(self) -> dict[str, Histories]:
        """Training histories of the trials behind each knob's curve, by knob key."""
        return self._histories([trial.key for trial in self.results.trials])

    @cached_property
    def finished_histories(self) -> dict[str, Histories]:
        """Training histories of finished trials alone, because lost and stopped trials ended at other steps."""
        return self._histories([trial.key for trial in self.results.trials if trial.status == "finished"])

    def _histories(self, trials: Sequence[str]) -> dict[str, Histories]:
        rows = self.logged.read(trials)
        baseline = self.baseline.label if self.baseline else None
        levels = {
            knob.key: {p.label: [key for key in p.trials if key in rows] for p in knob.points_and_baseline}
            for knob in self.knobs
        }
        return {key: group_histories(rows, trials_of, baseline) for key, trials_of in levels.items()}

    @cached_property
    def pair(self) -> Pair:
        """Evidence of the best cell and of the baseline, or of the worst cell if there is no baseline."""
        ranked = sorted((cell for cell in self.cells if cell.values), key=lambda cell: -self.sign * cell.mean)
        baseline, missing = self.baseline, []
        if baseline is not None and not baseline.values:
            missing.append(f"The baseline {baseline.label} has no finished trial to show.")
        if baseline is None or not baseline.values:
            shown = [(ranked[-1], "worst")] if len(ranked) > 1 else []
            shown += [(cell, "best") for cell in ranked[:1]]
        else:
            rivals = [cell for cell in ranked if cell is not baseline]
            role = "best" if rivals and rivals[0] is ranked[0] else "best of the others"
            shown = [(baseline, "baseline"), *((cell, role) for cell in rivals[:1])]
        return choose_evidence(
            self.results, [Candidate(cell.label, role, cell.trials) for cell, role in shown], missing
        )


def analyse(results: Results, margin: float | None = None, paper_sd: float | None = None) -> Analysis:
    """Analyse the results of a sweep; `margin` defaults to the planned one. Raises ConfigError unless margin > 0."""
    plan, metric = results.plan, results.plan.metric
    margin = plan.margin if margin is None else margin
    raise_if_any([*margin_problems(margin), *paper_sd_problems(paper_sd)])
    by_cell: dict[str, list[TrialResult]] = {}
    for trial in results.trials:
        by_cell.setdefault(trial.cell.digest, []).append(trial)
    cells = tuple(_analyse_cell(trials, metric) for trials in by_cell.values())
    return Analysis(results, metric_name(metric), margin, cells, paper_sd)


def _analyse_cell(trials: list[TrialResult], metric: str) -> CellAnalysis:
    values: dict[int, float] = {}
    failures: list[tuple[TrialResult, str]] = []
    for trial in trials:
        number = trial.metrics.get(metric, math.nan)
        if trial.status in {"failed", "diverged"}:
            why = f": {trial.reason}" if trial.reason else ""
            failures.append((trial, f"{trial.status}{why}"))
        elif trial.status == "finished" and not math.isfinite(number):
            failures.append((trial, f"finished without a finite {metric}"))
        elif trial.status == "finished":
            values[trial.seed] = float(number)
    return CellAnalysis(trials[0].cell, tuple(trials), values, tuple(failures))
