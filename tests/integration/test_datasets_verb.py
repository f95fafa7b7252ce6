"""`tune-dml datasets`, `datasets verify` and `datasets prepare`: counts, corrupt pictures, progress, every error at once."""

import io
import json
import shlex
from functools import partial
from pathlib import Path

import pytest
from helpers import published_formats as fixtures
from PIL import Image
from rich.console import Console

from trainables.data import DATASETS
from tune_dml.cli.screen import progress_bar


@pytest.fixture
def tune_dml(output_of, monkeypatch, tmp_path):
    monkeypatch.setenv("TUNE_DML_CACHE", str(tmp_path / "cache"))
    return partial(output_of, "datasets")


@pytest.fixture
def birds(tmp_path):
    return fixtures.cub(tmp_path / "CUB_200_2011", classes=6, each=4)


LOOSE = ("--set", "data.strict=false")


def test_prepare_decodes_once_and_prints_the_contents(tune_dml, birds):
    words = ("prepare", "cub200", "--root", birds, *LOOSE)
    first, again = (json.loads(tune_dml(*words, "--json")) for _ in range(2))
    assert (first["images"], first["classes"], first["test_classes"]) == (24, 6, 3)
    assert first["seconds"] > 0
    assert first["bytes"] > 24 * 256 * 256
    assert any("11788" in note for note in first["notes"])
    assert again["seconds"] == 0
    assert again["digest"] == first["digest"]
    assert "decoded before" in tune_dml(*words)


def test_verify_counts_and_decodes_everything(tune_dml, birds):
    assert "11788" in tune_dml("verify", "cub200", "--root", birds, code=1)
    out = tune_dml("verify", "cub200", "--root", birds, *LOOSE)
    assert "Every picture decodes" in out
    assert "NOT the published data" in out
    assert out.count("11788") == 1
    assert f"datasets prepare cub200 --root {birds} --set data.strict=false" in " ".join(out.split())
    victim = next((birds / "images").rglob("*.jpg"))
    victim.write_bytes(victim.read_bytes()[:50])
    assert victim.name in tune_dml("verify", "cub200", "--root", birds, *LOOSE, code=1)


