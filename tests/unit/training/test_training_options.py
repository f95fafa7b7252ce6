"""Training options of the papers: micro-batches, frozen backbones, clipping, precision, the fixed mean norm."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers.trials import TASKS, Killed, config_of, run

from trainables import training
from trainables.context import TrialContext
from trainables.errors import ConfigError, Diverged
from trainables.models import build_model
from trainables.resolve import Layer, resolve
from trainables.run import FiniteWatch
from trainables.tasks import build_learner
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request

SMALL = {**TASKS["retrieval"], "batch.sampler": "m_per_class", "batch.batch_size": 9}
SMALL |= {"training.steps": 6, "training.eval_every": 3}
INCEPTION = {"model.backbone": "bn_inception", "augment.name": "crop_flip", "augment.crop": 32, "augment.resize": 32}


def begin(config, folder):
    context = TrialContext(folder, torch.device("cpu"))
    training.prepare_process(config, context)
    return training.start_or_resume(config, context, build_learner(config, context))


@pytest.mark.parametrize("head", ["fc", "bn_fc"])
@pytest.mark.parametrize("loss", ["triplet", "proxy_anchor", "dro_topk"])
def test_micro_batches_equal_the_whole_batch(tmp_path, head, loss):
    settings = {"loss__name": loss, "model__head": head, "training__precision": "float64"}
    if loss == "dro_topk":
        settings["loss__k"] = 5
    settings |= {"regularizer__name": "sec", "regularizer__eta": 0.5, "regularizer__rho": 0.1}
    settings |= {"optim__name": "sgd", "optim__lr": 1e-3}  # Adam would turn rounding of zero gradients into steps
    gradients = {}
    for size in (None, 2, 4):
        trial = begin(config_of(SMALL, **settings, training__micro_batch=size), tmp_path / str(size))
        for _ in range(2):
            training.update(trial)
            trial.state.step += 1
        modules = trial.learner.modules
        gradients[size] = {name: p.grad for name, p in modules.named_parameters()} | dict(modules.named_buffers())
    for size in (2, 4):
        for name, value in gradients[None].items():
            torch.testing.assert_close(gradients[size][name], value, rtol=1e-10, atol=1e-10, msg=name)


def test_micro_batches_hold_fewer_activations(tmp_path):
    net = build_model(backbone="small_conv", in_channels=1, embedding_dim=4)
    pictures = torch.zeros(16, 1, 24, 24)

    def saved_bytes(micro_batch):
        net.micro_batch = micro_batch
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.numel()) or t, lambda t: t):
            net(pictures)
        return sum(seen)

    assert saved_bytes(4) < saved_bytes(None) / 5


def test_micro_batches_that_change_results_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"freeze_bn=true"):
        begin(config_of({**SMALL, **INCEPTION}, training__micro_batch=4), tmp_path)


def test_a_sweep_refuses_micro_batches_that_change_results(cache_dir):
    """Whether they come from a setting or from the session."""
    request = Request("sec_rho", dataset="glyphs", seeds=1, settings=INCEPTION)
    in_settings = replace(request, settings={**INCEPTION, "training.micro_batch": 4})
    assert prepare(request, cache_dir=cache_dir).plan.cells
    for wrong, micro_batch in ((request, 4), (in_settings, None)):
        with pytest.raises(ConfigError, match=r"statistics, but got 4. Set model.freeze_bn=true, or leave it out"):
            prepare(wrong, cache_dir=cache_dir, micro_batch=micro_batch)


def test_a_frozen_backbone_thaws_at_its_step_and_head_and_proxies_train_before(tmp_path):
    config = config_of(SMALL, loss__name="proxy_anchor", optim__freeze_backbone_steps=3)
    trial = begin(config, tmp_path)
    before = {name: p.detach().clone() for name, p in trial.learner.modules.named_parameters()}
    changed = []
    for _ in range(4):
        training.update(trial)
        trial.state.step += 1
        now = dict(trial.learner.modules.named_parameters())
        changed.append({name for name in before if not torch.equal(before[name], now[name])})
    backbone = {name for name in before if name.startswith("network.backbone.")}
    assert [bool(names & backbone) for names in changed] == [False, False, False, True]
    assert changed[0] == set(before) - backbone


def test_frozen_epochs_count_in_steps_of_the_sampler(tmp_path):
    trial = begin(config_of(SMALL, optim__freeze_backbone_epochs=0.5, optim__freeze_backbone_steps=2), tmp_path)
    per_epoch = trial.learner.sampler.steps_per_epoch
    assert trial.frozen_until == round(0.5 * per_epoch) > 2


def test_a_trial_killed_while_frozen_resumes_bit_identically(tmp_path):
    config = config_of(SMALL, optim__freeze_backbone_steps=4, optim__name="adam")
    whole, rows = run(config, tmp_path / "whole")
    with pytest.raises(Killed):
        run(config, tmp_path / "cut", stop_after=3)
    resumed, again = run(config, tmp_path / "cut")
    assert resumed.metrics == whole.metrics
    assert [row["train/loss"] for row in again] == [row["train/loss"] for row in rows]


@pytest.mark.parametrize(("knob", "limit"), [("clip_value", 1e-3), ("clip_norm", 1e-2)])
def test_gradients_are_clipped_over_network_and_proxies(tmp_path, knob, limit):
    trial = begin(config_of(SMALL, loss__name="proxy_anchor", **{f"optim__{knob}": limit}), tmp_path)
    training.update(trial)
    gradients = torch.cat([p.grad.flatten() for p in trial.learner.modules.parameters() if p.grad is not None])
    size = gradients.abs().max() if knob == "clip_value" else gradients.norm()
    assert float(size) == pytest.approx(limit, rel=1e-4)


def test_bf16_lowers_the_network_and_nothing_else(tmp_path):
    half, full = (begin(config_of(SMALL, training__precision=kind), tmp_path) for kind in ("bf16", "float32"))
    seen = []
    hook = half.learner.network.head.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    embeddings, _ = half.learner.batch(half.learner.network, 0)
    hook.remove()
    assert seen == [torch.bfloat16]
    assert embeddings.dtype == torch.float32
    expected, _ = full.learner.batch(full.learner.network, 0)
    assert 0 < float((embeddings - expected).detach().norm() / expected.detach().norm()) < 0.02
    assert {p.dtype for p in half.learner.network.parameters()} == {torch.float32}
    outcome, _ = run(config_of(SMALL, training__precision="bf16"), tmp_path / "run")
    assert outcome.metrics["val/recall_at_1"] > 0


def test_global_changes_of_a_method_do_not_reach_the_next_trial(tmp_path):
    config = config_of(SMALL)
    before, _ = run(config, tmp_path / "before")
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("medium")
        after, _ = run(config, tmp_path / "after")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        torch.set_float32_matmul_precision("highest")
    assert after.metrics == before.metrics


def test_fp16_needs_cuda(tmp_path):
    with pytest.raises(ConfigError, match="fp16 needs a CUDA"):
        run(config_of(SMALL, training__precision="fp16"), tmp_path)


def test_channels_last_gives_the_same_numbers(tmp_path):
    plain, _ = run(config_of(SMALL), tmp_path / "a")
    other, _ = run(config_of(SMALL, training__channels_last=True), tmp_path / "b")
    assert other.metrics["train/loss"] == pytest.approx(plain.metrics["train/loss"], rel=1e-4)


def test_epochs_are_passes_over_the_training_pictures(tmp_path):
    config = config_of(SMALL, training__epochs=0.1)
    trial = begin(config, tmp_path)
    per_epoch = trial.learner.sampler.steps_per_epoch
    assert trial.learner.total_steps == round(0.1 * per_epoch)
    outcome, rows = run(config, tmp_path / "run")
    assert outcome.step == rows[-1]["step"] == trial.learner.total_steps


def test_the_later_layer_sets_steps_or_epochs():
    resolved = resolve(Layer("a", {"training.epochs": 5}), Layer("b", {"training.steps": 200}))
    one, origins = resolved.config, resolved.origins
    assert (one.training.steps, one.training.epochs) == (200, None)
    assert origins["training.epochs"] == "b"
    two = resolve(Layer("a", {"training.steps": 200}), Layer("b", {"training.epochs": 5})).config
    assert (two.training.steps, two.training.epochs) == (None, 5)
    again = resolve(Layer("stored", two.settings())).config
    assert again == two
    for both in ({"training.steps": 1, "training.epochs": 1}, {"training.steps": None}):
        with pytest.raises(ConfigError, match=r"either training\.steps or training\.epochs"):
            resolve(Layer("a", both))


def test_the_fixed_mean_norm_is_that_of_the_untrained_network(tmp_path):
    settings = {"regularizer__name": "sec_fixed", "regularizer__eta": 0.5}
    trial = begin(config_of(SMALL, **settings), tmp_path)
    learner = trial.learner
    embeddings, _ = learner.embed(learner.split.train)
    assert float(learner.regularizer.mu) == pytest.approx(float(embeddings.norm(dim=1).mean()), rel=1e-5)
    plain = begin(config_of(SMALL), tmp_path / "plain")
    mine, other = (network.state_dict() for network in (learner.network, plain.learner.network))
    assert all(torch.equal(value, other[name]) for name, value in mine.items())


def test_measuring_the_mean_norm_leaves_batch_statistics_alone(tmp_path):
    trial = begin(config_of(SMALL, model__head="bn_fc", regularizer__name="sec_fixed", regularizer__eta=0.5), tmp_path)
    statistics = trial.learner.network.head.bn
    assert int(statistics.num_batches_tracked) == 0
    assert torch.equal(statistics.running_mean, torch.zeros_like(statistics.running_mean))
    assert float(trial.learner.regularizer.mu) > 0


def test_on_cuda_a_loss_that_is_not_finite_is_noticed_one_step_late(monkeypatch):
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    watch = FiniteWatch(torch.device("cuda"))
    losses = [torch.tensor(1.0), torch.tensor(float("nan")), torch.tensor(2.0)]
    assert [watch.see(loss, step) is None for step, loss in enumerate(losses)] == [True, True, False]
    exact = FiniteWatch(torch.device("cpu"))
    assert exact.see(losses[1], 7)[0] == 7


def test_the_mean_of_a_row_that_is_not_finite_ends_the_trial(tmp_path):
    trial = begin(config_of(SMALL), tmp_path)
    training.update(trial)
    trial.recent = [torch.tensor(float("inf"))]
    with pytest.raises(Diverged, match="by step"):
        training.training_figures(trial)
