"""Complete a request: space and arms, data set, protocols, seeds, settings, search and name.

study = study_of(request)        # reads the space or the sweep file; raises ConfigError if it is missing
plan = make_plan(study)          # see `planning.plan`; raises ConfigError with every problem
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from trainables.config import SOURCES
from trainables.errors import ConfigError, Problem
from trainables.files import expand_home
from trainables.option_names import option_place, option_problem, spell
from tune_dml.catalogue import find_space, space_type_problems
from tune_dml.planning.arms.fitting import (
    COUNT,
    TrainingPart,
    fitting_space,
    part_of,
    untuned_notes,
    with_scaled_counts,
    with_tuned_knobs,
)
from tune_dml.planning.arms.settings import choose_protocol, protocol_notes, study_arm
from tune_dml.planning.cells import StudyArm
from tune_dml.planning.files.program import checked_program
from tune_dml.planning.files.sweep_file import read_with_problems
from tune_dml.planning.request import SWEEP_FILES, Request, Stopping
from tune_dml.space import Number, SearchMethod, Space, Value

_MOST_SEEDS = 10_000  # a larger count is a typing error, and its plan would fill the memory
_SEEDS_END = 2**32  # limit of the random generators


@dataclass(frozen=True)
class Search:
    """How cells are chosen. Grid cells come first, once each; an adaptive method then proposes more."""

    method: SearchMethod = "grid"
    num_samples: int = 0  # cells that an adaptive method proposes; 0 for a grid
    window: int = 4  # a proposal uses all but the last `window` cells, so that a re-run proposes the same cells (ADR 3)
    seed: int = 0
    stopping: Stopping | None = None  # the rule that stops cells early; None lets every cell finish


@dataclass(frozen=True)
class Study:
    """A completed request, before its settings are resolved."""

    name: str
    space: Space
    dataset: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Value] = field(default_factory=dict)
    """The user's settings, which override space and protocol."""
    search: Search = Search()
    margin: Number | None = None  # the requested margin; None means the space's margin
    protocol: str | None = None
    arms: tuple[StudyArm, ...] = ()
    problems: tuple[Problem, ...] = ()  # problems of the request, such as an unknown arm or protocol
    part: TrainingPart | None = None  # sizes of a picture folder, which limit our protocols' batches; None if unknown
    notes: tuple[str, ...] = ()  # decisions to report to the user


