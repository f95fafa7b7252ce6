"""Show a sweep in Python: its curve and best cells as tables, Figure 1 with matplotlib, and HTML for notebooks."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING, Any

from trainables.errors import ConfigError, Problem
from trainables.option_names import option_problem
from tune_dml.record.results import Results
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.drawing.paper import matplotlib_figure
from tune_dml.report.questions import answers
from tune_dml.report.section import Figure, Section, figures_of
from tune_dml.report.summary import answer_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as _Figure

    MatplotlibFigure = _Figure


def curve_table(results: Results, knob: str | None = None) -> pd.DataFrame:
    """Return a table with one row per value of each knob; the baseline comes last.

    Columns: arm, knob, value, label, seeds, mean, low and high end of the comparison bar, lost trials, baseline. `knob`
    restricts the table to one knob. Raises ConfigError if the sweep does not search that knob.
    """
    import pandas as pd

    analysis = analyse(results)
    _refuse_unknown(analysis, knob)
    ends, space = analysis.metric.level_ends, results.plan.space.name
    rows = [
        (item.arm or space, item.path, point.value, point.label, len(point.seeds), point.mean,
         *ends(point.mean - point.half_bar, point.mean + point.half_bar), len(point.failures),
         point is item.baseline)
        for item in analysis.knobs
        if knob in {None, item.path}
        for point in item.points_and_baseline
    ]  # fmt: skip
    columns = ["arm", "knob", "value", "label", "seeds", "mean", "low", "high", "lost", "baseline"]
    return pd.DataFrame(rows, columns=columns)


def best_table(results: Results) -> pd.DataFrame:
    """Return a table with one row per cell that validation can select, the best cell first."""
    import pandas as pd

    rows: list[dict[str, Any]] = [
        {
            "cell": cell.label,
            "arm": cell.cell.arm or results.plan.space.name,
            **cell.cell.knobs,
            "seeds": len(cell.values),
            results.plan.metric: cell.mean,
            "seconds": sum(cell.seconds),
            "baseline": cell.cell.baseline,
        }
        for cell in analyse(results).selectable
    ]
    return pd.DataFrame(rows)


def curve_plot(results: Results, knob: str | None = None) -> MatplotlibFigure:
    """Return Figure 1 of the report, for the first knob or `knob`, as a matplotlib figure.

    Raises ConfigError if the sweep does not search the knob, or if no trial has a result yet.
    """
    analysis = analyse(results)
    _refuse_unknown(analysis, knob)
    figure = _first_figure(answers(analysis, traces=False), knob)
    if figure is None or not any(cell.values for cell in analysis.cells):
        rule = "nothing to draw: no trial has a result yet"
        raise ConfigError(option_problem("sweep", rule, None, f"See `tune-dml status {results.name}`."))
    return matplotlib_figure(figure.draw(False))


def notebook_html(results: Results) -> str:
    """Return the answer, the next command and Figure 1 as HTML; before the first look, return how to get them."""
    if not results.has_current_look:
        hint = "Not judged yet. <code>tune_dml.write_report</code> judges it; this look spends part of the 5 % error."
        return f"<p><b>{html.escape(results.name)}</b>: {hint}</p>"
    analysis = analyse(results)
    sections = answers(analysis, traces=False)
    answer, figure = answer_of(analysis, sections), _first_figure(sections, None)
    parts = [f"<p><b>{html.escape(results.name)}</b>: {html.escape(' '.join(answer.sentences))}</p>"]
    if answer.step is not None:
        parts.append(f"<p>Next: <code>{html.escape(answer.step.command)}</code> ({html.escape(answer.cost)})</p>")
    if figure is not None:
        svg = base64.b64encode(figure.draw(False).document().encode()).decode()
        parts.append(f'<img src="data:image/svg+xml;base64,{svg}" alt="{html.escape(figure.description)}">')
    return "\n".join(parts)


def _first_figure(sections: tuple[Section, ...], knob: str | None) -> Figure | None:
    """Return the first figure about a knob (any knob if None); without figures about knobs, the first figure."""
    matching = [section for section in sections if section.knob is not None and knob in {None, section.knob.path}]
    return next(iter(figures_of(matching or sections if knob is None else matching)), None)


def _refuse_unknown(analysis: Analysis, knob: str | None) -> None:
    known = [item.path for item in analysis.knobs]
    if knob is not None and knob not in known:
        raise ConfigError(Problem("knob", "unknown knob", knob, known=known, kind="knob", dotted=True))
