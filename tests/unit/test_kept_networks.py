"""`evaluation.keep=weights`: the network that was judged, as a file that needs none of our code."""

import copy

import pytest
import torch
from helpers.costly import slow_after
from helpers.trials import TASKS, config_of, run, without_time

from trainables.context import NETWORK, FolderContext
from trainables.errors import ConfigError
from trainables.evidence.stored import StoredEmbeddings, embeddings_file
from trainables.losses.base import normalise
from trainables.models import build_model
from trainables.models.exported import exported
from trainables.tasks import task as tasks
from trainables.tasks import task_of

SHORT = {"training.steps": 4, "training.eval_every": 2}


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = build_model(embedding_dim=8, in_channels=1, image_size=16)
    made.autocast, made.micro_batch = torch.bfloat16, 2
    made(torch.rand(4, 1, 16, 16))  # batch statistics that are no initial ones
    return made


@pytest.mark.slow
def test_it_gives_the_same_embeddings_for_any_number_of_pictures(network, tmp_path):
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    path = tmp_path / NETWORK
    path.write_bytes(exported(network, torch.zeros(2, 1, 16, 16, dtype=torch.uint8)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert (network.training, network.autocast, network.micro_batch) == (True, torch.bfloat16, 2)
    pictures = torch.randint(0, 256, (5, 1, 16, 16), dtype=torch.uint8)
    network.autocast = network.micro_batch = None
    with torch.no_grad():
        given = torch.export.load(path).module()(pictures)
        torch.testing.assert_close(given, network.eval()(pictures))


@pytest.mark.parametrize("epoch", slow_after(1, ["last", "best_validation"]))
def test_a_trial_keeps_the_network_that_it_was_judged_by_and_trains_as_without(cache_dir, tmp_path, epoch):
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
    learner = task.learner(FolderContext(tmp_path / "alone", torch.device("cpu")), cache_dir)
    with torch.no_grad():
        given = torch.export.load(path).module()(learner.views.evaluation(kept.pictures))
    difference = normalise(given.double()) - normalise(kept.vectors.double())
    assert float(difference.abs().max()) < 2e-3  # half precision
    size = task.kept_bytes(task.dataset(cache_dir).prepare())
    assert size == pytest.approx(path.stat().st_size, rel=0.01)


def test_every_task_can_keep_its_network_and_no_digest_changes():
    for settings in TASKS.values():
        assert config_of(settings, evaluation__keep="weights").digest() == config_of(settings).digest()


def test_a_network_that_cannot_be_traced_is_refused_before_it_trains(cache_dir, monkeypatch):
    task = task_of(config_of(TASKS["retrieval"], evaluation__keep="weights"))

    def refuse(network, pictures):
        raise RuntimeError("data-dependent control flow\nand a long story")

    monkeypatch.setattr(tasks, "exported", refuse)
    with pytest.raises(
        ConfigError, match=r"evaluation\.keep: .*data-dependent control flow\).*evaluation\.keep=scores"
    ):
        task.kept_bytes(task.dataset(cache_dir).prepare())
