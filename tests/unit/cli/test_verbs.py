"""Frequent verbs: the output of list, show, plan, status, mv, rm, sync and compare."""

import errno
import io
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock
from helpers.toys import event_of, plan_of, write_sweep

import tune_dml
from trainables.errors import ConfigError
from tune_dml import cli
from tune_dml.cli import main
from tune_dml.cli._complete import knobs_of_sweeps
from tune_dml.cli.plan import _done
from tune_dml.cli.screen import print_result
from tune_dml.cli.sync import _text
from tune_dml.cli.train import TrainedTrial, _show_row
from tune_dml.planning.files.keys import sweep_file_schema
from tune_dml.planning.plan import Plan
from tune_dml.record.events import TrialEnd
from tune_dml.record.ledger import Ledger, is_running
from tune_dml.record.results import load_results
from tune_dml.record.state import read_state
from tune_dml.space import Grid, Knob
from tune_dml.tracking import Reconciliation
from tune_dml.tracking.reconciler import Counts

MARGIN = Knob("loss.margin", Grid((0.1, 0.2)))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """One complete sweep with a recorded look, and one that is only planned."""
    storage = tmp_path_factory.mktemp("storage")
    write_sweep(storage / "toy")
    read_state(storage / "toy").record_look("sweep")
    (storage / "planned").mkdir()
    plan_of(MARGIN, name="planned").save(storage / "planned" / "plan.json")
    return storage


def test_sweeps_are_listed_with_state_and_answer(output_of, stored):
    out = output_of("list", "--storage", stored)
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip().startswith(("toy", "planned"))}
    assert "complete" in lines["toy"]
    assert "rho matters on glyphs" in lines["toy"]
    assert "not begun" in lines["planned"]
    assert max(map(len, out.splitlines())) <= 120
    rows = json.loads(output_of("list", "--storage", stored, "--json"))
    found = {(row["sweep"], row["state"], bool(row["answer"])) for row in rows}
    assert found == {("toy", "complete", True), ("planned", "not begun", False)}
    assert "No sweep under" in output_of("list", "--storage", stored / "none")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sec_rho", ["regularizer.rho", "0.01, 0.1, 0.5, 0.9, 1", "SEC-supplement, table 4", "tune-dml sweep sec_rho"]),
        ("triplet", ["[D²_ap - D²_an + m]_+", "loss.margin", "--set loss.name=triplet"]),
        ("cosine", ["Choose it: --set optim.lr_schedule=cosine"]),
        ("m_per_class", ["sampler m_per_class:", "Choose it: --set batch.sampler=m_per_class"]),
        ("dro_topk", ["margin or binomial"]),
        ("glyphs/triplet", ["batch.batch_size", "90", "ours", "--dataset glyphs --protocol glyphs/triplet"]),
        ("sec/cub200", ["optim.lr ", "supplement, ", "--protocol sec/cub200"]),
        ("cub200", ["Expected:", "Get it:", "data.shorter_side   256", "verify cub200 --root DIR"]),
        ("image_folder", ["data.split_file", "null", "which class trains, which tests"]),
        ("toy", ["State:   complete", "rho matters", "Next:    tune-dml sweep sec_rho", "Best configuration:"]),
        ("planned", ["not begun", "No trial has a number yet"]),
    ],
)
def test_show_finds_every_kind_of_name(output_of, stored, name, words):
    out = output_of("show", name, "--storage", stored)
    assert [word for word in words if word not in out] == []
    assert json.loads(output_of("show", name, "--storage", stored, "--json"))


def test_a_generated_data_set_needs_no_copy(output_of, stored):
    assert "--root" not in output_of("show", "digits", "--storage", stored)


@pytest.mark.parametrize("verb", ["spaces", "methods"])
def test_lists_have_one_line_of_80_columns_per_item(output_of, verb):
    out = output_of(verb)
    rows = json.loads(output_of(verb, "--json"))
    assert len(out.splitlines()) <= len(rows) + 1
    assert max(map(len, out.splitlines())) <= 80


def test_a_plan_is_eight_lines_and_its_notes(output_of):
    out = output_of("plan", "sec_rho", "--dataset", "digits", "--set", "training.steps=5")
    lines = [line for line in out.splitlines() if not line.startswith("Note:")]
    assert len(lines) <= 8
    assert "training.eval_every=5, where training ends: one evaluation cannot show whether" in " ".join(out.split())
    assert "optim.weight_decay" not in out
    assert {len(line) - len(line.partition(":")[2].lstrip()) for line in lines[2:-1]} == {8}  # all begin in one column
    whole = output_of("plan", "sec_rho", "--dataset", "digits", "--all")
    assert "optim.weight_decay" in whole
    assert "Trials: 18" in whole


