"""MLflow's pages of a sweep, from a real server, in headless Chromium: descriptions, curve and figure."""

import json
from urllib.parse import quote

import pytest
from chromium import NEEDS_CHROMIUM, chromium
from helpers.mlflow_server import Server
from helpers.toys import rho_space, write_sweep

import tune_dml
from tune_dml import operations
from tune_dml.planning.request import Session

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """(server, printed link, the sweep's run, runs of cells, a function that returns a page after its scripts ran)."""
    folder = tmp_path_factory.mktemp("pages")
    space = rho_space(title="<b>Momentum</b>\nof the mean")
    results = write_sweep(folder / "sweeps" / "demo", space=space)
    (results.folder / "mlflow.json").unlink()  # what the toy pretends
    (folder / "server").mkdir()
    with Server(folder / "server") as server:
        session = Session(folder / "sweeps", tracking_uri=server.uri)
        sweep = tune_dml.load_sweep("demo", storage=folder / "sweeps")
        _, attach = operations.publish_report(sweep, session, folder / "report")
        attachment = attach()
        assert attachment.refusal is None
        runs = json.loads((results.folder / "mlflow.json").read_text())["runs"]
        cells = [run for key, run in runs.items() if key.startswith("cell-")]

        def page(address):
            flags = ("--window-size=1400,1800", "--virtual-time-budget=60000", "--dump-dom")
            return chromium(address, folder / "profile", *flags, timeout=200).stdout

        yield server.uri, attachment.link, runs["parent"], cells, page


def test_the_run_of_a_sweep_starts_with_the_answer_and_its_figure(shown):
    uri, _, parent, _, page = shown
    text = page(f"{uri}/#/experiments/1/runs/{parent}")
    assert "rho matters on glyphs" in text
    assert "After 18 of 18 trials" in text
    assert f"get-artifact?path=report/figures/curve-regularizer-rho.svg&amp;run_uuid={parent}" in text
    assert "best_mean" in text


def test_the_printed_link_lists_the_cells_and_nothing_else(shown):
    _, link, _, _, page = shown
    text = page(link)
    assert all(f">{label}<" in text for label in ("no SEC", "rho=0.01", "rho=1"))
    assert "seed 0<" not in text
    assert "<b>Momentum</b>" not in text  # a title is text
    assert all(f">{column}<" in text for column in ("mean", "low", "high", "seeds", "regularizer.rho"))
    assert text.index("rho=0.01") < text.index("rho=1<")  # the best mean first
    assert "Momentum" in text
    assert "Judges" not in text  # a page of GenAI's


def test_comparing_the_cells_draws_the_curve(shown):
    uri, _, _, cells, page = shown
    runs, experiments = quote(json.dumps(cells)), quote('["1"]')
    text = page(f"{uri}/#/compare-runs?runs={runs}&experiments={experiments}")
    assert "Comparing 6 Runs" in text
    assert "Parallel Coordinates Plot" in text
    axes = text[text.index("Parallel Coordinates Plot") :]
    assert "loss.name" not in axes  # of cells that differ in a knob, the knob alone is there to be chosen
    assert all(f">{label}<" in axes for label in ("regularizer.rho", "(none)", "0.01", "0.9", "mean"))
