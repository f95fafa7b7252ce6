"""The training loop. It runs alone, in a Tune actor or as a Ray Train worker, and resumes bit-identically on a CPU.

    train                   the whole trial
      training              its steps: the caller takes each optimizer step
        prepare_process     threads, seeds, determinism
        start_or_resume     network, optimizer and the last checkpoint, if there is one
        _evaluate           one evaluation, one row, one checkpoint
      update                one optimizer step on the global batch
      Outcome               the figures of the trial
    evaluate_test           the test half of a trial that stored its head instead

Every random choice is a function of (seed, step), so a resumed trial, a rerun and any number of workers see the same
batches. The numbers of a trial depend only on its TrialConfig and its data.
"""

import itertools
import math
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from trainables import generators
from trainables.arithmetic import fix_arithmetic
from trainables.config import TrialConfig, settings_digest
from trainables.context import EVIDENCE_FILES, NETWORK, UNTESTED, Checkpoint, Row, TrialContext
from trainables.errors import ConfigError, Diverged, Problem
from trainables.evidence import watched
from trainables.evidence.feature_maps import draw_feature_maps
from trainables.evidence.record import Evidence, Snapshot
from trainables.evidence.sheet import draw_sheet
from trainables.evidence.stored import embeddings_file, hits_file
from trainables.losses.base import normalise
from trainables.method_checks import checked_metrics
from trainables.models.export import export_network
from trainables.optimizers import build_optimizer
from trainables.rates import RATES
from trainables.run import FiniteWatch, Run, TrainingState, update
from trainables.tasks import Evaluation, Learner, build_learner
from trainables.tasks.evaluation import mean_cosine

_COLLAPSE = 0.999  # mean pairwise cosine above which all embeddings count as equal
_HIGH_RECALL = 75.0  # R@1 that uninformative embeddings do not reach, even with two equal classes
_COLLAPSE_CHECKS = (0.8, 0.9, 1)  # shares of a trial's steps
_ROUNDING = 1e-6  # rounding of a cosine of float32 embeddings
LOG_EVERY = 25  # steps between rows of training figures
_SNAPSHOTS = TypeAdapter(list[Snapshot])


@dataclass(frozen=True)
class Outcome:
    """Result of a trial."""

    metrics: dict[str, float]  # figures of the selected evaluation, empty for a paused trial; `test/...` is sealed
    step: int
    seconds: float  # training time over all attempts, evaluation included


Training = Generator[Run, None, Outcome]
"""A trial in progress. It yields its run for each step, which the caller takes, and returns its outcome."""


def train(config: TrialConfig, context: TrialContext, *, cache_dir: Path | None = None) -> Outcome:
    """Train and evaluate one trial.

    Raises:
        ConfigError: the configuration does not fit the data.
        DataError: the data are missing or unreadable.
        Diverged: the loss or a norm of an embedding is not finite, or the embeddings collapsed.
    """
    trial = training(config, context, cache_dir=cache_dir)
    while True:
        try:
            run = next(trial)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        run.recent.append(update(run))  # a method that raises StopIteration fails, and does not end the training


def training(config: TrialConfig, context: TrialContext, *, cache_dir: Path | None = None) -> Training:
    """Build or resume a trial, and yield its run whenever an optimizer step is due; see `train`."""
    prepare_process(config, context)
    learner = build_learner(config, context, cache_dir=cache_dir)
    run = start_or_resume(config, context, learner)
    state, total = run.state, learner.total_steps
    checks = {math.ceil(share * total) for share in _COLLAPSE_CHECKS}
    clock = time.perf_counter()
    while state.step < (context.until or total):
        yield run
        state.step += 1
        context.heartbeat()
        if state.step in checks:
            state.cosines.append(_watched_cosine(run))
        if state.step % config.training.eval_every == 0 or state.step == total:
            _evaluate(run, clock)
        elif state.step % LOG_EVERY == 0:
            _report_row(run, training_figures(run), clock)
        else:
            continue
        clock = time.perf_counter()
    best = state.best if state.step == total else {"step": state.step}
    metrics = {name: v for name, v in best.items() if name != "step" and not name.startswith("time/")}
    return Outcome(metrics, int(best["step"]), state.seconds)


def prepare_process(config: TrialConfig, context: TrialContext) -> None:
    """Set threads, determinism and seeds, so that all cells of a seed start from the same weights."""
    if config.training.precision == "fp16" and context.device.type != "cuda":
        rule = "fp16 needs a CUDA device"
        raise ConfigError(Problem("training.precision", rule, str(context.device), "Use bf16 or float32."))
    torch.set_num_threads(context.threads)
    fix_arithmetic(context.device.type == "cpu", compiled=config.training.compile)
    generators.seed_all(config.seed_of("init"))


