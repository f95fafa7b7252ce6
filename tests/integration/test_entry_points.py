"""Another package's loss, data set, task and space: installed, found, planned, trained and checked by the contracts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import printed_by

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[1] / "toy_package"
ROOT = Path(__file__).parents[2]
USE = """
import contextlib, io, json, sys
from pathlib import Path
from toy_dml.loss import ToyMarginLoss  # first of all, as the package's own tests do
from toy_dml.stripes import ToyStripes
from tune_dml.cli import main

def typed(*words):
    sys.argv, out = ["tune-dml", *words, "--json"], io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    return json.loads(out.getvalue())

seen = {verb: typed(verb) for verb in ("methods", "spaces", "datasets")}
seen["plan"] = typed("plan", "toy_study", "--seeds", "2")
seen["train"] = typed("train", "--protocol", "toy/quick", "--set", "loss.name=toy_margin", "--seed", "1")

from trainables.testing import dataset_checks, loss_checks

checks = loss_checks(ToyMarginLoss) + dataset_checks(lambda folder: ToyStripes(cache_dir=folder), Path("pictures"))
for check in checks:
    check()
seen["checks"] = len(checks)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return the output of a process with the package installed, as by pip but without a network."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copytree(PACKAGE, folder / "source")  # building leaves files behind
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *install, "--target", str(folder / "site"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    path = os.pathsep.join((str(folder / "site"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "TUNE_DML_CACHE": str(folder / "cache")}
    return json.loads(printed_by(USE, cwd=folder, env=environment))


@pytest.mark.parametrize(
    ("verb", "name"), [("methods", "toy_margin"), ("spaces", "toy_study"), ("datasets", "toy_stripes")]
)
def test_installed_methods_are_listed(seen, verb, name):
    (row,) = [row for row in seen[verb] if name in row.values()]
    assert "A. Author" in json.dumps(row)


def test_an_installed_package_is_planned_and_trained_and_fulfils_the_contracts(seen):
    plan = seen["plan"]
    assert [cell["label"] for cell in plan["cells"]] == ["triplet", "m=0", "m=0.5", "m=1"]
    assert plan["trials"] == 8
    assert plan["settings"]["loss.name"] == {"value": "toy_margin", "origin": "space toy_study"}
    assert plan["settings"]["task.name"]["value"] == "toy_retrieval"
    assert seen["train"]["status"] == "finished"
    assert seen["train"]["metrics"]["val/pictures"] == 32
    assert seen["checks"] > 40
