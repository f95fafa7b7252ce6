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
from trainables.retrieval import RetrievalTask

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
    """Where a trial stands."""

    step: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    best: Row = field(default_factory=dict)
    """The evaluation that counts so far, test metrics included."""


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
    task = RetrievalTask(config, context, cache_dir=cache_dir)
    optimizer = build_optimizer(config.optim, task.network, task.loss)
    network = distributed.data_parallel(task.network)
    state = restore(task, optimizer, context)
    clock = time.perf_counter()
    recent: list[Tensor] = []
    while state.step < config.training.steps:
        recent.append(update(task, network, optimizer, state.step, config))
        state.step += 1
        if _due(state.step, config.training.eval_every, config.training.steps):
            clock = _tick(state, clock)
            judge(task, optimizer, state, recent, config, context)
            recent = []
        elif state.step % LOG_EVERY == 0:
            clock = _tick(state, clock)
            row = {**training_figures(task, recent, state), "time/seconds": state.seconds}
            state.rows.append(row)
            context.report(row)
            recent = []
    return Outcome(_judged_by(state), state.step, state.seconds)


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


def restore(task: RetrievalTask, optimizer: torch.optim.Optimizer, context: TrialContext) -> State:
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


def update(
    task: RetrievalTask, network: nn.Module, optimizer: torch.optim.Optimizer, step: int, config: TrialConfig
) -> Tensor:
    """One optimiser step; returns the detached loss. A loss that is not finite is never trained on."""
    set_learning_rate(optimizer, config.optim, step)
    value = task.objective(network, step)
    if not torch.isfinite(value):
        loss = float(value.detach())
        figures = {name: float(figure) for name, figure in task.diagnostics().items()}
        raise Diverged(f"the loss is {loss} at step {step}", step, {"loss": loss, **figures})
    optimizer.zero_grad(set_to_none=True)
    value.backward()  # type: ignore[no-untyped-call]
    distributed.average_gradients(task.loss.parameters())
    optimizer.step()
    return value.detach()


def set_learning_rate(optimizer: torch.optim.Optimizer, optim: OptimConfig, step: int) -> None:
    """lr * decay^(number of milestones reached); a decay applies before the step whose index equals its milestone."""
    factor = optim.lr_decay ** sum(step >= milestone for milestone in optim.lr_milestones)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def judge(
    task: RetrievalTask,
    optimizer: torch.optim.Optimizer,
    state: State,
    recent: list[Tensor],
    config: TrialConfig,
    context: TrialContext,
) -> None:
    """Evaluate on validation, keep the evaluation that counts, save, report."""
    started = time.perf_counter()
    row = training_figures(task, recent, state)
    row.update(task.validate())
    if math.isnan(cosine := row["val/mean_cosine"]) or cosine > COLLAPSE:
        message = f"the embeddings collapsed by step {state.step}: mean pairwise cosine {cosine:.4f}"
        raise Diverged(message, state.step, dict(row))
    if _counts(row, state, config):
        state.best = {**row, **task.test()}
    state.seconds += time.perf_counter() - started
    row["time/seconds"] = state.seconds
    state.rows.append(row)
    context.report(row, _saved(task, optimizer, state))


def training_figures(task: RetrievalTask, recent: list[Tensor], state: State) -> Row:
    """The mean loss since the last row and the mechanism figures of the last batch."""
    loss = float(torch.stack(recent).mean()) if recent else math.nan
    figures = {f"train/{name}": float(value) for name, value in task.diagnostics().items()}
    return {"step": state.step, "train/loss": loss, **figures}


def _counts(row: Row, state: State, config: TrialConfig) -> bool:
    """Whether this evaluation is the one the trial is judged by, as far as is known now."""
    if config.evaluation.epoch == "best_validation":
        return row["val/recall_at_1"] > state.best.get("val/recall_at_1", -math.inf)
    return state.step == config.training.steps


def _judged_by(state: State) -> dict[str, float]:
    """The evaluation that counts, with training figures averaged over nothing: as they were then."""
    return {name: value for name, value in state.best.items() if name != "step" and not name.startswith("time/")}


def _saved(task: RetrievalTask, optimizer: torch.optim.Optimizer, state: State) -> dict[str, Any]:
    return {
        "task": task.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "step": state.step,
        "seconds": state.seconds,
        "rows": state.rows,
        "best": state.best,
    }


def _due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last


def _tick(state: State, since: float) -> float:
    now = time.perf_counter()
    state.seconds += now - since
    return now

