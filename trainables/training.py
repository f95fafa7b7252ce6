"""The training loop, top-down. Runs bare, in a Tune actor, or as a Ray Train worker; resumes bit-identically on CPU.

    train                   the whole trial
      prepare_process       threads, seeds, determinism
      begin                 network, optimizer and the last checkpoint, if there is one
      update                one optimiser step on the global batch
      judge                 one evaluation, one row, one checkpoint
      Outcome               the figures the trial is judged by

Everything random is a function of (seed, step): a resumed trial, a rerun and another number of workers see the same
batches. What a trial computes is decided by its TrialConfig and its data alone.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainables import distributed, generators
from trainables.compiler import fix_arithmetic
from trainables.config import TrialConfig
from trainables.context import EVIDENCE_FILES, NETWORK, Row, TrialContext
from trainables.errors import ConfigError, Diverged, Problem
from trainables.evidence import directions, watched
from trainables.evidence.feature_maps import draw_feature_maps
from trainables.evidence.record import Evidence, Look
from trainables.evidence.sheet import draw_sheet
from trainables.evidence.stored import embeddings_file, hits_file
from trainables.finite import FiniteWatch
from trainables.losses.base import normalise
from trainables.models.exported import exported
from trainables.optimizers import build_optimizer
from trainables.rates import RATES, RateSchedule
from trainables.tasks import Evaluation, Learner, build_learner
from trainables.tasks.evaluation import mean_cosine

_COLLAPSE = 0.999  # mean pairwise cosine beyond which every picture has the same embedding
_COLLAPSE_LOOKS = (0.8, 0.9, 1)  # shares of a trial's steps, whatever its evaluations and rows
_ROUNDING = 1e-6  # a cosine of float32 embeddings that falls by less has not fallen
LOG_EVERY = 25  # steps between rows of training figures; a stalled run is noticed after one


@dataclass(frozen=True)
class Outcome:
    """What a finished trial is judged by."""

    metrics: dict[str, float]
    """Figures at the evaluation that counts, none of a trial that pauses; `test/...` is sealed (`TrialContext.seal`)."""
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
    """The evaluation that counts so far."""
    directions: Tensor | None = None
    """Unit embeddings of the watched training pictures at the last look; see `trainables.evidence.directions`."""
    looks: list[Look] = field(default_factory=list)
    """At the watched training pictures so far."""
    cosines: list[float] = field(default_factory=list)
    """Mean pairwise cosine of the watched pictures at each of the `_COLLAPSE_LOOKS` so far."""


@dataclass
class Run:
    """A trial in progress."""

    config: TrialConfig
    context: TrialContext
    learner: Learner[Any]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    """Keeps gradients of fp16 above zero; does nothing in other precisions."""
    rate: RateSchedule
    watch: FiniteWatch
    backbone: list[nn.Parameter]
    """The parameters that do not train during the first `frozen_until` steps."""
    frozen_until: int
    state: State
    frozen: bool | None = None
    network: nn.Module = field(default_factory=nn.Module)
    """The learner's network, wrapped for data parallelism where there are several workers (see `arrange`)."""
    recent: list[Tensor] = field(default_factory=list)
    """Losses since the last row."""
    watched: tuple[int, Tensor] | None = None
    """A step, and the raw embeddings of the watched pictures after it."""


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
    learner = build_learner(config, context, cache_dir=cache_dir)
    run = begin(config, context, learner)
    state, total = run.state, learner.total_steps
    looks = {math.ceil(share * total) for share in _COLLAPSE_LOOKS}
    clock = time.perf_counter()
    while state.step < (context.until or total):
        run.recent.append(update(run))
        state.step += 1
        context.alive()
        if state.step in looks:
            state.cosines.append(_watched_cosine(run))
        if state.step % config.training.eval_every == 0 or state.step == total:
            _judge(run, clock)
            clock = time.perf_counter()
        elif state.step % LOG_EVERY == 0:
            log(run, clock)
            clock = time.perf_counter()
    best = state.best if state.step == total else {"step": state.step}
    metrics = {name: v for name, v in best.items() if name != "step" and not name.startswith("time/")}
    return Outcome(metrics, int(best["step"]), state.seconds)


def prepare_process(config: TrialConfig, context: TrialContext) -> None:
    """Fix threads and seeds: the same seed gives every cell of a sweep the same initial weights."""
    if config.training.precision == "fp16" and context.device.type != "cuda":
        rule = "fp16 is for CUDA devices"
        raise ConfigError(Problem("training.precision", rule, str(context.device), "Use bf16 or float32."))
    torch.set_num_threads(context.threads)
    fix_arithmetic(context.device.type == "cpu", compiled=config.training.compile)
    generators.seed_all(config.seed_of("init"))


