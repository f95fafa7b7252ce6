"""Going on with a stored plan: whether that can be, the arms that files add to it, its best cells under fresh seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainables.config import PROTOCOL_VERSION
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expanded
from trainables.option_names import option_problem
from tune_dml.planning.cells import Cell
from tune_dml.planning.data import SweepData
from tune_dml.planning.dry_run import dry_run
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import SWEEP_FILES
from tune_dml.planning.study import Search
from tune_dml.planning.sweep_file import read_sweep_file
from tune_dml.space import Arm, Space

_FIRST_SEED = 1000
"""Of a confirmation: far from those that a sweep is begun with or extended by."""


def continuation_problems(
    plan: Plan, cache_dir: Path | None, micro_batch: int | None, packages: Mapping[str, str]
) -> list[Problem]:
    """Why a stored plan cannot be gone on with: other settings, another protocol version, other data: each would mix two studies.

    Or networks whose numbers would change if they held `micro_batch` pictures at a time. `packages` of methods were there when it
    ran last, with their versions.
    """
    problems = []
    if altered := plan.alterations:
        remedy = (
            "Put a copy in its place, such as the plan.json of the sweep's run in MLflow; "
            "other settings are a new sweep under another name."
        )
        problems.append(Problem("plan.json", altered, None, remedy))
    if plan.protocol_version != PROTOCOL_VERSION:
        begun, now = plan.protocol_version, PROTOCOL_VERSION
        rule = f"the sweep was begun by protocol version {begun}; this program trains by {now}"
        remedy = "Start a new sweep under another name; its report can still be written."
        problems.append(Problem("protocol version", rule, begun, remedy))
    if plan.space.program is not None:
        return [*problems, *plan.space.program.missing("program")]
    try:
        data = SweepData.of(plan, cache_dir)
        digest = data.digest()
        if micro_batch is not None:
            problems += dry_run(plan, data.training.prepare(), build=True, micro_batch=micro_batch).problems
    except ConfigError as error:
        return [*problems, *error.problems, *_moved_problems(plan), *_missing_problems(packages)]
    if digest != plan.data_digest:
        rule = "the data must be those the sweep began with; their content has changed"
        remedy = "Restore them, or start a new sweep under another name."
        problems.append(Problem("data", rule, digest[:12], remedy))
    return problems


def _moved_problems(plan: Plan) -> list[Problem]:
    """That a folder of pictures which is gone can be named anew."""
    root = plan.base_settings.get("data.root")
    if not root or expanded(str(root)).exists():
        return []
    rule = "the pictures must lie where the sweep was told that they lie"
    return [
        option_problem(
            "data_root",
            rule,
            str(root),
            f"Have they moved, `tune-dml resume {plan.name} --data-root DIR`.",
        )
    ]


def _missing_problems(packages: Mapping[str, str]) -> list[Problem]:
    """That methods may be unknown because the package which brings them is not here."""
    return [
        Problem(
            "methods", "a package that was installed when the sweep ran is missing", f"{name} {there}", "Install it."
        )
        for name, there in packages.items()
        if not _is_installed(name)
    ]


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def moved_plan(plan: Plan, root: str | Path) -> Plan:
    """The plan with its pictures in another folder. Raises ConfigError where they are read from none."""
    if not plan.base_settings.get("data.root"):
        rule = f"the pictures of {plan.dataset} lie in no folder of yours"
        raise ConfigError(option_problem("data_root", rule, str(root), "Leave it out."))
    return plan.with_data_root(str(expanded(root).absolute()))


def with_arms_of_files(plan: Plan, arms: Sequence[str]) -> tuple[Plan, list[str]]:
    """The plan whose space has the arms that these sweep files declare too, and the names of all arms that are meant.

    Of a file only `arms` counts, and of those the ones that the space does not have. Raises ConfigError for a wrong file.
    """
    names: list[str] = []
    for name in arms:
        if not name.endswith(SWEEP_FILES):
            names.append(name)
            continue
        declared = read_sweep_file(Path(name)).space
        assert isinstance(declared, Space)  # noqa: S101 - a sweep file declares one
        known = {arm.name for arm in plan.space.every_arm}
        fresh = tuple(arm for arm in declared.arms if arm.name not in known)
        if not fresh:
            rule = "the file must declare an arm that the sweep's space does not have"
            raise ConfigError(option_problem("arms", rule, name, f"It has {', '.join(filter(None, sorted(known)))}."))
        space = replace(plan.space, arms=(*(plan.space.arms or (Arm(""),)), *fresh))
        raise_if_any(space.problems())
        plan = replace(plan, space=space)
        names += [arm.name for arm in fresh]
    return plan, names


def confirmation_plan(plan: Plan, baseline: Cell | None, best: Sequence[Cell], used: Sequence[int], seeds: int) -> Plan:
    """The baseline, where it has several cells its best one, and the best cells, under as many fresh seeds.

    Args:
        plan: the sweep's own.
        baseline: the cell that the others are compared with, if there is one.
        best: the cells to confirm.
        used: seeds of earlier confirmations, in their order; they come first, and further ones follow.
        seeds: how many of each cell.
    """
    first = max(_FIRST_SEED - 1, *plan.seeds, *used) + 1
    fresh = (*used, *range(first, first + seeds))[:seeds]
    cells = [*filter(None, [baseline]), *(cell for cell in best if not cell.baseline)]
    return replace(plan, cells=tuple(cells), seeds=fresh, search=Search())


def begun_confirmation(plan: Plan, trials: Iterable[PlannedTrial]) -> Plan:
    """The plan of a confirmation from its trials, to go on with it."""
    cells: dict[str, Cell] = {}
    seeds: dict[int, None] = {}
    for trial in trials:
        cells[trial.cell.digest] = trial.cell
        seeds[trial.seed] = None
    return replace(plan, cells=tuple(cells.values()), seeds=tuple(seeds), search=Search())
