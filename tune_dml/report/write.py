"""Write a report: HTML, figures, CSV, LaTeX and JSON from one analysis, byte for byte the same for the same sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tune_dml.record.results import Results
from tune_dml.report.analysis import analyse
from tune_dml.report.csv import csv_text
from tune_dml.report.html import figures_of, page
from tune_dml.report.latex import latex_text
from tune_dml.report.sections import all_tables
from tune_dml.report.summary import SweepSummary, summarise
from tune_dml.report.verdicts import verdicts_text


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
    results: Results, path: Path, *, margin: float | None = None, unseal_test: bool = False
) -> ReportFiles:
    """Judge a sweep as it stands and write its report into a folder, made if missing.

    Args:
        results: the sweep; one that is unfinished, or failed throughout, is reported as such.
        path: the folder.
        margin: differences below this do not matter; the space's by default. Must be positive.
        unseal_test: open the test metrics; recorded in the sweep's ledger.
    """
    found = analyse(results, margin, unseal_test=unseal_test)
    pictures, tables = figures_of(found), all_tables(found)
    path = Path(path)
    for folder in (path, path / "csv", path / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    html = _write(path / "report.html", page(found, pictures))
    verdicts = _write(path / "verdicts.json", verdicts_text(found))
    heading = f"Sweep {results.name}, {found.measured.metric.label}"
    main = [table.without(["left out because", "trials by seed"]) for table in tables.values() if _printed(table.name)]
    latex = _write(path / "tables.tex", latex_text(main, heading))
    csv = tuple(_write(path / "csv" / f"{name}.csv", csv_text(table)) for name, table in tables.items())
    figures = tuple(_write(path / "figures" / f"{name}.svg", item.wide + "\n") for name, item in pictures.items())
    return ReportFiles(path, html, verdicts, latex, csv, figures, summarise(found), found.findings)


def _printed(name: str) -> bool:
    """The tables that belong into a paper."""
    return not name.startswith(("trials", "cost", "failures", "chances"))


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
