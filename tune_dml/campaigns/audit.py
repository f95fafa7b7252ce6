"""Audit a run: why does it not reach a protocol's result?

    tune-dml audit config.yaml --against glyphs/triplet

A first sweep screens all settings that differ; a second one measures the suspects again on fresh seeds. The same call resumes
an interrupted audit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainables.config import TrialConfig
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expanded
from trainables.option_names import unused_options
from tune_dml import operations
from tune_dml.planning.audit import Audit
from tune_dml.planning.cells import Cell
from tune_dml.planning.checks.data_findings import data_findings
from tune_dml.planning.checks.prepare import Check, DataProgress
from tune_dml.planning.differences import differences, find_protocol, is_trial_file, read_trial_file, reference_config
from tune_dml.planning.files.folder import training_part
from tune_dml.planning.files.yaml_file import read_mapping
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import SWEEP_FILES, Racing, Request, Resources, Session
from tune_dml.planning.study import study_of
from tune_dml.record.results import Results, load_results
from tune_dml.record.state import sweep_names
from tune_dml.space import Space, Value
from tune_dml.stats.screening import ScreeningVerdict, Suspects, choose_suspects, judge_screening

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from tune_dml.sweep import Sweep


@dataclass(frozen=True)
class AuditRequest:
    """The options of an audit."""

    run: str
    """A search space, a sweep file, a stored sweep or the YAML file of one run."""
    against: str
    """Name of a protocol, or the number that the run does not reach."""
    dataset: str | None = None
    data_root: Path | None = None
    settings: Mapping[str, Value] | None = None
    cell: str | None = None
    """Label of the audited cell; by default the best cell of a sweep, or the first of a space."""
    name: str | None = None
    margin: float = 1.0


@dataclass(frozen=True)
class AuditResult:
    """The sweeps and the verdict of an audit, which may be incomplete."""

    audit: Audit
    first: Sweep
    second: Sweep | None = None
    suspects: Suspects | None = None
    verdict: ScreeningVerdict | None = None
    """None until both sweeps are complete."""
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 done, 3 with failed or diverged trials, 130 interrupted and resumable."""
        return max(self.first.exit_code, self.second.exit_code if self.second else 0)


def plan_audit(request: AuditRequest, storage: Path, cache_dir: Path | None = None) -> Audit:
    """Return the settings to compare and the oddities of the data. Raise ConfigError for a wrong run or protocol."""
    number = _number(request.against)
    run, metric = _run_of(request, storage, None if number is not None else request.against)
    protocol = find_protocol(None if number is not None else request.against, run)
    root = request.data_root or (Path(run.data.root) if run.data.root else None)
    settings = run.settings() if root is None else {**run.settings(), "data.root": str(root)}
    reference = reference_config(protocol, run.loss.name, training_part(protocol.dataset, settings))
    found = differences(run, reference)
    odd = data_findings(settings, cache_dir)
    return Audit(request.run, protocol, found, metric, request.margin, number, odd, root)


