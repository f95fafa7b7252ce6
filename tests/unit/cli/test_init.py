"""`tune-dml init`: a sweep file from a folder of pictures."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainables import trial_length
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.files.sweep_file import read_sweep_file
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of


def write_pictures(root, classes, each=6):
    random = np.random.default_rng(0)
    for number in range(classes):
        folder = root / f"kind {number}"
        folder.mkdir(parents=True)
        for picture in range(each):
            pixels = random.integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{picture}.png")


def test_a_folder_of_pictures_becomes_a_sweep_file(output_of, command_line, cache_dir):
    write_pictures(Path("my birds"), 8)
    assert "Next: tune-dml sweep my_birds.yaml" in output_of("init", "my birds", "--no-probe")
    study = study_of(Request("my_birds.yaml"))
    assert (study.name, study.dataset, study.problems) == ("my_birds", "image_folder", ())
    assert Path(read_sweep_file(Path("my_birds.yaml")).data_root).resolve() == Path("my birds").resolve()
    code, out, err = command_line("plan", "my_birds.yaml", "--cache-dir", cache_dir)
    assert (code, err) == (0, "")
    assert "3: margin=0.1, margin=0.2, margin=0.5" in out
    assert "exists already" in output_of("init", "my birds", "--no-probe", code=1)
    assert "the data folder must exist" in output_of("init", "nowhere", code=1)


def test_what_is_not_read_is_noted_before_the_next_command(output_of):
    write_pictures(Path("birds"), 8)
    Path("birds/kind 3/0.heic").touch()
    Path("birds/Ebay_train.txt").touch()
    _, *notes, following = output_of("init", "birds", "--no-probe").splitlines()
    assert notes == [
        "Note: the folder holds the lists of sop: --dataset sop reads its own classes and split",
        "Note: files whose names are not those of pictures were passed over (1): 0.heic",
    ]
    assert following == "Next: tune-dml sweep birds.yaml"


def test_a_table_of_pictures_becomes_a_sweep_file(command_line, cache_dir):
    write_pictures(Path("birds"), 8)
    files = sorted(Path("birds").rglob("*.png"))
    lines = [f"{file},{file.parent.name},{'test' if file.parent.name < 'kind 2' else 'train'}" for file in files]
    Path("labels.csv").write_text("\n".join(["path,label,split", *lines]))
    assert "Next: tune-dml sweep labels.yaml" in command_line("init", "labels.csv", "--no-probe")[1]
    text = Path("labels.yaml").read_text()
    assert "# A sweep over 48 pictures of 8 classes in labels.csv." in text
    assert "by its own split, 2 of the 8 classes are the sealed test" in text
    code, out, err = command_line("plan", "labels.yaml", "--cache-dir", cache_dir)
    assert (code, err) == (0, "")
    assert "The column split splits the classes: 6 for training and validation, 2 for testing" in out
    assert "write a sweep file first: `tune-dml init labels.csv`" in command_line("plan", "labels.csv")[2]
    assert "`tune-dml init 'my labels.csv'`" in command_line("plan", "my labels.csv")[2]
    assert "from Python, tune_dml.run_sweep(SPACE)" in command_line("plan", "own.py")[2]
    assert "nowhere.csv: the table must exist" in command_line("init", "nowhere.csv")[2]


def test_a_sweep_file_skips_broken_pictures_with_skip_corrupt(output_of, tmp_path, cache_dir):
    write_pictures(tmp_path / "few", 8)
    next((tmp_path / "few").rglob("*.png")).write_bytes(b"")
    refusal = output_of("init", "few", "--no-probe", code=1)
    assert "--skip-corrupt" in refusal
    assert "`init`" in refusal
    text = output_of("init", "few", "--skip-corrupt", "--no-probe")
    assert "Note: pictures that cannot be decoded were left out (1): kind" in text
    assert "leaves out 1 that cannot be decoded" in Path("few.yaml").read_text()
    prepare(Request("few.yaml"), cache_dir=cache_dir)


@pytest.mark.parametrize("classes", [7, 8, 12, 13])
def test_the_batches_of_a_new_sweep_file_fit_a_small_folder(output_of, cache_dir, tmp_path, classes):
    write_pictures(tmp_path / "few", classes)
    output_of("init", "few", "--no-probe")
    assert prepare(Request("few.yaml"), cache_dir=cache_dir).plan.cells  # refuses what no trial could run with


def test_classes_of_two_pictures_get_batches_of_two_a_class(output_of, cache_dir, tmp_path):
    write_pictures(tmp_path / "pairs", 8, each=2)
    output_of("init", "pairs", "--no-probe")
    checked = prepare(Request("pairs.yaml"), cache_dir=cache_dir)
    assert checked.plan.base_settings["batch.instances_per_class"] == 2
    assert not [note for note in checked.notes if "at batch.instances_per_class" in note]


def test_a_folder_of_too_few_classes_is_refused_before_a_file_is_written(output_of, tmp_path):
    write_pictures(tmp_path / "few", 6)
    err = output_of("init", "few", "--no-probe", code=1)
    assert "training needs at least 2 classes" in err
    assert "two are held out for validation, and 3 of the 6 classes are the test half" in err
    assert "Or set data.split=paper_test_selection" in err
    assert not (tmp_path / "few.yaml").exists()


def test_a_missing_output_folder_is_refused_before_the_probe(output_of, tmp_path):
    write_pictures(tmp_path / "few", 8)
    err = output_of("init", "few", "-o", "nowhere/few.yaml", code=1)
    assert err.count("\n") == 1
    assert "nowhere: the folder of the sweep file must exist. Create it, or change -o." in err


def test_steps_and_rate_of_a_new_sweep_file_are_measured_and_explained(output_of, tmp_path, monkeypatch, cache_dir):
    monkeypatch.setattr(trial_length, "_FIRST", 2)
    monkeypatch.setattr(trial_length, "_MAX_DOUBLINGS", 2)
    write_pictures(tmp_path / "few", 8)
    output_of("init", "few", "--probe-seconds", "20")
    text = Path("few.yaml").read_text()
    assert "# R@1 after 2 steps: " in text
    plan = prepare(Request("few.yaml"), cache_dir=cache_dir).plan
    assert plan.base_settings["training.steps"] in {8, 16}
    assert plan.base_settings["optim.lr"] in {1e-3, 3e-3, 3e-4}


def test_training_has_settled_where_half_as_many_steps_cost_less_than_a_point():
    settled, unsettled = (
        [(48.9, 50.0, 50.5), (50.0, 50.5, 48.0)],
        [(40.0, 50.0), (40.0, 50.0, 52.0), (40.0, 50.0, 50.5)],
    )
    assert [trial_length._is_close(values) for values in settled + unsettled] == [True] * 2 + [False] * 3


def test_a_probe_whose_figures_fall_says_so():
    fell = trial_length.TrialLength(1e-3, 200, {1e-3: 58.3}, 50, {50: 58.3, 100: 25.0, 200: 25.0}, True)
    assert fell.reason.endswith("25.0 after 200; half as many steps cost less than a point, but 50 were the best.")
    rose = trial_length.TrialLength(1e-3, 200, {1e-3: 24.0}, 50, {50: 24.0, 100: 25.0, 200: 25.2}, True)
    assert rose.reason.endswith("25.2 after 200; half as many steps cost less than a point.")


@pytest.mark.parametrize("name", ["2024", 'my #1: it\'s a "test"'])
def test_folder_names_are_quoted_for_yaml_and_the_shell(output_of, tmp_path, name):
    write_pictures(tmp_path / name, 8)
    next((tmp_path / name).rglob("*.png")).write_bytes(b"")
    out = output_of("init", name, "--no-probe", "--skip-corrupt", "-o", "out.yaml")
    assert "Next: tune-dml sweep out.yaml" in out
    study = study_of(Request("out.yaml"))
    assert (study.problems, study.settings["data.root"]) == ((), str(tmp_path / name))
    (line,) = [line for line in Path("out.yaml").read_text().splitlines() if "sec_losses" in line]
    words = shlex.split(line.removeprefix("# "), comments=False)
    assert words[words.index("--data-root") + 1] == name
    assert "data.skip_corrupt=true" in words
    # Else no answer knows whether training ended.
    assert {"training.steps=300", "training.eval_every=150"} <= set(words)


def test_the_next_command_has_the_path_of_the_file(output_of, tmp_path):
    write_pictures(tmp_path / "few", 8)
    (tmp_path / "my sweeps").mkdir()
    out = output_of("init", "few", "--no-probe", "-o", "my sweeps/few.yaml")
    assert "Next: tune-dml sweep 'my sweeps/few.yaml'" in out
