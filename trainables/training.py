"""The training loop, top-down. Runs bare, in a Tune actor, or as a Ray Train worker; resumes bit-identically on CPU.

    train                   the whole trial
      prepare_process       threads, seeds, determinism
      restore               the last checkpoint, if there is one
      update                one optimiser step on the global batch
      judge                 one evaluation, one row, one checkpoint
      Outcome               the figures the trial is judged by

Everything random is a function of (seed, step): a resumed trial, a rerun and another number of workers see the same
batches. What a trial computes is decided by its TrialConfig and its data alone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainables import distributed
from trainables.config import OptimConfig, TrialConfig
from trainables.context import Row, TrialContext
from trainables.errors import Diverged
from trainables.task import Task, build_task

__all__ = ["Outcome", "train"]

COLLAPSE = 0.999  # mean pairwise cosine beyond which every picture has the same embedding
LOG_EVERY = 25  # steps between rows of training figures; a stalled run is noticed after one


@dataclass(frozen=True)
class Outcome:
    """What a finished trial is judged by."""

    metrics: dict[str, float]
    """Figures at the evaluation that counts; `test/...` is sealed."""
    step: int
    seconds: float
    """Training time over all attempts, evaluation included."""


@dataclass
class State:
    """Where a trial stands; what a checkpoint holds beside weights and optimizer."""

    step: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    best: Row = field(default_factory=dict)
    """The evaluation that counts so far, test metrics included."""


@dataclass
class Run:
    """A trial in progress."""

    config: TrialConfig
    context: TrialContext
    task: Task
    network: nn.Module
    """The task's network, wrapped for data parallelism where there are several workers."""
    optimizer: torch.optim.Optimizer
    state: State
    recent: list[Tensor] = field(default_factory=list)
    """Losses since the last row."""


def train(config: TrialConfig, context: TrialContext, *, cache_dir: Path | None = None) -> Outcome:
    """Train and judge one trial.

    Args:
        config: everything that decides the numbers.
        context: rank, device, reporting and the checkpoint to resume from.
        cache_dir: where decoded data sets are kept; the user's cache by default.

    Raises:
        ConfigError: the configuration does not fit the data.
        DataError: the data are missing or unreadable.
        Diverged: the loss or the embeddings left the finite numbers or collapsed.
    """
    prepare_process(config, context)
    task = build_task(config, context, cache_dir=cache_dir)
    optimizer = build_optimizer(config.optim, task.network, task.loss)
    state = restore(task, optimizer, context)
    run = Run(config, context, task, distributed.data_parallel(task.network), optimizer, state)
    clock = time.perf_counter()
    while state.step < config.training.steps:
        run.recent.append(update(run))
        state.step += 1
        if state.step % config.training.eval_every == 0 or state.step == config.training.steps:
            judge(run, clock)
            clock = time.perf_counter()
        elif state.step % LOG_EVERY == 0:
            log(run, clock)
            clock = time.perf_counter()
    metrics = {name: v for name, v in state.best.items() if name != "step" and not name.startswith("time/")}
    return Outcome(metrics, int(state.best["step"]), state.seconds)


