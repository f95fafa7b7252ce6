"""A space on a data set with seeds, resolved into cells: everything that is known before a worker starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainables.config import PROTOCOL_VERSION, TrialConfig, canonical
from trainables.errors import ConfigError, Problem, nearest
from trainables.files import write_whole
from trainables.resolve import Layer, Layered
from tune_dml.planning.cells import Cell, baseline_cell, cell_at, grid_cells, shared_settings, without_repeats
from tune_dml.space import Grid, Knob, Number, Protocol, Range, SearchMethod, Space, Value
from tune_dml.text import is_number

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True)
class Search:
    """How cells are chosen. Grid cells come first and exactly once; adaptive methods then propose further ones."""

    method: SearchMethod = "grid"
    num_samples: int = 0
    """Cells that an adaptive method proposes; 0 for a grid."""
    window: int = 4
    """A proposal waits until all but the last `window` cells are known, so that re-runs propose the same (ADR 0003)."""
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """One cell x one seed: one Ray Tune trial and one MLflow run."""

    cell: Cell
    seed: int
    key: str
    """Digest of (resolved configuration, seed, data digest, protocol version)."""

    @property
    def config(self) -> TrialConfig:
        """The cell's configuration under this seed."""
        return self.cell.config.model_copy(update={"seed": self.seed})


