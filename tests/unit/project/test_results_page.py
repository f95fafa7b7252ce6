"""The page of results and the claims of the papers: generated, up to date, and judged by intervals only."""

import json
import math
import re
from pathlib import Path

import generate_results
import generate_studies
import pandas
import pytest
import result_studies
import run_results
from claims import CLAIMS, BestAmong, Better, Matters
from generate_schema import Verdicts
from helpers.sources import ROOT
from helpers.together import for_each

from tune_dml.catalogue import spaces
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of


def gain(low, high, arm="A+SEC", against="A"):
    return {"arm": arm, "against": against, "estimate": (low + high) / 2, "low": low, "high": high}


A, B, C = ((f"{name}+SEC", name) for name in "ABC")


@pytest.mark.parametrize(
    ("claim", "rows", "verdict"),
    [
        (Better((A,)), [gain(0.1, 3)], "holds"),
        (Better((A,)), [gain(-0.5, 3)], "undecided"),
        (Better((A,)), [gain(-2, 0.9)], "does not hold"),
        (Better((A,)), [gain(-3, -1)], "does not hold"),
        (Better((A,)), [gain(0.1, 0.9)], "does not hold"),
        (Better((A, B)), [gain(1, 2), gain(-1, 2, *B)], "undecided"),
        (Better((A, B), "one"), [gain(1, 2), gain(-1, 2, *B)], "holds"),
        (Better((A, B)), [gain(1, 2), gain(-1, 0.5, *B)], "does not hold"),
        (Better((A, C)), [gain(1, 2)], "undecided"),
        (Better((C,)), [gain(1, 2)], "not tested"),
    ],
)
def test_a_claim_about_gains_is_judged_by_their_intervals(claim, rows, verdict):
    body = {"margin": 1.0, "knobs": [], "gains": {"rows": rows, "differences": []}}
    assert claim.judge(body).verdict == verdict


def test_pairs_of_arms_and_of_values_are_found_in_either_order_and_cells_against_the_baseline():
    values = {"first": "s=5", "second": "s=64", "estimate": 2.0, "low": 1.0, "high": 3.0}
    body = {
        "margin": 1.0,
        "knobs": [{"path": "loss.scale", "sensitivity": {"differences": [values]}}],
        "arms": {"pairs": [{"first": "LS", "second": "KL", "estimate": -3.0, "low": -4.0, "high": -2.0}]},
        "baseline": {"baseline": "no SEC", "rows": [{"label": "eta=1", "difference": 2.0, "low": 1.0, "high": 3.0}]},
    }
    assert Better((("KL", "LS"),)).judge(body).verdict == "holds"
    assert Better((("LS", "KL"),)).judge(body).verdict == "does not hold"
    assert Better((("eta=1", "no SEC"),)).judge(body).verdict == "holds"
    assert Better((("s=5", "s=64"),)).judge(body).verdict == "holds"
    assert Better((("s=64", "s=5"),)).judge(body).verdict == "does not hold"


@pytest.mark.parametrize(
    ("candidates", "verdict"),
    [(["a"], "holds"), (["a", "b"], "undecided"), (["b"], "does not hold"), ([], "undecided")],
)
def test_a_claim_about_the_best_value_uses_the_candidates(candidates, verdict):
    body = {"knobs": [{"path": "x.y", "optimum": {"candidates": candidates}}]}
    assert BestAmong("x.y", ("a",)).judge(body).verdict == verdict


@pytest.mark.parametrize(
    ("sensitivity", "verdict"), [("sensitive", "holds"), ("insensitive", "does not hold"), ("undecided", "undecided")]
)
def test_whether_a_knob_matters_is_the_sensitivity_verdict(sensitivity, verdict):
    largest = {"first": "a", "second": "b", "estimate": 1.0, "low": 0.0, "high": 2.0}
    body = {"knobs": [{"path": "x.y", "sensitivity": {"verdict": sensitivity, "largest": largest}}]}
    assert Matters("x.y").judge(body).verdict == verdict
    assert Matters("other").judge(body).verdict == "not tested"


def test_every_file_of_studies_has_a_study_with_a_result_and_every_claim_a_study():
    named = {study.name for study in result_studies.STUDIES}
    of_a_paper = {name for name, space in spaces().items() if space.citation is not None}
    assert of_a_paper <= named <= set(spaces())
    assert {claim.study for claim in CLAIMS} <= named
    for _, found in generate_studies.studies():
        of_papers = {space.name for space in found if space.citation is not None}
        assert not of_papers or named & of_papers


@pytest.fixture(scope="module")
def pages():
    return generate_results.pages()


def test_the_pages_of_results_are_up_to_date(pages):
    outdated = [str(path) for path, text in pages.items() if path.read_text() != text]
    assert not outdated, "run `python docs/generate_results.py`"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_a_claim_names_cells_of_its_study(claim):
    """A claim with an unknown label would never be tested."""
    study = next(study for study in result_studies.STUDIES if study.name == claim.study)
    if not result_studies.has_result(study):
        pytest.skip("no result yet")
    assert claim.test.judge(result_studies.verdicts_of(study)).verdict != "not tested"


