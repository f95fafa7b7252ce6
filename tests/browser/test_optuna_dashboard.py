"""optuna-dashboard shows an exported sweep; skipped where it is not installed."""

import json
import threading
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server

import optuna
import pytest
from chromium import NEEDS_CHROMIUM, chromium
from helpers.toys import write_sweep

from tune_dml.record.study import study_of

pytestmark = NEEDS_CHROMIUM


class Quiet(WSGIRequestHandler):
    def log_message(self, *parts):
        """Print nothing."""


@pytest.fixture
def dashboard(tmp_path):
    """The address of a dashboard of a sweep with failed and pruned trials."""
    shown = pytest.importorskip("optuna_dashboard")
    failures = {("rho=0.5", 1): ("failed", "out of memory"), ("rho=0.9", 0): ("stopped", "behind")}
    url = f"sqlite:///{tmp_path}/x.db"
    study_of(write_sweep(tmp_path / "toy", failures=failures), url)
    server = make_server("127.0.0.1", 0, shown.wsgi(optuna.storages.get_storage(url)), handler_class=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_dashboard_lists_trials_with_their_states(dashboard, tmp_path):
    with urlopen(f"{dashboard}/api/studies") as answer:  # noqa: S310 - on loopback
        (study,) = json.load(answer)["study_summaries"]
    page = f"{dashboard}/dashboard/studies/{study['study_id']}/trials"
    shown = chromium(page, tmp_path / "profile", "--dump-dom", "--virtual-time-budget=20000").stdout
    assert all(state in shown for state in ("Complete", "Fail", "Pruned"))
    assert "18 Trials" in shown
