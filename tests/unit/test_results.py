"""The committed results: whole, of cells that their space still has, and quoted as the verdicts say."""

import json
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
FOLDERS = sorted(path.parent.name for path in RESULTS.glob("*/verdicts.json"))
LARGEST = 1_500_000  # bytes, all results together


def verdicts(name):
    return json.loads((RESULTS / name / "verdicts.json").read_text())


def quoted(text):
    """The sentences of a README that stand as quotations, each on one line."""
    return [line[2:] for line in text.splitlines() if line.startswith("> ")]


def test_there_are_results_and_they_are_small():
    assert FOLDERS
    assert sorted(path.name for path in RESULTS.iterdir() if path.is_dir()) == FOLDERS
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < LARGEST


@pytest.mark.parametrize("name", FOLDERS)
def test_a_result_is_whole(name):
    folder = RESULTS / name
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "picture.svg",
        "table.csv",
        "table.md",
        "verdicts.json",
    ]
    assert (folder / "picture.svg").read_text().startswith("<svg ")
    Verdicts.model_validate_json((folder / "verdicts.json").read_text(), strict=True)


@pytest.mark.parametrize("name", FOLDERS)
def test_table_and_verdicts_hold_the_same_cells_each_with_all_seeds(name):
    body, table = verdicts(name), pandas.read_csv(RESULTS / name / "table.csv")
    assert list(table["cell"]) == [cell["label"] for cell in body["cells"]]
    assert list(table["mean"]) == pytest.approx([cell["mean"] for cell in body["cells"]], rel=1e-4)
    assert len(body["seeds"]) >= 3
    assert {cell["planned"] for cell in body["cells"]} == {len(body["seeds"])}
    ended = [trial["cell"] for trial in body["trials"] if trial["status"] in ("finished", "diverged")]
    assert all(ended.count(cell["label"]) == len(body["seeds"]) for cell in body["cells"])
    listed = (RESULTS / name / "table.md").read_text()
    assert all(f"| {cell} |" in listed for cell in table["cell"])


@pytest.mark.parametrize("name", FOLDERS)
def test_its_cells_are_those_of_the_command_in_its_readme(name):
    body = verdicts(name)
    command = re.search(r"tune-dml sweep (\S+) --dataset glyphs --seeds \d+(?: --tune (\S+)=(\S+))?", readme(name))
    tune = {command[2]: tuple(map(float, command[3].split(",")))} if command[2] else None
    assert command[1] == body["space"]
    assert command[1] in spaces()
    request = Request(command[1], dataset="glyphs", tune=tune)
    assert {cell["label"] for cell in body["cells"]} == {cell.label for cell in make_plan(study_of(request)).cells}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_its_readme_quotes_is_what_the_verdicts_say(name):
    body, quotes = verdicts(name), quoted(readme(name))
    assert quotes
    assert set(quotes) <= {*body["sentences"], *body["answer"]["sentences"]}


def readme(name):
    return (RESULTS / name / "README.md").read_text()
