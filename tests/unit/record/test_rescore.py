"""Kept embeddings and networks: sealed like test metrics, and read back unchanged."""

import copy
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.costly import slow_after
from helpers.sources import ROOT
from helpers.stored_runs import StoredRuns
from helpers.toys import Driver, plan_of, space_of
from helpers.trials import TASKS, config_of, run, without_time

from trainables.context import NETWORK, SEALED, TrialContext, read_sealed
from trainables.errors import ConfigError
from trainables.evidence.stored import Hits, StoredEmbeddings, embeddings_bytes, embeddings_file, hits_file
from trainables.losses.base import normalise
from trainables.metrics import families, retrieval_metrics
from trainables.models import build_model
from trainables.models.export import export_network
from trainables.tasks import task as tasks
from trainables.tasks import task_of
from tune_dml import operations
from tune_dml.planning.request import Session
from tune_dml.record.held_out.rescore import _metric_keys
from tune_dml.record.held_out.sealed import is_sealed
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.results import results_of
from tune_dml.space import Baseline, Grid, Knob

SHORT = {"training.steps": 4, "training.eval_every": 2}
KEEPING = {**TASKS["retrieval"], **SHORT, "evaluation.keep": "embeddings"}
TOY = ROOT / "tests" / "toy_package"


@pytest.fixture(scope="module")
def kept(tmp_path_factory, cache_dir):
    """A sweep of one seed whose cells kept their embeddings, except the last one."""
    folder = tmp_path_factory.mktemp("rescore") / "sweeps" / "toy"
    knob = Knob("loss.margin", Grid((0.5, 1.0)), symbol="m")
    fixed = {name: value for name, value in KEEPING.items() if not name.startswith("data.name")}
    space = space_of(knob, fixed=fixed, baseline=Baseline("all", {"loss.margin": 0.1}))
    driver = Driver(folder, plan_of(space=space, seeds=1))
    driver.session()
    for number, trial in enumerate(driver.trials):
        driver.started(trial)
        config = trial.config if number < 2 else config_of(trial.config.settings(), evaluation__keep="scores")
        outcome, rows = run(config, trial_folder(folder, trial.key), cache_dir=cache_dir)
        with Ledger(folder) as ledger:
            for row in rows:
                ledger.report(trial.key, row)
        driver.ended(trial, metrics=outcome.metrics, step=outcome.step, seconds=1.0)
    return folder


@pytest.fixture
def sweep(kept, tmp_path, new_database):
    new_database(tmp_path)
    return Path(shutil.copytree(kept, tmp_path / "sweeps" / "toy"))


@pytest.fixture
def toy_metric(monkeypatch):
    """A metric of another package, installed after the trials ran."""
    monkeypatch.setattr(families, "FAMILIES", families.FAMILIES)
    before = dict(families.FAMILIES)
    monkeypatch.syspath_prepend(str(TOY))
    sys.modules.pop("toy_dml.metric", None)
    import toy_dml.metric  # noqa: F401

    yield "reciprocal_rank"
    families.FAMILIES.clear()
    families.FAMILIES.update(before)


def session_of(folder):
    return Session(folder.parent, tracking_uri=f"sqlite:///{folder.parent.parent}/mlflow.db", experiment="toys")


def reciprocal_ranks(embedded):
    """Naively: 1 / the position of the best positive, ties aside; mean in percent."""
    vectors, labels = embedded.vectors.double(), embedded.labels.tolist()
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    similarity = unit @ unit.T
    ranks = []
    for row in range(len(labels)):
        order = [c for c in torch.argsort(similarity[row], descending=True).tolist() if c != row]
        found = [place for place, c in enumerate(order, 1) if labels[c] == labels[row]]
        ranks += [1 / found[0]] if found else []
    return 100 * float(np.mean(ranks))


