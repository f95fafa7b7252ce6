"""How often a paper's order is contradicted, or confirmed, by chance; `verdicts.py` prints it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from simulated_sweeps import Array, rate, simulate

from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.verdicts.equivalence import ASSUMED_SD, judge_order

_KINDS = ("iid", "t3", "one cell 5x", "slope", "discrete")
_NONE = 1e-9
"""A deviation at which every printed difference counts: the rule before."""


def order(sweeps: int) -> Iterable[str]:
    """Ours against printed numbers that vary from run to run."""
    few = max(200, sweeps // 4)
    yield "5 values, noise 0.5 within seeds, printed single runs; both curves rise by the step, or one is flat, or ours falls."
    yield "A false claim about some pair, printed numbers exact (before) / run s.d. 0.5 assumed, the paper's being 0.5 / 1.0"
    for name, ours, theirs in (
        ("alike", 0.4, 0.4),
        ("paper flat", 2.0, 0.0),
        ("ours flat", 0.0, 2.0),
        ("both flat", 0.0, 0.0),
    ):
        for seeds in (3, 10):
            row = []
            for kind in _KINDS:
                drawn = [_Drawn(kind, seeds, few, ours, theirs, sd) for sd in (ASSUMED_SD, 2 * ASSUMED_SD)]
                shares = (drawn[0].wrong(_NONE), drawn[0].wrong(ASSUMED_SD), drawn[1].wrong(ASSUMED_SD))
                row.append(f"{kind} {' / '.join(map(rate, shares))}")
            yield f"{name:>10} {seeds:2d} seeds:  " + "   ".join(row)
    yield "Ours truly falls where the paper rises: share of the 10 pairs found, before / now"
    for step in (1.0, 2.0, 4.0):
        for seeds in (3, 10):
            row = []
            for kind in _KINDS:
                drawn_one = _Drawn(kind, seeds, few, -step, step, ASSUMED_SD)
                row.append(f"{kind} {drawn_one.found(_NONE):.2f} / {drawn_one.found(ASSUMED_SD):.2f}")
            yield f"{step:4.0f} points a step {seeds:2d} seeds:  " + "   ".join(row)


@dataclass(frozen=True)
class _Drawn:
    """Sweeps beside a paper's single runs, both along five values."""

    kind: str
    seeds: int
    sweeps: int
    ours: float
    """Points by which our means rise from value to value."""
    theirs: float
    sd: float
    """The paper's run-to-run standard deviation."""

    def wrong(self, assumed: float) -> Array:
        """In which sweeps some pair is called the same or opposite that is not."""
        truth = np.sign(self.ours) * np.sign(self.theirs)
        counts = self._counts(assumed)
        return np.asarray((counts[:, 0] > 0) & (truth <= 0) | (counts[:, 1] > 0) & (truth >= 0))

    def found(self, assumed: float) -> float:
        """Share of the pairs that are called opposite."""
        return float(self._counts(assumed)[:, 1].mean()) / 10

    def _counts(self, assumed: float) -> Array:
        """Pairs called the same, and opposite, of each sweep."""
        rng = np.random.default_rng([self.seeds, len(self.kind), int(10 * self.sd)])
        place = np.arange(5.0)
        if self.kind == "discrete":  # 358 queries
            noise = 0.5 * simulate("iid", 5, self.seeds, self.sweeps, rng)
            values = 100 / 358 * np.round((60 + self.ours * place[:, None] + noise) * 3.58)
        else:
            values = self.ours * place[:, None] + 0.5 * simulate(self.kind, 5, self.seeds, self.sweeps, rng)
        printed = np.round(self.theirs * place + self.sd * rng.standard_normal((self.sweeps, 5)), 2)
        bounds = all_pairs(values, noise=fit_pairs(values, 100 / 358 if self.kind == "discrete" else 0.0))
        judged = [
            judge_order(bounds.estimate[row], bounds.low[row], bounds.high[row], printed[row].tolist(), run_sd=assumed)
            for row in range(self.sweeps)
        ]
        return np.array([(one.same, one.opposite) for one in judged])
