"""Tables of the page as CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Sequence

from tune_dml.report.cells import TableCell
from tune_dml.report.section import Table
from tune_dml.text import one_line


def csv_text(table: Table) -> str:
    """Return a table as CSV, with numbers in full precision; missing values are empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_csv_field(item) for item in row] for row in table.cells)
    return buffer.getvalue()


def _csv_field(item: TableCell) -> str:
    if item.value is not None:
        return repr(item.value)
    text = "" if item.text == "-" else item.text
    # a spreadsheet would evaluate a text that starts like a formula
    return f"'{text}" if text[:1] in {"=", "+", "@"} or (text[:1] == "-" and len(text) > 1) else text


_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega",
}  # fmt: skip
_ESCAPES = str.maketrans({
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: rf"\ensuremath{{{letter}}}" for letter in "<>"},
    **{letter: rf"\ensuremath{{\{name}}}" for letter, name in _GREEK.items()},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
})  # fmt: skip


def latex_text(tables: Sequence[Table], heading: str) -> str:
    """Return LaTeX `table` environments for a paper that uses the package booktabs."""
    parts = [f"% {heading}", "% Needs \\usepackage{booktabs}.", *map(_environment, tables)]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Escape text for LaTeX."""
    return text.translate(_ESCAPES)


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
        *(_latex_row(row) for row in table.cells),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_row(row: Sequence[TableCell]) -> str:
    text = " & ".join(map(_latex_field, row)) + r" \\"
    return f"{{}}{text}" if text[:1] in {"[", "*"} else text  # else an argument of the command before it


def _latex_field(item: TableCell) -> str:
    text = escape(item.text)
    return f"${text}$" if item.numeric and text[:1] in {"-", "+"} else text


def markdown_text(tables: Sequence[Table], heading: str) -> str:
    """Return tables in Markdown."""
    parts = [f"# {_markdown_field(heading)}", *map(_markdown_table, tables)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    rule = ["---:" if numeric else "---" for numeric in table.numeric]
    rows = [list(table.columns), rule, *([item.text for item in row] for row in table.cells)]
    lines = [f"| {' | '.join(map(_markdown_field, row))} |" for row in rows]
    return "\n".join([f"**{_markdown_field(table.caption)}**", "", *lines])


def _markdown_field(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
