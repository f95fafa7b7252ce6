"""Run one trial, by one of two engines.

    local    train in the Tune actor, which Tune reuses; a short trial costs about a second more than its training
    train    train on Ray Train workers (DDP, gloo or nccl), which the Tune actor reuses for its next trial

Both call `trainables.training.train`. A trial that uses a third-party method runs in its own process, which then exits.
A trial ends with one closing report: finished, diverged, failed or paused. Only retryable errors are raised to Ray.
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

from trainables.context import TrialContext, is_cut_off
from trainables.errors import Diverged
from trainables.files import require_folder, retry_storage
from trainables.registries import foreign_code, foreign_packages
from trainables.resolve import read_settings
from tune_dml.planning.checks.data import data_key
from tune_dml.planning.request import Resources
from tune_dml.programs.command import Program
from tune_dml.record.events import EndStatus, TrialEnd
from tune_dml.record.fetching import trial_storage
from tune_dml.record.origin.provenance import mask
from tune_dml.running.failures import classify
from tune_dml.running.process import return_freed_memory
from tune_dml.running.trials.device import cuda_error, device_of, keep_allocated, missing_device
from tune_dml.running.trials.messages import (
    GroupOutbox,
    Message,
    MessageQueue,
    Messages,
    TrialFunction,
    TrialRequest,
    as_text,
    requests_of,
)
from tune_dml.text import shortened

if TYPE_CHECKING:
    from trainables.config import Settings, Value
    from trainables.context import Row, TrialContext
    from trainables.training import Outcome, Training

_MAX_SILENCE = 5.0
"""Longest time between two messages of a program's trial, in seconds. Ray ends the trial during a message."""
_MAX_HEADS = 8
"""Most heads that train together. Twice as many would save little time, and a lost process costs all of them."""
_TRACEBACK = 8000  # characters of a traceback that the ledger keeps; a message may hold a whole tensor


def run_trial(settings: Settings, context: TrialContext, cache_dir: Path | None) -> TrialEnd:
    """Train one trial and return how it ended.

    The status is `paused` if the context stops the trial before its last step. Test metrics stay with the context.

    Raises:
        BaseException: A retryable error. Any other error ends the trial as `failed`, with a reason.
    """
    from trainables.training import train

    try:
        outcome = train(read_settings(settings), context, cache_dir=cache_dir)
    except BaseException as error:  # also KeyboardInterrupt: one that a method raises would look like Ray's
        return _end_by_error(error, context)
    return _end_by_outcome(outcome)


def _end_by_error(error: BaseException, context: TrialContext) -> TrialEnd:
    """Return the end of a trial that raised an error; raise the error again if it is retryable."""
    if isinstance(error, Diverged) and not is_cut_off(context):
        return TrialEnd("diverged", error.message, step=error.step, statistics=error.statistics)
    device_error = cuda_error(context.device)
    failure = classify(error if device_error is None else device_error.with_traceback(error.__traceback__))
    if failure.is_retryable or _ends_by_scheduler(error) or is_cut_off(context):
        raise error
    if device_error is not None:
        keep_allocated(error)
    text = "".join(traceback.format_exception(error, limit=-6))[: 10 * _TRACEBACK]  # masking is slow
    trace = shortened(mask(text), _TRACEBACK)
    return TrialEnd("failed", failure.reason, kind=failure.kind, traceback=trace)


def _end_by_outcome(outcome: Outcome) -> TrialEnd:
    status: EndStatus = "finished" if outcome.metrics else "paused"
    return TrialEnd(status, metrics=outcome.metrics, step=outcome.step, seconds=outcome.seconds)


def _ends_by_scheduler(error: BaseException) -> bool:
    """Return whether Ray (during a report) or SLURM (by a signal) ended the trial. They raise no `Exception`."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not isinstance(error, Exception) and frames[-1].startswith(("ray.", "tune_dml.running.slurm."))


@dataclass(frozen=True)
class TrialRuntime:
    """The data that all trials of a session share."""

    sweep: Path
    storage: Path | str  # folder or address below which each trial keeps its files
    resources: Resources
    cache_dir: Path | None = None
    stall_limit: float | None = None  # seconds within which a trial sends several messages; None if none is due
    digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Digests of the data sets that the trials read (`planning.checks.data.known_digests`)."""
    program: Program | None = None  # the user's program; None to train with `trainables`
    metric: str = ""  # which a program reports
    folders: Sequence[tuple[str, str]] | None = None  # that each node must have; None for a local Ray
    defers_test: bool = False  # whether `open` tests heads on stored features, instead of their trials


