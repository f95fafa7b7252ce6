"""Keeps what a sweep's report says in docs/results: `python docs/keep_results.py SWEEP_FOLDER FIGURE [NAME]`.

The README beside it is written by hand: what agrees with the paper, what does not, and why.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

RESULTS = Path(__file__).with_name("results")
DIGITS = 5  # of what a seed moves in the second digit
CELLS = "**Every cell:"
OF_THIS_MACHINE = re.compile(r" --(?:storage|tracking-uri|cache-dir) [^\s\"]+|,\"host\":\"[^\"]*\"")
"""Where an advised command finds the sweep here, and which machine ran a trial."""


def keep(sweep: Path, figure: str, folder: Path) -> None:
    """Table, verdicts and one picture of a sweep's report, into `folder`."""
    report = sweep / "report"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(report / "csv" / "cells.csv", folder / "table.csv")
    shutil.copyfile(report / "figures" / f"{figure}.svg", folder / "picture.svg")
    (folder / "table.md").write_text(_cells((report / "tables.md").read_text(encoding="utf-8")), encoding="utf-8")
    body = json.loads((report / "verdicts.json").read_text(encoding="utf-8"), parse_float=_short)
    text = OF_THIS_MACHINE.sub("", json.dumps(body, separators=(",", ":")))
    (folder / "verdicts.json").write_text(text + "\n", encoding="utf-8")


def _cells(tables: str) -> str:
    """The part of tables.md that has every cell."""
    caption, _, rest = tables[tables.index(CELLS) :].partition("\n\n")
    table = rest.partition("\n\n")[0].rstrip()
    return f"{caption}\n\n{table}\n"


def _short(number: str) -> float:
    return float(f"{float(number):.{DIGITS}g}")


if __name__ == "__main__":
    at, picture, *named = sys.argv[1:]
    keep(Path(at), picture, RESULTS / (named[0] if named else Path(at).name))