def test_studies_run_in_their_storage_and_diverged_trials_do_not_stop_them(tmp_path, monkeypatch):
    kept, ran = [], []

    def command(words, **options):
        ran.append((words, options["cwd"]))
        return run_results.subprocess.CompletedProcess(words, 3)

    monkeypatch.setattr(run_results.subprocess, "run", command)
    monkeypatch.setattr(run_results, "store_result", lambda sweep, study: kept.append(sweep))
    run_results.run(result_studies.Study("sec_eta"), Path("studies"))
    (words, cwd), storage = *ran, tmp_path / "studies"
    assert (words[-1], cwd, kept) == (str(storage), storage, [storage / "sec_eta"])

    (storage / "sec_rho" / "report").mkdir(parents=True)
    for seeds, verbs in (("[0]", ["sweep", "extend"]), ("[0, 1]", ["extend"]), ("[0, 1, 2, 3]", [])):
        ran.clear()
        (storage / "sec_rho" / "report" / "verdicts.json").write_text(f'{{"seeds": {seeds}}}')
        run_results.run(result_studies.Study("sec_rho", 4, has_current_look=(2,)), Path("studies"))
        assert [words[3] for words, _ in ran] == verbs

    failed = run_results.subprocess.CompletedProcess([], 2)
    monkeypatch.setattr(run_results.subprocess, "run", lambda words, **options: failed)
    with pytest.raises(SystemExit, match="status 2"):
        run_results.run(result_studies.Study("sec_eta"), Path("studies"))


def test_a_rerun_trains_with_as_many_other_seeds_in_one_look_and_keeps_what_the_claims_became(tmp_path, monkeypatch):
    ran, study = [], result_studies.Study("sec_rho", 3, ("training.steps=9",), has_current_look=(2,))
    body = verdicts("sec_rho")

    def command(words, **options):
        ran.append(words)
        (tmp_path / "sec_rho" / "report").mkdir(parents=True)
        (tmp_path / "sec_rho" / "report" / "verdicts.json").write_text(json.dumps(body))
        return run_results.subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(run_results.subprocess, "run", command)
    monkeypatch.setattr(run_results, "_commit", lambda sweep: "0123abcd")
    monkeypatch.setattr(result_studies, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(run_results, "RESULTS", tmp_path / "results")
    (tmp_path / "results" / "sec_rho").mkdir(parents=True)
    for _ in range(2):  # a finished sweep does not run again
        run_results.rerun(study, tmp_path)
    (words,) = ran
    assert words[words.index("--seeds") + 1] == "1000,1001,1002"
    assert {"training.steps=9", "sec_rho"} <= set(words)
    found = result_studies.rerun_of(study)
    assert (found["commit"], found["seeds"]) == ("0123abcd", body["seeds"])
    expected = {claim.text: claim.test.judge(body).verdict for claim in CLAIMS if claim.study == "sec_rho"}
    assert {text: finding["verdict"] for text, finding in found["findings"].items()} == expected


def test_a_stored_rerun_has_every_claim_of_its_study_and_as_many_other_seeds():
    again = [study for study in (*result_studies.STUDIES, *result_studies.OBJECTS) if result_studies.rerun_of(study)]
    assert again
    for study in again:
        found, first = result_studies.rerun_of(study), result_studies.verdicts_of(study)
        assert set(found["findings"]) == {claim.text for claim in CLAIMS if claim.study == study.name}
        assert len(found["seeds"]) == len(first["seeds"])
        assert not set(found["seeds"]) & set(first["seeds"])


RESULTS = ROOT / "docs" / "results"
FOLDERS = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.glob("**/verdicts.json"))
ON_GLYPHS = [name for name in FOLDERS if "/" not in name]
LARGEST = 7_500_000  # bytes, all results together


def verdicts(name):
    return json.loads((RESULTS / name / "verdicts.json").read_text())


def test_results_exist_and_are_small():
    assert FOLDERS
    leaves = {path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*") if path.is_file()} - {"."}
    assert sorted(leaves) == FOLDERS
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < LARGEST


@for_each("name", FOLDERS)
def test_a_result_has_all_its_files(name):
    folder = RESULTS / name
    files = {"README.md", "origin.json", "picture.svg", "table.csv", "verdicts.json"}
    assert {path.name for path in folder.iterdir()} - {"rerun.json"} == files
    assert (folder / "picture.svg").read_text().startswith("<svg ")
    Verdicts.model_validate_json((folder / "verdicts.json").read_text(), strict=True)


@for_each("name", FOLDERS)
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


@for_each("name", ON_GLYPHS)
def test_the_cells_of_a_result_match_the_command_in_its_readme(name):
    body = verdicts(name)
    command = re.search(r"tune-dml sweep (\S+) --dataset glyphs", (RESULTS / name / "README.md").read_text())
    assert command[1] == body["space"]
    request = Request(command[1], dataset="glyphs")
    assert {cell["label"] for cell in body["cells"]} == {cell.label for cell in make_plan(study_of(request)).cells}


def test_no_result_on_glyphs_is_of_another_plan():
    """A changed declaration of a knob, even of its origin, is another plan: its sweeps would train again."""
    assert [study.name for study in run_results.changed(result_studies.STUDIES)] == []