def test_kept_embeddings_read_back_and_are_private(sweep):
    results = results_of(sweep)
    folder = trial_folder(sweep, results.trials[0].key)
    for part in ("val", "test"):
        for name in (hits_file(part), embeddings_file(part)):
            assert (folder / name).stat().st_mode & 0o777 == 0o600
    embedded = StoredEmbeddings.read(folder / embeddings_file("val"))
    hits = Hits.read(folder / hits_file("val"))
    recorded = results.trials[0].metrics
    assert 100 * hits.hit.mean() == pytest.approx(recorded["val/recall_at_1"], abs=1e-9)
    assert 100 * hits.by_class.sum() / hits.counts.sum() == pytest.approx(recorded["val/recall_at_1"], abs=1e-9)
    assert set(hits.pictures) <= set(embedded.pictures)
    computed = retrieval_metrics(embedded.vectors, embedded.labels)
    assert computed["map_at_r"] == pytest.approx(recorded["val/map_at_r"], abs=0.3)
    assert not (trial_folder(sweep, results.trials[2].key) / embeddings_file("val")).exists()
    files = [folder / embeddings_file(part) for part in ("val", "test")]
    pictures = sum(len(StoredEmbeddings.read(file).pictures) for file in files)
    assert 0 <= sum(file.stat().st_size for file in files) - embeddings_bytes(pictures, 8) < 4000  # names and lengths


def test_hits_are_by_class_and_by_picture(tmp_path):
    rng = np.random.default_rng(0)
    labels, pictures, hit = rng.integers(3, 9, 50), rng.permutation(400)[:50], rng.random(50) < 0.4
    (tmp_path / "hits.npz").write_bytes(Hits.of(hit, labels, pictures).data())
    read = Hits.read(tmp_path / "hits.npz")
    for number, (name, count) in enumerate(zip(read.classes, read.counts, strict=True)):
        assert count == (labels == name).sum()
        assert read.by_class[number] == hit[labels == name].sum()
    naive = sorted(zip(labels.tolist(), pictures.tolist(), hit.tolist(), strict=True))
    assert [(p, h) for _, p, h in naive] == list(zip(read.pictures.tolist(), read.hit.tolist(), strict=True))
    data = (tmp_path / "hits.npz").read_bytes()
    packed = data.index(b"counts.npy") + 10  # a compressed array begins, with some bytes before it
    for damaged in (b"PK damaged", data[: packed + 24] + b"\xff" * 20 + data[packed + 44 :]):
        (tmp_path / "hits.npz").write_bytes(damaged)
        assert Hits.read(tmp_path / "hits.npz") is None
    assert Hits.read(tmp_path / "none.npz") is None


def test_a_query_and_a_gallery_are_kept_apart(tmp_path):
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    apart = (np.array([0, 1, 2]), np.array([3, 4, 5]))
    embedded = StoredEmbeddings(vectors, torch.tensor([0, 1, 2, 0, 1, 2]), np.arange(10, 16), apart)
    (tmp_path / "e.npz").write_bytes(embedded.data())
    read = StoredEmbeddings.read(tmp_path / "e.npz")
    queries, labels, gallery = read.search
    assert labels.tolist() == [0, 1, 2]
    assert gallery[1].tolist() == [0, 1, 2]
    assert torch.allclose(queries, vectors[:3], atol=4e-3)
    assert read.pictures.tolist() == list(range(10, 16))