def test_a_plan_labels_cells_of_several_knobs_uniquely(output_of, tmp_path):
    text = "parameters: {loss.margin: {values: [0.1, 0.2]}, optim.lr: {values: [0.1, 0.2]}}\ndataset: digits\n"
    (tmp_path / "two.yaml").write_text(text)
    assert "4: margin=0.1, lr=0.1; margin=0.1, lr=0.2; m" in output_of("plan", tmp_path / "two.yaml")


def test_status_lists_stopped_trials_and_the_next_command(output_of, command_line, tmp_path):
    write_sweep(tmp_path / "toy")
    ledger = tmp_path / "toy" / "ledger.jsonl"
    whole = ledger.read_text().splitlines()
    last = max(number for number, line in enumerate(whole) if '"ended"' in line)
    ledger.write_text("\n".join(whole[:last]) + "\n")
    read_state(tmp_path / "toy").record_look("sweep")
    out = command_line("status", "toy", "--storage", tmp_path)[1]
    assert out.startswith("interrupted ")
    assert "1 interrupted" in out
    assert f"Next:    tune-dml resume toy --storage {tmp_path}\n         1 trial" in out
    assert "1 trial to go" not in out
    with FileLock(tmp_path / "toy" / "lock"):
        assert is_running(tmp_path / "toy")
        assert command_line("status", "toy", "--storage", tmp_path)[1].startswith("running ")
        for verb in ("status", "show"):  # any next command is refused while it runs
            assert "Next:" not in command_line(verb, "toy", "--storage", tmp_path)[1]
        for words in (["rm", "toy", "--yes"], ["mv", "toy", "new"]):
            assert "is running this one" in output_of(*words, "--storage", tmp_path, code=1)
    assert not is_running(tmp_path / "toy")


def test_status_prints_each_command_once(command_line, tmp_path):
    lost = {(f"rho={rho}", seed): ("failed", "no disk") for rho in (0.01, 0.1) for seed in range(3)}
    write_sweep(tmp_path / "toy", failures=lost, histories=False)
    read_state(tmp_path / "toy").record_look("sweep")
    out = command_line("status", "toy", "--storage", tmp_path)[1]
    assert out.count("tune-dml resume toy --retry-failed") == 1


def test_status_prints_why_a_sweep_waits(command_line, tmp_path):
    write_sweep(tmp_path / "toy")
    with Ledger(tmp_path / "toy") as ledger:
        ledger.write(event_of("waits", text="room: the nodes are full"))
        assert "It waits for room: the nodes are full." in command_line("status", "toy", "--storage", tmp_path)[1]
    assert "waits for" not in command_line("status", "toy", "--storage", tmp_path)[1]


def test_mv_renames_a_sweep(output_of, tmp_path):
    write_sweep(tmp_path / "toy")
    before = Plan.load(tmp_path / "toy" / "plan.json")
    output_of("mv", "toy", "new", "--storage", tmp_path)
    moved = tune_dml.load_sweep("new", storage=tmp_path)
    assert (moved.name, moved.results.plan.identity()) == ("new", before.identity())
    assert moved.results.count("finished") > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_that_lacks_characters_is_no_error(monkeypatch, encoding):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "argv", ["tune-dml", "methods"])
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", narrow)
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    narrow.flush()
    assert b"semihard_triplet" in narrow.buffer.getvalue()


@pytest.mark.parametrize(("number", "place"), [(errno.ENOSPC, "standard output"), (errno.ENOENT, "working directory")])
def test_an_os_error_without_a_file_name_is_one_line(command_line, monkeypatch, number, place):
    def fail():
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cli, "application", lambda verb: lambda prog_name: fail())
    assert command_line("spaces")[::2] == (1, f"{place}: {os.strerror(number)}\n")


@pytest.mark.parametrize("line", ["spaces --json", "show nonsense --json"])
def test_json_on_a_full_disk_is_one_line(capsys, monkeypatch, line):
    def fail(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cli.typer, "echo", fail)
    monkeypatch.setattr(sys, "argv", ["tune-dml", *line.split()])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr() == ("", "standard output: No space left on device\n")


def test_the_schema_of_a_sweep_file_documents_every_key_and_names_every_setting(output_of):
    schema = json.loads(output_of("schema"))
    assert schema == json.loads(json.dumps(sweep_file_schema()))
    assert [key for key, about in schema["properties"].items() if not about.get("description")] == []
    names = schema["properties"]["parameters"]["propertyNames"]["anyOf"][0]["enum"]
    assert {"loss.margin", "regularizer.rho", "training.steps"} <= set(names)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("plan sec_r", ["sec_rho"]),
        ("plan sec_rho --dataset dig", ["digits"]),
        ("plan sec_rho --set optim.lr", ["optim.lr=", "optim.lr_schedule="]),
        ("plan sec_rho --set loss.name=contrastive --set loss.thr", ["loss.threshold="]),
        ("status to", ["toy"]),
        ("extend toy --add reg", ["regularizer.rho="]),
        ("show cub", ["cub200"]),
        ("show glyphs/trip", ["glyphs/triplet", "glyphs/triplet-long"]),
    ],
)
def test_shell_completion_offers_names(line, offered, capsys, monkeypatch):
    from tune_dml.cli import application

    write_sweep(Path("sweeps/toy"))
    monkeypatch.setenv("COMP_WORDS", f"tune-dml {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    monkeypatch.setenv("_TUNE_DML_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit):
        application()(prog_name="tune-dml")
    assert capsys.readouterr().out.split() == offered


