"""Run races without Ray or training: a toy plan, simulated values and the real decisions."""

import numpy as np

from helpers.toys import METRIC, event_of, plan_of, space_of
from tune_dml.planning.request import Resources, Session
from tune_dml.record.judging.race import RaceRule
from tune_dml.record.ledger import Ledger, read_events
from tune_dml.record.session import SessionIntent
from tune_dml.record.state import read_state
from tune_dml.running.driver import Driver
from tune_dml.running.search.race import RacingProposals
from tune_dml.space import Baseline, Grid, Knob

FAILED = np.inf
"""Value of a failed trial; NaN means diverged."""
FULL = "OSError: [Errno 28] No space left on device"
RHO = Knob("regularizer.rho", Grid((0.01, 0.1, 0.5, 0.9)), symbol="rho")
MEANS = {"off": 60.0, "rho=0.01": 71.2, "rho=0.1": 72.0, "rho=0.5": 66.0, "rho=0.9": 55.0}
RULE = RaceRule(margin=1.0, max_seeds=40)
RACE = {"judged", "settled", "reopened", "block", "race_over"}


def plan(*knobs, seeds=3, goal="maximize", **options):
    off = Baseline("off", {"regularizer.name": "none"})
    fixed = {"loss.name": "triplet", "regularizer.name": "sec"}
    return plan_of(space=space_of(*(knobs or (RHO,)), fixed=fixed, baseline=off, goal=goal), seeds=seeds, **options)


def value_of(trial, means=MEANS, sign=1.0):
    """Return cell mean + seed effect + noise that cell and seed determine; NaN if the mean is NaN."""
    shift = np.random.default_rng(trial.seed).normal()
    noise = np.random.default_rng([trial.seed, trial.cell.index]).normal()
    return sign * (means[trial.cell.label] + shift + 0.5 * noise)


def reasons_of(state):
    """Return by label why each settled cell was stopped."""
    cells = {cell.digest: cell.label for cell in state.plan.cells}
    return {cells[digest]: settled.why for digest, settled in state.race.settled.items()}


class RaceDrive:
    """Runs sessions of a race without Ray; a session can stop after any number of trials."""

    def __init__(self, folder, begun, rule=RULE, value=value_of, queries=10_000):
        self.folder, self.begun, self.rule, self.value, self.queries = folder, begun, rule, value, queries
        self.said = []
        folder.mkdir(parents=True, exist_ok=True)
        begun.save(folder / "plan.json")

    def session(self, most=10_000, slots=2):
        """Run at most `most` trials, two at a time, and return the keys of those that ended."""
        state, ended = read_state(self.folder), []
        with Ledger(self.folder) as ledger:
            ledger.write(event_of("session", provenance={}, resources={}))
            if state.race is None or state.race.rule != self.rule:
                ledger.write(event_of("race", **vars(self.rule)))
            state.update()
            ends = {key: trial.end for key, trial in state.trial_states.items() if trial.end}
            known = {key: end.metrics.get(METRIC, np.nan) for key, end in ends.items()}
            proposals = RacingProposals(state, trial_values=known, record=ledger.write, on_note=self.said.append)
            running = []
            while len(ended) < most:
                while len(running) < slots and not proposals.is_finished and (trial := proposals.next_trial()):
                    ledger.write(event_of("started", trial.key, host="h"))
                    running.append(trial)
                if not running:
                    assert proposals.is_finished
                    break
                trial = running.pop()
                number = self.value(trial)
                status = "failed" if number == FAILED else "finished" if np.isfinite(number) else "diverged"
                body = {"status": status, "reason": FULL if number == FAILED else "", "seconds": 36.0}
                metrics = {METRIC: number, "val/queries": self.queries} if status == "finished" else {}
                ledger.write(event_of("ended", trial.key, **body, metrics=metrics))
                proposals.record_value(trial.key, metrics.get(METRIC, np.nan))
                ended.append(trial.key)
        return ended

    def finish(self):
        """Run a session without a limit, and return the state of the race."""
        self.session()
        return read_state(self.folder)

    def events(self):
        return [(event.kind, event.body()) for event in read_events(self.folder) if event.kind in RACE]


def driver_of(state, ledger, progress, tracker=None):
    return Driver(state, Resources(), Session(), SessionIntent("sweep"), ledger, progress, tracker)
