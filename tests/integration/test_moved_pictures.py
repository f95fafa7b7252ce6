"""A folder of pictures that has moved: it is named once, and no other pictures are accepted."""

import shutil
from pathlib import Path

import pytest
from helpers.published_formats import image_folder

from tune_dml.record.state import read_state

pytestmark = pytest.mark.slow


@pytest.fixture
def run(a_copy, command_line, monkeypatch, cache_dir):
    """Run a command on the sweep `lr1`, whose pictures are in `mine`."""
    monkeypatch.chdir(a_copy)
    return lambda verb, *words: command_line(verb, "lr1", "--cache-dir", cache_dir, *words)


def roots():
    state = read_state(Path("sweeps/lr1"))
    return {cell.settings["data.root"] for cell in state.cells} | {
        arm.base_settings["data.root"] for arm in state.plan.arms
    }


@pytest.fixture
def places(run, tmp_path):
    """The folder of the pictures and its new location; moved back afterwards for other tests."""
    (began,), moved = roots(), tmp_path / "moved"
    yield began, moved
    if moved.exists():
        shutil.move(moved, began)


def test_moved_pictures_are_named_once_and_other_pictures_refused(run, places, tmp_path):
    before, (began, moved) = Path("sweeps/lr1/plan.json").read_bytes(), places
    other = image_folder(tmp_path / "other", each=6)
    code, _, error = run("resume", "--data-root", other)
    assert (code, "the content of the data must be" in error) == (1, True)
    code, _, error = run("resume", "--data-root", moved)
    assert (code, "picture folder must exist" in error) == (1, True)
    assert Path("sweeps/lr1/plan.json").read_bytes() == before

    shutil.move(began, moved)
    code, _, error = run("extend", "--num-samples", 1, "--max-concurrent", 1)
    assert (code, error.count("\n")) == (1, 1)
    assert "If it was moved, use `tune-dml resume lr1 --data-root DIR`." in error
    keys = [trial.key for trial in read_state(Path("sweeps/lr1")).trials.values()]
    assert run("resume", "--data-root", moved)[0] == 0
    assert roots() == {str(moved)}
    assert [trial.key for trial in read_state(Path("sweeps/lr1")).trials.values()] == keys
    again = shutil.move(moved, moved.with_name("again"))
    code, _, error = run("extend", "--num-samples", 1, "--max-concurrent", 1, "--data-root", again)
    shutil.move(again, moved)
    assert code == 0, error
    grown = read_state(Path("sweeps/lr1"))
    assert (len(grown.cells), {trial.status for trial in grown.trial_states.values()}) == (5, {"finished"})
    assert roots() == {str(again)}


def test_a_sweep_without_a_folder_refuses_data_root(a_copy, command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(a_copy)
    code, _, error = command_line("resume", "rho1", "--data-root", tmp_path)
    assert (code, "--data-root: the pictures of digits are not read from a folder" in error) == (1, True)
