"""The report's files: the page, figures, tables as CSV and LaTeX, verdicts as JSON. The same sweep gives the same bytes."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.errors import ConfigError, Problem
from tune_dml.record.results import Results
from tune_dml.report.measured import Measured, measure
from tune_dml.report.page import page_text
from tune_dml.report.questions import RENAME, answers
from tune_dml.report.section import Entry, Section, Table, figures_of, tables_of
from tune_dml.report.summary import SweepSummary, summarise

SCHEMA = "tune_dml.verdicts/2"


@dataclass(frozen=True)
class ReportFiles:
    """What was written."""

    folder: Path
    html: Path
    verdicts: Path
    latex: Path
    csv: tuple[Path, ...]
    figures: tuple[Path, ...]
    summary: SweepSummary
    findings: tuple[str, ...]
    """Trials without a result and optima at an extendable edge: a check should fail on any."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.html, self.verdicts, self.latex, *self.csv, *self.figures)


def write_report(
    results: Results, path: Path, *, margin: float | None = None, paper_sd: float | None = None
) -> ReportFiles:
    """Judge a sweep as it stands and write its report into a folder, made if missing.

    Args:
        results: the sweep; one that is unfinished, or failed throughout, is reported as such.
        path: the folder.
        margin: differences below this do not matter; the planned one by default. Must be positive.
        paper_sd: run-to-run standard deviation of the papers' numbers, where they print none. Must be positive.
    """
    measured = measure(results, margin, paper_sd)
    sections = answers(measured)
    tables, figures = tables_of(sections), figures_of(sections)
    path = Path(path)
    for folder in (path, path / "csv", path / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    html = _write(path / "report.html", page_text(measured, sections))
    verdicts = _write(path / "verdicts.json", verdicts_text(measured, sections))
    printed = [table.without((*table.csv_only, *table.linked)) for table in tables if table.for_paper]
    latex = _write(path / "tables.tex", latex_text(printed, f"Sweep {results.name}, {measured.metric.label}"))
    csv_files = tuple(_write(path / "csv" / f"{table.name}.csv", csv_text(table)) for table in tables)
    drawings = tuple(_write(path / "figures" / f"{figure.name}.svg", figure.wide + "\n") for figure in figures)
    summary = summarise(measured, sections)
    return ReportFiles(path, html, verdicts, latex, csv_files, drawings, summary, summary.findings)


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def verdicts_text(measured: Measured, sections: Sequence[Section]) -> str:
    """The verdicts as JSON: the numbers of the page in full precision, under stable names; null where one does not exist."""
    plan = measured.results.plan
    knobs: dict[str, dict[str, object]] = {knob.key: {} for knob in measured.knobs}
    body: dict[str, object] = {
        "schema": SCHEMA,
        "sweep": measured.results.name,
        "space": plan.space.name,
        "dataset": plan.dataset,
        "data_digest": plan.data_digest,
        "protocol_version": plan.protocol_version,
        "plan": plan.identity(),
        "mlflow_parent_run": measured.results.parent_run_id or None,
        "metric": {"key": measured.metric.key, "label": measured.metric.axis, "goal": measured.goal},
        "margin": measured.margin,
        "seeds": measured.seeds,
        "sentences": [sentence for section in sections for sentence in section.verdicts],
        "findings": [finding for section in sections for finding in section.findings],
        "knobs": list(knobs.values()),
    }
    for section in sections:
        target = knobs[section.knob.key] if section.knob else body
        for name, value in section.data.items():
            if name in target:
                rule = "two questions of the report write one name into verdicts.json"
                raise ConfigError(Problem("report", rule, name, RENAME))
            target[name] = value
    return json.dumps(_plain(body), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def csv_text(table: Table) -> str:
    """A table with a header line; numbers in full precision, empty where there is none."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_csv_field(item) for item in row] for row in table.rows)
    return buffer.getvalue()


def _csv_field(item: Entry) -> str:
    if item.value is not None:
        return repr(item.value)
    text = "" if item.text == "-" else item.text
    # a spreadsheet would run a text that begins like a formula
    return f"'{text}" if text[:1] in {"=", "+", "@"} or (text[:1] == "-" and len(text) > 1) else text


_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\ensuremath{<}",
    ">": r"\ensuremath{>}",
}
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega",
}  # fmt: skip


def latex_text(tables: Sequence[Table], heading: str) -> str:
    """Tables to be input into a paper that uses the package booktabs, one `table` environment each."""
    parts = [f"% {heading}", "% Needs \\usepackage{booktabs}.", *map(_environment, tables)]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(
        _ESCAPES.get(letter) or (rf"\ensuremath{{\{_GREEK[letter]}}}" if letter in _GREEK else letter)
        for letter in text
    )


def _environment(table: Table) -> str:
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(escape, table.columns)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex_field, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_field(item: Entry) -> str:
    text = escape(item.text)
    return f"${text}$" if item.numeric and text[:1] in {"-", "+"} else text