def test_help_ends_with_examples_that_are_commands(output_of):
    assert "Examples:\n    tune-dml plan sec_rho" in output_of("plan", "--help")
    output_of("train", code=2)
    assert output_of("--version").strip() == tune_dml.__version__


def test_verdicts_are_shown_only_after_a_look(output_of, tmp_path):
    """`status` prints metrics without a verdict, which would spend error that no look has recorded."""
    write_sweep(tmp_path / "toy")
    shown = [output_of(verb, "toy", "--storage", tmp_path) for verb in ("status", "show")]
    assert all("Not judged yet. " in out and "tune-dml report toy" in out and "matters" not in out for out in shown)
    [line] = json.loads(output_of("list", "--storage", tmp_path, "--json"))
    assert line["answer"] == ""
    sweep = tune_dml.load_sweep("toy", storage=tmp_path)
    assert "Not judged yet" in sweep._repr_html_()
    assert not (tmp_path / "toy" / "looks.jsonl").exists()
    tune_dml.write_report(sweep, tmp_path / "out")
    assert "rho matters" in output_of("status", "toy", "--storage", tmp_path)
    assert "rho matters" in tune_dml.load_sweep("toy", storage=tmp_path)._repr_html_()


def test_a_notebook_shows_answer_curve_and_best_cell(stored):
    sweep = tune_dml.load_sweep("toy", storage=stored)
    shown = sweep._repr_html_()
    assert "rho matters" in shown
    assert "data:image/svg+xml;base64," in shown
    curve = sweep.curve("regularizer.rho")
    assert [*curve["value"][:-1]] == [0.01, 0.1, 0.5, 0.9, 1.0]
    assert [*curve["baseline"]] == [False] * 5 + [True]
    assert (curve["low"] < curve["mean"]).all()
    best = sweep.best()
    assert best.iloc[0]["cell"] == "rho=0.01"
    assert len(best) == len(sweep.results.cells)
    assert sweep.plot().axes
    for knob in ("rho", 3):
        with pytest.raises(ConfigError, match=r"Known knobs: regularizer\.rho|Did you mean"):
            sweep.curve(knob)
    assert "load_sweep" in dir(tune_dml)
    assert re.fullmatch(r"<Sweep toy: \d+ of \d+ trials ended, in .*toy>", repr(sweep))
    (stored / "file").write_text("")
    with pytest.raises(ConfigError, match=r"path: must be a folder, but .*file is a file"):
        tune_dml.write_report(sweep, stored / "file")
    empty = tune_dml.load_sweep("planned", storage=stored)
    assert empty.best().empty
    assert empty._repr_html_()
    with pytest.raises(ConfigError, match="nothing to draw"):
        empty.plot()


def test_a_sync_explains_how_to_repair_remaining_differences(stored):
    """A parameter was changed in the store, and MLflow refuses to change it back."""
    line = "trial 57030e9540246254 (rho=1, seed 2): other values of optim.lr"
    lines = list(_text(load_results(stored, "toy"), Reconciliation((line, line), (line,), Counts(), None), {}))
    assert f"differed: {line}" in lines
    assert "delete the run there; then sync logs it again" in lines[-1]


def test_a_sync_with_an_unreachable_server_prints_the_retry_command(stored, output_of):
    away = ("--tracking-uri", "http://127.0.0.1:9")
    out = output_of("sync", "toy", "--storage", stored, *away, "--experiment", "its own", code=3)
    words = f"tune-dml sync toy --storage {stored} --tracking-uri http://127.0.0.1:9 --experiment 'its own'"
    assert f"next: {words}" in " ".join(out.split())


def test_sweeps_of_two_folders_get_unique_names_in_a_comparison(stored, tmp_path, output_of, command_line):
    write_sweep(tmp_path / "elsewhere" / "toy", means={0.1: 70.0, 0.5: 60.0})
    other = tmp_path / "elsewhere" / "toy"
    assert "elsewhere/toy" in output_of("compare", "toy", other, "--storage", stored)
    output_of("compare", "toy", other.with_name("none"), "--storage", stored, code=1)
    code, out, err = command_line("compare", "toy", other, "--rank", "--storage", stored)
    assert (code, out) == (1, "")
    assert "needs a knob with three values" in err