@dataclass(frozen=True)
class Plan:
    """A named, frozen statement of what a sweep is: enough to run, resume or extend it."""

    name: str
    space: Space
    dataset: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    """The cells known in advance: the baseline and the grid."""
    search: Search
    base_settings: Mapping[str, Any]
    """What every cell shares; a proposed cell is these settings with its knobs laid over them."""
    origins: Mapping[str, str]
    data_digest: str
    protocol_version: int = PROTOCOL_VERSION
    stated_margin: Number | None = None
    """The margin that was given when the sweep was planned; None where the space's holds."""

    @property
    def margin(self) -> Number:
        """Differences below this were planned not to matter."""
        return self.space.margin if self.stated_margin is None else self.stated_margin

    @property
    def metric(self) -> str:
        """The validation metric the sweep is about."""
        return self.space.metric

    def trials(self) -> list[Trial]:
        """The trials of the known cells, seed by seed: an early stop leaves whole replicates."""
        return [self.trial(cell, seed) for seed in self.seeds for cell in self.cells]

    def trial(self, cell: Cell, seed: int) -> Trial:
        """One cell under one seed, with its identity."""
        return Trial(cell, seed, trial_key(cell.digest, seed, self.data_digest, self.protocol_version))

    def cell(self, index: int, knobs: Mapping[str, Value]) -> Cell:
        """A cell at a point that a searcher proposed. Raises ConfigError when the point is not allowed."""
        return cell_at(index, knobs, Layered().over(Layer("plan", self.base_settings)), self.space)

    def identity(self) -> str:
        """Digest of everything that decides which trials exist; two plans of one sweep name must share it."""
        parts = [sorted(cell.digest for cell in self.cells), list(self.seeds), asdict(self.search)]
        knobs = [asdict(knob) for knob in self.space.knobs]
        margin = [] if self.stated_margin is None else [self.stated_margin]
        body = canonical(
            [*parts, knobs, dict(self.base_settings), self.data_digest, self.metric, self.protocol_version, *margin]
        )
        return hashlib.sha256(body.encode()).hexdigest()[:16]

    def extended(
        self,
        *,
        seeds: Sequence[int] = (),
        values: Mapping[str, Sequence[Value]] | None = None,
        num_samples: int = 0,
    ) -> Plan:
        """This plan with more seeds, more values of a listed knob, or more cells to propose.

        Every trial of this plan is a trial of the extended one. Raises ConfigError when nothing can be extended so.
        """
        space = _with_values(self.space, values or {})
        problems = _search_problems(space, self.search)
        if values and self.search.method != "grid":
            problems.append(Problem("--add", "only a grid has listed values", None, "Use --num-samples."))
        if num_samples and self.search.method == "grid":
            problems.append(Problem("--num-samples", "a grid proposes nothing", num_samples, "Use --add."))
        if problems:
            raise ConfigError(problems)
        kept = {cell.digest for cell in self.cells}
        grown = grid_cells(space, self.base_settings, start=len(self.cells)) if values else []
        fresh = [cell for cell in grown if cell.digest not in kept]
        numbered = tuple(replace(cell, index=len(self.cells) + n) for n, cell in enumerate(fresh))
        return replace(
            self,
            space=space,
            cells=self.cells + numbered,
            seeds=tuple(dict.fromkeys((*self.seeds, *seeds))),
            search=replace(self.search, num_samples=self.search.num_samples + num_samples),
        )

    def save(self, path: Path) -> None:
        """Write the plan as JSON, atomically."""
        body = _adapter().dump_python(self, mode="json")
        write_whole(path, json.dumps(body, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a plan that `save` wrote."""
        return _adapter().validate_json(path.read_bytes())


@cache
def _adapter() -> TypeAdapter[Plan]:
    """How a plan is stored: as JSON of its fields. What an older version wrote beside them is passed over."""
    from pydantic import TypeAdapter

    return TypeAdapter(Plan)


def trial_key(cell_digest: str, seed: int, data_digest: str, protocol_version: int) -> str:
    """The identity of a trial: 16 hexadecimal digits."""
    body = canonical([cell_digest, seed, data_digest, protocol_version])
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def make_plan(
    space: Space,
    *,
    name: str,
    dataset: str,
    seeds: int | Sequence[int],
    data_digest: str,
    overrides: Mapping[str, Value] | None = None,
    search: Search | None = None,
) -> Plan:
    """Resolve a space on a data set into a plan; raises ConfigError with every problem of every cell.

    Settings are layered: defaults, the data set's protocol, the space's fixed settings, the cell's knobs, the user's
    overrides. A user may not override a searched knob.
    """
    overrides = dict(overrides or {})
    search = search or Search()
    problems = space.problems() + _override_problems(space, overrides) + _search_problems(space, search)
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        problems.append(Problem("seeds", "at least one seed is needed", seeds, "Use --seeds 3."))
    if len(set(numbers)) < len(numbers):
        problems.append(Problem("seeds", "seeds must differ", list(numbers), "Remove the repeats."))
    if problems:
        raise ConfigError(problems)
    layers = _layers(space, dataset, overrides)
    base, origins = shared_settings(space, layers)
    cells = baseline_cell(space, layers)
    if search.method == "grid":
        cells += grid_cells(space, base, start=len(cells))
    return Plan(name, space, dataset, numbers, without_repeats(cells), search, base, origins, data_digest)


def protocol_layer(protocol: Protocol) -> Layer:
    """A protocol's settings, each with the source that states it."""
    origin = f"protocol {protocol.name}"
    sources = {path: f"{origin}: {source}" for path, source in protocol.sources.items()}
    return Layer(origin, protocol.settings, sources)


def _layers(space: Space, dataset: str, overrides: Mapping[str, Value]) -> list[Layer]:
    protocol = space.protocol_for(dataset)
    layers = [Layer("--dataset", {"data.name": dataset})]
    if protocol is not None:
        layers.append(protocol_layer(protocol))
    return [*layers, Layer(f"space {space.name}", space.fixed), Layer("--set", overrides)]


def _with_values(space: Space, values: Mapping[str, Sequence[Value]]) -> Space:
    """The space with values added to listed knobs, numbers in order. Raises ConfigError for unknown or unlisted knobs."""
    problems = []
    listed = {knob.path: knob for knob in space.knobs if isinstance(knob.domain, Grid)}
    for path in values:
        if path not in listed:
            rule = "values can be added to a listed knob of the space"
            problems.append(Problem("--add", rule, path, nearest(path, list(listed), what="knob")))
    if problems:
        raise ConfigError(problems)

    def grown(knob: Knob) -> Knob:
        if knob.path not in values or not isinstance(knob.domain, Grid):
            return knob
        every = list(dict.fromkeys((*knob.domain.values, *values[knob.path])))
        numbers = all(is_number(value) for value in every)
        ordered = sorted(every) if numbers else every  # type: ignore[type-var]
        return replace(knob, domain=replace(knob.domain, values=tuple(ordered)))

    return replace(
        space,
        scientific=tuple(grown(knob) for knob in space.scientific),
        nuisance=tuple(grown(knob) for knob in space.nuisance),
    )


def _override_problems(space: Space, overrides: Mapping[str, Value]) -> list[Problem]:
    problems = []
    for path, value in overrides.items():
        for knob in space.knobs:
            if _same_setting(path, knob.path):
                rule = f"{knob.path} is the knob that {space.name} searches and cannot be set"
                remedy = f"Leave it out, or use `tune-dml train --set {path}=...` for one trial."
                problems.append(Problem("--set", rule, value, remedy))
        for tie in space.ties:
            if _same_setting(path, tie.path):
                rule = f"{tie.path} follows {tie.knob} in {space.name} and cannot be set"
                problems.append(Problem("--set", rule, value, "Leave it out."))
    for path in sorted({"seed", "data.name"} & set(overrides)):
        flag = "--seeds" if path == "seed" else "--dataset"
        problems.append(Problem("--set", f"{path} has a flag of its own", overrides[path], f"Use {flag}."))
    return problems


def _same_setting(one: str, other: str) -> bool:
    """Whether two paths mean one setting: a knob's may name the field of its method, `model.pooling.p`, or not."""
    parts = one.split("."), other.split(".")
    lengths = {len(path) for path in parts}
    return one == other or (lengths == {2, 3} and parts[0][0] == parts[1][0] and parts[0][-1] == parts[1][-1])


def _search_problems(space: Space, search: Search) -> list[Problem]:
    problems = []
    ranges = [knob.path for knob in space.knobs if isinstance(knob.domain, Range)]
    if search.method == "grid" and ranges:
        rule = f"a grid needs listed values, but {', '.join(ranges)} is a range"
        problems.append(Problem("--search", rule, search.method, "Use --search tpe --num-samples 20, or list values."))
    if search.method == "grid" and search.num_samples:
        rule = "a grid has its own number of cells"
        problems.append(Problem("--num-samples", rule, search.num_samples, "Leave it out, or use --search tpe."))
    if search.method != "grid" and search.num_samples < 1:
        rule = f"--search {search.method} needs the number of cells to propose"
        problems.append(Problem("--num-samples", rule, search.num_samples, "Use --num-samples 20."))
    return problems