@pytest.mark.slow
def test_a_new_metric_is_computed_without_training(sweep, toy_metric):
    with pytest.raises(ConfigError, match="no_such_metric"):
        operations.rescore("toy", session_of(sweep), metrics=["no_such_metric"])
    before = {trial.key: read_sealed(trial_folder(sweep, trial.key)) for trial in results_of(sweep).trials}
    found, refusal = operations.rescore("toy", session_of(sweep), metrics=[toy_metric, "val/recall_at_3"])
    assert refusal is None
    assert (len(found.trials), found.without_embeddings) == (2, 1)
    results = results_of(sweep)
    for done, trial in zip(found.trials, results.trials, strict=False):
        folder = trial_folder(sweep, trial.key)
        stored = {part: StoredEmbeddings.read(folder / embeddings_file(part)) for part in ("val", "test")}
        expected = {part: reciprocal_ranks(embedded) for part, embedded in stored.items()}
        assert trial.metrics["val/reciprocal_rank"] == done.metrics["val/reciprocal_rank"]
        assert done.metrics["val/reciprocal_rank"] == pytest.approx(expected["val"], abs=1e-6)
        assert not [name for name in trial.metrics if is_sealed(name)]
        sealed = json.loads((folder / SEALED).read_text())
        assert sealed["test/reciprocal_rank"] == pytest.approx(expected["test"], abs=1e-6)
        assert {name: sealed[name] for name in before[trial.key]} == before[trial.key]
        assert (folder / SEALED).stat().st_mode & 0o777 == 0o600
        assert done.rounding < 0.5
    assert "val/reciprocal_rank" not in results.trials[2].metrics
    assert "test/" not in (sweep / "ledger.jsonl").read_text()


def metrics_of(sweep, key):
    return StoredRuns(session_of(sweep).tracking_uri).by_key[key].data.metrics


@pytest.mark.slow
def test_mlflow_gets_validation_at_once_and_test_when_opened(sweep):
    session = session_of(sweep)
    operations.rescore("toy", session, metrics=["recall_at_3"])
    key = results_of(sweep).trials[0].key
    assert "val/recall_at_3" in metrics_of(sweep, key)
    assert not [name for name in metrics_of(sweep, key) if is_sealed(name)]
    operations.open_test("toy", session)
    assert metrics_of(sweep, key)["test/recall_at_3"] == read_sealed(trial_folder(sweep, key))["test/recall_at_3"]
    operations.rescore("toy", session, metrics=["recall_at_5", "map_at_10"])
    seen, added = metrics_of(sweep, key), {"recall_at_5", "map_at_10"}
    assert {f"{part}/{name}" for part in ("val", "test") for name in added} <= set(seen)
    assert not {"val/map_at_2", "test/map_at_2"} & set(seen)  # they resemble MAP@R, and nobody asked for them
    assert seen["test/map_at_10"] == read_sealed(trial_folder(sweep, key))["test/map_at_10"]


