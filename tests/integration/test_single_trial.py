"""One trial on its own: what it leaves to look at stays, and it says where."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from tune_dml.cli import train

SETTINGS = {"data.name": "digits", "training.steps": 4, "training.eval_every": 2}


def ended(storage, cache_dir, **settings):
    own = {**SETTINGS, **{name.replace("__", "."): value for name, value in settings.items()}}
    single = train._single_trial(None, settings=own, storage=storage, cache_dir=cache_dir)
    return train.run(single, Console(file=io.StringIO()))


def test_pictures_stay_and_are_named(tmp_path, cache_dir):
    found = ended(tmp_path, cache_dir)
    assert found.end.status == "finished"
    assert [path.name for path in found.pictures] == ["evidence.json", "sheet.jpg"]
    assert all(path.is_relative_to(tmp_path) for path in found.pictures)
    Image.open(found.pictures[1]).load()
    assert found.data()["pictures"] == [str(path) for path in found.pictures]
    lines = [part for part in found.text() if isinstance(part, str)]
    assert f"Pictures: {found.pictures[0].parent} (evidence.json, sheet.jpg)" in lines
    other = ended(tmp_path, cache_dir, loss__margin=0.7, evaluation__sheet_queries=0)
    assert [path.name for path in other.pictures] == ["evidence.json"]
    assert other.pictures[0].parent != found.pictures[0].parent
    again = ended(tmp_path, cache_dir, evaluation__sheet_queries=0)
    assert [path.name for path in again.pictures[0].parent.iterdir()] == ["evidence.json"]
    assert json.loads(again.pictures[0].read_text())["sheet"] is None


def test_pictures_that_cannot_be_kept_cost_no_figures(tmp_path, cache_dir, monkeypatch):
    """It trained to the end, and then told *Read-only file system* alone."""

    def read_only(source, place):
        raise OSError(30, "Read-only file system", str(place))

    monkeypatch.setattr("shutil.copytree", read_only)
    found = ended(tmp_path, cache_dir)
    assert (found.end.status, found.pictures) == ("finished", ())
    assert any(f"Pictures: not kept ({tmp_path}" in part for part in found.text() if isinstance(part, str))
    assert "Read-only file system" in found.data()["not_kept"]


def test_a_trial_that_fails_leaves_and_says_nothing(tmp_path, cache_dir):
    found = ended(tmp_path, cache_dir, optim__name="sgd", optim__lr=1e30)
    assert found.end.status == "diverged"
    assert found.pictures == ()
    assert not list(tmp_path.rglob("*.jpg"))
    assert not any("Pictures" in part for part in found.text() if isinstance(part, str))


def test_the_folder_may_be_left_out(cache_dir):
    single = train._single_trial(None, settings=SETTINGS, storage=Path("unused"), cache_dir=cache_dir)
    body = train.run(train.SingleTrial(single.config, single.origins, cache_dir=cache_dir), Console(file=io.StringIO()))
    assert body.pictures == ()
    with pytest.raises(FileNotFoundError):
        Path("unused").stat()


def test_the_data_set_is_named_as_for_a_sweep(command_line):
    code, output, error = command_line("train", "--dataset", "glyphs", "--set", "training.steps=4", "--show", "--json")
    assert code == 0, error
    assert json.loads(output)["data.name"]["value"] == "glyphs"