def _run_program(config: TrialRequest, runtime: TrialRuntime, post: Callable[[Message], None]) -> None:
    from tune_dml.running.trials.program import ProgramTrial

    assert isinstance(runtime.storage, Path)  # noqa: S101 - object storage is refused for programs
    assert runtime.program is not None  # noqa: S101
    resources = runtime.resources
    folder = runtime.storage / config["key"]
    trial = ProgramTrial(runtime.program, config, runtime.metric, folder, resources.cpus_per_worker, resources.gpus)
    with Messages(post, runtime.stall_limit, max_silence=_MAX_SILENCE) as messages:
        messages.ended(trial.run(messages))


def _train_here(
    config: TrialRequest, runtime: TrialRuntime, post: Callable[[Message], None], rank: int = 0, world_size: int = 1
) -> None:
    """Train a trial in this process. Rank 0 posts its rows and its end; each rank posts its failure."""
    settings = _settings_of(config, runtime)
    code = foreign_code(settings)  # digests of the imported source: a file may change during training
    # Restore the working directory, which a method may change.
    with contextlib.chdir(os.getcwd()), Messages(post, runtime.stall_limit) as messages:
        context = _context_of(config, settings, runtime, messages, (rank, world_size), at_work=messages.at_work)
        ended = run_trial(settings, context, runtime.cache_dir)
        return_freed_memory()  # the process may wait for its next trial
        if rank == 0 or ended.status == "failed":
            has_device_error = ended.status == "failed" and cuda_error(context.device) is not None
            messages.ended(replace(ended, code=code), spent=has_device_error or bool(foreign_packages(settings)))


def _settings_of(config: TrialRequest, runtime: TrialRuntime) -> dict[str, Value]:
    settings: dict[str, Value] = json.loads(config["settings"])
    if runtime.resources.micro_batch is not None:
        settings["training.micro_batch"] = runtime.resources.micro_batch
    return settings


def _context_of(
    config: TrialRequest,
    settings: Settings,
    runtime: TrialRuntime,
    messages: MessageQueue,
    rank_and_size: tuple[int, int] = (0, 1),
    *,
    at_work: Callable[[], None],
) -> TrialContext:
    """Wait for the trial's storage, then return its context. `rank_and_size`: the rank, and the number of workers."""
    storage, device = trial_storage(runtime.storage, config["key"]), device_of(runtime.resources)
    if isinstance(storage, Path):  # wait for missing storage; do not create it below the mount point
        folder = storage.parent
        retry_storage(lambda: require_folder(folder), folder, messages.note, at_work)
    rank, world_size = rank_and_size
    return TrialContext(
        storage,
        device,
        rank=rank,
        world_size=world_size,
        threads=runtime.resources.cpus_per_worker,
        sink=_sink(messages, missing_device(runtime.resources, device)) if rank == 0 else lambda row: None,
        say=messages.note,
        on_resume=messages.resumed,
        until=config["until"],
        digests=runtime.digests.get(data_key(settings), {}),
        at_work=at_work,
        defers_test=runtime.defers_test,
    )


def _sink(messages: MessageQueue, note: str) -> Callable[[Row], None]:
    """Return a function that sends rows, and `note` before the first row; sent earlier, it would count as a step."""
    notes = [note] if note else []

    def take(row: Row) -> None:
        while notes:
            messages.note(notes.pop())
        messages.row(row)

    return take


def _local_engine(runtime: TrialRuntime) -> TrialFunction:
    def trial(config: TrialRequest) -> None:
        import tune_dml.running.trials.preload  # noqa: F401, I001 - before Ray Tune, to import it faster

        from ray import tune

        if config.get("more"):
            _run_group(requests_of(config), runtime, lambda message: tune.report(as_text(message)))
            return
        run_request(config, runtime, lambda message: tune.report(as_text(message)))

    return trial


def run_request(config: TrialRequest, runtime: TrialRuntime, post: Callable[[Message], None]) -> None:
    """Train a trial in this process, or run the user's program; post its rows and its end."""
    (_train_here if runtime.program is None else _run_program)(config, runtime, post)


