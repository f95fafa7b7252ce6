"""Continue a stored plan: check it, add arms of sweep files, confirm its best cells under fresh seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home
from trainables.option_names import option_problem
from tune_dml.planning.cells import Cell
from tune_dml.planning.checks.data import SweepData
from tune_dml.planning.checks.dry_run import dry_run
from tune_dml.planning.files.sweep_file import read_sweep_file
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import SWEEP_FILES
from tune_dml.planning.study import Search
from tune_dml.space import Arm, Space

_FIRST_SEED = 1000
"""First seed of a confirmation, far from a sweep's own seeds."""


def continuation_problems(
    plan: Plan, cache_dir: Path | None, micro_batch: int | None, packages: Mapping[str, str]
) -> list[Problem]:
    """Return why a stored plan cannot continue: edited settings, another protocol version, changed data.

    `packages` holds the version of each package that provided methods when the sweep last ran.
    """
    problems = []
    if altered := plan.alterations:
        remedy = (
            "Put a copy in its place, such as the plan.json of the sweep's run in MLflow; "
            "other settings are a new sweep under another name."
        )
        problems.append(Problem("plan.json", altered, None, remedy))
    if plan.protocol_version != plan.current_version:
        begun, now = plan.protocol_version, plan.current_version
        rule = f"the sweep began with protocol version {begun}; this program has version {now}"
        remedy = "Start a new sweep under another name; its report can still be written."
        problems.append(Problem("protocol version", rule, begun, remedy))
    if plan.space.program is not None:
        return [*problems, *plan.space.program.missing_problems("program")]
    try:
        data = SweepData.of(plan, cache_dir)
        digest = data.digest()
        if micro_batch is not None:
            problems += dry_run(plan, data.training.prepare(), build=True, micro_batch=micro_batch).problems
    except ConfigError as error:
        moved = _moved_problems(plan)  # instead of the data set's own message about the folder
        others = [problem for problem in error.problems if problem.place not in {item.value for item in moved}]
        return [*problems, *others, *moved, *_missing_problems(packages)]
    if digest != plan.data_digest:
        rule = "the content of the data must be that with which the sweep began"
        remedy = "Restore the data, or start a new sweep under another name."
        problems.append(Problem("data", rule, digest[:12], remedy))
    return problems


def _moved_problems(plan: Plan) -> list[Problem]:
    """Return a problem if the picture folder is missing; its remedy names another folder."""
    root = plan.base_settings.get("data.root")
    if not root or expand_home(str(root)).exists():
        return []
    remedy = f"If it was moved, use `tune-dml resume {plan.name} --data-root DIR`."
    return [option_problem("data_root", "the sweep's picture folder must exist", str(root), remedy)]


def _missing_problems(packages: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each package of methods that is no longer installed."""
    rule = "a package that was installed when the sweep ran is missing"
    missing = [f"{name} {version}" for name, version in packages.items() if not _is_installed(name)]
    return [Problem("methods", rule, package, "Install it.") for package in missing]


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def relocate_plan(plan: Plan, root: str | Path) -> Plan:
    """Return the plan with its pictures in another folder; its trials keep their keys.

    Raise ConfigError if it reads none from a folder.
    """
    if not plan.base_settings.get("data.root"):
        rule = f"the pictures of {plan.dataset} are not read from a folder"
        raise ConfigError(option_problem("data_root", rule, str(root), "Leave it out."))
    moved = {"data.root": str(expand_home(root).absolute())}
    arms = tuple(replace(arm, base_settings={**arm.base_settings, **moved}) for arm in plan.arms)
    plan = replace(plan, arms=arms, settings={**plan.settings, **moved})
    return replace(plan, cells=tuple(map(plan.relocate, plan.cells)))


def with_arms_of_files(plan: Plan, arms: Sequence[str]) -> tuple[Plan, list[str]]:
    """Add the arms of sweep files to a plan's space; return the plan and the names of all requested arms.

    Only new arms of a file are added. Its other keys are ignored, but `fixed` settings must be those of the sweep, because
    the arms were written for them. Raises ConfigError for a wrong file.
    """
    names: list[str] = []
    for name in arms:
        if not name.endswith(SWEEP_FILES):
            names.append(name)
            continue
        declared = read_sweep_file(Path(name)).space
        assert isinstance(declared, Space)  # noqa: S101 - a sweep file declares one
        present = {arm.name for arm in plan.space.every_arm}
        added = tuple(arm for arm in declared.arms if arm.name not in present)
        if not added:
            rule = "the file must declare an arm that the sweep's space does not have"
            remedy = f"It has {', '.join(sorted(present))}."
            if not declared.arms:
                remedy = "The file has no `arms`. Add values of a knob with `tune-dml extend SWEEP --add KEY=V,V`."
            raise ConfigError(option_problem("arms", rule, name, remedy))
        raise_if_any(
            Problem(f"{name}, fixed.{path}", "must be as in the sweep", value, "Write it into the arms.")
            for path, value in declared.fixed.items()
            if value not in (plan.space.fixed.get(path), plan.base_settings.get(path))
            and any(path not in arm.settings for arm in added)
        )
        space = replace(plan.space, arms=(*(plan.space.arms or (Arm(""),)), *added))
        raise_if_any(space.problems())
        plan = replace(plan, space=space)
        names += [arm.name for arm in added]
    return plan, names


def confirmation_plan(plan: Plan, baseline: Cell | None, best: Sequence[Cell], used: Sequence[int], seeds: int) -> Plan:
    """Return a plan of the baseline and the best cells under fresh seeds; those of earlier confirmations come first."""
    first = max(_FIRST_SEED - 1, *plan.seeds, *used) + 1
    fresh = (*used, *range(first, first + seeds))[:seeds]
    cells = [*filter(None, [baseline]), *(cell for cell in best if not cell.baseline)]
    return replace(plan, cells=tuple(cells), seeds=fresh, search=Search())


def rebuild_confirmation(plan: Plan, trials: Iterable[PlannedTrial]) -> Plan:
    """Rebuild a confirmation's plan from its trials."""
    cells: dict[str, Cell] = {}
    seeds: dict[int, None] = {}
    for trial in trials:
        cells[trial.cell.digest] = trial.cell
        seeds[trial.seed] = None
    return replace(plan, cells=tuple(cells.values()), seeds=tuple(seeds), search=Search())
