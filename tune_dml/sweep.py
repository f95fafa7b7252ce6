"""The result of a session in Python: tables and figures of a sweep and, in a notebook, its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tune_dml.record.results import Results

if TYPE_CHECKING:
    import optuna
    import pandas as pd

    from tune_dml.record.state import SweepState
    from tune_dml.report.notebook import MatplotlibFigure
    from tune_dml.tracking import SyncReport


@dataclass(frozen=True, repr=False)
class Sweep:
    """A sweep, and the outcome of its last session."""

    results: Results
    interrupted: bool = False
    tracking: SyncReport | None = None  # of the last MLflow sync; None if the sweep was only loaded
    confirmation: bool = False  # whether the session ran the confirmation, not the trials of the sweep
    state: SweepState | None = field(default=None, repr=False, compare=False)  # None for imported results

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.results.name

    @property
    def folder(self) -> Path:
        """Folder of the sweep."""
        return self.results.folder

    @property
    def exit_code(self) -> int:
        """0 if complete, 3 if trials failed or diverged, 130 if interrupted and resumable."""
        if self.interrupted:
            return 130
        trials = self.results.confirmed if self.confirmation else self.results.trials
        return 3 if any(trial.status in {"failed", "diverged"} for trial in trials) else 0

    def table(self) -> pd.DataFrame:
        """Return one row per trial; see `Results.table`."""
        return self.results.table()

    def curve(self, knob: str | None = None) -> pd.DataFrame:
        """Return one row per value of each knob, or of `knob`: seeds, mean, comparison bar. The baseline is last."""
        from tune_dml.report.notebook import curve_table

        return curve_table(self.results, knob)

    def best(self) -> pd.DataFrame:
        """Return one row per cell that validation can select, the best first."""
        from tune_dml.report.notebook import best_table

        return best_table(self.results)

    def plot(self, knob: str | None = None) -> MatplotlibFigure:
        """Return the report's curve of a knob (by default the first one) as a matplotlib figure."""
        from tune_dml.report.notebook import curve_plot

        return curve_plot(self.results, knob)

    def study(self) -> optuna.Study:
        """Return a new Optuna study in memory with a trial for each cell and seed."""
        from tune_dml.record.study import study_of

        return study_of(self.results)

    def __getstate__(self) -> dict[str, object]:
        """Return what a pickle or a copy holds: all but the live state, which follows the sweep's files."""
        return {**vars(self), "state": None}

    def __repr__(self) -> str:
        """Return one line, because the data of all trials would fill pages."""
        ended = sum(trial.status in {"finished", "diverged", "failed", "stopped"} for trial in self.results.trials)
        return f"<Sweep {self.name}: {ended} of {self.results.planned_trials} trials ended, in {self.folder}>"

    def _repr_html_(self) -> str:
        """Return the answer, the next command and the curve, for a notebook."""
        from tune_dml.report.notebook import notebook_html

        return notebook_html(self.results)


def colour_of_arm(arm: int) -> str:
    """Return the colour of an arm in report and MLflow, by its index."""
    from tune_dml.report.drawing.colours import PALETTE, arm_colour

    return PALETTE[arm_colour(arm)][0]
