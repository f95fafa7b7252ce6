"""Measure how often an audit names the right and the wrong settings, in simulation and in real training.

    python benchmarks/audit.py                                  # simulated, ten minutes
    python benchmarks/audit.py --sweep sec_rho --storage sweeps # with the noise of a stored sweep
    python benchmarks/audit.py --features glyphs.features       # 20 audits of heads on stored features, 20 minutes

Each audit compares twelve settings in 36 runs. A culprit costs three points of R@1. The first command uses the noise of
the study sec_rho on glyphs: a standard deviation of 2.41 points between seeds and 1.30 points between runs of a seed.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from program import run_program

from tune_dml.stats.screening import (
    Design,
    ScreeningVerdict,
    choose_suspects,
    confirmation_design,
    judge_screening,
    screening_design,
)

SEED_SD, RUN_SD = 2.41, 1.30
FACTORS = 12
Effect = Callable[[np.ndarray], float]
CASES: Mapping[str, tuple[Effect, set[int]]] = {
    "no culprit": (lambda on: 0.0, set()),
    "one culprit, 3 points": (lambda on: -3.0 * on[4], {4}),
    "two culprits, 3 points each": (lambda on: -3.0 * on[4] - 3.0 * on[7], {4, 7}),
    "3 points each, 9 together": (lambda on: -3.0 * on[4] - 3.0 * on[7] - 3.0 * (on[4] and on[7]), {4, 7}),
    "3 points, only together": (lambda on: -3.0 * (on[4] and on[7]), {4, 7}),
    "5 points, only together": (lambda on: -5.0 * (on[4] and on[7]), {4, 7}),
    "3 points, either or both": (lambda on: -3.0 * (on[4] or on[7]), {4, 7}),
    "three culprits, 3 points each": (lambda on: -3.0 * on[[2, 4, 7]].sum(), {2, 4, 7}),
}
OWN_DRAWS = ("no culprit", "one culprit, 3 points", "3 points, only together")
"""Cases that are repeated with a setting that has no effect but causes half or all of the variance of a run's noise."""
NEUTRAL = {
    "loss.margin": 0.205,
    "optim.weight_decay": 2e-4,
    "optim.beta1": 0.895,
    "optim.beta2": 0.9985,
    "optim.eps": 1e-7,
    "optim.clip_norm": 100.0,
    "optim.lr_final": 1e-6,
    "batch.batch_size": 93,
    "training.eval_every": 200,
    "model.embedding_dim": 62,
    "optim.lr": 1.02e-3,
    "data.label_noise": 0.002,
}
CULPRITS = {"model.embedding_dim": 16, "optim.lr": 2e-4, "data.label_noise": 0.25}
"""Values that cost about three points on stored features of glyphs. `NEUTRAL` has values without effect."""


def simulated_audit(
    effect: Effect, random: np.random.Generator, seed_sd: float, run_sd: float, share: float = 0.0
) -> ScreeningVerdict:
    """Return the verdict of one simulated audit.

    The settings are in random order. The first of them adds noise: for each seed, it draws a number for either of its
    values. `share` is the part of the variance of a run's noise that it causes.
    """
    order = random.permutation(FACTORS)

    def run_design(design: Design, _: int) -> np.ndarray:
        seeds = seed_sd * random.standard_normal(design.blocks.max() + 1)
        means = np.array([effect(row[order] > 0) for row in design.levels], dtype=float)
        own = random.standard_normal((design.blocks.max() + 1, 2))[
            design.blocks, (design.levels[:, order[0]] > 0).astype(int)
        ]
        noise = np.sqrt(share) * own + np.sqrt(1 - share) * random.standard_normal(len(means))
        return np.asarray(means + seeds[design.blocks] + run_sd * noise)

    verdict = audit(run_design)
    return replace(verdict, effects=tuple(verdict.effects[position] for position in order))


def audit(run_design: Callable[[Design, int], np.ndarray]) -> ScreeningVerdict:
    """Screen all settings, confirm the suspects and return the verdict; `run_design` takes a design and its stage."""
    first = screening_design(FACTORS)
    values = run_design(first, 0)
    chosen = choose_suspects(first, values)
    second = confirmation_design(FACTORS, chosen)
    return judge_screening(first, values, second, run_design(second, 1), chosen)


