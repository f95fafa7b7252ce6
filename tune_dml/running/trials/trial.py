"""Run one trial, by one of two engines.

    local    train inside the Tune actor, which Tune reuses: a short trial costs about a second more than its training
    train    train on Ray Train workers (DDP, gloo or nccl) that the Tune actor keeps from trial to trial

Both call `trainables.training.train` with a context of their own. A trial that uses a third-party method runs in its own
process, which then exits. A trial ends with one closing report: finished, diverged, failed or paused. Only errors that
a retry can help are raised to Ray.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import Diverged
from trainables.files import existing, patiently
from trainables.registries import foreign_code, foreign_packages
from trainables.resolve import read_settings
from tune_dml.planning.checks.data import of_data
from tune_dml.planning.request import Resources
from tune_dml.programs.command import Program
from tune_dml.record.events import EndStatus, TrialEnd
from tune_dml.record.fetching import trial_storage
from tune_dml.record.origin.provenance import mask
from tune_dml.running.failures import classify
from tune_dml.running.trials.device import cuda_error, device_of, keep_allocated, missing_device
from tune_dml.running.trials.messages import (
    GroupOutbox,
    Message,
    Messages,
    Transcript,
    TrialFunction,
    TrialRequest,
    as_text,
    requests_of,
)
from tune_dml.text import shortened

if TYPE_CHECKING:
    from trainables.config import Settings, Value
    from trainables.context import FolderContext, Row, TrialContext
    from trainables.training import Outcome, Training

_SILENCE = 5.0
"""Longest silence of a program's trial, in seconds: it learns from the answer to a message that Ray ends it."""
_HEADS_AT_ONCE = 8
"""Heads that train together: twice as many save little more, and a lost process costs all of them."""
_TRACEBACK = 8000
"""Characters of a traceback that the ledger keeps; a message may hold a whole tensor."""


def run_trial(settings: Settings, context: TrialContext, cache_dir: Path | None) -> TrialEnd:
    """Train one trial and return how it ended.

    The status is `paused` if the context stops the trial before its last step. Test metrics stay with the context.

    Raises:
        BaseException: An error that a retry may help. Any other error ends the trial as `failed`, with a reason.
    """
    from trainables.training import train

    try:
        outcome = train(read_settings(settings), context, cache_dir=cache_dir)
    except BaseException as error:  # KeyboardInterrupt too: a method's would look like Ray's
        return _end_by(error, context)
    return _end_with(outcome)


def _end_by(error: BaseException, context: TrialContext) -> TrialEnd:
    """Return the end of a trial by an error; raise the error if a retry may help."""
    from trainables.context import is_cut_off

    if isinstance(error, Diverged) and not is_cut_off(context):
        return TrialEnd("diverged", error.message, step=error.step, statistics=error.statistics)
    sick = cuda_error(context.device)
    failure = classify(error if sick is None else sick.with_traceback(error.__traceback__))
    if failure.is_retryable or _ends_by_scheduler(error) or is_cut_off(context):
        raise error
    if sick is not None:
        keep_allocated(error)
    trace = shortened(mask("".join(traceback.format_exception(error, limit=-6))), _TRACEBACK)
    return TrialEnd("failed", failure.reason, kind=failure.kind, traceback=trace)


def _end_with(outcome: Outcome) -> TrialEnd:
    status: EndStatus = "finished" if outcome.metrics else "paused"
    return TrialEnd(status, metrics=outcome.metrics, step=outcome.step, seconds=outcome.seconds)


def _ends_by_scheduler(error: BaseException) -> bool:
    """Return whether Ray ended the trial, within a report, or SLURM, by a signal: neither raises an `Exception`."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not isinstance(error, Exception) and frames[-1].startswith(("ray.", "tune_dml.running.slurm."))


@dataclass(frozen=True)
class TrialRuntime:
    """The data that all trials of a session share."""

    sweep: Path
    storage: Path | str
    """Folder, or address in object storage, below which each trial keeps its files."""
    resources: Resources
    cache_dir: Path | None = None
    stall_limit: float | None = None
    digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Digests of the data sets that the trials read (`planning.checks.data.known_digests`)."""
    program: Program | None = None
    """The user's program that trains each trial."""
    metric: str = ""
    """The sweep's metric, which a program reports."""
    folders: Sequence[tuple[str, str]] | None = None
    """Picture folders that each node must have (`planning.checks.data.data_places`); None for a local Ray."""
    defers_test: bool = False
    """Whether small heads are tested when the sweep is opened, and not by their trials."""

    @property
    def shares_a_folder(self) -> bool:
        """Whether all nodes see the sweep's folder."""
        return isinstance(self.storage, Path)


