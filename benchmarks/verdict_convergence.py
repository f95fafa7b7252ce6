"""Measure false claims of convergence, and of confirmations after which a sweep grew. `verdicts.py` prints both."""

from collections.abc import Iterable

import numpy as np
from simulated_sweeps import Array, rate, simulate

from tune_dml.stats.distributions import student_isf
from tune_dml.stats.sequential.looks import level_left
from tune_dml.stats.sequential.racing import next_look
from tune_dml.stats.verdicts.late_gains import judge_late_gains

NOISE = ("iid", "t3", "ramp", "one cell 5x", "one collapses", "collapses", "15 % holes")
_CELLS, _FRESH, _EXTENSIONS = 10, 5, 5


def convergence(sweeps: int) -> Iterable[str]:
    """Print false and true claims that training had not converged."""
    yield "Gains at the end, converged values: any claimed; any mean above 1; found: one of 5 s.d., all of 5 s.d."
    for kind in NOISE:
        for values in (1, 2, 4, 8):
            row = []
            for seeds in (2, 3, 5, 10):
                gains = simulate(kind, values, seeds, sweeps, np.random.default_rng([values, seeds]))
                one = gains + 5.0 * (np.arange(values) == 0)[:, None]
                found = [rate(_claims(gains)), f"{np.mean(_naive(gains)):.2f}"]
                row.append(" ".join([*found, *(f"{np.mean(_claims(moved)):.2f}" for moved in (one, gains + 5.0))]))
            yield f"{kind:>14} {values} values, 2 / 3 / 5 / 10 seeds:  " + "   ".join(row)


def grown_confirmations(sweeps: int) -> Iterable[str]:
    """Print false verdicts of confirmations if the sweep is extended until one is reached."""
    yield f"Confirmed equal cells of {_CELLS}, {_FRESH} fresh seeds, sweep extended {_EXTENSIONS} times: any verdict"
    for cells in (1, 2, 3, 5):
        for kind in ("iid", "t3"):
            rates = [rate(_confirmed(kind, cells, 5 * sweeps, share)) for share in (1.0, 1 / cells)]
            yield f"{cells:6d} {kind:>4}: whole level {rates[0]}, shared after an extension {rates[1]}"


def _claims(tables: Array) -> Array:
    rows = tables.shape[1]
    rises = np.array([judge_late_gains(table, 1.0, 0.05, comparisons=rows).rises for table in tables])
    return np.asarray((rises & _is_large(tables)).any(-1))


def _naive(tables: Array) -> Array:
    return np.asarray(_is_large(tables).any(-1))


def _is_large(tables: Array) -> Array:
    finite = np.isfinite(tables)
    return np.asarray(np.where(finite, tables, 0.0).sum(-1) / np.maximum(finite.sum(-1), 1) > 1.0)


def _confirmed(kind: str, cells: int, sweeps: int, share: float) -> Array:
    """Return which sweeps ever call the best confirmed cell better or worse than the baseline."""
    rng = np.random.default_rng(cells)
    seeds = [3]
    while len(seeds) <= _EXTENSIONS:
        seeds.append(next_look(seeds[-1]))
    numbers = rng.standard_normal((sweeps, _CELLS, seeds[-1]))
    first = np.argsort(-numbers[..., : seeds[0]].mean(-1), 1)[:, :cells]
    chosen = np.take_along_axis(numbers, first[..., None], 1)
    fresh = simulate(kind, cells + 1, _FRESH, sweeps, rng)
    level, claimed = level_left([float(_FRESH)], planned=_FRESH), np.zeros(sweeps, dtype=bool)
    for count in seeds:
        winner = chosen[..., :count].mean(-1).argmax(1)
        gains = np.take_along_axis(fresh, winner[:, None, None], 1)[:, 0] - fresh[:, -1]
        error = gains.std(-1, ddof=1) / np.sqrt(_FRESH)
        limit = student_isf(level * (share if count > seeds[0] else 1.0) / 2, _FRESH - 1)
        claimed |= np.abs(gains.mean(-1)) > limit * error
    return claimed