def simulate(audits: int, seed_sd: float, run_sd: float) -> None:
    """Print how often an audit names the culprits of each case and other settings, and misses an effect.

    An effect, that of a setting alone, is missed if it is outside its interval; the intervals hold at once.
    """
    print(f"{audits} audits a row; {seed_sd:.2f} points between seeds, {run_sd:.2f} between runs of a seed")
    print(f"{'':<42} {'all named':>9} {'one named':>9} {'false name':>10} {'missed':>7}")
    rows = [(name, 0.0) for name in CASES] + [(name, share) for name in OWN_DRAWS for share in (0.5, 1.0)]
    for name, share in rows:
        effect, culprits = CASES[name]
        verdicts = [
            simulated_audit(effect, np.random.default_rng((7, number)), seed_sd, run_sd, share)
            for number in range(audits)
        ]
        named_sets = [set(verdict.named) for verdict in verdicts]
        alone = np.array([effect(row) for row in np.eye(FACTORS, dtype=bool)])
        ends = np.array([[(each.low, each.high) for each in verdict.effects] for verdict in verdicts])
        missed = ((alone < ends[..., 0]) | (alone > ends[..., 1])).any(axis=1).mean()
        all_named = np.mean([culprits <= names for names in named_sets])
        any_named = np.mean([bool(culprits & names) for names in named_sets])
        false_names = np.mean([bool(names - culprits) for names in named_sets])
        label = f"{name}, own draws {share:.0%}" if share else name
        print(f"{label:<42} {all_named:>9.1%} {any_named:>9.1%} {false_names:>10.1%} {missed:>7.1%}", flush=True)


def noise_of(sweep: str, storage: Path) -> tuple[float, float]:
    """Return the standard deviations between seeds and between runs of a seed, over the cells of a stored sweep."""
    import tune_dml

    loaded = tune_dml.load_sweep(sweep, storage=storage)
    table = loaded.table().pivot_table(index="cell", columns="seed", values=loaded.results.plan.metric).dropna()
    values = table.to_numpy()
    residual = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    run_sd = np.sqrt((residual**2).sum() / ((len(values) - 1) * (values.shape[1] - 1)))
    return float(values.std(1, ddof=1).mean()), float(run_sd)


def train_audits(folder: Path, audits: int, begin: int = 0) -> None:
    """Run audits that train heads in this process; print the planted and the named settings of each audit."""
    import torch

    from trainables.context import TrialContext
    from trainables.resolve import Layer, resolve
    from trainables.training import train
    from tune_dml.catalogue import protocols
    from tune_dml.planning.differences import Differences, differences, reference_config

    torch.set_num_threads(1)
    protocol = protocols()["features/triplet"]
    reference = reference_config(protocol, "semihard_triplet")
    root = {"data.root": str(folder.absolute())}
    right = false = 0
    for number in range(begin, audits):
        keys = list(CULPRITS)
        planted = {keys[number % 3]} if number % 5 < 3 else {keys[number % 3], keys[(number + 1) % 3]}
        settings = {**NEUTRAL, **{key: CULPRITS[key] for key in planted}}
        run = resolve(Layer("run", {**reference.settings(), **settings})).config
        found = differences(run, reference)
        assert len(found.factors) == FACTORS, [factor.name for factor in found.factors]

        def run_design(design: Design, stage: int, found: Differences = found, number: int = number) -> np.ndarray:
            first_seed = 1000 * stage + 10 * number
            values = []
            for row, block in zip(design.levels, design.blocks, strict=True):
                chosen = [factor for factor, level in zip(found.factors, row, strict=True) if level > 0]
                trial_settings = {**found.settings(chosen), **root, "seed": first_seed + int(block)}
                with tempfile.TemporaryDirectory() as files:
                    context = TrialContext(Path(files), torch.device("cpu"), threads=1)
                    outcome = train(resolve(Layer("audit", trial_settings)).config, context, cache_dir=None)
                values.append(outcome.metrics["val/recall_at_1"])
            return np.array(values)

        verdict = audit(run_design)
        named = {found.factors[index].name for index in verdict.named}
        right, false = right + (planted <= named), false + bool(named - planted)
        effects = ", ".join(
            f"{factor.name} {effect.effect:+.2f}"
            for factor, effect in zip(found.factors, verdict.effects, strict=True)
            if effect.named
        )
        print(
            f"{number + 1:>3} planted {sorted(planted)}; named {effects or 'none'}; noise {verdict.noise:.2f}",
            flush=True,
        )
    print(f"all planted settings named in {right} of {audits - begin} audits; a false name in {false}")


def main(
    audits: Annotated[int, typer.Option(help="audits per row; 1,000 by default, or 20 in real training")] = 0,
    sweep: Annotated[str, typer.Option(help="stored sweep that provides the noise")] = "",
    storage: Path = Path("sweeps"),
    features: Annotated[Path | None, typer.Option(help="stored features: train instead of simulating")] = None,
    begin: Annotated[int, typer.Option(help="index of the first audit in real training")] = 0,
) -> None:
    """Print the tables."""
    if features:
        train_audits(features, audits or 20, begin)
    else:
        simulate(audits or 1000, *(noise_of(sweep, storage) if sweep else (SEED_SD, RUN_SD)))


if __name__ == "__main__":
    run_program(main, __doc__)