def _run_program(config: TrialRequest, runtime: TrialRuntime, post: Callable[[Message], None]) -> None:
    """Run a trial's program; post its rows and its end."""
    from tune_dml.running.trials.program import ProgramTrial

    assert isinstance(runtime.storage, Path)  # noqa: S101 - object storage was refused
    assert runtime.program is not None  # noqa: S101
    resources = runtime.resources
    folder = runtime.storage / config["key"]
    trial = ProgramTrial(runtime.program, config, runtime.metric, folder, resources.cpus_per_worker, resources.gpus)
    with Messages(post, runtime.stall_limit, longest=_SILENCE) as messages:
        messages.ended(trial.run(messages))


def _run_here(
    config: TrialRequest,
    runtime: TrialRuntime,
    post: Callable[[Message], None],
    rank: int = 0,
    world_size: int = 1,
) -> None:
    """Train a trial in this process; rank 0 posts its rows and its end, every rank its failure."""
    settings = _settings_of(config, runtime)
    code = foreign_code(settings)  # digests of the imported source; the file may change meanwhile
    # A method may change the working directory.
    with contextlib.chdir(os.getcwd()), Messages(post, runtime.stall_limit) as messages:
        context = _context_of(config, settings, runtime, messages, (rank, world_size))
        ended = run_trial(settings, context, runtime.cache_dir)
        if rank == 0 or ended.status == "failed":
            is_sick = ended.status == "failed" and cuda_error(context.device) is not None
            messages.ended(replace(ended, code=code), spent=is_sick or bool(foreign_packages(settings)))


def _settings_of(config: TrialRequest, runtime: TrialRuntime) -> dict[str, Value]:
    settings: dict[str, Value] = json.loads(config["settings"])
    if runtime.resources.micro_batch is not None:
        settings["training.micro_batch"] = runtime.resources.micro_batch
    return settings


def _context_of(
    config: TrialRequest,
    settings: Settings,
    runtime: TrialRuntime,
    messages: Messages | Transcript,
    rank_of: tuple[int, int] = (0, 1),
) -> FolderContext:
    """Return the context of a trial, once its storage is there. `rank_of`: rank and number of workers."""
    from trainables.context import FolderContext

    storage, device = trial_storage(runtime.storage, config["key"]), device_of(runtime.resources)
    if isinstance(storage, Path):  # wait for missing storage; do not create it below the mount point
        folder = storage.parent
        patiently(lambda: existing(folder), folder, messages.note, messages.at_work)
    rank, world_size = rank_of
    return FolderContext(
        storage,
        device,
        rank=rank,
        world_size=world_size,
        threads=runtime.resources.cpus_per_worker,
        sink=_sink(messages, missing_device(runtime.resources, device)) if rank == 0 else lambda row: None,
        say=messages.note,
        on_resume=messages.resumed,
        until=config["until"],
        digests=runtime.digests.get(of_data(settings), {}),
        at_work=messages.at_work,
        defers_test=runtime.defers_test,
    )


def _sink(messages: Messages | Transcript, note: str) -> Callable[[Row], None]:
    """Return the function that sends rows. It sends a note with the first row: earlier it would count as a sign of life."""
    notes = [note] if note else []

    def take(row: Row) -> None:
        while notes:
            messages.note(notes.pop())
        messages.row(row)

    return take


def _local_engine(runtime: TrialRuntime) -> TrialFunction:
    def trial(config: TrialRequest) -> None:
        import tune_dml.running.trials.preload  # noqa: F401, I001 - first, and quickly

        from ray import tune

        if config.get("more"):
            _run_group(requests_of(config), runtime, lambda message: tune.report(as_text(message)))
            return
        run_request(config, runtime, lambda message: tune.report(as_text(message)))

    return trial


