"""Resolve a study into a plan of arms and cells, before any worker starts."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainables.config import PROTOCOL_VERSION, Settings, TrialConfig, canonical, identity_settings
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import write_whole
from trainables.option_names import option_place, option_problem, spell
from trainables.resolve import Layer, LayerStack
from tune_dml.planning import rules
from tune_dml.planning.arms.fitting import part_of
from tune_dml.planning.cells import Cell, PlannedArm, cell_at, plan_arms, plan_cells
from tune_dml.planning.study import Search, Study, with_arms
from tune_dml.space import Grid, Knob, Number, Space, Value
from tune_dml.text import is_number, python_numbers


@dataclass(frozen=True)
class PlannedTrial:
    """One cell x one seed: one Ray Tune trial and one MLflow run."""

    cell: Cell
    seed: int
    key: str  # digest of (resolved configuration, seed, data digest, protocol version)

    @property
    def config(self) -> TrialConfig:
        """The cell's configuration under this seed."""
        return self.cell.config.model_copy(update={"seed": self.seed})


@dataclass(frozen=True)
class Plan:
    """Everything that defines a sweep: enough to run, resume or extend it."""

    name: str
    space: Space
    dataset: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]  # cells that need no searcher: those of grids, and of arms without knobs
    search: Search
    arms: tuple[PlannedArm, ...]  # the compared arms of the space
    data_digest: str
    protocol_version: int = PROTOCOL_VERSION
    stated_margin: Number | None = None  # the margin that the user stated; None means the space's margin
    settings: Settings = field(default_factory=dict)
    """The user's settings, which override space and protocol, also for arms added later."""
    protocol: str | None = None  # the requested protocol of all arms, also of those added later

    @property
    def current_version(self) -> int:
        """The protocol version of this plan's trials in this program.

        It is one higher for contrastive learning on stored features, which drew its two views with replacement before.
        """
        drawn = self.base_settings.get("task.name"), self.base_settings.get("data.name")
        return PROTOCOL_VERSION + (drawn == ("contrastive", "features"))

    @property
    def main_arms(self) -> tuple[PlannedArm, ...]:
        """The arms without the baseline; the baseline if it is the only arm."""
        return tuple(arm for arm in self.arms if not arm.baseline) or self.arms

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The knobs that the compared arms search, scientific first; a space's other arms may have more."""
        searched = {knob.path for arm in self.arms for knob in arm.knobs}
        return tuple(knob for knob in self.space.knobs if knob.path in searched)

    @cached_property
    def base_settings(self) -> dict[str, Value]:
        """The settings that the cells of all arms share, apart from the baseline."""
        first, *other_arms = self.main_arms
        return {
            path: value
            for path, value in first.base_settings.items()
            if all(path in arm.base_settings and arm.base_settings[path] == value for arm in other_arms)
        }

    @property
    def origins(self) -> Mapping[str, str]:
        """The origin of each setting, in the first main arm."""
        return self.main_arms[0].origins

    def arm(self, name: str) -> PlannedArm:
        """Return the arm of a name. Raise KeyError if it does not exist."""
        return {arm.name: arm for arm in self.arms}[name]

    @property
    def margin(self) -> Number:
        """The equivalence margin: smaller differences do not matter."""
        return self.space.margin if self.stated_margin is None else self.stated_margin

    @property
    def metric(self) -> str:
        """The validation metric that the sweep compares."""
        return self.space.metric

    @cached_property
    def alterations(self) -> str:
        """Edits of the stored file by hand, as text; empty if there are none."""
        altered = [cell.label for cell in self.cells if not cell.is_whole]
        if not altered:
            return ""
        edited = f"{altered[0]} and {len(altered) - 1} more have" if len(altered) > 1 else f"{altered[0]} has"
        return f"was changed since it was stored: {edited} settings that do not match the digest of its trials"

    def trials(self) -> list[PlannedTrial]:
        """Return the trials of the known cells, ordered by seed, so that an interrupted sweep has complete seeds."""
        return [self.trial(cell, seed) for seed in self.seeds for cell in self.cells]

    def trial(self, cell: Cell, seed: int) -> PlannedTrial:
        """Return the trial of a cell and a seed."""
        body = canonical([cell.digest, seed, self.data_digest, self.protocol_version])
        return PlannedTrial(cell, seed, hashlib.sha256(body.encode()).hexdigest()[:16])

    def cell(self, index: int, knobs: Mapping[str, Value], arm: str = "") -> Cell:
        """Return the cell at a proposed point. Raise ConfigError if the point is invalid."""
        planned = self.arm(arm)
        return cell_at(index, knobs, LayerStack().with_layers(Layer("plan", planned.base_settings)), planned)

    def relocate(self, cell: Cell) -> Cell:
        """Return a stored cell with the plan's picture folder."""
        root = self.base_settings.get("data.root")
        if cell.settings.get("data.root") == root:
            return cell
        return replace(cell, settings={**cell.settings, "data.root": root})

    def identity(self) -> str:
        """Return the digest of everything that determines the trials. A sweep's name belongs to one identity."""
        search = {name: value for name, value in asdict(self.search).items() if value is not None}
        parts = [sorted(cell.digest for cell in self.cells), list(self.seeds), search]
        knobs = [asdict(knob) for knob in self.space.knobs]
        margin = [] if self.stated_margin is None else [self.stated_margin]
        shared = identity_settings(self.base_settings, _ADDED_LATER)
        named = [
            [arm.name, [asdict(knob) for knob in arm.knobs], identity_settings(arm.base_settings, _ADDED_LATER)]
            for arm in self.arms
            if self.space.arms
        ]
        body = canonical([*parts, knobs, shared, self.data_digest, self.metric, self.protocol_version, *margin, *named])
        return hashlib.sha256(body.encode()).hexdigest()[:16]

    def extend(
        self,
        *,
        seeds: int | Sequence[int] = (),
        values: Mapping[str, Sequence[Value]] | None = None,
        num_samples: int = 0,
        arms: Sequence[str] = (),
    ) -> Plan:
        """Return this plan with more seeds, values of a listed knob, proposed cells or arms of its space.

        `seeds` lists seeds to add, or is the total number; the smallest unused ones are then added. The extended plan
        keeps every trial of this one. Raise ConfigError if the plan cannot be extended in this way.
        """
        if isinstance(seeds, int):
            unused = itertools.filterfalse(set(self.seeds).__contains__, itertools.count())
            seeds = tuple(itertools.islice(unused, max(0, seeds - len(self.seeds))))
        more_seeds, values = python_numbers(tuple(seeds)), python_numbers(values or {})
        space = _with_values(self.space, values)
        added, problems = _plan_arms_to_add(replace(self, space=space), arms)
        every = (*(arm.with_knobs_of(space) for arm in self.arms), *added)
        problems += rules.search_problems(every, self.search)
        if self.search.stopping is not None:
            rule = "compares the cells that a sweep began with, under its seeds"
            remedy = "Start a new sweep under another name."
            problems.append(option_problem("stopping", rule, self.search.stopping, remedy))
        if values and self.search.method != "grid":
            rule, remedy = "only a grid has listed values", f"Use {spell('num_samples')}."
            problems.append(option_problem("values", rule, None, remedy))
        if num_samples and self.search.method == "grid":
            problems.append(option_problem("num_samples", "a grid proposes nothing", None, f"Use {spell('values')}."))
        elif num_samples < 0:
            problems.append(option_problem("num_samples", "must be at least 1", num_samples))
        raise_if_any(problems)
        known_digests = {cell.digest for cell in self.cells}
        planned, problems = plan_cells(every if values else added, self.search.method)
        raise_if_any(problems)
        new_cells = [cell for cell in planned if cell.digest not in known_digests]
        with_index = tuple(cell.with_index(len(self.cells) + n) for n, cell in enumerate(new_cells))
        return replace(
            self,
            space=space,
            arms=every,
            cells=self.cells + with_index,
            seeds=tuple(dict.fromkeys((*self.seeds, *more_seeds))),
            search=replace(self.search, num_samples=self.search.num_samples + num_samples),
        )

    def save(self, path: Path) -> None:
        """Write the plan as JSON, atomically."""
        body = _adapter().dump_python(self, mode="json", exclude=_IN_THE_SPACE)
        write_whole(path, json.dumps(body, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a stored plan. Raise ConfigError if it is unreadable."""
        try:
            plan = _adapter().validate_python(_upgrade(json.loads(path.read_bytes())))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            why = getattr(error, "strerror", None) or _reason_of(error)
            rule = f"a sweep's plan must be readable as it was stored ({why})"
            copy = "Put a copy in its place, such as the plan.json of the sweep's run in MLflow"
            raise ConfigError(Problem(str(path), rule, None, f"{copy}, or move the sweep's folder away.")) from error
        return replace(plan, arms=tuple(arm.with_knobs_of(plan.space) for arm in plan.arms))


def _reason_of(error: Exception) -> str:
    """Return the first field that cannot be read, and why; otherwise the error's first line."""
    fields = error.errors() if hasattr(error, "errors") else []  # of pydantic, which loads slowly
    found = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in fields]
    return (found or str(error).splitlines() or [type(error).__name__])[0]


_IN_THE_SPACE = {"arms": {"__all__": {"knobs", "ties"}}}
_ADDED_LATER = frozenset({"evaluation.keep", "evaluation.clustering", "evaluation.feature_maps"})
"""Settings that older plans lack. A plan's identity omits them, so that it stays the same."""
_DIFFERENCES = 4  # number of differences that a message lists


def _upgrade(body: dict[str, Any]) -> dict[str, Any]:
    """Convert the JSON of an older plan to the current form: its citation says `place` for `location`."""
    citation = body["space"].get("citation")
    if citation and "place" in citation:
        citation["location"] = citation.pop("place")
    return body


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Return the converter of plans to and from JSON. It ignores unknown fields of older versions."""
    return TypeAdapter(Plan)


def make_plan(study: Study, data_digest: str = "") -> Plan:
    """Resolve a study into a plan. Raise ConfigError with every problem of the study and of every cell.

    Later settings win: defaults, the settings stated for loss, space and arm, the data set's protocol, the space's
    fixed settings, the user's, the arm's, the cell's knobs.
    """
    problems = rules.study_problems(study)
    others = rules.name_rule_problems(option_place("name"), study.name, f"Example: {spell('name', 'eta1')}.")
    others += rules.metric_problems(study)  # cells can be planned nevertheless
    arms, arm_errors = plan_arms(study.arms)
    problems += arm_errors
    cells, cell_errors = plan_cells([] if problems else arms, study.search.method)
    problems += cell_errors
    if not problems:
        problems += [*rules.arm_problems(study.space, arms), *rules.stopping_problems(study.search.stopping, arms)]
        problems += rules.unused_settings(arms, study.settings)
    raise_if_any(dict.fromkeys([*problems, *others]))
    plan = Plan(
        study.name, study.space, study.dataset, study.seeds, cells, study.search, tuple(arms), data_digest,
        stated_margin=study.margin, settings=study.settings, protocol=study.protocol,
    )  # fmt: skip
    return replace(plan, protocol_version=plan.current_version)


def _plan_arms_to_add(plan: Plan, names: Sequence[str]) -> tuple[tuple[PlannedArm, ...], list[Problem]]:
    """Plan further arms of a plan's space; return them and the problems."""
    if not names:
        return (), []
    present = [name for name in names if name in {arm.name for arm in plan.arms}]
    problems = [option_problem("arms", "the sweep has this arm already", name, "Leave it out.") for name in present]
    part = part_of(plan.space, plan.dataset, plan.settings)
    study = Study(plan.name, plan.space, plan.dataset, plan.seeds, plan.settings, plan.search, protocol=plan.protocol)
    study = with_arms(replace(study, part=part), [name for name in names if name not in present] or names)
    problems += study.problems
    if problems:
        return (), problems
    added, problems = plan_arms(study.arms)
    return tuple(added), problems or rules.arm_problems(plan.space, (*plan.arms, *added))


def _with_values(space: Space, values: Mapping[str, Sequence[Value]]) -> Space:
    """Add values to listed knobs, numbers in ascending order. Raise ConfigError for other knobs."""
    listed = [knob.path for arm in space.every_arm for knob in space.knobs_of(arm) if isinstance(knob.domain, Grid)]
    rule = "must name a listed knob of the space"
    raise_if_any(
        Problem(option_place("values"), rule, path, known=listed, kind="knob", dotted=True)
        for path in values
        if path not in listed
    )

    def extend_knob(knob: Knob) -> Knob:
        if knob.path not in values or not isinstance(knob.domain, Grid):
            return knob
        every = list(dict.fromkeys((*knob.domain.values, *values[knob.path])))
        numbers = all(is_number(value) for value in every)
        ordered = sorted(every) if numbers else every  # type: ignore[type-var]
        return replace(knob, domain=replace(knob.domain, values=tuple(ordered)))

    return space.map_knobs(extend_knob)


def name_problems(folder: Path, plan: Plan) -> list[Problem]:
    """Return a problem if the folder holds a sweep with another plan. A sweep with the same plan is resumed."""
    path = folder / "plan.json"
    if not path.exists() or (stored := Plan.load(path)).identity() == plan.identity():
        return []
    rule = f"the sweep {plan.name} exists already, with {_difference_text(stored, plan)}"
    numbers = itertools.count(2)
    free_name = next(name for number in numbers if not (folder.parent / (name := f"{plan.name}-{number}")).exists())
    more = f"`tune-dml resume {plan.name}`, or `tune-dml extend {plan.name}` to add to it"
    return [option_problem("name", rule, None, f"Use {spell('name', free_name)}, or continue that one: {more}.")]


def _difference_text(stored: Plan, plan: Plan) -> str:
    """Return the first differences, such as `seeds 0,1 (asked for: 0,1,2), training.steps 400 (asked for: 100)`."""
    stored_settings, requested_settings = _settings_of_plan(stored), _settings_of_plan(plan)
    texts = [
        f"{name} {stored_settings.get(name, 'not set')} (asked for: {requested_settings.get(name, 'not set')})"
        for name in dict.fromkeys([*stored_settings, *requested_settings])
        if stored_settings.get(name) != requested_settings.get(name)
    ]
    more = f", and {len(texts) - _DIFFERENCES} more differences" if len(texts) > _DIFFERENCES else ""
    return ", ".join(texts[:_DIFFERENCES]) + more if texts else "other cells"


def _settings_of_plan(plan: Plan) -> dict[str, str]:
    """Return what determines a plan's trials, as text."""
    knobs = {
        f"values of {knob.path}": ",".join(map(str, knob.domain.values)) if isinstance(knob.domain, Grid) else "a range"
        for knob in plan.space.knobs
    }
    return {
        "data set": plan.dataset,
        "seeds": ",".join(map(str, plan.seeds)),
        "search": " ".join(map(str, filter(None, (plan.search.method, plan.search.num_samples, plan.search.stopping)))),
        "metric": plan.metric,
        "margin": f"{plan.margin:g}",
        "arms": ",".join(arm.name for arm in plan.arms if arm.name) or "none",
        **knobs,
        **{path: str(value) for path, value in plan.base_settings.items()},
        "content of the data": plan.data_digest[:12],
        "protocol version": str(plan.protocol_version),
    }