def run_audit(
    request: AuditRequest,
    session: Session,
    resources: Resources | None = None,
    *,
    console: Console | None = None,
    data_progress: DataProgress | None = None,
    other_checks: Sequence[Check] = (),
) -> AuditResult:
    """Run both stages of an audit and judge them. Raise ConfigError before any worker starts."""
    audit = plan_audit(request, session.sweeps, session.cache)
    name = request.name or f"audit-{Path(request.run).stem}"

    def sweep(space: Request) -> Sweep:
        return operations.run(
            space, session, Racing(), resources=resources, console=console, data_progress=data_progress,
            other_checks=other_checks,
        )  # fmt: skip

    data = audit.protocol.dataset, audit.data_root
    first = sweep(Request(audit.screening_space(), *data, seeds=(0,), name=name))
    if first.results.incomplete:
        return AuditResult(audit, first)
    values, lost = _values(first.results, [(arm, 0) for arm in audit.run_names])
    _refuse_too_few(values, name)
    chosen = choose_suspects(audit.design, values)
    seeds = audit.fresh_seeds(chosen)
    space = audit.confirmation_space(chosen)
    second = sweep(Request(space, *data, seeds=seeds, name=f"{name}-confirm"))
    if second.results.incomplete:
        return AuditResult(audit, first, second, chosen)
    design = audit.confirmation(chosen)
    cells = [(audit.cell_name(row), seeds[block]) for row, block in zip(design.levels, design.blocks, strict=True)]
    again, lost_again = _values(second.results, cells)
    verdict = judge_screening(audit.design, values, design, again, chosen)
    return AuditResult(audit, first, second, chosen, verdict, (*lost, *lost_again))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _run_of(request: AuditRequest, storage: Path, protocol: str | None) -> tuple[TrialConfig, str]:
    """Return the configuration of the user's run, and the metric to judge by."""
    from trainables.tasks import task_of

    path = expanded(Path(request.run))
    is_file = request.run.endswith(SWEEP_FILES)
    given = {"settings": dict(request.settings or {}), "dataset": request.dataset}
    if is_file and is_trial_file(read_mapping(path, "configuration of a run")):
        from tune_dml.catalogue import protocols

        raise_if_any(unused_options({**given, "cell": request.cell}, "the file of a run has all its settings"))
        config = read_trial_file(path, protocols().get(protocol) if protocol else None)
        return config, task_of(config).headline
    if not is_file and request.run in sweep_names(storage):
        raise_if_any(unused_options(given, "the cell of a stored sweep has all its settings"))
        results = load_results(storage, request.run)
        _refuse_programs(results.plan.space, request.run)
        return _cell_of_sweep(results, request.cell), results.plan.metric
    study = study_of(Request(request.run, request.dataset, request.data_root, settings=request.settings))
    plan = make_plan(study)
    _refuse_programs(plan.space, request.run)
    own = [cell for cell in plan.cells if not cell.baseline] or list(plan.cells)
    chosen = _labelled(own, request.cell) if request.cell else own[0]
    return chosen.config, plan.metric


def _refuse_programs(space: Space, run: str) -> None:
    if space.program is not None:
        rule = "an audit compares the settings of trials that this program trains, and these run a program of yours"
        raise ConfigError(Problem("audit", rule, run, "Name another space, sweep or file."))


def _cell_of_sweep(results: Results, label: str | None) -> TrialConfig:
    from tune_dml.report.analysis.cell import best_cells

    ranked = [cell for cell in best_cells(results) if not cell.baseline] or list(results.cells)
    if not ranked:
        raise ConfigError(Problem("RUN", "the sweep has no cell", results.name, "Name another one."))
    return (_labelled(list(results.cells), label) if label else ranked[0]).config


def _labelled(cells: Sequence[Cell], label: str) -> Cell:
    from trainables.errors import nearest

    found = next((cell for cell in cells if cell.label == label), None)
    if found is None:
        remedy = nearest(label, [cell.label for cell in cells], what="cell")
        raise ConfigError(Problem("--cell", "unknown cell", label, remedy))
    return found


def _values(results: Results, wanted: Sequence[tuple[str, int]]) -> tuple[NDArray[np.float64], list[str]]:
    """Return the metric of each run by arm and seed, and notes on runs without one.

    A run that diverged has the lowest value of the others; a run that failed has nan.
    """
    metric = results.plan.metric
    trials = {(trial.cell.arm, trial.seed): trial for trial in results.trials}
    values = np.array([trials[key].metrics.get(metric, np.nan) for key in wanted], dtype=float)
    status = np.array([trials[key].status for key in wanted])
    values[status != "finished"] = np.nan
    lowest = np.nanmin(values) if np.isfinite(values).any() else np.nan
    notes = []
    for word, consequence in (("diverged", "counts as the lowest value of the others"), ("failed", "is left out")):
        names = [f"{arm}, seed {seed}" for (arm, seed), state in zip(wanted, status, strict=True) if state == word]
        notes += [f"{results.name}: {one} {word} and {consequence}" for one in names]
    values[status == "diverged"] = lowest
    return values, notes


def _refuse_too_few(values: NDArray[np.float64], name: str) -> None:
    missing = int((~np.isfinite(values)).sum())
    if missing * 4 > len(values):
        rule = f"{missing} of {len(values)} runs of the screening have no value"
        remedy = f"See why with `tune-dml status {name} --trials`, then `tune-dml resume {name} --retry-failed`."
        raise ConfigError(Problem("audit", rule, None, remedy))