def _run_group(requests: Sequence[TrialRequest], runtime: TrialRuntime, post: Callable[[Message], None]) -> None:
    """Train several trials in order, until one ends after which the process must not train another."""
    outbox = GroupOutbox(post, requests[-1]["key"])
    ends: list[bool] = []
    for batch in _split_group(requests, runtime):
        first = batch[0]
        if first is not requests[0]:
            outbox.begin(first["key"])
        if len(batch) > 1:
            _train_together(batch, runtime, outbox)
            continue
        key = first["key"]
        _train_here(first, runtime, lambda part, key=key: ends.append(outbox.post(key, part)))  # type: ignore[misc]
        if ends[-1]:
            return


def _split_group(requests: Sequence[TrialRequest], runtime: TrialRuntime) -> Iterator[Sequence[TrialRequest]]:
    """Yield lists of trials that train together: heads on stored features, on the CPU, without third-party methods."""
    on_cpu = device_of(runtime.resources).type == "cpu"
    for are_heads, batch in itertools.groupby(requests, key=lambda request: on_cpu and _trains_a_head(request)):
        trials = list(batch)
        size = -(-len(trials) // -(-len(trials) // _MAX_HEADS)) if are_heads else 1  # batches of nearly equal size
        yield from (trials[start : start + size] for start in range(0, len(trials), size))


def _trains_a_head(request: TrialRequest) -> bool:
    settings = json.loads(request["settings"])
    return settings.get("data.name") == "features" and not foreign_packages(settings)


def _train_together(requests: Sequence[TrialRequest], runtime: TrialRuntime, outbox: GroupOutbox) -> None:
    """Train heads together, step by step; post the rows and the end of each when all have ended.

    They are posted as if they had run one after the other, each for an equal share of the time, so that times add up.
    """
    from trainables.together import train_together

    start, first = time.monotonic(), requests[0]["key"]

    def post_sign(message: Message) -> None:
        outbox.post(first, message)

    trainings, contexts, message_lists = [], [], []
    with contextlib.chdir(os.getcwd()), Messages(post_sign, runtime.stall_limit) as group_messages:
        group_messages.request_sign()  # so that the ends of the previous trials are sent
        for request in requests:
            settings, messages = _settings_of(request, runtime), MessageQueue()
            context = _context_of(request, settings, runtime, messages, at_work=group_messages.at_work)
            trainings.append(_training_steps(settings, context, runtime.cache_dir))
            contexts.append(context)
            message_lists.append(messages)
        results = train_together(trainings)
        ends = [
            _end_by_error(result, context) if isinstance(result, Exception) else _end_by_outcome(result)
            for result, context in zip(results, contexts, strict=True)
        ]
    share = (time.monotonic() - start) / len(requests)
    for number, (request, messages, end) in enumerate(zip(requests, message_lists, ends, strict=True)):
        key = request["key"]
        if number:
            outbox.begin(key, start + number * share)
        for message in messages.drain({"ended": end.to_json()}):
            outbox.post(key, message, start + (number + 1) * share)


def _training_steps(settings: Settings, context: TrialContext, cache_dir: Path | None) -> Training:
    """Run `training.training`, but raise an error about settings in the first step."""
    from trainables.training import training

    return (yield from training(read_settings(settings), context, cache_dir=cache_dir))


def _train_engine(runtime: TrialRuntime) -> TrialFunction:
    def train_one(config: TrialRequest, post: Callable[[Message], None]) -> None:
        import ray.train

        ranks = ray.train.get_context()
        _train_here(config, runtime, post, ranks.get_world_rank(), ranks.get_world_size())

    def trial(config: TrialRequest) -> None:
        from ray import tune

        from tune_dml.running.trials.worker_group import get_worker_group

        has_shared_folder = isinstance(runtime.storage, Path)
        storage = runtime.sweep / "ray" if has_shared_folder else Path(os.getcwd())
        for message in get_worker_group(train_one, storage, runtime.resources, runtime.folders).run(config):
            tune.report(as_text(message))

    return trial


def engine(runtime: TrialRuntime) -> TrialFunction:
    """Return the Tune function that runs trials."""
    return _train_engine(runtime) if runtime.resources.engine == "train" else _local_engine(runtime)