def start_or_resume(config: TrialConfig, context: TrialContext, learner: Learner[Any]) -> Run:
    """Return a trial at its first step or its last checkpoint."""
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
        TrainingState(),
    )
    saved = context.latest_checkpoint(_identity_of(config))
    if saved is None:
        learner.set_mean_norm()
        if watched.interval(learner.total_steps, LOG_EVERY) <= learner.total_steps:
            _take_snapshot(run)
    else:
        _restore(run, saved)
    return run


def _identity_of(config: TrialConfig) -> str:
    """Return the identity of a trial in its checkpoints. A session may change the micro-batch of a trial."""
    settings = {path: value for path, value in config.settings().items() if path != "training.micro_batch"}
    return f"{settings_digest(settings)}-{config.seed}"


def _restore(run: Run, saved: Checkpoint) -> None:
    """Continue from a checkpoint, and report its rows again in case a crash lost one."""
    run.learner.modules.load_state_dict(saved["task"])
    run.optimizer.load_state_dict(saved["optimizer"])
    run.scaler.load_state_dict(saved["scaler"])
    generators.restore(saved["rng"])
    run.state = TrainingState(
        saved["step"],
        saved["seconds"],
        saved["rows"],
        saved["best"],
        saved["directions"],
        _SNAPSHOTS.validate_python(saved["looks"]),
        saved["cosines"],
    )
    for row in run.state.rows:
        run.context.report(row)


def _evaluate(run: Run, since: float) -> None:
    """Evaluate on validation, store the selected evaluation, save a checkpoint and report."""
    state = run.state
    row = training_figures(run)
    validated: Evaluation = run.learner.validate()
    place = f"task {run.learner.task.name}"
    row.update(checked_metrics(place, validated.figures))
    if math.isnan(row["val/mean_cosine"]):
        raise Diverged(f"norms of embeddings are not finite at step {state.step}", state.step, dict(row))
    task = run.learner.task
    if missing := sorted({*task.metrics()} - {*task.final_metrics(), *row}):
        raise ConfigError(Problem(place, "validate must return every metric that metrics() names", missing[:3]))
    has_high_recall = row.get("val/recall_at_1", 0.0) >= _HIGH_RECALL
    if state.step == run.learner.total_steps and _has_collapsed(state.cosines) and not has_high_recall:
        cosines = ", ".join(f"{cosine:.4f}" for cosine in state.cosines)
        message = f"the embeddings collapsed by the end: mean pairwise cosine {cosines} in its last fifth"
        raise Diverged(message, state.step, dict(row))
    if _is_selected(row, run):
        validated = run.learner.conclude(validated)
        row.update(checked_metrics(place, validated.figures))
        write_evidence(run, validated.evidence)
        if run.context.defers_test and run.config.evaluation.keep == "scores" and run.learner.stores_small_heads:
            run.context.store(UNTESTED, run.learner.head_bytes())
            _store_artifacts(run, {"val": validated})
        else:
            tested: Evaluation = run.learner.test(validated)
            run.context.seal(tested.figures)
            _store_artifacts(run, {"val": validated, "test": tested})
        state.best = dict(row)
    _report_row(run, row, since, save=True)


def _report_row(run: Run, row: Row, since: float, *, save: bool = False) -> None:
    """Add a row, with the training time so far, to the history; report it, and `save` a checkpoint."""
    run.state.seconds += time.perf_counter() - since - run.waited
    run.waited = 0.0
    row["time/seconds"] = run.state.seconds
    run.state.rows.append(row)
    run.context.report(row, checkpoint_state(run) if save else None)


def write_evidence(run: Run, evidence: Evidence | None) -> None:
    """Write the evidence of the selected evaluation, replacing that of an earlier one."""
    if evidence is None or run.context.rank != 0:
        return
    text_file, picture, maps = EVIDENCE_FILES
    files = {} if evidence.sheet is None else {picture: draw_sheet(evidence.sheet)}
    if run.config.evaluation.feature_maps and evidence.sheet is not None:
        shown = evidence.sheet.pictures or run.learner.pictures
        queries = np.array([next(tile.picture for tile in row if tile) for row in evidence.sheet.rows])
        files[maps] = draw_feature_maps(run.learner.feature_maps(queries, shown), queries, shown)
    watched_pictures = watched.to_evidence(run.state.snapshots, run.learner.watched_pictures())
    text = replace(evidence, step=run.state.step, watched=watched_pictures).text()
    run.context.replace_evidence({**files, text_file: text.encode()})


