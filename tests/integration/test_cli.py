"""Every verb, as text and as JSON; wrong input gives one message with exit code 1."""

import json
from pathlib import Path

import pytest

from tune_dml.record.ledger import read_events

QUICK = ("--set", "training.steps=10", "--set", "training.eval_every=5")
RHO1 = ("sec_rho", "--dataset", "digits", "--seeds", "2", "--name", "rho1", *QUICK)


@pytest.fixture
def tune_dml(command_line, monkeypatch, cache_dir):
    """Run a command line in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("TUNE_DML_CACHE", str(cache_dir))
    return command_line


@pytest.fixture
def swept(a_copy, monkeypatch):
    """The working directory with the finished sweeps `rho1` and `lr1`."""
    monkeypatch.chdir(a_copy)
    return a_copy


@pytest.mark.parametrize("verb", ["spaces", "datasets", "methods", "doctor", "version"])
def test_listings_print_text(tune_dml, verb):
    """Their JSON is frozen: tests/unit/cli/test_frozen.py."""
    code, out, _ = tune_dml(verb)
    assert code == 0
    assert out.strip()


def test_every_verb_has_help(tune_dml):
    _, out, _ = tune_dml("--help")
    verbs = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.strip()]
    assert {"sweep", "resume", "extend", "status", "compare", "report", "train", "plan", "doctor"} <= set(verbs)
    for verb in verbs:
        code, text, _ = tune_dml(verb, "--help")
        assert code == 0
        assert "--json" in text or "COMMAND" in text or verb == "schema"


def test_methods_list_knobs_with_defaults(tune_dml):
    _, out, _ = tune_dml("methods", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["triplet"]["knobs"] == {"loss.margin": 1.0}
    assert rows["sec"]["knobs"] == {"regularizer.rho": 1.0}


def test_plan_writes_nothing(tune_dml, tmp_path):
    code, out, _ = tune_dml("plan", "sec_rho", "--dataset", "digits", "--json")
    seen = json.loads(out)
    assert code == 0
    assert len(seen["cells"]) == 6
    assert seen["trials"] == 18
    assert seen["settings"]["loss.name"]["origin"] == "space sec_rho"
    assert not list(tmp_path.iterdir())


def test_plan_counts_finished_trials_and_estimates_cost_and_noise(tune_dml, swept):
    _, out, _ = tune_dml("plan", *RHO1, "--json")
    seen = json.loads(out)
    assert seen["done"] == seen["trials"] == 12
    assert seen["seconds_per_trial"] > 0
    assert seen["eta_seconds"] == 0
    assert seen["noise"] > 0
    assert "12 done already" in tune_dml("plan", *RHO1)[1]


def test_a_plan_with_more_seeds_counts_finished_trials_and_suggests_extend(tune_dml, swept):
    code, out, _ = tune_dml("plan", *RHO1, "--seeds", "3", "--json")
    seen = json.loads(out)
    assert (code, seen["trials"], seen["done"]) == (0, 18, 12)
    assert any("rho1 exists already, with seeds 0,1 (asked for: 0,1,2)" in note for note in seen["notes"])
    assert any("`tune-dml extend rho1`" in note for note in seen["notes"])


def test_status_prints_a_table_of_cells_by_seeds(tune_dml, swept):
    code, out, _ = tune_dml("status", "rho1", "--json")
    seen = json.loads(out)
    assert code == 0
    assert seen["counts"]["finished"] == 12
    assert len(seen["trials"]) == 12
    assert all(trial["run_id"] for trial in seen["trials"])
    assert "rho=0.01" in tune_dml("status", "rho1")[1]
    assert seen["trials"][0]["trial"] in tune_dml("status", "rho1", "--trials")[1]


def test_compare_lists_differing_settings_first(tune_dml, swept):
    code, out, _ = tune_dml("compare", "lr1", "rho1", "--json")
    seen = json.loads(out)
    assert code == (1 if seen["refused"] else 0)
    assert seen["differences"]["regularizer.rho"] == [1.0, "(searched)"]
    assert seen["differences"]["loss.name"] == ["semihard_triplet", "triplet"]
    assert seen["differences"]["optim.lr"][0] == "(searched)"
    assert "training.steps" not in seen["differences"]
    assert {cell["sweep"] for cell in seen["cells"]} == {"lr1", "rho1"}
    text = tune_dml("compare", "lr1", "rho1")[1]
    assert text.index("What differs") < text.index("Cells")


def test_report_writes_and_attaches(tune_dml, swept, tmp_path):
    code, out, _ = tune_dml("report", "rho1", "-o", tmp_path / "r", "--json")
    seen = json.loads(out)
    assert code == 0
    assert seen["mlflow"]["error"] is None
    for name in seen["files"]:
        assert Path(name).stat().st_size
    html = (tmp_path / "r" / "report.html").read_text()
    assert "rho" in html
    assert len(seen["verdicts"]) >= 3


def test_train_runs_a_stored_trial_again_to_the_same_numbers(tune_dml, swept):
    _, out, _ = tune_dml("status", "rho1", "--json")
    trial = json.loads(out)["trials"][4]["trial"]
    code, out, _ = tune_dml("train", trial[:10], "--json")
    seen = json.loads(out)
    assert code == 0
    assert seen["reproduced"] is True
    assert not [name for name in seen["metrics"] if name.startswith("test/")]


def test_train_show_prints_the_origin_of_each_setting(tune_dml):
    code, out, _ = tune_dml("train", "--set", "data.name=digits", "--set", "loss.margin=0.3", "--show", "--json")
    seen = json.loads(out)
    assert code == 0
    assert seen["loss.margin"] == {"value": 0.3, "origin": "--set"}
    assert seen["training.steps"]["origin"] == "protocol digits/quick"
    assert seen["optim.weight_decay"]["origin"] == "default"


def test_running_a_finished_sweep_again_runs_nothing(tune_dml, swept):
    before = events(swept)
    code, out, _ = tune_dml("sweep", *RHO1, "--json")
    assert code == 0
    assert json.loads(out)["exit_code"] == 0
    assert [event.kind for event in events(swept)[len(before) :] if event.kind != "note"] == ["session"]


def events(folder):
    return read_events(folder / "sweeps" / "rho1")


def test_a_sweep_file_runs_on_a_folder_of_pictures(tune_dml, swept):
    seen = json.loads(tune_dml("status", "lr1", "--json")[1])
    assert seen["counts"]["finished"] == 8
    assert all(trial["metric"] is not None for trial in seen["trials"])
    plan = json.loads(tune_dml("plan", "lr1.yaml", "--json")[1])
    assert plan["settings"]["data.name"] == {"value": "image_folder", "origin": "--dataset"}


WRONG = {
    "rho out of range": (("train", "--set", "regularizer.name=sec", "--set", "regularizer.rho=1.5"), ["1.5", "rho"]),
    "too many classes": (
        ("sweep", "sec_rho", "--dataset", "digits", "--set", "batch.batch_size=90"),
        ["batch.batch_size", "90"],
    ),
    "dead tracking server": (
        ("sweep", "sec_rho", "--dataset", "digits", "--tracking-uri", "http://127.0.0.1:9"),
        ["127.0.0.1:9", "mlflow server"],
    ),
    "dead cluster": (
        ("sweep", "sec_rho", "--dataset", "digits", "--address", "127.0.0.1:9"),
        ["127.0.0.1:9", "--address"],
    ),
    "impossible resources": (("sweep", "sec_rho", "--dataset", "digits", "--workers", "999"), ["999", "--workers"]),
}
"""What is wrong with a machine or a data set; the messages of wrong words are frozen in tests/unit/cli/messages.txt."""


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_prints_one_message_and_writes_nothing(tune_dml, tmp_path, case):
    arguments, words = WRONG[case]
    code, out, err = tune_dml(*arguments)
    assert code == 1, err
    assert not out
    assert "Traceback" not in err
    for word in words:
        assert word in err
    assert not list(tmp_path.iterdir())


def test_several_problems_are_shown_together(tune_dml):
    code, _, err = tune_dml(
        "sweep", "sec_rho", "--dataset", "image_folder", "--data-root", "none", "--set", "optim.lr=-1",
        "--workers", "999", "--tracking-uri", "http://127.0.0.1:9",
    )  # fmt: skip
    assert code == 1
    assert err.startswith("4 problems")
    for word in ("none", "optim.lr", "999", "127.0.0.1:9"):
        assert word in err
