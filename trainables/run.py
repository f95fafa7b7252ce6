"""Hold the state of a trial in memory, and take an optimizer step on the global batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainables import distributed
from trainables.config import TrialConfig
from trainables.context import Row, TrialContext
from trainables.errors import Diverged
from trainables.evidence.record import Snapshot
from trainables.rates import RateSchedule
from trainables.tasks import Learner


class FiniteWatch:
    """Detects a non-finite loss: at once on the CPU, one step late on CUDA to avoid a synchronization."""

    def __init__(self, device: torch.device) -> None:
        self.lagging = device.type == "cuda"
        self._pending: tuple[int, Tensor, Any] | None = None

    def see(self, value: Tensor, step: int) -> tuple[int, float] | None:
        """Register a loss; return (step, loss) of the latest loss that is known not to be finite, else None."""
        if not self.lagging:
            number = float(value)
            return None if math.isfinite(number) else (step, number)
        before, event = self._pending, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pending = (step, value.to("cpu", non_blocking=True), event)
        event.record()
        if before is None:
            return None
        before[2].synchronize()  # an event of the step before, so this does not wait
        return None if torch.isfinite(before[1]) else (before[0], float(before[1]))

    def cause(self, modules: nn.Module) -> str:
        """Return a phrase if weights of an earlier step are not finite; empty otherwise, and on CUDA."""
        if self.lagging or all(bool(parameter.isfinite().all()) for parameter in modules.parameters()):
            return ""
        return ", as weights are not finite: an earlier loss was, but its gradient or its step was not"


@dataclass
class TrainingState:
    """Progress of a trial, as a checkpoint stores it beside weights and optimizer."""

    step: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    best: Row = field(default_factory=dict)  # row of the evaluation selected so far
    directions: Tensor | None = None
    """Unit embeddings of the watched pictures at the last snapshot; see `evidence.watched`."""
    snapshots: list[Snapshot] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    """Mean pairwise cosine of the watched pictures at the `_COLLAPSE_CHECKS` so far."""


@dataclass
class Run:
    """State of a trial in memory."""

    config: TrialConfig
    context: TrialContext
    learner: Learner[Any]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler  # scales the loss for fp16; does nothing in other precisions
    rate: RateSchedule
    watch: FiniteWatch
    backbone: list[nn.Parameter]  # parameters that are frozen during the first `frozen_until` steps
    frozen_until: int
    state: TrainingState
    frozen: bool | None = None
    network: nn.Module = field(default_factory=nn.Module)
    """The learner's network, wrapped for data parallelism if there are several workers."""
    recent: list[Tensor] = field(default_factory=list)  # losses since the last row
    watched: tuple[int, Tensor] | None = None
    """Last step at which the watched pictures were embedded, and their raw embeddings."""
    waited: float = 0.0  # seconds since the last row that other trials of this process used; see `trainables.together`


def _set_backbone_trainable(run: Run, trainable: bool) -> None:
    """Freeze or unfreeze the backbone, then wrap the network again, because DDP registers the parameters that train."""
    run.frozen = not trainable
    for parameter in run.backbone:
        parameter.requires_grad_(trainable)
    network = distributed.data_parallel(run.learner.network)
    if run.config.training.compile:
        on_one_device = run.context.device.type == "cuda" and network is run.learner.network
        network = _Replayed(network) if on_one_device else torch.compile(network)  # type: ignore[assignment]
    run.network = network


class _Replayed(nn.Module):
    """A compiled network whose forward and backward pass are CUDA graphs, sent to the device in one call each.

    Sending a ResNet-50's kernels one by one takes longer than computing them.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.compiled = torch.compile(network, mode="reduce-overhead")

    def forward(self, images: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        embeddings: Tensor = self.compiled(images)
        return embeddings.clone()  # the next replay overwrites the graph's own output


def update(run: Run) -> Tensor:
    """Take one optimizer step and return the detached loss. Raise Diverged if it (on CUDA the last one) is not finite."""
    value = objective(run)
    set_gradients([run], [value])
    run.scaler.step(run.optimizer)
    run.scaler.update()
    return value.detach()


def objective(run: Run) -> Tensor:
    """Return the objective of the next step. Raise Diverged if it is not finite."""
    step = run.state.step
    if run.frozen != (step < run.frozen_until):
        _set_backbone_trainable(run, step >= run.frozen_until)
    value = run.learner.objective(run.network, step)
    if non_finite := run.watch.see(value.detach(), step):
        figures = {name: float(figure) for name, figure in run.learner.diagnostics().items()}
        message = f"the loss is {non_finite[1]} at step {non_finite[0]}{run.watch.cause(run.learner.modules)}"
        raise Diverged(message, non_finite[0], {"loss": non_finite[1], **figures})
    return value


def set_gradients(runs: Sequence[Run], values: Sequence[Tensor]) -> None:
    """Set the clipped gradients and the learning rate of a step, from each run's objective."""
    for run in runs:
        run.optimizer.zero_grad()
    torch.autograd.backward([run.scaler.scale(value) for run, value in zip(runs, values, strict=True)])
    for run in runs:
        distributed.average_gradients(run.learner.loss.parameters())
        _clip_gradients(run)
        per_epoch = run.learner.sampler.steps_per_epoch
        factor = run.rate.factor(run.state.step, total_steps=run.learner.total_steps, steps_per_epoch=per_epoch)
        for group in run.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor


def _clip_gradients(run: Run) -> None:
    """Clip each entry of the gradient, then the norm over network and loss parameters together."""
    optim = run.config.optim
    if optim.clip_value is None and optim.clip_norm is None:
        return
    run.scaler.unscale_(run.optimizer)
    parameters = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
    if optim.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, optim.clip_value)
    if optim.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, optim.clip_norm)
