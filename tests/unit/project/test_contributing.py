"""The listings of CONTRIBUTING.md: each is one file, and a tree with it finds the new method."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import printed_by
from helpers.sources import ROOT

TESTS = ROOT / "tests"
LISTING = re.compile(r"```python\n# (\S+\.py)(?:, above (\w+))?\n(.*?)```", re.DOTALL)
GROWN_ARGUMENTS = shlex.split(os.environ.get("GROWN_ARGUMENTS", ""))  # to run fewer tests, e.g. "-k losses"
LISTINGS = LISTING.findall((ROOT / "CONTRIBUTING.md").read_text())
pytestmark = pytest.mark.slow


def add_listings(folder):
    """Write each listing to its file in a copy of the tree."""
    for path, below, text in LISTINGS:
        target = folder / path
        assert target.parent.is_dir(), path
        if below:
            head, name, tail = target.read_text().partition(f"\ndef {below}(")
            assert name, f"{path} has no {below}"
            target.write_text(f"{head}\n{text}\n{name}{tail}")
        else:
            assert not target.exists(), path
            target.write_text(text)
    return folder


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages with every listing in its place."""
    folder = tmp_path_factory.mktemp("tree")
    for package in ("search_spaces", "trainables", "tune_dml"):
        shutil.copytree(ROOT / package, folder / package)
    (folder / "tests/helpers").mkdir(parents=True)
    shutil.copytree(TESTS / "helpers" / "oracles", folder / "tests/helpers/oracles")
    return add_listings(folder)


USE = """
import contextlib, io, json, pathlib, sys, torch
import trainables
from trainables.data import build_dataset
from trainables.losses import build_loss
from trainables.metrics import retrieval_metrics
from trainables.tasks import task_of
from tune_dml.cli import main
from tune_dml.catalogue import spaces
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.report.analysis import analyse
from tune_dml.report.naming import metric_name
from tune_dml.report.questions import answers

from helpers.toys import write_sweep

loss = build_loss("cosine_regression", target=0.5)
embeddings = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]], requires_grad=True)
value = loss(embeddings, torch.tensor([0, 0, 1]))
value.backward()
ranked = retrieval_metrics(
    torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [1.0, 0.05]]), torch.tensor([0, 1, 1, 0]), metrics="reciprocal_rank"
)
pictures = build_dataset("stripes").prepare()
plan = make_plan(study_of(Request("cosine_target", dataset="stripes", seeds=2, name="x")), pictures.digest)
analysis = analyse(write_sweep(pathlib.Path("toy"), histories=False, evidence=False))
(section,) = [section for section in answers(analysis, traces=False) if section.name == "spread"]

def typed(*words):
    sys.argv, out = ["tune-dml", *words, "--json"], io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    return json.loads(out.getvalue())

print(json.dumps({
    "package": trainables.__file__,
    "value": value.item(),
    "finite": bool(embeddings.grad.isfinite().all()),
    "reciprocal_rank": ranked["reciprocal_rank"],
    "logged": task_of(plan.cells[0].config).metrics(),
    "label": str(metric_name("val/reciprocal_rank")),
    "pictures": [len(pictures), pictures.image_size, pictures.in_channels, list(pictures.test_classes)],
    "cells": [cell.label for cell in plan.cells],
    "question": [section.title, *(table.name for table in section.tables)],
    "spread": section.data["spread"],
    "steps": plan.cells[0].settings["training.steps"],
    "methods": typed("methods"),
    "protocols": typed("protocols", "stripes"),
}))
"""


@pytest.fixture(scope="module")
def used(tree, tmp_path_factory):
    """Return the output of a process that runs in the copied tree, in an empty folder."""
    here = tmp_path_factory.mktemp("here")
    paths = {"PYTHONPATH": f"{tree}{os.pathsep}{TESTS}", "TUNE_DML_CACHE": str(here / "cache")}
    return json.loads(printed_by(USE, cwd=here, env={**os.environ, **paths}))


def test_each_listing_works(used, tree):
    assert Path(used["package"]).is_relative_to(tree)
    assert used["value"] == pytest.approx(4 * 0.25 / 6)  # four of six ordered pairs are strangers at cosine 0, aim 0.5
    assert used["finite"]
    assert "target" in str(next(row for row in used["methods"] if row["name"] == "cosine_regression")["knobs"])
    assert used["pictures"] == [240, 16, 1, [6, 7, 8, 9, 10, 11]]
    # The only positive of each of the four queries is at rank 1, 3, 1 and 1.
    assert used["reciprocal_rank"] == pytest.approx(100 * (1 + 1 / 3 + 1 + 1) / 4)
    assert "val/reciprocal_rank" in used["logged"]
    assert "MRR" in used["label"]
    assert (used["cells"], used["steps"]) == (["triplet", "t=-0.5", "t=0", "t=0.5"], 40)
    assert used["question"] == ["How far apart are the seeds?", "spread"]
    assert list(used["spread"]) == ["no SEC", "rho=0.01", "rho=0.1", "rho=0.5", "rho=0.9", "rho=1"]
    assert all(width > 0 for width in used["spread"].values())
    assert [protocol["name"] for protocol in used["protocols"]] == ["stripes/quick"]


def test_listings_are_as_tidy_as_the_tree(tree):
    shutil.copy(ROOT / "pyproject.toml", tree)
    files = [str(tree / path) for path, _, _ in LISTINGS]
    for check in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, *files], cwd=tree, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(3600)
def test_the_fast_unit_tests_pass_with_every_listing_added(tmp_path):
    """Every tracked file, the listings, the records of `test_frozen.py`, and the pages of `make docs`."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tree = tmp_path / "grown"
    for name in files.rstrip("\0").split("\0"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    add_listings(tree)
    environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}"}
    suites = ["tests/unit", "tests/contracts", "--ignore=tests/unit/project/test_contributing.py", *GROWN_ARGUMENTS]
    pages = [[page] for page in re.findall(r"python (docs/generate\w*\.py)$", (ROOT / "Makefile").read_text(), re.M)]
    for command in [
        ["tests/unit/cli/test_frozen.py"],
        *pages,
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *suites],
    ]:
        done = subprocess.run(
            [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