@pytest.mark.parametrize("content", ['{"arms": [', "[1]", "{}"], ids=["torn", "a list", "empty"])
def test_an_unreadable_plan_is_named_and_hides_no_other_sweep(command_line, tmp_path, stored, content):
    shutil.copytree(stored / "toy", tmp_path / "good")
    bad = tmp_path / "bad" / "plan.json"
    bad.parent.mkdir()
    bad.write_text(content)
    code, out, said = command_line("list", "--storage", tmp_path)
    assert (code, "good" in out) == (1, True)
    for words in (said, command_line("status", "bad", "--storage", tmp_path)[2]):
        assert f"{bad}: a sweep's plan must be readable as it was stored" in words
        assert "MLflow" in words
    code, out, _ = command_line("list", "--storage", tmp_path, "--json")
    assert (code, [row["state"] for row in json.loads(out)]) == (1, ["complete", "unreadable"])
    assert knobs_of_sweeps(SimpleNamespace(params={"storage": tmp_path})) == ["regularizer.rho="]
    key = load_results(tmp_path, "good").trials[0].key
    assert command_line("train", key, "--show", "--storage", tmp_path)[0] == 0


def test_a_stored_trial_takes_no_protocol(command_line, stored):
    key = load_results(stored, "toy").trials[0].key
    code, _, said = command_line("train", key, "--protocol", "glyphs/triplet", "--show", "--storage", stored)
    assert (code, "--protocol: a stored trial has its own settings" in said) == (1, True)


@pytest.mark.parametrize("words", [(), ("--protocol", "digits/quick"), ("--dataset", "digits")])
def test_an_option_is_the_origin_of_the_data_set_only_if_it_was_given(command_line, words):
    settings = json.loads(command_line("train", *words, "--show", "--json")[1])
    assert settings["data.name"] == {
        "value": "digits" if words else "glyphs",
        "origin": words[0] if words else "default",
    }


def test_a_plan_counts_only_trials_of_its_seeds_as_done(tmp_path):
    """A race adds seeds to its sweep, and its plan had minus ten trials to go."""
    results = write_sweep(tmp_path / "toy", seeds=(0, 1, 2))
    assert _done(replace(results.plan, seeds=(0, 1)), results, other_plan=False) == 2 * len(results.plan.cells)


@pytest.mark.parametrize("error", [SystemExit(1), OSError(errno.ENOSPC, "No space left on device")])
def test_an_output_that_cannot_be_written_does_not_end_a_trial(error):
    """`tune-dml train | head`: Rich exits if the pipe is closed, and the trial was reported as failed."""

    def fail(text):
        raise error

    _show_row(SimpleNamespace(print=fail), "val/x", {"step": 1, "train/loss": 0.5})


def test_a_plan_of_another_version_names_the_field_that_cannot_be_read(command_line, tmp_path, stored):
    shutil.copytree(stored / "toy", tmp_path / "newer")
    plan = json.loads((tmp_path / "newer" / "plan.json").read_text())
    plan["search"]["method"] = "quantum"
    (tmp_path / "newer" / "plan.json").write_text(json.dumps(plan))
    code, _, said = command_line("status", "newer", "--storage", tmp_path)
    assert code == 1
    assert "as it was stored (search.method: Input should be 'grid'," in said


def test_a_folder_in_place_of_a_ledger_is_named(command_line, tmp_path, stored):
    shutil.copytree(stored / "toy", tmp_path / "good")
    plan_of(MARGIN, name="bad").save(tmp_path / "bad" / "plan.json")
    (tmp_path / "bad" / "ledger.jsonl").mkdir()
    code, out, said = command_line("list", "--storage", tmp_path)
    assert (code, "good" in out, str(tmp_path / "bad") in said) == (1, True, True)
    assert command_line("plan", "sec_rho", "--dataset", "digits", "--storage", tmp_path)[0] == 0
    shutil.rmtree(tmp_path / "good")
    assert "No sweep" not in command_line("list", "--storage", tmp_path)[1]


def test_long_commands_and_paths_are_not_wrapped(capsys):
    long = "shared/" * 20
    starts = ("Next:    tune-dml resume rho1 --storage /mnt/", "Report:  /mnt/", "http://127.0.0.1/#/")
    pasted = [start + long for start in starts]
    print_result(None, [*pasted, "prose " * 40], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == pasted
    assert len(lines) > 4


def test_a_setting_that_fits_no_device_is_told_without_a_traceback():
    ends = [TrialEnd("failed", "a reason", kind=kind, traceback="Traceback ...") for kind in ("config", "bug")]
    assert [list(TrainedTrial(end, {}).text()) for end in ends] == [
        ["failed: a reason"],
        ["failed: a reason", "Traceback ..."],
    ]
