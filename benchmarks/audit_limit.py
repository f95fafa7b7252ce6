"""Measure how often an ideal audit names both settings of a pair: a limit for every audit of 36 trials.

    python benchmarks/audit_limit.py          # ten minutes

The ideal audit knows the noise, the size of every effect (three points) and the possible ways to act: no setting, one
setting, two that add, two only together, either of two. It chooses four trials at a time, which share a seed, from the
results of all earlier trials. The ideal judge knows the same, and judges the trials that the real audit chooses.
`benchmarks/audit.py` measures the real audit with equal noise; it knows none of these.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Annotated

import numpy as np
import typer
from audit import FACTORS, RUN_SD
from program import run_program

from tune_dml.stats.screening import choose_suspects, confirmation_design, screening_design

POINTS, TRIALS, CANDIDATES, NAMED = 3.0, 36, 250, 0.5
PAIRS = list(itertools.combinations(range(FACTORS), 2))
KINDS = {
    "add": lambda first, second: first + 1.0 * second,
    "together": lambda first, second: first & second,
    "either": lambda first, second: first | second,
}
CASES = [("none", ()), *(("add", (factor, factor)) for factor in range(FACTORS))]
CASES += [(kind, pair) for kind in KINDS for pair in PAIRS]
MEMBERS = np.array([[factor in members for factor in range(FACTORS)] for _, members in CASES])
PRIOR = np.log([0.5, *[0.2 / FACTORS] * FACTORS, *[0.3 / len(KINDS) / len(PAIRS)] * len(KINDS) * len(PAIRS)])


def means(case: tuple[str, tuple[int, ...]], on: np.ndarray) -> np.ndarray:
    """Return the effect of a case on each run; `on` is (runs, settings), true where a run has the user's setting."""
    kind, members = case
    if not members:
        return np.zeros(len(on))
    first, second = (on[:, member] for member in members)
    return -POINTS * (first if members[0] == members[1] else KINDS[kind](first, second))


def candidates(random: np.random.Generator, probable: np.ndarray) -> np.ndarray:
    """Return runs to choose from: random ones, and all combinations of the five most probable settings."""
    drawn = random.random((CANDIDATES, FACTORS)) < random.choice([0.2, 0.35, 0.5, 0.65, 0.8], (CANDIDATES, 1))
    combinations = np.array(list(itertools.product([False, True], repeat=5)))
    combined = [np.full((len(combinations), FACTORS), state) for state in (False, True)]
    for rows in combined:
        rows[:, np.argsort(-probable)[:5]] = combinations
    return np.vstack([drawn, *combined])


def best_block(expected: np.ndarray, weights: np.ndarray, size: int) -> list[int]:
    """Choose runs one after another that tell most about the case, for `expected` (cases, runs)."""
    apart = expected - weights @ expected
    covariance = (apart * weights[:, None]).T @ apart / RUN_SD**2
    first = int(np.argmax(covariance.diagonal()))
    chosen = [first, int(np.argmax(covariance.diagonal() - 2 * covariance[first]))]
    while len(chosen) < size:
        centre = np.eye(len(chosen) + 1) - 1 / (len(chosen) + 1)
        blocks = [covariance[np.ix_([*chosen, run], [*chosen, run])] for run in range(expected.shape[1])]
        gains = np.linalg.slogdet(np.eye(len(centre)) + centre @ np.array(blocks) @ centre)[1]
        chosen.append(int(np.argmax(gains)))
    return chosen


def log_likelihoods(expected: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of each case from runs that share a seed; `expected` is (cases, runs)."""
    residual = (values - values.mean()) - (expected - expected.mean(axis=1, keepdims=True))
    return np.asarray(-(residual**2).sum(axis=1) / (2 * RUN_SD**2))


def probable_settings(likelihoods: np.ndarray) -> set[int]:
    """Return the settings that are in the true case with a probability above 50 %."""
    weights = np.exp(likelihoods - likelihoods.max())
    return set(np.flatnonzero(weights / weights.sum() @ MEMBERS > NAMED))


def named_by_ideal_audit(true: tuple[str, tuple[int, ...]], random: np.random.Generator, size: int) -> set[int]:
    """Return the settings that the ideal audit names if it chooses `size` trials at a time."""
    likelihoods = PRIOR.copy()
    for _ in range(TRIALS // size):
        weights = np.exp(likelihoods - likelihoods.max())
        weights /= weights.sum()
        on = candidates(random, weights @ MEMBERS)
        expected = np.stack([means(case, on) for case in CASES])
        block = best_block(expected, weights, size)
        values = means(true, on[block]) + RUN_SD * random.standard_normal(size)
        likelihoods += log_likelihoods(expected[:, block], values)
    return probable_settings(likelihoods)


def named_by_ideal_judge(true: tuple[str, tuple[int, ...]], random: np.random.Generator) -> set[int]:
    """Return the settings that the ideal judge names from the trials of the real audit."""
    first, order = screening_design(FACTORS), random.permutation(FACTORS)

    def measure(levels: np.ndarray) -> np.ndarray:
        return np.asarray(means(true, levels[:, order] > 0) + RUN_SD * random.standard_normal(len(levels)))

    values = measure(first.levels)
    second = confirmation_design(FACTORS, choose_suspects(first, values))
    likelihoods = PRIOR.copy()
    for design, results in ((first, values), (second, measure(second.levels))):
        expected = np.stack([means(case, design.levels[:, order] > 0) for case in CASES])
        for seed in set(design.blocks):
            likelihoods += log_likelihoods(expected[:, design.blocks == seed], results[design.blocks == seed])
    return probable_settings(likelihoods)


def main(
    audits: Annotated[int, typer.Option(help="audits per row")] = 500,
    block: Annotated[int, typer.Option(help="trials that share a seed and are chosen together")] = 4,
) -> None:
    """Print the table."""
    methods: dict[str, Callable[..., set[int]]] = {
        "ideal judge": named_by_ideal_judge,
        "ideal audit": partial(named_by_ideal_audit, size=block),
    }
    for (name, method), kind in itertools.product(methods.items(), ("together", "either")):
        found = [method((kind, (4, 7)), np.random.default_rng(number)) for number in range(audits)]
        hits, errors = np.mean([{4, 7} <= names for names in found]), np.mean([bool(names - {4, 7}) for names in found])
        print(f"{name}, two, {POINTS:g} points, {kind:<8}  both {hits:6.1%}  a false name {errors:5.1%}", flush=True)


if __name__ == "__main__":
    run_program(main, __doc__)