def prepare_process(config: TrialConfig, context: TrialContext) -> None:
    """Fix threads and seeds: the same seed gives every cell of a sweep the same initial weights."""
    torch.set_num_threads(context.threads)
    torch.use_deterministic_algorithms(context.device.type == "cpu", warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(config.seed)


def build_optimizer(optim: OptimConfig, network: nn.Module, loss: nn.Module) -> torch.optim.Optimizer:
    """One optimizer, up to three groups: weights, biases and norm parameters (no decay), loss parameters (own rate)."""
    decayed = [p for p in network.parameters() if p.requires_grad and p.ndim > 1]
    free = [p for p in network.parameters() if p.requires_grad and p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "lr": optim.lr, "weight_decay": optim.weight_decay},
        {"params": free, "lr": optim.lr, "weight_decay": 0.0},
    ]
    if proxies := list(loss.parameters()):
        groups.append({"params": proxies, "lr": optim.lr * optim.loss_lr_multiplier, "weight_decay": 0.0})
    for group in groups:
        group["initial_lr"] = group["lr"]
    if optim.name == "sgd":
        return torch.optim.SGD(groups, momentum=0.9)
    return {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[optim.name](groups)


def restore(task: Task, optimizer: torch.optim.Optimizer, context: TrialContext) -> State:
    """Continue from the last checkpoint; its rows are reported again, so that a row lost in a crash is not missing."""
    saved = context.latest_checkpoint()
    if saved is None:
        return State()
    task.load_state_dict(saved["task"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"].cpu())
    state = State(saved["step"], saved["seconds"], saved["rows"], saved["best"])
    for row in state.rows:
        context.report(row)
    return state


def update(run: Run) -> Tensor:
    """One optimiser step; returns the detached loss. A loss that is not finite is never trained on."""
    step = run.state.step
    set_learning_rate(run.optimizer, run.config.optim, step)
    value = run.task.objective(run.network, step)
    if not torch.isfinite(value):
        loss = float(value.detach())
        figures = {name: float(figure) for name, figure in run.task.diagnostics().items()}
        raise Diverged(f"the loss is {loss} at step {step}", step, {"loss": loss, **figures})
    run.optimizer.zero_grad(set_to_none=True)
    value.backward()  # type: ignore[no-untyped-call]
    distributed.average_gradients(run.task.loss.parameters())
    run.optimizer.step()
    return value.detach()


def set_learning_rate(optimizer: torch.optim.Optimizer, optim: OptimConfig, step: int) -> None:
    """Rate * decay^(number of milestones reached); a decay applies before the step whose index equals its milestone."""
    factor = optim.lr_decay ** sum(step >= milestone for milestone in optim.lr_milestones)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def log(run: Run, since: float) -> None:
    """Report training figures."""
    row = training_figures(run)
    run.state.seconds += time.perf_counter() - since
    _keep(run, row)
    run.context.report(row)


def judge(run: Run, since: float) -> None:
    """Evaluate on validation, keep the evaluation that counts, save, report."""
    state = run.state
    row = training_figures(run)
    row.update(run.task.validate())
    if _collapsed(row, state):
        cosine = row["val/mean_cosine"]
        message = f"the embeddings collapsed by step {state.step}: mean pairwise cosine {cosine:.4f}"
        raise Diverged(message, state.step, dict(row))
    if _counts(row, run):
        state.best = {**row, **run.task.test()}
    state.seconds += time.perf_counter() - since
    _keep(run, row)
    run.context.report(row, _checkpoint(run))


def _collapsed(row: Row, state: State) -> bool:
    """Whether all pictures have one embedding and it is not getting better: an untrained network may start like that."""
    cosine = row["val/mean_cosine"]
    before = next(
        (old["val/mean_cosine"] for old in reversed(state.rows) if "val/mean_cosine" in old), math.inf
    )
    return math.isnan(cosine) or row["val/norm_mean"] == 0 or (cosine > COLLAPSE and cosine >= before)


def training_figures(run: Run) -> Row:
    """The mean loss since the last row and the mechanism figures of the last batch."""
    loss = float(torch.stack(run.recent).mean())
    run.recent.clear()
    figures = {f"train/{name}": float(value) for name, value in run.task.diagnostics().items()}
    return {"step": run.state.step, "train/loss": loss, **figures}


def _keep(run: Run, row: Row) -> None:
    row["time/seconds"] = run.state.seconds
    run.state.rows.append(row)


def _counts(row: Row, run: Run) -> bool:
    """Whether this evaluation is the one the trial is judged by, as far as is known now."""
    if run.config.evaluation.epoch == "best_validation":
        return row[run.task.headline] > run.state.best.get(run.task.headline, -math.inf)
    return run.state.step == run.config.training.steps


def _checkpoint(run: Run) -> dict[str, Any]:
    return {
        "task": run.task.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "step": run.state.step,
        "seconds": run.state.seconds,
        "rows": run.state.rows,
        "best": run.state.best,
    }
