"""The training loop: deterministic, resumes bit-identically, never trains on a loss that is not finite."""

import pickle

import pytest
import torch
from helpers.trials import TASKS, Killed, config_of, run, without_time

from trainables import training
from trainables.context import SEALED, FolderContext, read_sealed
from trainables.errors import ConfigError, Diverged

SMALL = {
    "data.name": "digits",
    "data.validation_fraction": 0.4,
    "model.embedding_dim": 8,
    "batch.batch_size": 9,
    "training.steps": 60,
    "training.eval_every": 20,
}


VARIANTS = {
    "triplet + sec-ema": {**SMALL, "regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": 0.1},
    "proxy anchor": {**SMALL, "loss.name": "proxy_anchor"},
    "sampled dro": {**SMALL, "loss.name": "dro_kl", "loss.gamma": 0.5, "loss.samples": 20},
    "bn head": {**SMALL, "model.head": "bn_fc", "loss.name": "multi_similarity"},
    "sgd, decay": {**SMALL, "optim.name": "sgd", "optim.lr_schedule": "milestones", "optim.lr_milestones": [25]},
    **{name: TASKS[name] for name in ("face_recognition", "contrastive")},
}
CUTS = [(name, 20) for name in VARIANTS] + [("triplet + sec-ema", 25), ("sampled dro", 40), ("contrastive", 25)]


@pytest.mark.parametrize(("variant", "killed_at"), CUTS)
def test_a_killed_trial_resumes_bit_identically(tmp_path, variant, killed_at):
    """Killed when a checkpoint is written, or five steps later; rows come every 20 steps, directions are looked at every 25."""
    config = config_of(VARIANTS[variant])
    whole, rows = run(config, tmp_path / "whole")
    with pytest.raises(Killed):
        run(config, tmp_path / "cut", stop_after=killed_at)
    resumed, again = run(config, tmp_path / "cut")
    assert resumed.metrics == whole.metrics
    by_step = {row["step"]: without_time(row) for row in rows}
    for row in again:
        assert without_time(row) == by_step[row["step"]]
    assert {row["step"] for row in again} >= {step for step in by_step if step > killed_at // 20 * 20}
    state, other = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "cut"))
    for name, tensor in state["task"].items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, other["task"][name]), name


def test_the_same_seed_gives_the_same_numbers_and_another_seed_does_not(tmp_path):
    one, _ = run(config_of(SMALL), tmp_path / "a")
    two, _ = run(config_of(SMALL), tmp_path / "b")
    other, _ = run(config_of(SMALL, seed=1), tmp_path / "c")
    assert one.metrics == two.metrics
    assert one.metrics != other.metrics


def test_identity_02_eta_zero_is_the_baseline_bit_for_bit(tmp_path):
    plain, rows = run(config_of(SMALL), tmp_path / "a")
    zero, with_sec = run(config_of(SMALL, regularizer__name="sec", regularizer__eta=0.0), tmp_path / "b")
    assert [row["train/loss"] for row in rows] == [row["train/loss"] for row in with_sec]
    assert zero.metrics["val/recall_at_1"] == plain.metrics["val/recall_at_1"]
    weights = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["task"] for name in ("a", "b")]
    for name in weights[0]:
        if name.startswith("network."):
            assert torch.equal(weights[0][name], weights[1][name])


def test_rows_carry_mechanism_figures_and_steps_grow(tmp_path):
    _, rows = run(config_of(SMALL, regularizer__name="sec", regularizer__eta=0.5), tmp_path)
    assert [row["step"] for row in rows] == [20, 25, 40, 50, 60]
    for row in rows:
        assert {"train/loss", "train/norm_mean", "train/norm_variance", "train/mu", "train/eta"} <= set(row)
    assert "val/recall_at_1" in rows[0]
    assert "val/recall_at_1" not in rows[1]
    assert not [name for row in rows for name in row if name.startswith("test/")]


def test_test_metrics_belong_to_the_evaluation_that_counts(tmp_path):
    last, rows = run(config_of(SMALL), tmp_path / "last")
    assert last.metrics["val/recall_at_1"] == rows[-1]["val/recall_at_1"]
    best, rows = run(config_of(SMALL, evaluation__epoch="best_validation"), tmp_path / "best")
    seen = [row["val/recall_at_1"] for row in rows if "val/recall_at_1" in row]
    assert best.metrics["val/recall_at_1"] == max(seen)
    for name, outcome in (("last", last), ("best", best)):
        assert "test/recall_at_1" in read_sealed(tmp_path / name)
        assert not [metric for metric in outcome.metrics if metric.startswith("test/")]
    assert (tmp_path / "last" / SEALED).stat().st_mode & 0o777 == 0o600
    assert not [name for name in last_checkpoint(tmp_path / "best")["best"] if name.startswith("test/")]


def last_checkpoint(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def test_test_figures_in_an_older_checkpoint_are_sealed(tmp_path):
    config = config_of(SMALL, evaluation__epoch="best_validation")
    with pytest.raises(Killed):
        run(config, tmp_path, stop_after=40)
    state = last_checkpoint(tmp_path)
    (tmp_path / SEALED).unlink()
    state["best"] |= {"val/recall_at_1": 101.0, "test/recall_at_1": 12.5}
    torch.save(state, tmp_path / "checkpoint.pt")
    outcome, _ = run(config, tmp_path)
    assert outcome.metrics["val/recall_at_1"] == 101.0
    assert "test/recall_at_1" not in outcome.metrics
    assert read_sealed(tmp_path) == {"test/recall_at_1": 12.5}


def test_only_the_first_rank_seals(tmp_path):
    FolderContext(tmp_path, torch.device("cpu"), rank=1, world_size=2).seal({"test/recall_at_1": 1.0})
    assert read_sealed(tmp_path) == {}


@pytest.mark.parametrize("poison", ["huge learning rate", "nan weights"])
def test_a_loss_that_is_not_finite_ends_the_trial_with_step_and_statistics(tmp_path, monkeypatch, poison):
    if poison == "huge learning rate":
        config = config_of(SMALL, optim__lr=1e18, optim__name="sgd")
    else:
        config = config_of(SMALL)
        update = training.update

        def poisoned(run):
            if run.state.step == 7:
                with torch.no_grad():
                    next(run.network.parameters()).fill_(float("nan"))
            return update(run)

        monkeypatch.setattr(training, "update", poisoned)
    with pytest.raises(Diverged) as error:
        run(config, tmp_path)
    assert error.value.step <= 20
    assert "loss" in error.value.statistics or "val/mean_cosine" in error.value.statistics


def test_collapsed_embeddings_end_the_trial(tmp_path, monkeypatch):
    update = training.update

    def collapsing(run):
        loss = update(run)
        with torch.no_grad():
            for name, parameter in run.network.named_parameters():
                if name.startswith("head"):
                    parameter.fill_(1.0 if parameter.ndim == 1 else 0.0)
        return loss

    monkeypatch.setattr(training, "update", collapsing)
    with pytest.raises(Diverged, match="collapsed by step 40"):
        run(config_of(SMALL), tmp_path)


def test_more_classes_in_a_batch_than_exist_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="class"):
        run(config_of(SMALL, batch__batch_size=90), tmp_path)


class Evil:
    """Pickles to a call."""

    def __reduce__(self):
        return print, ("executed",)


def test_checkpoints_load_without_executing_anything(tmp_path, capsys):
    torch.save({"bad": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        FolderContext(tmp_path, torch.device("cpu")).latest_checkpoint()
    assert "executed" not in capsys.readouterr().out