def begin(config: TrialConfig, context: TrialContext, learner: Learner[Any]) -> Run:
    """A trial at its first step, or at its last checkpoint."""
    optim, training = config.optim, config.training
    per_epoch = learner.sampler.steps_per_epoch
    run = Run(
        config,
        context,
        learner,
        build_optimizer(optim, learner.network, learner.loss),
        torch.amp.GradScaler(context.device.type, enabled=training.precision == "fp16"),
        RATES[optim.lr_schedule](**optim.knobs("lr_schedule")),
        FiniteWatch(context.device),
        [parameter for parameter in learner.network.backbone.parameters() if parameter.requires_grad],
        max(optim.freeze_backbone_steps, round(optim.freeze_backbone_epochs * per_epoch)),
        State(),
    )
    saved = context.latest_checkpoint()
    if saved is None:
        learner.set_mean_norm()
        if directions.interval(learner.total_steps, LOG_EVERY) <= learner.total_steps:
            look(run)
    else:
        _restore(run, saved)
    return run


def _restore(run: Run, saved: dict[str, Any]) -> None:
    """Continue from a checkpoint; its rows are reported again, so that a row lost in a crash is not missing."""
    run.learner.modules.load_state_dict(saved["task"])
    run.optimizer.load_state_dict(saved["optimizer"])
    run.scaler.load_state_dict(saved["scaler"])
    generators.restore(saved["rng"])
    best = {name: value for name, value in saved["best"].items() if not name.startswith("test/")}
    if best != saved["best"]:  # of an older version, which kept test figures in its checkpoints
        run.context.seal({name: value for name, value in saved["best"].items() if name not in best})
    looks = watched.from_plain(saved.get("looks", []))  # an older version kept none
    run.state = State(
        saved["step"], saved["seconds"], saved["rows"], best, saved.get("directions"), looks, saved["cosines"]
    )
    for row in run.state.rows:
        run.context.report(row)


def _arrange(run: Run, frozen: bool) -> None:
    """Let the backbone train or not; data parallelism must be told anew which parameters do."""
    run.frozen = frozen
    for parameter in run.backbone:
        parameter.requires_grad_(not frozen)
    network = distributed.data_parallel(run.learner.network)
    run.network = torch.compile(network) if run.config.training.compile else network  # type: ignore[assignment]


def update(run: Run) -> Tensor:
    """One optimiser step; returns the detached loss. A loss that is not finite is never trained on."""
    step = run.state.step
    if run.frozen != (step < run.frozen_until):
        _arrange(run, frozen=step < run.frozen_until)
    value = run.learner.objective(run.network, step)
    if wrong := run.watch.see(value.detach(), step):
        figures = {name: float(figure) for name, figure in run.learner.diagnostics().items()}
        message = f"the loss is {wrong[1]} at step {wrong[0]}{run.watch.cause(run.learner.modules)}"
        raise Diverged(message, wrong[0], {"loss": wrong[1], **figures})
    run.optimizer.zero_grad(set_to_none=True)
    run.scaler.scale(value).backward()  # type: ignore[no-untyped-call]
    distributed.average_gradients(run.learner.loss.parameters())
    clip(run)
    _set_learning_rate(run, step)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    return value.detach()


def clip(run: Run) -> None:
    """Limit each entry of the gradient, then the norm of the whole, network and loss parameters together."""
    optim = run.config.optim
    if optim.clip_value is None and optim.clip_norm is None:
        return
    run.scaler.unscale_(run.optimizer)
    parameters = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
    if optim.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, optim.clip_value)
    if optim.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, optim.clip_norm)


def _set_learning_rate(run: Run, step: int) -> None:
    """Every group's own rate times the schedule's factor."""
    per_epoch = run.learner.sampler.steps_per_epoch
    factor = run.rate.factor(step, total_steps=run.learner.total_steps, steps_per_epoch=per_epoch)
    for group in run.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def log(run: Run, since: float) -> None:
    """Report training figures."""
    row = training_figures(run)
    run.state.seconds += time.perf_counter() - since
    _keep(run, row)
    run.context.report(row)


def _judge(run: Run, since: float) -> None:
    """Evaluate on validation, keep the evaluation that counts, save, report."""
    state = run.state
    row = training_figures(run)
    validated: Evaluation = run.learner.validate()
    row.update(validated.figures)
    if math.isnan(row["val/mean_cosine"]):
        raise Diverged(f"embeddings are not finite at step {state.step}", state.step, dict(row))
    task = run.learner.task
    if lacking := sorted({*task.metrics()} - {*task.final_metrics(), *row}):
        raise ConfigError(Problem(f"task {task.name}", "validate must measure what metrics() names", lacking[:3]))
    if state.step == run.learner.total_steps and _collapsed(state.cosines):
        cosines = ", ".join(f"{cosine:.4f}" for cosine in state.cosines)
        message = f"the embeddings collapsed by the end: mean pairwise cosine {cosines} in its last fifth"
        raise Diverged(message, state.step, dict(row))
    if _counts(row, run):
        validated = run.learner.conclude(validated)
        row.update(validated.figures)
        leave_evidence(run, validated.evidence)
        examined: Evaluation = run.learner.test(validated)
        run.context.seal(examined.figures)
        keep(run, {"val": validated, "test": examined})
        state.best = dict(row)
    state.seconds += time.perf_counter() - since
    _keep(run, row)
    run.context.report(row, checkpoint_of(run))


