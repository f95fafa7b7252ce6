"""Write the descriptions of the experiment and its runs in Markdown, for MLflow's pages. Names are escaped."""

import html
import re

from tune_dml.planning.cells import Cell
from tune_dml.record.judging.judgement import Judgement
from tune_dml.space import Space
from tune_dml.text import one_line
from tune_dml.tracking.projection import TAG_LIMIT, Projection

REPORT = "report"  # artifact folder of the report in the sweep's run
BEST_CONFIGURATION = "best_configuration.json"  # artifact of the sweep's run: every setting of its best cell
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#|~])")


def _escape_markdown(text: str) -> str:
    """Join a text to one line, and escape it for Markdown and HTML."""
    return _MARKDOWN.sub(r"\\\1", html.escape(one_line(text), quote=False))


def experiment_note(space: Space) -> str:
    """Return the description of the experiment: its question, and the structure of its runs."""
    source = ""
    if citation := space.citation:
        source = f" From {_escape_markdown(citation.title)} ({_escape_markdown(citation.venue)} {citation.year})."
    structure = (
        "A run of `level` sweep has a child of `level` cell for each configuration, with mean, low, high and seeds. "
        "The children of a cell are its trials, one for each seed. Filter by `tags.level = 'cell'` for the curve."
    )
    return f"**{_escape_markdown(space.title)}**: {_escape_markdown(space.question)}{source}\n\n{structure}"


def sweep_note(
    projection: Projection, judgement: Judgement, experiment_id: str, run_id: str, *, reported: bool, model: str
) -> str:
    """Return the description of the sweep: answer, progress, and links to the attached report and its first figure."""
    state = projection.state
    ended = sum(state.trial(key).ended is not None for key in state.trials)
    parts = [_escape_markdown(text) for text in judgement.text]
    parts.append(f"*After {ended} of {len(state.trials)} trials.*")
    if judgement.best:
        address = f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{BEST_CONFIGURATION}"
        model_text = "its weights are not stored, so there is no model to load: train it again with `tune-dml train`"
        if model:
            model_text = f"[its network](#/experiments/{experiment_id}/models/{model}), to load as `models:/{model}`"
        parts.append(
            f"[Settings of the best configuration, {_escape_markdown(judgement.best)}]({address}); {model_text}."
        )
    if reported:
        page = f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{REPORT}/report.html"
        parts.append(f"[The whole report]({page})")
        if judgement.figure:
            address = f"get-artifact?path={REPORT}/figures/{judgement.figure}.svg&run_uuid={run_id}"
            parts.append(f"![{_escape_markdown(judgement.figure)}]({address})")
    return "\n\n".join(parts)[: 5 * TAG_LIMIT // 2]


def cell_note(projection: Projection, cell: Cell, finding: str = "") -> str:
    """Return the description of a cell: the finding of the report and the content of the run."""
    metric = _escape_markdown(projection.state.plan.metric)
    label = _escape_markdown(cell.label)
    content = f"Mean, comparison bar and seeds of {metric} for {label}; its trials are the runs below it."
    return f"{_escape_markdown(finding)}\n\n{content}" if finding else content


def trial_note(projection: Projection, key: str) -> str:
    """Return the description of a trial."""
    trial = projection.planned_trial(key)
    purpose = ", which confirms it on a fresh seed" if key in projection.state.confirmation_trials else ""
    return f"Seed {trial.seed} of {_escape_markdown(trial.cell.label)}{purpose}."
