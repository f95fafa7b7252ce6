"""Run one trial, by one of two engines.

    local    train inside the Tune actor, which Tune reuses: a short trial costs about a second more than its training
    train    train on Ray Train workers (DDP, gloo or nccl) that the Tune actor keeps from trial to trial

Both call `trainables.training.train` with a context of their own. A trial that uses a third-party method runs in its own
process, which then exits. A trial ends with one closing report: finished, diverged, failed or paused. Only errors that
a retry can help are raised to Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
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
    TrialFunction,
    TrialRequest,
    as_text,
    requests_of,
)
from tune_dml.text import shortened

if TYPE_CHECKING:
    from trainables.config import Settings
    from trainables.context import Row, TrialContext

_SILENCE = 5.0
"""Longest silence of a program's trial, in seconds: it learns from the answer to a message that Ray ends it."""
_TRACEBACK = 8000
"""Characters of a traceback that the ledger keeps; a message may hold a whole tensor."""


def run_trial(settings: Settings, context: TrialContext, cache_dir: Path | None) -> TrialEnd:
    """Train one trial and return how it ended.

    The status is `paused` if the context stops the trial before its last step. Test metrics stay with the context.

    Raises:
        BaseException: An error that a retry may help. Any other error ends the trial as `failed`, with a reason.
    """
    from trainables.context import is_cut_off
    from trainables.training import train

    try:
        config = read_settings(settings)
        outcome = train(config, context, cache_dir=cache_dir)
    except Diverged as error:
        if is_cut_off(context):
            raise
        return TrialEnd("diverged", error.message, step=error.step, statistics=error.statistics)
    except BaseException as error:  # KeyboardInterrupt too: a method's would look like Ray's
        sick = cuda_error(context.device)
        failure = classify(error if sick is None else sick.with_traceback(error.__traceback__))
        if failure.may_pass or _ends_by_scheduler(error) or is_cut_off(context):
            raise
        if sick is not None:
            keep_allocated(error)
        trace = shortened(mask(traceback.format_exc(limit=-6)), _TRACEBACK)
        return TrialEnd("failed", failure.reason, kind=failure.kind, traceback=trace)
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
    from trainables.context import FolderContext

    settings = json.loads(config["settings"])
    code = foreign_code(settings)  # digests of the imported source; the file may change meanwhile
    if runtime.resources.micro_batch is not None:
        settings["training.micro_batch"] = runtime.resources.micro_batch
    storage, device = trial_storage(runtime.storage, config["key"]), device_of(runtime.resources)
    # A method may change the working directory.
    with contextlib.chdir(os.getcwd()), Messages(post, runtime.stall_limit) as messages:
        if isinstance(storage, Path):  # wait for missing storage; do not create it below the mount point
            folder = storage.parent
            patiently(lambda: existing(folder), folder, messages.note, messages.at_work)
        context = FolderContext(
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
        ended = run_trial(settings, context, runtime.cache_dir)
        if rank == 0 or ended.status == "failed":
            is_sick = ended.status == "failed" and cuda_error(device) is not None
            messages.ended(replace(ended, code=code), spent=is_sick or bool(foreign_packages(settings)))


def _sink(messages: Messages, note: str) -> Callable[[Row], None]:
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
    """Train several trials one after the other, until one of them leaves the process unfit for others."""
    outbox = GroupOutbox(post, requests[-1]["key"])
    over: list[bool] = []
    for number, request in enumerate(requests):
        if number:
            outbox.begin(request["key"])
        key = request["key"]
        _run_here(request, runtime, lambda message, key=key: over.append(outbox.post(key, message)))  # type: ignore[misc]
        if over[-1]:
            return


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
