"""Twenty tasks for a coding agent, each solved by at most seven calls of the command line.

No model takes part: each task lists its calls and reads the answer from their JSON. `Agent.call` checks that every
output is strict JSON and follows its verb's schema (`conftest.command_line`), and counts the calls.
"""

import json
import shlex
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from helpers.toys import FLAT, rho_space, write_sweep

from tune_dml.tracking import SyncReport, Tracker

MOST_CALLS = 7
REASON = "out of memory: CUDA out of memory"
BROKEN = {("rho=0.5", seed): ("failed", REASON) for seed in (0, 1)}
PROGRAM = """
import argparse
parser = argparse.ArgumentParser()
"""


class Agent:
    """Call the command line as an agent does, and count the calls."""

    def __init__(self, command_line):
        self._run, self.calls, self.code = command_line, 0, 0

    def call(self, line):
        """Return the JSON of a call; `code` has its exit code."""
        self.calls += 1
        assert self.calls <= MOST_CALLS
        words = shlex.split(line)
        assert words[0] == "tune-dml"
        self.code, out, _ = self._run(*words[1:], "--json")
        return json.loads(out)

    def fix(self, printed):
        """Run the fix of an error."""
        line = printed["error"][0]["fix"]
        return self.call(line.replace(" --json", ""))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A working directory with five stored sweeps: sensitive, flat, failed, interrupted, and one of arms."""
    place = tmp_path_factory.mktemp("agents")
    sweeps = place / "sweeps"
    write_sweep(sweeps / "steep", seeds=tuple(range(5)))
    write_sweep(sweeps / "flat", means=FLAT, baseline=None, space=rho_space(baseline=None), seeds=tuple(range(5)))
    write_sweep(sweeps / "broken", failures=BROKEN)
    write_sweep(sweeps / "half", missing=[("rho=0.9", 2), ("rho=1", 2)])
    return place


@pytest.fixture
def agent(stored, tmp_path, command_line, monkeypatch):
    """An agent in a copy of that folder."""
    place = Path(shutil.copytree(stored, tmp_path / "work"))
    monkeypatch.chdir(place)
    with patch.object(Tracker, "attach", return_value=None), patch.object(Tracker, "stop", return_value=SyncReport()):
        yield Agent(command_line)


def test_01_does_the_knob_matter_significantly(agent):
    report = agent.call("tune-dml report steep")
    assert any(verdict.startswith("rho matters") for verdict in report["verdicts"])


def test_02_which_value_is_best(agent):
    report = agent.call("tune-dml report steep")
    assert any("best rho is 0.01" in sentence for sentence in report["answer"])
    assert max(report["cells"], key=lambda cell: cell["mean"])["label"] == "rho=0.01"


def test_03_is_the_knob_insensitive_in_another_sweep(agent):
    report = agent.call("tune-dml report flat")
    assert not any(verdict.startswith("rho matters") for verdict in report["verdicts"])


def test_04_why_did_it_fail(agent):
    status = agent.call("tune-dml status broken")
    assert status["counts"]["failed"] == 2
    assert {trial["reason"] for trial in status["trials"] if trial["status"] == "failed"} == {REASON}


def test_05_retry_failed_trials(agent):
    report = agent.call("tune-dml report broken")
    assert any("resume broken" in command and "--retry-failed" in command for command in report["next"])


def test_06_continue_after_a_crash(agent):
    status = agent.call("tune-dml status half")
    assert status["state"].startswith("interrupted")
    assert status["counts"]["missing"] == 2
    report = agent.call("tune-dml report half")
    assert any("resume half" in command for command in report["next"])


def test_07_which_sweeps_exist(agent):
    rows = agent.call("tune-dml list")
    assert {row["sweep"] for row in rows} == {"steep", "flat", "broken", "half"}


def test_08_what_does_a_sweep_cost(agent):
    plan = agent.call("tune-dml plan sec_rho --dataset digits --seeds 4")
    assert plan["trials"] == 4 * len(plan["cells"])
    assert plan["done"] == 0


def test_09_a_misspelt_space(agent):
    agent.call("tune-dml plan sec_roh --dataset digits")
    assert agent.code == 1
    assert agent.fix(agent.call("tune-dml plan sec_roh --dataset digits"))["space"] == "sec_rho"


def test_10_a_misspelt_setting(agent):
    wrong = agent.call("tune-dml plan sec_rho --dataset digits --set optim.lrr=0.01")
    assert agent.fix(wrong)["settings"]["optim.lr"]["value"] == 0.01


def test_11_what_are_a_losss_knobs(agent):
    assert "margin" in json.dumps(agent.call("tune-dml show triplet"))


def test_12_which_losses_are_there(agent):
    names = {row["name"] for row in agent.call("tune-dml methods")}
    assert {"triplet", "multi_similarity", "proxy_anchor"} <= names


def test_13_which_data_need_no_download(agent):
    sets = {row["data set"] for row in agent.call("tune-dml datasets")}
    assert {"glyphs", "digits"} <= sets


def test_14_how_do_two_sweeps_differ(agent):
    compared = agent.call("tune-dml compare steep broken")
    assert {row["name"] if isinstance(row, dict) else row for row in compared["sweeps"]} == {"steep", "broken"}


def test_15_open_the_test_figures_after_the_choice(agent):
    refused = agent.call("tune-dml open steep")
    assert agent.code == 1
    opened = agent.fix(refused)
    assert opened["already"] is False
    assert opened["cell"] == "rho=0.01"
    assert agent.call("tune-dml open steep")["already"] is True


def test_16_a_gate_in_a_pipeline(agent):
    met = agent.call("tune-dml report steep --check 'sensitive(regularizer.rho)'")
    assert (agent.code, met["unmet"]) == (0, [])
    unmet = agent.call("tune-dml report flat --check 'sensitive(regularizer.rho)'")
    assert agent.code == 3
    assert len(unmet["unmet"]) == 1


def test_17_judge_results_of_another_program(agent):
    lines = [f"{lr},{seed},{0.8 + lr + seed / 1000}" for lr in (0.1, 0.01) for seed in range(4)]
    Path("runs.csv").write_text("\n".join(["lr,seed,accuracy", *lines]) + "\n")
    missing = agent.call("tune-dml report --from-csv runs.csv --metric accuracy -o out")
    assert missing["error"][0]["place"] == "--margin"
    report = agent.call("tune-dml report --from-csv runs.csv --metric accuracy --margin 0.01 -o out")
    assert any(verdict.startswith("lr matters") for verdict in report["verdicts"])


def test_18_plan_my_own_script(agent):
    Path("train.py").write_text(PROGRAM)
    command = "tune-dml plan --command 'python train.py --lr {lr} --seed {seed}' --param lr=0.1,0.01"
    wrong = agent.call(f"{command} --metric val/acc --goal maximize")
    assert "every verdict depends on it" in wrong["error"][0]["rule"]
    plan = agent.call(f"{command} --metric val/acc --goal maximize --margin 0.01")
    assert [cell["knobs"] for cell in plan["cells"]] == [{"lr": 0.1}, {"lr": 0.01}]


def test_19_hand_the_trials_to_other_tools(agent):
    written = agent.call("tune-dml export optuna steep sqlite:///steep.db")
    assert written["trials"] == 30
    assert Path("steep.db").exists()


def test_20_tidy_up(agent):
    agent.call("tune-dml mv flat nothing-there")
    assert agent.fix(agent.call("tune-dml rm half"))["finished"] == 16
    assert {row["sweep"] for row in agent.call("tune-dml list")} == {"steep", "nothing-there", "broken"}


def test_21_what_does_a_verb_print(agent, command_line):
    _, out, _ = command_line("schema", "status")
    assert set(json.loads(out)["required"]) >= {"state", "answer", "next", "trials"}
