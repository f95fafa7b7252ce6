"""Audit a run: find the settings that keep it from a protocol's result.

    tune-dml audit config.yaml --against glyphs/triplet

A first sweep screens all settings that differ. A second sweep tests the suspects again with fresh seeds. The same call
resumes an interrupted audit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainables.config import TrialConfig
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home
from trainables.option_names import unused_options
from tune_dml.catalogue import protocols
from tune_dml.planning.arms.fitting import training_part
from tune_dml.planning.audit import Audit
from tune_dml.planning.cells import Cell
from tune_dml.planning.checks.data_findings import data_findings
from tune_dml.planning.differences import differences, find_protocol, is_trial_file, read_trial_file, reference_config
from tune_dml.planning.files.sweep_file import read_mapping
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import SWEEP_FILES, Request
from tune_dml.planning.study import study_of
from tune_dml.record.judging.resolution import resolution_in
from tune_dml.record.results import Results, load_results
from tune_dml.record.state import sweep_names
from tune_dml.space import Space
from tune_dml.stats.screening import choose_suspects, judge_screening

if TYPE_CHECKING:
    from tune_dml.report.several.audit_page import AuditReport
    from tune_dml.sweep import Sweep


def plan_audit(
    request: Request, against: str, storage: Path, *, cell: str | None = None, cache_dir: Path | None = None
) -> Audit:
    """Return the settings to compare, and findings about the data. Raise ConfigError for a wrong run or protocol.

    Args:
        request: The run: its `space` is a search space, a stored sweep, a sweep file or a run's YAML file.
        against: Name of a protocol, or the number that the run does not reach.
        storage: Folder that stores sweeps.
        cell: Label of the audited cell; by default the best cell of a sweep or the first cell of a space.
        cache_dir: Folder for decoded pictures.
    """
    number = _number(against)
    name = against if number is None else None
    run, metric = _run_of(request, cell, storage, name)
    protocol = find_protocol(name, run)
    root = Path(found) if (found := request.data_root or run.data.root) else None
    settings = run.settings() if root is None else {**run.settings(), "data.root": str(root)}
    reference = reference_config(protocol, run.loss.name, training_part(protocol.dataset, settings))
    findings, margin = data_findings(settings, cache_dir), 1.0 if request.margin is None else request.margin
    return Audit(str(request.space), protocol, differences(run, reference), metric, margin, number, findings, root)


def run_audit(
    audit: Audit, run_sweep: Callable[[Request], Sweep], name: str | None = None
) -> tuple[list[Sweep], AuditReport | None]:
    """Run both stages of an audit and judge them. Raise ConfigError before any worker starts.

    Return the sweeps that have run, and the report; None if a sweep is not complete.

    Args:
        audit: The settings to compare.
        run_sweep: Runs a sweep, or continues it.
        name: Name of the first sweep; `audit-` and the name of the run by default.
    """
    from tune_dml.report.several.audit_page import AuditReport

    name = name or f"audit-{Path(audit.run).stem}"
    data = audit.protocol.dataset, audit.data_root
    first = run_sweep(Request(audit.screening_space(), *data, seeds=(0,), name=name))
    if first.results.is_incomplete:
        return [first], None
    values, notes_on_screening = _values(first.results, audit.run_names)
    _raise_if_too_few(values, name)
    selected = choose_suspects(audit.design, values)
    space = audit.confirmation_space(selected)
    second = run_sweep(Request(space, *data, seeds=(0,), name=f"{name}-confirm"))
    if second.results.is_incomplete:
        return [first, second], None
    confirmed_values, notes_on_confirmation = _values(second.results, audit.confirmation_names(selected))
    design, trials = audit.confirmation(selected), [*first.results.trials, *second.results.trials]
    step = resolution_in(audit.metric, [[trial.metrics for trial in trials if trial.status == "finished"]])
    verdict = judge_screening(audit.design, values, design, confirmed_values, selected, resolution=step)
    notes = (*notes_on_screening, *notes_on_confirmation)
    return [first, second], AuditReport(audit, verdict, selected, first.results, second.results, notes)


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    return None


def _run_of(request: Request, cell: str | None, storage: Path, protocol: str | None) -> tuple[TrialConfig, str]:
    """Return the configuration of the user's run, and the metric that is compared."""
    from trainables.tasks import task_of

    run = str(request.space)
    path, is_file = expand_home(Path(run)), run.endswith(SWEEP_FILES)
    options = {"settings": dict(request.settings or {}), "dataset": request.dataset}
    if is_file and is_trial_file(read_mapping(path, "configuration of a run")):
        raise_if_any(unused_options({**options, "cell": cell}, "the file of a run has all its settings"))
        config = read_trial_file(path, protocols().get(protocol) if protocol else None)
        return config, task_of(config).headline
    if not is_file and run in sweep_names(storage):
        raise_if_any(unused_options(options, "the cell of a stored sweep has all its settings"))
        results = load_results(storage, run)
        _raise_if_program(results.plan.space, run)
        return _cell_of_sweep(results, cell), results.plan.metric
    plan = make_plan(study_of(request))
    _raise_if_program(plan.space, run)
    cells = [item for item in plan.cells if not item.baseline] or list(plan.cells)
    return (_find_cell(cells, cell) if cell else cells[0]).config, plan.metric


def _raise_if_program(space: Space, run: str) -> None:
    if space.program is not None:
        rule = "an audit compares settings of tune-dml's own trials, but these trials run your program"
        raise ConfigError(Problem("audit", rule, run, "Name another space, sweep or file."))


def _cell_of_sweep(results: Results, label: str | None) -> TrialConfig:
    from tune_dml.report.analysis.cell import best_cells

    ranked = [cell for cell in best_cells(results) if not cell.baseline] or list(results.cells)
    if not ranked:
        raise ConfigError(Problem("RUN", "the sweep has no cell", results.name, "Name another one."))
    return (_find_cell(list(results.cells), label) if label else ranked[0]).config


def _find_cell(cells: Sequence[Cell], label: str) -> Cell:
    by_label = {cell.label: cell for cell in cells}
    if label not in by_label:
        raise ConfigError(Problem("--cell", "unknown cell", label, known=by_label, kind="cell"))
    return by_label[label]


def _values(results: Results, arms: Sequence[str]) -> tuple[NDArray[np.float64], list[str]]:
    """Return the metric of the run of each arm, and notes on runs without it.

    A diverged run gets the lowest value of the others, a failed run nan.
    """
    metric = results.plan.metric
    trials = {trial.cell.arm: trial for trial in results.trials}
    values = np.array([trials[arm].metrics.get(metric, np.nan) for arm in arms], dtype=float)
    status = np.array([trials[arm].status for arm in arms])
    values[status != "finished"] = np.nan
    lowest = np.nanmin(values) if np.isfinite(values).any() else np.nan
    notes = []
    for outcome, consequence in (("diverged", "counts as the lowest value of the others"), ("failed", "is left out")):
        names = [arm for arm, state in zip(arms, status, strict=True) if state == outcome]
        notes += [f"{results.name}: {run_name} {outcome} and {consequence}" for run_name in names]
    values[status == "diverged"] = lowest
    return values, notes


def _raise_if_too_few(values: NDArray[np.float64], name: str) -> None:
    missing = int((~np.isfinite(values)).sum())
    if missing * 4 > len(values):
        rule = f"{missing} of {len(values)} runs of the screening have no value"
        remedy = f"See why with `tune-dml status {name} --trials`, then `tune-dml resume {name} --retry-failed`."
        raise ConfigError(Problem("audit", rule, None, remedy))