def test_verify_lists_skipped_files_and_pictures_in_several_classes(tune_dml, tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        Image.new("L", (20, 20)).save(tmp_path / name / "same.png")
        Image.new("L", (20, 20)).save(tmp_path / name / "saved.heic", "JPEG")
    (tmp_path / "none").mkdir()
    said = " ".join(tune_dml("verify", "image_folder", "--root", tmp_path).split())
    assert "files whose names are not those of pictures were passed over (2): saved.heic" in said
    assert "folders without pictures were passed over (1): none" in said
    assert "pictures that lie in several classes: 1" in said
    (tmp_path / "bee" / "broken.png").write_bytes(b"x")
    verified = json.loads(tune_dml("verify", "image_folder", "--root", tmp_path, "--skip-corrupt", "--json"))
    assert "pictures that cannot be decoded were left out (1): bee/broken.png" in verified["notes"]
    assert [note.split()[0] for note in verified["notes"][-2:]] == ["folders", "files"]


def test_verify_suggests_prepare_with_the_same_file_of_pairs(tune_dml, tmp_path):
    fixtures.face_bin(tmp_path / "lfw.bin")
    out = tune_dml("verify", "lfw_bin", "--root", tmp_path, *LOOSE)
    assert f"datasets prepare lfw_bin --root {tmp_path} --set data.strict=false" in " ".join(out.split())


def test_verify_counts_pictures_and_not_further_labels(tune_dml, tmp_path):
    out = tune_dml("verify", "sop", "--root", fixtures.sop(tmp_path / "sop"), *LOOSE, "--json")
    assert sorted(json.loads(out)["counts"]) == sorted(DATASETS["sop"].expected)


def test_corrupt_pictures_are_counted_and_skipped_only_with_skip_corrupt(tune_dml, birds):
    victim = next((birds / "images").rglob("*.jpg"))
    victim.write_bytes(b"not a picture")
    words = ("cub200", "--root", birds, *LOOSE)
    out = tune_dml("verify", *words, "--skip-corrupt")
    assert "1 picture does NOT decode" in out
    assert "--set data.skip_corrupt=true" in " ".join(out.split())
    assert victim.name in tune_dml("prepare", *words, code=1)
    prepared = json.loads(tune_dml("prepare", *words, "--skip-corrupt", "--json"))
    assert prepared["images"] == 23
    assert any(victim.name in note for note in prepared["notes"])


def test_verify_lists_every_problem_in_json(tune_dml, birds):
    strict = json.loads(tune_dml("verify", "cub200", "--root", birds, "--json", code=1))
    assert (strict["ok"], len(strict["problems"])) == (False, 6)
    assert set(strict["problems"][0]) == {"place", "rule", "value", "remedy"}
    loose = json.loads(tune_dml("verify", "cub200", "--root", birds, *LOOSE, "--json"))
    assert (loose["ok"], loose["problems"]) == (True, [])
    assert loose["counts"]["images"] == 24
    assert "images" in loose["differs"]


def test_home_and_relative_roots_are_resolved_as_in_a_shell(tune_dml, birds, monkeypatch):
    monkeypatch.setenv("HOME", str(birds.parent))
    monkeypatch.chdir(birds.parent)
    linked = birds.parent / "link"
    linked.symlink_to(birds)
    for root in ("~/CUB_200_2011", "CUB_200_2011", linked):
        out = tune_dml("verify", "cub200", f"--root={root}", *LOOSE, "--json")
        assert json.loads(out)["counts"]["images"] == 24


def test_datasets_lists_every_data_set_and_dead_addresses(tune_dml):
    rows = {row["data set"]: row for row in json.loads(tune_dml("--json"))}
    assert set(rows) == set(DATASETS)
    assert "ai.stanford.edu" in rows["cars196"]["dead"]
    assert all(rows[name]["dead"] for name in ("cub200", "sop", "inshop", "lfw", "webface", "agedb30", "distractors"))
    assert "Dead" in tune_dml()


def test_all_problems_are_reported_together(tune_dml):
    err = tune_dml("prepare", "digits", "--root", ".", "--skip-corrupt", "--set", "optim.lr=1", code=1)
    assert all(part in err for part in ("--root", "--skip-corrupt", "optim.lr"))
    assert "Did you mean 'cub200'" in tune_dml("verify", "cub20", code=1)
    assert "--root" in tune_dml("verify", "cub200", code=1)
    assert "scale" in tune_dml("verify", "digits", "--set", "data.scael=3", code=1)


def test_the_bar_appears_with_the_first_picture_and_leaves_the_terminal_free():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress_bar(console, "decoding") as advance:
        assert not console._live_stack
        advance(1, 4)
        assert console._live_stack
        advance(4, 4)
        assert not console._live_stack
    assert "1/4" in console.file.getvalue()


def _commands(page):
    """Return the commands of a documentation page, split as a shell does."""
    text = (Path(__file__).parents[2] / page).read_text()
    lines = [line.strip() for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("tune-dml ") and "/data/CUB_200_2011" in line]


def test_the_commands_of_the_page_of_data_run(birds, tmp_path, monkeypatch, output_of):
    monkeypatch.setenv("TUNE_DML_CACHE", str(tmp_path / "cache"))
    commands = _commands("docs/data.md")
    assert [command[1] for command in commands[:2]] == ["datasets", "sweep"]
    for command in commands:
        words = [str(birds) if word == "/data/CUB_200_2011" else word for word in command] + list(LOOSE)
        if words[1] == "sweep":  # the same flags, without training
            words[1] = "plan"
            small = (
                "model.weights=null",
                "batch.batch_size=6",
                "batch.instances_per_class=3",
                "data.validation_fraction=0.4",
            )
            words += [word for setting in small for word in ("--set", setting)]
            birds = fixtures.cub(tmp_path / "more", classes=12, each=4)
            words[words.index("--data-root") + 1] = str(birds)
        output_of(*words[1:])