def _store_artifacts(run: Run, parts: Mapping[str, Evaluation]) -> None:
    """Store hits of the selected evaluation, and its embeddings or network as set by `evaluation.keep`."""
    if run.context.rank != 0:
        return
    if run.config.evaluation.keep == "weights":
        example = run.learner.views.evaluation(run.learner.split.train[:2])
        run.context.store(NETWORK, export_network(run.learner.network, example))
    embeddings = run.config.evaluation.keep == "embeddings"
    for part, evaluation in parts.items():
        if evaluation.hits is not None:
            run.context.store(hits_file(part), evaluation.hits.data())
        if embeddings and evaluation.stored is not None:
            run.context.store(embeddings_file(part), evaluation.stored.data())


def _has_collapsed(cosines: list[float]) -> bool:
    """Return whether all watched pictures had equal embeddings at every check and did not recover.

    An untrained network may start collapsed and recover.
    """
    recovering = all(later < earlier - _ROUNDING for earlier, later in itertools.pairwise(cosines))
    return len(cosines) > 1 and min(cosines) > _COLLAPSE and not recovering


def _watched_cosine(run: Run) -> float:
    """Return the mean pairwise cosine of the watched pictures; 1 if all embeddings are zero."""
    units = normalise(_watched_embeddings(run))
    return mean_cosine(units) if bool(units.any()) else 1.0


def _watched_embeddings(run: Run) -> Tensor:
    """Return the raw embeddings of the watched pictures, computed once per step."""
    if run.watched is None or run.watched[0] != run.state.step:
        run.watched = (run.state.step, run.learner.embed(run.learner.watched_pictures())[0])
    return run.watched[1]


def _take_snapshot(run: Run) -> Tensor:
    """Append a snapshot of the watched pictures and return their directions."""
    state, embeddings = run.state, _watched_embeddings(run)
    units = normalise(embeddings)
    state.snapshots = watched.append_snapshot(
        state.snapshots, watched.snapshot(state.step, embeddings, state.directions, units)
    )
    state.directions = units
    return units


def training_figures(run: Run) -> Row:
    """Return the mean loss since the last row and the diagnostics of the last batch."""
    loss = float(torch.stack(run.recent).mean())
    run.recent.clear()
    figures = {f"train/{name}": float(value) for name, value in run.learner.diagnostics().items()}
    if not math.isfinite(loss):  # on CUDA the check is one step late
        step = run.state.step
        raise Diverged(f"the loss is {loss} by step {step}", step, {"loss": loss, **figures})
    return {"step": run.state.step, "train/loss": loss, **figures, **_direction_figures(run)}


def _direction_figures(run: Run) -> Row:
    """Return how far the watched pictures turned since the last snapshot, every 1000 steps."""
    state, before = run.state, run.state.directions
    if before is None or state.step % watched.interval(run.learner.total_steps, LOG_EVERY):
        return {}
    return {f"train/{name}": v for name, v in watched.turn_statistics(before, _take_snapshot(run)).items()}


def _is_selected(row: Row, run: Run) -> bool:
    """Return whether this evaluation is the one to report so far."""
    if run.config.evaluation.epoch == "best_validation":
        return row[run.learner.task.headline] > run.state.best.get(run.learner.task.headline, -math.inf)
    return run.state.step == run.learner.total_steps


def checkpoint_state(run: Run) -> Checkpoint:
    """Return the checkpoint: everything that resuming needs."""
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
        "looks": _SNAPSHOTS.dump_python(run.state.snapshots),
        "cosines": run.state.cosines,
        "trial": _identity_of(run.config),
    }


def evaluate_test(config: TrialConfig, context: TrialContext, head: bytes, *, cache_dir: Path | None = None) -> None:
    """Evaluate the test half and seal the figures, equal to those that the trial itself would have sealed.

    `head` is the content of the trial's file `UNTESTED`. Raises ConfigError if the data are missing or have changed, or
    the head does not fit this configuration.
    """
    prepare_process(config, context)
    learner = build_learner(config, context, cache_dir=cache_dir)
    learner.load_head(head)
    evaluation: Evaluation = learner.test(Evaluation({}))
    if evaluation.hits is not None:
        context.store(hits_file("test"), evaluation.hits.data())
    context.seal(evaluation.figures)