def test_a_sweep_that_kept_nothing_and_no_metric_are_refused(tmp_path):
    driver = Driver(tmp_path / "sweeps/toy", plan_of(Knob("loss.margin", Grid((0.5, 1.0)))))
    driver.session()
    driver.run(driver.trials[0])
    before = (driver.folder / "ledger.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r'evaluation\.keep": "embeddings"'):
        operations.rescore("toy", session_of(driver.folder), metrics=["recall_at_3"])
    assert (driver.folder / "ledger.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match="at least one metric"):
        _metric_keys([])


def test_rescoring_leaves_measured_metrics_unchanged(sweep):
    """From half precision the same metric would differ from that of the verdicts and of the sealed test."""
    before = (sweep / "ledger.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"(?s)measured this, in full precision, but got 'recall_at_1'.*'map_at_r'"):
        operations.rescore(sweep.name, session_of(sweep), metrics=["recall_at_1", "map_at_r", "recall_at_3"])
    assert (sweep / "ledger.jsonl").read_bytes() == before


def test_a_running_sweep_and_a_folder_that_cannot_be_written_are_refused(sweep, monkeypatch):
    before = (sweep / "ledger.jsonl").read_bytes()
    acts = (
        lambda: operations.rescore("toy", session_of(sweep), metrics=["recall_at_3"]),
        lambda: operations.open_test("toy", session_of(sweep)),
    )
    for act in acts:
        with Ledger(sweep), pytest.raises(ConfigError, match="one process at a time may run a sweep"):
            act()

    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tune_dml.planning.request.tempfile.TemporaryDirectory", refuse)
    for act in acts:
        with pytest.raises(ConfigError, match="must be a folder that can be written: Permission denied"):
            act()
    assert (sweep / "ledger.jsonl").read_bytes() == before


def test_keeping_embeddings_or_networks_changes_no_digest():
    plain = config_of(TASKS["retrieval"])
    assert config_of(TASKS["retrieval"], evaluation__keep="embeddings").digest() == plain.digest()
    for settings in TASKS.values():
        assert config_of(settings, evaluation__keep="weights").digest() == config_of(settings).digest()
    for task in ("face_recognition", "contrastive"):
        with pytest.raises(ConfigError, match=r"evaluation\.keep"):
            config_of(TASKS[task], evaluation__keep="embeddings")


def test_the_size_of_kept_files_is_known_in_advance(cache_dir):
    config = config_of(KEEPING)
    task = task_of(config)
    pictures = task.dataset(cache_dir).prepare()
    split = task.split(pictures)
    assert task.kept_bytes(pictures) == (len(split.validation) + len(split.test)) * (2 * 8 + 12)
    assert task_of(config_of(TASKS["retrieval"])).kept_bytes(pictures) == 0


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = build_model(embedding_dim=8, in_channels=1, image_size=16)
    made.autocast, made.micro_batch = torch.bfloat16, 2
    made(torch.rand(4, 1, 16, 16))  # batch statistics that are no initial ones
    return made


@pytest.mark.slow
def test_a_kept_network_gives_the_same_embeddings_for_any_batch(network, tmp_path):
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    path = tmp_path / NETWORK
    path.write_bytes(export_network(network, torch.zeros(2, 1, 16, 16, dtype=torch.uint8)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert (network.training, network.autocast, network.micro_batch) == (True, torch.bfloat16, 2)
    pictures = torch.randint(0, 256, (5, 1, 16, 16), dtype=torch.uint8)
    network.autocast = network.micro_batch = None
    with torch.no_grad():
        given = torch.export.load(path).module()(pictures)
        torch.testing.assert_close(given, network.eval()(pictures))


@pytest.mark.parametrize("epoch", slow_after(1, ["last", "best_validation"]))
def test_keeping_the_scored_network_does_not_change_training(cache_dir, tmp_path, epoch):
    rows = {}
    for keep in ("embeddings", "weights"):
        config = config_of(TASKS["retrieval"], **SHORT, evaluation__keep=keep, evaluation__epoch=epoch)
        told = run(config, tmp_path / keep, cache_dir=cache_dir)[1]
        rows[keep] = [without_time(row) for row in told]
    assert rows["weights"] == rows["embeddings"]
    kept = StoredEmbeddings.read(tmp_path / "embeddings" / embeddings_file("val"))
    path = tmp_path / "weights" / NETWORK
    assert path.stat().st_mode & 0o077 == 0
    task = task_of(config)
    learner = task.learner(TrialContext(tmp_path / "alone", torch.device("cpu")), cache_dir)
    with torch.no_grad():
        given = torch.export.load(path).module()(learner.views.evaluation(kept.pictures))
    difference = normalise(given.double()) - normalise(kept.vectors.double())
    assert float(difference.abs().max()) < 2e-3  # half precision
    size = task.kept_bytes(task.dataset(cache_dir).prepare())
    assert size == pytest.approx(path.stat().st_size, rel=0.01)


def test_a_network_that_cannot_be_traced_is_refused_before_it_trains(cache_dir, monkeypatch):
    task = task_of(config_of(TASKS["retrieval"], evaluation__keep="weights"))

    def refuse(network, pictures):
        raise RuntimeError("data-dependent control flow\nand a long story")

    monkeypatch.setattr(tasks, "export_network", refuse)
    rule = r"evaluation\.keep: .*data-dependent control flow\).*evaluation\.keep=scores"
    with pytest.raises(ConfigError, match=rule):
        task.kept_bytes(task.dataset(cache_dir).prepare())
