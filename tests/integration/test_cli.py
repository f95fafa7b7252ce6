"""Every verb, as text and as JSON; wrong input gives one message with exit code 1."""

import json
from pathlib import Path

import pytest

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


@pytest.fixture
def answer(tune_dml):
    """Run a command that succeeds; return its JSON."""

    def run(*words):
        code, out, err = tune_dml(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


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


def test_plan_writes_nothing(answer, tmp_path):
    plan = answer("plan", "sec_rho", "--dataset", "digits")
    assert (len(plan["cells"]), plan["trials"]) == (6, 18)
    assert plan["settings"]["loss.name"]["origin"] == "space sec_rho"
    assert not list(tmp_path.iterdir())


def test_plan_counts_finished_trials_estimates_cost_and_noise_and_suggests_extend(answer, tune_dml, swept):
    plan = answer("plan", *RHO1)
    assert (plan["done"], plan["trials"], plan["eta_seconds"]) == (12, 12, 0)
    assert plan["seconds_per_trial"] > 0
    assert plan["noise"] > 0
    assert "12 done already" in tune_dml("plan", *RHO1)[1]
    larger = answer("plan", *RHO1, "--seeds", "3")
    assert (larger["trials"], larger["done"]) == (18, 12)
    assert any("rho1 exists already, with seeds 0,1 (asked for: 0,1,2)" in note for note in larger["notes"])
    assert any("`tune-dml extend rho1`" in note for note in larger["notes"])


def test_status_prints_a_table_of_cells_by_seeds(answer, tune_dml, swept):
    status = answer("status", "rho1")
    assert status["counts"]["finished"] == len(status["trials"]) == 12
    assert all(trial["run_id"] for trial in status["trials"])
    assert "rho=0.01" in tune_dml("status", "rho1")[1]
    assert status["trials"][0]["trial"] in tune_dml("status", "rho1", "--trials")[1]


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


def test_report_writes_and_attaches(answer, swept, tmp_path):
    report = answer("report", "rho1", "-o", tmp_path / "r")
    assert report["mlflow"]["error"] is None
    assert all(Path(name).stat().st_size for name in report["files"])
    assert "rho" in (tmp_path / "r" / "report.html").read_text()
    assert len(report["verdicts"]) >= 3


def test_train_runs_a_stored_trial_again_to_the_same_numbers(answer, swept):
    trial = answer("status", "rho1")["trials"][4]["trial"]
    again = answer("train", trial[:10])
    assert again["reproduced"] is True
    assert not [name for name in again["metrics"] if name.startswith("test/")]


def test_train_show_prints_the_origin_of_each_setting(answer):
    settings = answer("train", "--set", "data.name=digits", "--set", "loss.margin=0.3", "--show")
    assert settings["loss.margin"] == {"value": 0.3, "origin": "--set"}
    assert settings["training.steps"]["origin"] == "protocol digits/quick"
    assert settings["optim.weight_decay"]["origin"] == "default"
    named = answer("train", "--dataset", "glyphs", "--set", "training.steps=4", "--show")  # as for a sweep
    assert named["data.name"]["value"] == "glyphs"


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
