"""Complete a request: space and arms, data set, protocols, seeds, settings, search and name.

study = study_of(request)        # reads the space or the sweep file; raises ConfigError if it is missing
plan = make_plan(study)          # see `planning.plan`; raises ConfigError with every problem
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from trainables.config import SOURCES
from trainables.errors import ConfigError, Problem, nearest
from trainables.files import expand_home
from trainables.option_names import option_place, option_problem, spell
from trainables.resolve import Layer
from tune_dml.catalogue import RETRIEVAL, find_space
from tune_dml.planning.arms.fitting import fitting_space, untuned_notes
from tune_dml.planning.arms.pair_counts import COUNT, with_scaled_counts
from tune_dml.planning.arms.protocol_choice import ProtocolChoice, choose_protocol
from tune_dml.planning.arms.recipes import method_layers, stated_layers
from tune_dml.planning.arms.tuning import with_own_grids, with_tuned_knobs
from tune_dml.planning.cells import StudyArm
from tune_dml.planning.files.folder import TrainingPart, training_part
from tune_dml.planning.files.program_space import refused_options, with_margin, with_notes
from tune_dml.planning.files.sweep_file import read_with_problems
from tune_dml.planning.python_numbers import python_numbers
from tune_dml.planning.request import SWEEP_FILES, Request, Stopping, Vary, listed_seeds
from tune_dml.space import Arm, Number, Protocol, SearchMethod, Space, Value


@dataclass(frozen=True)
class Search:
    """How cells are chosen. Grid cells come first, once each; an adaptive method then proposes more."""

    method: SearchMethod = "grid"
    num_samples: int = 0
    """Cells that an adaptive method proposes; 0 for a grid."""
    window: int = 4
    """A proposal uses all but the last `window` cells, so that a re-run proposes the same cells (ADR 3)."""
    seed: int = 0
    stopping: Stopping | None = None
    """The rule that stops cells early; None lets every cell finish."""


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
    margin: Number | None = None
    """The requested margin; None means the space's margin."""
    protocol: str | None = None
    """The requested protocol of all arms."""
    arms: tuple[StudyArm, ...] = ()
    """The compared arms of the space."""
    problems: tuple[Problem, ...] = ()
    """Problems of the request, such as an unknown arm or protocol."""
    part: TrainingPart | None = None
    """Sizes of a picture folder, which limit our protocols' batches; None if unknown."""
    notes: tuple[str, ...] = ()
    """Decisions to report to the user."""

    def make_arm(self, arm: Arm, protocol: Protocol | None) -> StudyArm:
        """Return an arm of the space, trained by a protocol; None means the defaults."""
        space, layers = self.space, self._layers_of(arm, protocol)
        baseline = arm.name == space.baseline_name
        return StudyArm(arm.name, space.knobs_of(arm), space.ties_of(arm), layers, protocol, baseline)

    def _layers_of(self, arm: Arm, protocol: Protocol | None) -> tuple[Layer, ...]:
        """Return an arm's settings by source; later layers win: data set, recipe, protocol, space, user, arm."""
        loss = {**self.settings, **arm.settings}.get("loss.name", self.space.fixed.get("loss.name"))
        fixed = self.space.fixed
        if protocol is not None and loss != fixed.get("loss.name") and loss in protocol.methods:
            # the protocol is printed for this loss; the space fixes settings of another loss
            fixed = {path: value for path, value in fixed.items() if not path.startswith("loss.")}
        if self.space.program is not None:
            overridable = {path: value for path, value in fixed.items() if path not in self.settings}
            return (Layer(f"space {self.space.name}", overridable), Layer("--set", self.settings))
        layers = [Layer("--dataset", {"data.name": self.dataset})]
        stated = stated_layers(f"space {self.space.name}", self.space.stated)
        stated += stated_layers(f"arm {arm.name}", arm.stated)
        lr = {**fixed, **self.settings, **arm.settings}.get("optim.lr")
        layers += method_layers(protocol, loss, stated, self.part, lr)
        layers += [Layer(f"space {self.space.name}", fixed), Layer("--set", self.settings)]
        return (*layers, Layer(f"arm {arm.name}", arm.settings)) if arm.settings else tuple(layers)


