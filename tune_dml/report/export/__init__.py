"""The report's files: the page, figures, tables and verdicts. The same sweep gives the same bytes.

tables      CSV, Markdown and LaTeX
checks      conditions on the verdicts, for a pipeline
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainables.errors import ConfigError, Problem
from trainables.files import write_whole
from tune_dml.record.results import Results
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.drawing.paper import render_file
from tune_dml.report.export.tables import csv_text, latex_text, markdown_text
from tune_dml.report.naming import slug
from tune_dml.report.page import page_text, writable
from tune_dml.report.questions import RENAME, answers
from tune_dml.report.section import Figure, Section, figures_of, tables_of
from tune_dml.report.summary import SweepSummary, answer_of, summarise
from tune_dml.text import json_value

Form = Literal["pdf", "png"]  # file format of figures, in addition to SVG


@dataclass(frozen=True, repr=False)
class ReportFiles:
    """Files of a written report."""

    folder: Path
    html: Path
    verdicts: Path
    latex: Path
    markdown: Path
    csv: tuple[Path, ...]
    figures: tuple[Path, ...]
    summary: SweepSummary
    findings: tuple[str, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Paths of all files."""
        return (self.html, self.verdicts, self.latex, self.markdown, *self.csv, *self.figures)

    def __repr__(self) -> str:
        """Return one line, because names and verdicts would fill pages."""
        return f"<Report of {self.summary.name}: {self.html} and {len(self.paths) - 1} more files>"


def write_report(
    results: Results,
    path: Path,
    *,
    margin: float | None = None,
    paper_sd: float | None = None,
    forms: Sequence[Form] = (),
) -> ReportFiles:
    """Write the report of a sweep into a folder, which is created if missing.

    Args:
        results: the sweep, which may be unfinished or failed.
        path: the folder.
        margin: differences below this do not matter; positive, the planned one by default.
        paper_sd: positive run-to-run standard deviation of published numbers that print none.
        forms: formats of figures in addition to SVG.
    """
    path = writable(Path(path))
    analysis = analyse(results, margin, paper_sd)
    sections = answers(analysis)
    tables, figures = tables_of(sections), figures_of(sections)
    for folder in (path, path / "csv", path / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    html = _write(path / "report.html", page_text(analysis, sections))
    verdicts = _write(path / "verdicts.json", _verdicts_text(analysis, sections))
    for_paper = [table.without((*table.csv_only, *table.linked)) for table in tables if table.for_paper]
    heading = f"Sweep {results.name}, {analysis.metric.label}"
    latex = _write(path / "tables.tex", latex_text(for_paper, heading))
    markdown = _write(path / "tables.md", markdown_text(for_paper, heading))
    csv_files = tuple(_write(path / "csv" / f"{table.name}.csv", csv_text(table)) for table in tables)
    drawings = tuple(file for figure in figures for file in _draw(figure, path / "figures", forms))
    summary = summarise(analysis, sections)
    return ReportFiles(path, html, verdicts, latex, markdown, csv_files, drawings, summary, summary.findings)


def _draw(figure: Figure, folder: Path, forms: Sequence[Form]) -> Iterator[Path]:
    """Write each view of a figure in every format, at desktop width."""
    for index, view in enumerate(figure.views):
        name = figure.name if index == 0 else f"{figure.name}-{slug(view.title)}"
        canvas = view.draw(False)
        yield _write(folder / f"{name}.svg", canvas.document())
        for form in forms:
            path = folder / f"{name}.{form}"
            write_whole(path, render_file(canvas, form))
            yield path


def _write(path: Path, text: str) -> Path:
    write_whole(path, text)
    return path


SCHEMA = "tune_dml.verdicts/3"


def _verdicts_text(analysis: Analysis, sections: Sequence[Section]) -> str:
    """Return the verdicts as JSON text; numbers that are not finite become null."""
    plan = analysis.results.plan
    knobs: dict[str, dict[str, object]] = {knob.key: {} for knob in analysis.knobs}
    body: dict[str, object] = {
        "schema": SCHEMA,
        "sweep": analysis.results.name,
        "space": plan.space.name,
        "dataset": plan.dataset,
        "data_digest": plan.data_digest,
        "protocol_version": plan.protocol_version,
        "plan": plan.identity(),
        "mlflow_parent_run": analysis.results.parent_run_id or None,
        "metric": analysis.metric.description(analysis.goal),
        "margin": analysis.margin,
        "seeds": analysis.seeds,
        "answer": _answer(analysis, sections),
        "sentences": [sentence for section in sections for sentence in section.verdicts],
        "findings": [finding for section in sections for finding in section.findings],
        "knobs": list(knobs.values()),
    }
    for section in sections:
        target = knobs[section.knob.key] if section.knob else body
        for name, value in section.data.items():
            if name in target:
                rule = "two questions of the report write the same key of verdicts.json"
                raise ConfigError(Problem("report", rule, name, RENAME))
            target[name] = value
    return json.dumps(json_value(body), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _answer(analysis: Analysis, sections: Sequence[Section]) -> dict[str, object]:
    answer = answer_of(analysis, sections)
    names = ("command", "settles", "chance", "trials")
    step = answer.step and {**{name: getattr(answer.step, name) for name in names}, "cost": answer.cost}
    return {"sentences": answer.sentences, "next": step, "facts": dict(answer.facts)}
