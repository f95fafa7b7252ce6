"""The committed results: whole, of cells that their space still has, and quoted as the verdicts say."""

import json
import math
import re
from pathlib import Path

import pandas
import pytest

from tune_dml.catalogue import spaces
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.report.export.schema import Verdicts

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FOLDERS = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.glob("**/verdicts.json"))
ON_GLYPHS = [name for name in FOLDERS if "/" not in name]
LARGEST = 6_000_000  # bytes, all results together


def verdicts(name):
    return json.loads((RESULTS / name / "verdicts.json").read_text())


def test_there_are_results_and_they_are_small():
    assert FOLDERS
    leaves = {path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*") if path.is_file()} - {"."}
    assert sorted(leaves) == FOLDERS
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < LARGEST


@pytest.mark.parametrize("name", FOLDERS)
def test_a_result_is_whole(name):
    folder = RESULTS / name
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "origin.json",
        "picture.svg",
        "table.csv",
        "verdicts.json",
    ]
    assert (folder / "picture.svg").read_text().startswith("<svg ")
    Verdicts.model_validate_json((folder / "verdicts.json").read_text(), strict=True)


@pytest.mark.parametrize("name", FOLDERS)
def test_table_and_verdicts_hold_the_same_cells_each_with_all_seeds(name):
    body, table = verdicts(name), pandas.read_csv(RESULTS / name / "table.csv")
    assert list(table["cell"]) == [cell["label"] for cell in body["cells"]]
    # A cell of which no seed trained to its end has no mean.
    means = [math.nan if cell["mean"] is None else cell["mean"] for cell in body["cells"]]
    assert list(table["mean"]) == pytest.approx(means, rel=1e-4, nan_ok=True)
    assert len(body["seeds"]) >= 3
    assert {cell["planned"] for cell in body["cells"]} == {len(body["seeds"])}
    ended = [trial["cell"] for trial in body["trials"] if trial["status"] in ("finished", "diverged")]
    assert all(ended.count(cell["label"]) == len(body["seeds"]) for cell in body["cells"])


@pytest.mark.parametrize("name", ON_GLYPHS)
def test_its_cells_are_those_of_the_command_in_its_readme(name):
    body = verdicts(name)
    command = re.search(r"tune-dml sweep (\S+) --dataset glyphs --seeds \d+", readme(name))
    assert command[1] == body["space"]
    assert command[1] in spaces()
    request = Request(command[1], dataset="glyphs")
    assert {cell["label"] for cell in body["cells"]} == {cell.label for cell in make_plan(study_of(request)).cells}


def readme(name):
    return (RESULTS / name / "README.md").read_text()