def leave_evidence(run: Run, evidence: Evidence | None) -> None:
    """Keep what the evaluation that counts has to show, in place of an earlier one's."""
    if evidence is None or run.context.rank != 0:
        return
    words, picture, maps = EVIDENCE_FILES
    files = {} if evidence.sheet is None else {picture: draw_sheet(evidence.sheet)}
    if run.config.evaluation.feature_maps and evidence.rows:
        queries = np.array([row[0].picture for row in evidence.rows if row[0]])
        files[maps] = draw_feature_maps(run.learner.feature_maps(queries), queries, run.learner.pictures)
    seen = watched.seen(run.state.looks, run.learner.watched_pictures())
    run.context.leave({**files, words: replace(evidence, step=run.state.step, watched=seen).text().encode()})


def keep(run: Run, parts: Mapping[str, Evaluation]) -> None:
    """Keep the hits of the evaluation that counts, half by half, and its embeddings or its network where asked for."""
    if run.context.rank != 0:
        return
    if run.config.evaluation.keep == "weights":
        shown = run.learner.views.evaluation(run.learner.split.train[:2])
        run.context.keep(NETWORK, exported(run.learner.network, shown))
    embeddings = run.config.evaluation.keep == "embeddings"
    for part, evaluation in parts.items():
        if evaluation.hits is not None:
            run.context.keep(hits_file(part), evaluation.hits.data())
        if embeddings and evaluation.embedded is not None:
            run.context.keep(embeddings_file(part), evaluation.embedded.data())


def _collapsed(cosines: list[float]) -> bool:
    """Whether all watched pictures had one embedding at every look, and were not on the way out of it.

    Args:
        cosines: at the `_COLLAPSE_LOOKS`, the end among them. An untrained network may look so for long, and recover.
    """
    recovering = all(later < earlier - _ROUNDING for earlier, later in itertools.pairwise(cosines))
    return len(cosines) > 1 and min(cosines) > _COLLAPSE and not recovering


def _watched_cosine(run: Run) -> float:
    """Mean pairwise cosine of the watched pictures; 1 where all embeddings are zero."""
    units = normalise(_watched(run))
    return mean_cosine(units) if bool(units.any()) else 1.0


def _watched(run: Run) -> Tensor:
    """Raw embeddings of the watched pictures as the network is now, computed once a step."""
    if run.watched is None or run.watched[0] != run.state.step:
        run.watched = (run.state.step, run.learner.watched())
    return run.watched[1]


def look(run: Run) -> Tensor:
    """The directions of the watched pictures, which are kept, and with them how long they are and how far they have turned."""
    state, embeddings = run.state, _watched(run)
    units = normalise(embeddings)
    state.looks = watched.with_look(state.looks, watched.look_at(state.step, embeddings, state.directions, units))
    state.directions = units
    return units


def training_figures(run: Run) -> Row:
    """The mean loss since the last row and the mechanism figures of the last batch."""
    loss = float(torch.stack(run.recent).mean())
    run.recent.clear()
    figures = {f"train/{name}": float(value) for name, value in run.learner.diagnostics().items()}
    if not math.isfinite(loss):  # of the very last step on CUDA
        step = run.state.step
        raise Diverged(f"the loss is {loss} by step {step}", step, {"loss": loss, **figures})
    return {"step": run.state.step, "train/loss": loss, **figures, **_direction_figures(run)}


def _direction_figures(run: Run) -> Row:
    """Every 1000 steps, how far the watched pictures' directions have turned since the last look."""
    state, before = run.state, run.state.directions
    if before is None or state.step % directions.interval(run.learner.total_steps, LOG_EVERY):
        return {}
    return {f"train/{name}": v for name, v in directions.turn_statistics(before, look(run)).items()}


def _keep(run: Run, row: Row) -> None:
    row["time/seconds"] = run.state.seconds
    run.state.rows.append(row)


def _counts(row: Row, run: Run) -> bool:
    """Whether this evaluation is the one the trial is judged by, as far as is known now."""
    if run.config.evaluation.epoch == "best_validation":
        return row[run.learner.task.headline] > run.state.best.get(run.learner.task.headline, -math.inf)
    return run.state.step == run.learner.total_steps


def checkpoint_of(run: Run) -> dict[str, Any]:
    """All that a trial needs to go on from here."""
    return {
        "task": run.learner.modules.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scaler": run.scaler.state_dict(),
        "rng": generators.states(),
        "step": run.state.step,
        "seconds": run.state.seconds,
        "rows": run.state.rows,
        "best": run.state.best,
        "directions": run.state.directions,
        "looks": watched.to_plain(run.state.looks),
        "cosines": run.state.cosines,
    }
