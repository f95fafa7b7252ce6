"""Move the messages of an array's tasks into the ledger."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from tune_dml.planning.request import Resources
from tune_dml.record.events import JsonRow, Note, TrialEnd, TrialEnded, TrialResumed, TrialRetried, TrialStarted
from tune_dml.record.ledger import Ledger
from tune_dml.record.state import SweepState
from tune_dml.running.failures import TRIAL_RETRIES
from tune_dml.running.slurm.task import TrialLog, attempts_of, span_of


@dataclass(frozen=True)
class CollectedTrial:
    """A trial whose new messages were moved to the ledger."""

    key: str
    end: TrialEnd | None  # None if it continues in the next array
    has_no_progress: bool  # whether the trial was interrupted before a new evaluation


def collect_array(ledger: Ledger, state: SweepState, resources: Resources) -> list[CollectedTrial]:
    """Move the messages of the last array's trials into the ledger, and update the state."""
    if not (state.folder / "slurm" / "round.json").exists():
        return []
    collected = []
    for folder in sorted((state.folder / "trials").glob("*/array.jsonl")):
        key = folder.parent.name
        log = TrialLog(state.folder, key)
        messages = log.new_messages()
        if not messages:
            continue
        trial = None
        if state.trial(key).end is None:  # otherwise it ended in another session
            trial = _collect_trial(ledger, log, key, messages, resources.micro_batch, metric=state.plan.metric)
            collected.append(trial)
        log.write({"collected": time.time(), "over": trial is None or trial.end is not None})
    state.update()
    return collected


def _collect_trial(
    ledger: Ledger, log: TrialLog, key: str, messages: list[JsonRow], micro_batch: int | None, *, metric: str
) -> CollectedTrial:
    new_rows = [row for message in messages for row in ledger.report(key, *message.get("rows", ()))]
    is_evaluated = any(metric in row for row in new_rows)
    for attempt in attempts_of(messages):
        began, last = span_of(attempt)
        host = attempt[0]["began"]["host"]
        ledger.write(TrialStarted(key=key, time=began, host=host, micro_batch=micro_batch))
        for message in attempt:
            if "resumed" in message:
                ledger.write(TrialResumed(key=key, step=message["resumed"]))
            if "note" in message:
                ledger.write(Note(text=f"trial {key}: {message['note']}"))
        if not any("ended" in message for message in attempt):
            ledger.write(TrialRetried(key=key, time=last))
    ended = next((message for message in messages if "ended" in message), {})
    end = TrialEnd.from_json(ended["ended"]) if ended else None
    if end is None and (losses := _count_losses(log.read())) > TRIAL_RETRIES:
        end = TrialEnd("failed", f"lost {losses} times: its task ended without a message", kind="infrastructure")
    if end is not None:
        ledger.write(TrialEnded(key=key, time=ended.get("time", 0.0), end=end))
    return CollectedTrial(key, end, end is None and not is_evaluated and "cut" in messages[-1])


def _count_losses(messages: Iterable[JsonRow]) -> int:
    """Return how many tasks of a trial ended without a message since the trial last ended.

    Tasks that SLURM requeued do not count.
    """
    losses, is_open = 0, False
    for message in messages:
        if "began" in message:
            losses += is_open and not message["began"].get("requeued")
            is_open = True
        is_open = is_open and "cut" not in message
        if message.get("over"):
            losses, is_open = 0, False
    return losses + is_open
