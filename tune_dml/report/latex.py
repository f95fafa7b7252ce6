"""The report's main tables as LaTeX, to be input into a paper that uses the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from tune_dml.report.tables import Entry, Table

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


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(
        _ESCAPES.get(letter) or (rf"\ensuremath{{\{_GREEK[letter]}}}" if letter in _GREEK else letter)
        for letter in text
    )


def latex_text(tables: Sequence[Table], heading: str) -> str:
    """One `table` environment each."""
    parts = [f"% {heading}", "% Needs \\usepackage{booktabs}.", *(_environment(table) for table in tables)]
    return "\n".join(parts) + "\n"


def _environment(table: Table) -> str:
    columns = "".join("r" if table.numeric[index] else "l" for index in range(len(table.columns)))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(escape, table.columns)) + r" \\",
        r"\midrule",
        *(" & ".join(_field(item) for item in row) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _field(item: Entry) -> str:
    text = escape(item.text)
    return f"${text}$" if item.numeric and text[:1] in {"-", "+"} else text