def study_of(request: Request) -> Study:
    """Read the space or the sweep file and fill in the request's defaults. Raise ConfigError for an unknown space."""
    space, request, problems = python_numbers(_space_of(request))
    if space.program is not None:
        space, margin_problems = with_margin(with_notes(space, request.settings), request.margin)
        problems = [*problems, *margin_problems]
    dataset = request.dataset or space.default_dataset
    samples = request.num_samples or 0
    seeds = listed_seeds(3 if request.seeds is None else request.seeds)
    fixed_seeds = _fixed_seeds(request.vary, seeds)
    settings = _with_absolute_paths({**fixed_seeds, **(request.settings or {})}, request.data_root)
    part = None if space.program else training_part(dataset, settings, _task(space, settings))
    space, fitted = fitting_space(space, part, settings)
    study = Study(
        name=_default_name(space, dataset, [str(request.vary)] if fixed_seeds else [])
        if request.name is None
        else request.name,
        space=space,
        dataset=dataset,
        seeds=seeds,
        settings=settings,
        search=Search(
            "gp" if request.search == "bayes" else request.search or "grid",
            samples,
            max(4, samples // 5),
            stopping=request.stopping,
        ),
        margin=request.margin,
        problems=tuple(problems),
        protocol=request.protocol,
        part=part,
        notes=(*fitted, *untuned_notes(space, dataset, {**settings, **dict.fromkeys(request.tune or ())})),
    )
    return with_arms(study, request.arms, request.tune)


def _task(space: Space, settings: Mapping[str, Value]) -> str:
    """Return the task that the user or the space names, by default retrieval."""
    return str({**space.fixed, **settings}.get("task.name", RETRIEVAL))


def _default_name(space: Space, dataset: str, further: Sequence[str]) -> str:
    """Return the default name of a sweep."""
    return "-".join([space.name, *([] if dataset == space.default_dataset else [dataset]), *further])


def _fixed_seeds(vary: Vary | None, seeds: Sequence[int]) -> dict[str, Value]:
    """Return settings that fix every source of randomness but one at the first seed; none if seeds vary all."""
    if vary in {None, "all"} or not seeds:
        return {}
    return {f"seeds.{source}": seeds[0] for source in SOURCES if source != vary}


def with_arms(study: Study, names: Sequence[str] | None, tune: Mapping[str, Sequence[Value]] | None = None) -> Study:
    """Return the study with these arms of its space, or all, each with the protocol printed for its method.

    `tune` gives every arm of the space a nuisance knob for each path, around the arm's value. Values for a knob that
    the space searches replace its grid.
    """
    space, tune = with_own_grids(study.space, tune or {})
    study, settings = replace(study, space=space), study.settings
    choices = {
        arm.name: ProtocolChoice(None)
        if space.program
        else choose_protocol(space, arm, study.dataset, settings, study.protocol)
        for arm in space.every_arm
    }
    chosen = {name: choices[name] for name in choices if not names or name in names}
    problems = [problem for choice in (chosen or choices).values() for problem in choice.problems]
    problems += _unknown_arms(space, [name for name in names or () if name not in choices])
    notes = (*study.notes, *_choice_notes(chosen), *_protocol_notes(chosen))
    arms = [study.make_arm(arm, choices[arm.name].protocol) for arm in space.every_arm]
    if not (problems or study.problems or COUNT in settings):
        space, count_notes = with_scaled_counts(space, arms)
        study, notes = replace(study, space=space), (*notes, *count_notes)
        arms = [study.make_arm(arm, choices[arm.name].protocol) for arm in space.every_arm]
    if tune and not (problems or study.problems):
        space, arms, problems = with_tuned_knobs(space, arms, tune)
        settings = {path: value for path, value in settings.items() if path not in tune}
    return replace(
        study,
        space=space,
        settings=settings,
        arms=tuple(arm for arm in arms if arm.name in chosen),
        problems=(*study.problems, *dict.fromkeys(problems)),
        notes=notes,
    )


def _space_of(request: Request) -> tuple[Space, Request, list[Problem]]:
    """Return the requested space, the request completed by its sweep file, and the file's problems."""
    if isinstance(request.space, Space):
        if (program := request.space.program) is None:
            return request.space, request, []
        names = [*request.space.fixed, *(knob.path for knob in request.space.knobs), *(request.settings or {})]
        return request.space, request, [*program.problems(names, option_place("command")), *refused_options(request)]
    name = request.space
    if not isinstance(name, str | Path):
        rule = "must be the name of a search space, the path of a sweep file, or a tune_dml.space.Space"
        remedy = "Write it to a sweep file (YAML), and pass its path." if isinstance(name, dict) else ""
        raise ConfigError(option_problem("space", rule, type(name).__name__, remedy))
    name = str(name)
    if not name.endswith(SWEEP_FILES):
        return find_space(name), request, []
    file, problems = read_with_problems(Path(name))
    assert isinstance(file.space, Space)  # noqa: S101 - a sweep file declares one
    stated = {option.name: value for option in fields(request) if (value := getattr(request, option.name)) is not None}
    completed = replace(file, **{**stated, "space": file.space})
    if file.space.program is not None:
        problems = [*problems, *refused_options(completed)]
    return file.space, completed, problems


def _unknown_arms(space: Space, names: Sequence[str]) -> list[Problem]:
    arm_names = [arm.name for arm in space.every_arm if arm.name]
    no_names = f"It is one arm without a name: leave {spell('arms')} out."
    remedies = {name: nearest(name, arm_names, what="arm") if arm_names else no_names for name in names}
    return [option_problem("arms", f"unknown arm of {space.name}:", name, remedies[name]) for name in names]


def _choice_notes(choices: Mapping[str, ProtocolChoice]) -> list[str]:
    """Return each note once, followed by its arms unless it applies to all."""
    arms: dict[str, list[str]] = {}
    for name, choice in choices.items():
        if choice.note:
            arms.setdefault(choice.note, []).append(name)
    return [
        note
        if len(names) == len(choices)
        else f"{note} ({', '.join(name or 'all but the baseline' for name in names)})"
        for note, names in arms.items()
    ]


def _protocol_notes(choices: Mapping[str, ProtocolChoice]) -> list[str]:
    """Return a note that names each arm's protocol, if the protocols differ."""
    names = {arm: choice.protocol.name if choice.protocol else "defaults" for arm, choice in choices.items()}
    if len(set(names.values())) < 2:
        return []
    listed = ", ".join(f"{arm or 'the others'} by {name}" for arm, name in names.items())
    return [f"each arm trains by its own protocol: {listed}; {spell('protocol', 'NAME')} trains all by one"]


def _with_absolute_paths(settings: dict[str, Value], data_root: str | Path | None) -> dict[str, Value]:
    """Return settings with absolute paths, because workers have other working directories."""
    if data_root is not None:
        settings["data.root"] = str(data_root)
    for path in ("data.root", "data.split_file", "task.evaluation_root"):
        if settings.get(path):
            settings[path] = str(expand_home(str(settings[path])).absolute())
    weights, mark, digest = str(settings.get("model.weights") or "").partition("#")
    if (file := expand_home(weights)).is_file():  # otherwise a checkpoint of torch, a URL or a package
        settings["model.weights"] = f"{file.absolute()}{mark}{digest}"
    return settings
