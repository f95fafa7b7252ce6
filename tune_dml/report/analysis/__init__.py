"""Analysis of a sweep: the numbers of each cell, the curve of each knob, and the comparisons that questions share."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from trainables.errors import raise_if_any
from tune_dml.planning.request import margin_problems
from tune_dml.record.results import Results
from tune_dml.report.analysis.cell import analyse_cells
from tune_dml.report.analysis.comparisons import BaselineDifference, CellComparisons
from tune_dml.report.analysis.knob import KnobAnalysis, analyse_knob
from tune_dml.report.analysis.traces import Histories, Pair, Rows, choose_evidence, finite_numbers
from tune_dml.report.naming import metric_of

__all__ = ["Analysis", "BaselineDifference", "analyse"]


@dataclass(frozen=True, eq=False)
class Analysis(CellComparisons):
    """Results of a sweep, with the comparisons that several questions of the report use."""

    @cached_property
    def knobs(self) -> tuple[KnobAnalysis, ...]:
        """Analyses of the searched knobs; the error is divided among them (Bonferroni)."""
        level = self.looks.level / max(1, len(self.searched))
        return tuple(analyse_knob(self, arm, knob, level) for arm, knob in self.searched)

    _rows = cached_property(lambda _: dict[str, Rows]())

    def _logged(self, trial: str) -> Rows:
        """Return the rows that a trial logged; each trial is read once."""
        if trial not in self._rows:
            self._rows[trial] = [finite_numbers(row) for row in self.results.history(trial)]
        return self._rows[trial]

    def histories_of(self, trials: Mapping[str, Sequence[str]], baseline: str | None = None) -> Histories:
        """Return the training histories of trials; `trials` has their keys by label."""
        return Histories.of(
            {label: {key: self._logged(key) for key in keys} for label, keys in trials.items()}, baseline
        )

    @cached_property
    def histories(self) -> dict[str, Histories]:
        """Training histories of the trials behind each knob's curve, by knob key."""
        return self._histories({trial.key for trial in self.results.trials})

    @cached_property
    def finished_histories(self) -> dict[str, Histories]:
        """Training histories of finished trials alone, because lost and stopped trials ended at other steps."""
        return self._histories({trial.key for trial in self.results.trials if trial.status == "finished"})

    def _histories(self, trials: Set[str]) -> dict[str, Histories]:
        baseline = self.baseline.label if self.baseline else None
        levels = {
            knob.key: {p.label: [key for key in p.trials if key in trials] for p in knob.points_and_baseline}
            for knob in self.knobs
        }
        return {key: self.histories_of(keys, baseline) for key, keys in levels.items()}

    @cached_property
    def pair(self) -> Pair:
        """Evidence of the best cell and of the baseline, or of the worst cell if there is no baseline."""
        ranked, baseline, missing = self.ranked, self.baseline, []
        if baseline is not None and baseline.values:
            rivals = [cell for cell in ranked if cell is not baseline]
            role = "best" if rivals and rivals[0] is ranked[0] else "best of the others"
            shown = [(baseline, "baseline"), *((cell, role) for cell in rivals[:1])]
        else:
            missing = [f"The baseline {baseline.label} has no finished trial to show."] if baseline else []
            shown = [(cell, "worst") for cell in ranked[1:][-1:]] + [(cell, "best") for cell in ranked[:1]]
        return choose_evidence(self.results, shown, missing)


def analyse(results: Results, margin: float | None = None, paper_sd: float | None = None) -> Analysis:
    """Analyse the results of a sweep; `margin` defaults to the planned one. Raises ConfigError unless margin > 0."""
    plan, metric = results.plan, results.plan.metric
    margin = plan.margin if margin is None else margin
    raise_if_any(margin_problems(margin, paper_sd))
    return Analysis(results, metric_of(results), margin, analyse_cells(results.trials, metric), paper_sd)