def run_request(config: TrialRequest, runtime: TrialRuntime, post: Callable[[Message], None]) -> None:
    """Train a trial in this process, or run its program; post its rows and its end."""
    run = _run_here if runtime.program is None else _run_program
    run(config, runtime, post)


def _run_group(requests: Sequence[TrialRequest], runtime: TrialRuntime, post: Callable[[Message], None]) -> None:
    """Train several trials, until one of them leaves the process unfit for others."""
    outbox = GroupOutbox(post, requests[-1]["key"])
    over: list[bool] = []
    for part in _parts(requests, runtime):
        first = part[0]
        if first is not requests[0]:
            outbox.begin(first["key"])
        if len(part) > 1:
            _run_together(part, runtime, outbox)
            continue
        key = first["key"]
        _run_here(first, runtime, lambda message, key=key: over.append(outbox.post(key, message)))  # type: ignore[misc]
        if over[-1]:
            return


def _parts(requests: Sequence[TrialRequest], runtime: TrialRuntime) -> Iterator[Sequence[TrialRequest]]:
    """Yield the trials that train together: heads on stored features, on the CPU, with methods of this project alone."""
    on_cpu = device_of(runtime.resources).type == "cpu"
    for heads, part in itertools.groupby(requests, key=lambda request: on_cpu and _trains_a_head(request)):
        trials = list(part)
        size = -(-len(trials) // -(-len(trials) // _HEADS_AT_ONCE)) if heads else 1  # parts of nearly equal size
        yield from (trials[start : start + size] for start in range(0, len(trials), size))


def _trains_a_head(request: TrialRequest) -> bool:
    settings = json.loads(request["settings"])
    return settings.get("data.name") == "features" and not foreign_packages(settings)


def _run_together(requests: Sequence[TrialRequest], runtime: TrialRuntime, outbox: GroupOutbox) -> None:
    """Train heads step by step together; post the rows and the end of each when all have ended.

    To the driver they come one after the other, each with an equal share of the time, so that times add up.
    """
    from trainables.together import train_together

    begun, first = time.monotonic(), requests[0]["key"]

    def sign(message: Message) -> None:
        outbox.post(first, message)

    trainings, contexts, transcripts = [], [], []
    with contextlib.chdir(os.getcwd()), Messages(sign, runtime.stall_limit) as signs:
        signs.sign()  # takes the ends of the heads before along
        for request in requests:
            settings, transcript = _settings_of(request, runtime), Transcript(signs.at_work)
            context = _context_of(request, settings, runtime, transcript)
            trainings.append(_training(settings, context, runtime.cache_dir))
            contexts.append(context)
            transcripts.append(transcript)
        results = train_together(trainings)
        ends = [
            _end_by(result, context) if isinstance(result, Exception) else _end_with(result)
            for result, context in zip(results, contexts, strict=True)
        ]
    share = (time.monotonic() - begun) / len(requests)
    for number, (request, transcript, end) in enumerate(zip(requests, transcripts, ends, strict=True)):
        key = request["key"]
        if number:
            outbox.begin(key, begun + number * share)
        for message in transcript.messages(end):
            outbox.post(key, message, begun + (number + 1) * share)


def _training(settings: Settings, context: TrialContext, cache_dir: Path | None) -> Training:
    """Train as `training.training`; wrong settings are an error of the first step."""
    from trainables.training import training

    return (yield from training(read_settings(settings), context, cache_dir=cache_dir))


def _train_engine(runtime: TrialRuntime) -> TrialFunction:
    def train_one(config: TrialRequest, post: Callable[[Message], None]) -> None:
        import ray.train

        ranks = ray.train.get_context()
        _run_here(config, runtime, post, ranks.get_world_rank(), ranks.get_world_size())

    def trial(config: TrialRequest) -> None:
        from ray import tune

        from tune_dml.running.trials.worker_group import get_worker_group

        storage = runtime.sweep / "ray" if runtime.shares_a_folder else Path(os.getcwd())
        for message in get_worker_group(train_one, storage, runtime.resources, runtime.folders).run(config):
            tune.report(as_text(message))

    return trial


def engine(runtime: TrialRuntime) -> TrialFunction:
    """Return the Tune function that runs trials."""
    return _train_engine(runtime) if runtime.resources.engine == "train" else _local_engine(runtime)
