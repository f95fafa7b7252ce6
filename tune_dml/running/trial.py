"""One trial interface, two engines.

    local    the trial trains inside its Tune actor; actors are reused, so a short trial costs about a second of overhead
    train    the Tune actor holds a Ray Train TorchTrainer, whose workers train together (DDP, gloo or nccl), trial after trial

Both run the same `trainables.training.train`; only the context differs. A trial ends with one closing report that says
how: finished, diverged, failed or paused. Only what a retry can mend (a lost process, a lost node) is raised to Ray.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainables.errors import Diverged
from trainables.files import existing, patiently
from trainables.resolve import read_settings
from tune_dml.planning.request import Resources
from tune_dml.record.ledger import trial_folder
from tune_dml.running.failures import classify

if TYPE_CHECKING:
    from trainables.context import Row, TrialContext


def run_trial(settings: Mapping[str, Any], context: TrialContext, cache_dir: Path | None) -> dict[str, Any]:
    """Train one trial and say how it ended: status, reason, metrics (test metrics are the context's to keep), step, seconds.

    It is `paused` where the context lets it go no further. Raises only what a retry can mend; everything else is the trial's
    own end, with the reason in words.
    """
    from trainables.training import train

    try:
        config = read_settings(settings)
        outcome = train(config, context, cache_dir=cache_dir)
    except Diverged as error:
        how = {"status": "diverged", "reason": error.message, "metrics": {}}
        return {**how, "step": error.step, "statistics": error.statistics}
    except Exception as error:
        failure = classify(error)
        if failure.may_pass:
            raise
        how = {"status": "failed", "reason": failure.reason, "metrics": {}}
        return {**how, "kind": failure.kind, "traceback": traceback.format_exc(limit=-6)}
    status = "finished" if outcome.metrics else "paused"
    how = {"status": status, "reason": "", "metrics": outcome.metrics}
    return {**how, "step": outcome.step, "seconds": outcome.seconds}


_PAUSE = 1.0
"""Seconds between two reports of rows: each waits for the driver, and nobody trains meanwhile."""


class _Messages:
    """What a trial has to say. Rows that come faster than they may be reported go together, at the latest with its end.

    Those that are lost with the process are reported again from its checkpoint, or come again.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]):
        self._send = send
        self._rows: list[Row] = []
        self._sent = -math.inf

    def row(self, row: Row) -> None:
        """An evaluation, or figures of training."""
        self._rows.append(row)
        if time.monotonic() - self._sent >= _PAUSE:
            self._post({})

    def note(self, text: str) -> None:
        """Something that a person should know."""
        self._post({"note": text})

    def ended(self, how: Mapping[str, Any]) -> None:
        """The closing report."""
        self._post({"ended": how})

    def _post(self, message: dict[str, Any]) -> None:
        rows, self._rows = self._rows, []
        self._send({"rows": rows, **message} if rows else message)
        self._sent = time.monotonic()


def as_text(message: Mapping[str, Any]) -> dict[str, str]:
    """A report as one text: of every number that Tune sees it keeps extremes and means, 2 kB each, as long as it runs."""
    return {"message": json.dumps(message, default=float)}


def read_message(result: Mapping[str, Any]) -> dict[str, Any]:
    """What was reported: `rows`, a `note`, how the trial `ended`."""
    message: dict[str, Any] = json.loads(result.get("message", "{}"))
    return message


def _folder_of(sweep: Path, key: str, say: Callable[[str], None]) -> Path:
    """A trial's folder, once the sweep's is there: storage that is gone is waited for and not begun anew below its mount."""
    folder = trial_folder(sweep, key)
    patiently(lambda: existing(folder.parent), folder.parent, say)
    return folder


def local_engine(sweep: Path, resources: Resources, cache_dir: Path | None) -> Callable[[dict[str, Any]], None]:
    """A Tune function that trains in its own actor."""

    def trial(config: dict[str, Any]) -> None:
        import tune_dml.running.trial_imports  # noqa: F401, I001 - first, and quickly

        from ray import tune

        from trainables.context import FolderContext

        messages = _Messages(lambda message: tune.report(as_text(message)))
        folder = _folder_of(sweep, config["key"], messages.note)
        threads = resources.cpus_per_worker
        context = FolderContext(
            folder, _device(), threads=threads, sink=messages.row, say=messages.note, until=config["until"]
        )
        messages.ended(run_trial(json.loads(config["settings"]), context, cache_dir))

    return trial


def train_engine(sweep: Path, resources: Resources, cache_dir: Path | None) -> Callable[[dict[str, Any]], None]:
    """A Tune function that trains on several Ray Train workers, which stay for its next trial, and forwards rank 0's rows."""

    def train_one(config: dict[str, Any], post: Callable[[dict[str, Any]], None]) -> None:
        import ray.train

        from trainables.context import FolderContext

        messages, ranks = _Messages(post), ray.train.get_context()
        context = FolderContext(
            _folder_of(sweep, config["key"], messages.note),
            _device(),
            rank=ranks.get_world_rank(),
            world_size=ranks.get_world_size(),
            threads=resources.cpus_per_worker,
            sink=messages.row if ranks.get_world_rank() == 0 else lambda row: None,
            say=messages.note,
            until=config["until"],
        )
        ended = run_trial(json.loads(config["settings"]), context, cache_dir)
        if ranks.get_world_rank() == 0:
            messages.ended(ended)

    def trial(config: dict[str, Any]) -> None:
        from ray import tune

        from tune_dml.running.group import group_for

        for message in group_for(train_one, sweep, resources).run(config):
            tune.report(as_text(message))

    return trial


def _device() -> Any:
    """The GPU that Ray gave this process, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
