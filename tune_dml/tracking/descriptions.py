"""Descriptions of the experiment and its runs in Markdown, for MLflow's pages. Names are escaped."""

from __future__ import annotations

import html
import re

from tune_dml.planning.cells import Cell
from tune_dml.record.judging.judgement import Judgement
from tune_dml.space import Space
from tune_dml.text import one_line
from tune_dml.tracking.projection import TAG_LIMIT, Projection

REPORT = "report"
"""Artifact folder of the report in the sweep's run."""
BEST_CONFIGURATION = "best_configuration.json"
"""Artifact of the sweep's run with every setting of its best cell."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#|~])")


def plain(text: str) -> str:
    """Escape a text for Markdown and HTML, on one line."""
    return _MARKDOWN.sub(r"\\\1", html.escape(one_line(text), quote=False))


def experiment_note(space: Space) -> str:
    """Return the experiment's description: its question, and how its runs are nested."""
    cited = space.citation
    source = f" From {plain(cited.title)} ({plain(cited.venue)} {cited.year})." if cited else ""
    nested = (
        "A run of `level` sweep holds one of `level` cell for each configuration, with mean, low, high and seeds; each of "
        "these holds its trials, one a seed. Filter by `tags.level = 'cell'` for the curve."
    )
    return f"**{plain(space.title)}**: {plain(space.question)}{source}\n\n{nested}"


def sweep_note(
    projection: Projection, judgement: Judgement, experiment_id: str, run_id: str, *, reported: bool, model: str
) -> str:
    """Return the sweep's description: the answer, the progress, and the attached report with its first figure."""
    state = projection.state
    ended = sum(state.trial(key).ended is not None for key in state.trials)
    parts = [plain(text) for text in judgement.text]
    parts.append(f"*After {ended} of {len(state.trials)} trials.*")
    if judgement.best:
        address = f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{BEST_CONFIGURATION}"
        kept = "no weights are kept, so there is no model to load: train it again with `tune-dml train`"
        if model:
            kept = f"[its network](#/experiments/{experiment_id}/models/{model}), to load as `models:/{model}`"
        parts.append(f"[Settings of the best configuration, {plain(judgement.best)}]({address}); {kept}.")
    if reported:
        page = f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{REPORT}/report.html"
        parts.append(f"[The whole report]({page})")
        if judgement.figure:
            address = f"get-artifact?path={REPORT}/figures/{judgement.figure}.svg&run_uuid={run_id}"
            parts.append(f"![{plain(judgement.figure)}]({address})")
    return "\n\n".join(parts)[: 5 * TAG_LIMIT // 2]


def cell_note(projection: Projection, cell: Cell, finding: str = "") -> str:
    """Return a cell's description: the report's finding and the run's content."""
    metric = plain(projection.state.plan.metric)
    own = f"Mean, comparison bar and seeds of {metric} for {plain(cell.label)}; its trials are the runs below it."
    return f"{plain(finding)}\n\n{own}" if finding else own


def trial_note(projection: Projection, key: str) -> str:
    """Return a trial's description."""
    trial = projection.planned(key)
    if trial is None:
        return "A trial that is not in its sweep's plan any more."
    purpose = ", which confirms it on a fresh seed" if key in projection.state.confirming else ""
    return f"Seed {trial.seed} of {plain(trial.cell.label)}{purpose}."
