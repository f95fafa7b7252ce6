"""Every study from its name to its report, on the embedded pictures with a few steps per trial."""

import pytest

from tune_dml import operations
from tune_dml.catalogue import spaces
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Racing, Request, Resources, Session
from tune_dml.report import write_report

pytestmark = pytest.mark.slow

TINY = {"training.steps": 3, "training.epochs": None, "training.eval_every": 3, "evaluation.clustering": False}
# SEC for faces starts after three epochs of 34 steps, as in the paper: shorter training is refused.
FACES = {"training.steps": 105, "training.eval_every": 105, "task.distractors": [50]}
OF_TASK = {"contrastive": {"task.linear_epochs": 1}, "face_recognition": FACES}


def tiny(name):
    """Return settings that make a study quick without changing the settings that it compares."""
    task = spaces()[name].fixed.get("task.name", "retrieval")
    settings = {**TINY, **OF_TASK.get(task, {})}
    return {path: value for path, value in settings.items() if task == "retrieval" or path != "evaluation.clustering"}


@pytest.mark.parametrize("name", spaces())
def test_a_study_can_be_run_on_the_embedded_pictures(name, cache_dir):
    """Its cells resolve, its batches can be drawn from the pictures, and its networks can be built."""
    checked = prepare(Request(name, seeds=1), cache_dir=cache_dir)
    assert checked.plan.dataset == "glyphs"
    assert {cell.arm for cell in checked.plan.cells} == {arm.name for arm in spaces()[name].every_arm}


@pytest.mark.spaces
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", spaces())
def test_a_study_runs_to_its_report(name, cache_dir, tmp_path, ray_session):
    session = Session(tmp_path / "sweeps", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", cache_dir=cache_dir)
    request = Request(name, seeds=1, settings=tiny(name))
    done = operations.run(request, session, Racing(), resources=Resources())
    failed = {trial.cell.label: trial.reason for trial in done.results.trials if trial.status == "failed"}
    assert failed == {}
    written = write_report(done.results, tmp_path / "report")
    assert written.html.stat().st_size > 10_000