def study_of(request: Request) -> Study:
    """Read the space or the sweep file and fill in the request's defaults. Raise ConfigError for an unknown space."""
    space, request, problems = _space_of(request)
    if space.program is not None:
        space, program_problems = checked_program(space, space.program, request)
        problems += program_problems
    dataset, samples = request.dataset or space.default_dataset, request.num_samples or 0
    seeds = listed_seeds(3 if request.seeds is None else request.seeds)
    settings = _settings(request, seeds)
    part = part_of(space, dataset, settings)
    untuned = untuned_notes(space, dataset, {**settings, **dict.fromkeys(request.tune or ())})
    space, fitted = fitting_space(space, part, settings)
    name = [space.name]
    name += [] if dataset == space.default_dataset else [dataset]
    name += [] if request.vary in {None, "all"} else [str(request.vary)]
    method = "gp" if request.search == "bayes" else request.search or "grid"
    study = Study(
        name="-".join(name) if request.name is None else request.name,
        space=space,
        dataset=dataset,
        seeds=seeds,
        settings=settings,
        search=Search(method, samples, max(4, samples // 5), stopping=request.stopping),
        margin=request.margin,
        problems=tuple(problems),
        protocol=request.protocol,
        part=part,
        notes=(*fitted, *untuned),
    )
    return with_arms(study, request.arms, request.tune)


def listed_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds 0 to n - 1 for a count n, or the listed seeds. Raise ConfigError for invalid ones."""
    count = seeds if isinstance(seeds, int) else len(seeds)
    if isinstance(seeds, bool) or count > _MOST_SEEDS:
        raise ConfigError(
            option_problem("seeds", f"must be at most {_MOST_SEEDS} seeds", seeds, f"Example: {spell('seeds', 3)}.")
        )
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    whole = (isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < _SEEDS_END for seed in numbers)
    if not all(whole):
        raise ConfigError(option_problem("seeds", "seeds must be whole numbers from 0, below 2^32", list(numbers)))
    return numbers


def with_arms(study: Study, names: Sequence[str] | None, tune: Mapping[str, Sequence[Value]] | None = None) -> Study:
    """Return the study with these arms of its space, or all, each with the protocol printed for its method.

    `tune` gives every arm of the space a nuisance knob for each path, around the arm's value. Values for a knob that
    the space searches replace its grid.
    """
    space, settings, tune = study.space, study.settings, tune or {}
    unknown = _unknown_arms(space, names or ())
    choices = {
        arm.name: choose_protocol(space, arm, study.dataset, settings, study.protocol) for arm in space.every_arm
    }
    chosen = {name: choices[name] for name in choices if not names or name in names}
    problems = [*(problem for choice in (chosen or choices).values() for problem in choice.problems), *unknown]
    notes = [*study.notes, *protocol_notes(chosen)]
    arms = [
        study_arm(space, arm, choices[arm.name].protocol, dataset=study.dataset, settings=settings, part=study.part)
        for arm in space.every_arm
    ]
    if not (problems or study.problems):
        if tune.get(COUNT):
            space = replace(space, positive_pairs=None)  # the user's own K, also for arms that are added later
        elif COUNT not in settings:
            space, arms, count_notes = with_scaled_counts(space, arms)
            notes += count_notes
        if tune:
            space, arms, problems = with_tuned_knobs(space, arms, tune)
            added = {knob.path for knob in space.knobs} - {knob.path for knob in study.space.knobs}
            settings = {path: value for path, value in settings.items() if path not in added}
    return replace(
        study,
        space=space,
        settings=settings,
        arms=tuple(arm for arm in arms if arm.name in chosen),
        problems=(*study.problems, *dict.fromkeys(problems)),
        notes=tuple(notes),
    )


def _space_of(request: Request) -> tuple[Space, Request, list[Problem]]:
    """Return the requested space, the request completed by its sweep file, and the file's problems."""
    if not (isinstance(request.space, str | Path) and str(request.space).endswith(SWEEP_FILES)):
        request = replace(request, space=find_space(request.space))  # with Python's numbers in place of numpy's
        assert isinstance(request.space, Space)  # noqa: S101 - `find_space` returns one
        if problems := space_type_problems(request.space):
            raise ConfigError(problems)
        return request.space, request, []
    file, problems = read_with_problems(Path(request.space))
    assert isinstance(file.space, Space)  # noqa: S101 - a sweep file declares one
    options = (option.name for option in fields(request) if option.name != "space")
    stated = {name: value for name in options if (value := getattr(request, name)) is not None}
    return file.space, replace(file, **stated), problems


def _unknown_arms(space: Space, names: Sequence[str]) -> list[Problem]:
    known, rule = [arm.name for arm in space.every_arm], f"unknown arm of {space.name}:"
    remedy = "" if any(known) else f"It is one arm without a name: leave {spell('arms')} out."
    named = known if any(known) else None
    unknown = [name for name in names if name not in known]
    return [Problem(option_place("arms"), rule, name, remedy, known=named, kind="arm") for name in unknown]


def _settings(request: Request, seeds: Sequence[int]) -> dict[str, Value]:
    """Return the user's settings with absolute paths, because workers have other working directories.

    If seeds vary one source of randomness, the settings fix the others at the first seed.
    """
    settings: dict[str, Value] = {}
    if request.vary not in {None, "all"} and seeds:
        settings = {f"seeds.{source}": seeds[0] for source in SOURCES if source != request.vary}
    settings |= request.settings or {}
    if request.data_root is not None:
        settings["data.root"] = str(request.data_root)
    for path in ("data.root", "data.split_file", "task.evaluation_root"):
        if settings.get(path):
            settings[path] = str(expand_home(str(settings[path])).absolute())
    weights, mark, digest = str(settings.get("model.weights") or "").partition("#")
    if (file := expand_home(weights)).is_file():  # otherwise a checkpoint of torch, a URL or a package
        settings["model.weights"] = f"{file.absolute()}{mark}{digest}"
    return settings
