"""From settings to a checked configuration: layers, registries of methods, and every rule that needs no data.

    resolved = resolve(Layer("protocol", {...}), Layer("--set", {...}))     later layers win; raises ConfigError, all problems
    resolved.config, resolved.origins                                      the configuration; where each setting comes from
    config = read_settings(config.settings())                              back from the flat form that was resolved before

Within a section a method's knob is named by itself (`model.weights`), and by the field that names the method too where two of
the section's methods share the name (`model.pooling.p`). Imports no torch: methods are looked up when settings are resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from pydantic import ValidationError

from trainables.config import (
    SECTIONS,
    MethodSection,
    Section,
    TrainingConfig,
    TrialConfig,
    Value,
    flat_names,
)
from trainables.errors import ConfigError, Problem, nearest
from trainables.methods import KnobDomain, checked_knobs, domain_of_rules, parameters_of, problems_of

LENGTHS = ("training.steps", "training.epochs")
SECTION_MEMORY = 4096  # checked sections that are remembered: the cells of a sweep differ in a few of theirs


@dataclass(frozen=True)
class Layer:
    """Settings from one source, for `--set`, a file, a space, a protocol: the later layer wins."""

    origin: str
    settings: Mapping[str, Value]
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where single settings come from, more exactly than `origin` says."""

    def origin_of(self, path: str) -> str:
        """Where a setting of this layer comes from."""
        return self.sources.get(path, self.origin)


@dataclass(frozen=True)
class Resolved:
    """What layers of settings come to."""

    config: TrialConfig
    origins: Mapping[str, str]
    """Where each setting of the configuration comes from; `default` where no layer gave it."""


def resolve(*layers: Layer) -> Resolved:
    """Merge layers of flat dotted settings, fill in defaults and check every rule that needs no data.

    A layer that changes a method (`loss.name`) drops that method's knobs set by earlier layers, since they were
    meant for another one; of `training.steps` and `training.epochs` the one set by the later layer counts.
    Raises ConfigError with every problem of every section.
    """
    merged = _merge(layers)
    sound, problems = _sections_of(merged.settings)
    seed = merged.settings.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        problems.append(Problem("seed", "must be a whole number >= 0", seed))
        seed = 0
    config = TrialConfig(**sound, seed=seed)  # type: ignore[arg-type]
    problems += _cross_checks(config, sound)
    origins = merged.origins_of(config)
    if problems or merged.problems:
        raise ConfigError([*merged.problems, *(_with_origin(problem, origins) for problem in problems)])
    return Resolved(config, {path: origins.get(path, "default") for path in config.settings()})


def read_settings(settings: Mapping[str, Value]) -> TrialConfig:
    """The configuration whose flat form this is, as `TrialConfig.settings` wrote it after it was resolved.

    Types, domains and names are checked again, rules that tie sections together are not. Raises ConfigError.
    """
    keyed = {_full_path(path, settings) or path: value for path, value in settings.items()}
    sound, problems = _sections_of(keyed)
    if problems:
        raise ConfigError(problems)
    return TrialConfig(**sound, seed=settings.get("seed", 0))  # type: ignore[arg-type]


def domain_of(path: str, settings: Mapping[str, Value]) -> KnobDomain:
    """The legal domain of a numeric setting under a cell's settings; unbounded where nothing is declared.

    Loads the methods' packages (and with them torch).
    """
    section, _, name = path.partition(".")
    model = SECTIONS.get(section)
    if model is None:
        return KnobDomain()
    if name in model.own_fields():
        info = model.model_fields[name]
        return domain_of_rules(info.metadata, info.annotation)
    full = _full_path(path, settings)
    if full is None:
        return KnobDomain()
    _, chooser, knob = full.split(".", 2)
    methods = _methods_chosen(section, settings)
    return next(item.numbers for item in parameters_of(methods[chooser]) if item.name == knob)


# ------------------------------------------------------------------------------------------------------------- methods


class _NoKnobs:
    """A method without knobs."""


@cache
def _registries() -> Mapping[str, Mapping[str, type]]:
    from trainables.data import DATASETS
    from trainables.data.augment import AUGMENTATIONS, Augmentation
    from trainables.losses import LOSSES
    from trainables.models import BACKBONES, HEADS, POOLINGS
    from trainables.optimizers import OPTIMIZERS
    from trainables.rates import RATES
    from trainables.regularizers import REGULARIZERS
    from trainables.tasks import TASKS

    return {
        "task": TASKS,
        "loss": LOSSES,
        "regularizer": REGULARIZERS,
        "data": DATASETS,
        "augment": {"none": _NoKnobs, **dict.fromkeys(AUGMENTATIONS, Augmentation)},
        "backbone": BACKBONES,
        "pooling": POOLINGS,
        "head": HEADS,
        "optimizer": OPTIMIZERS,
        "lr_schedule": RATES,
    }


def methods_of(registry: str) -> Mapping[str, type]:
    """Name -> class of the methods of one kind: task, loss, regularizer, data, augment, backbone, optimizer ..."""
    return _registries()[registry]


def _presets_of(registry: str, method: str) -> Mapping[str, object]:
    """The knobs in which a named variant of a method differs from its class's defaults."""
    from trainables.data.augment import AUGMENTATIONS

    return AUGMENTATIONS.get(method, {}) if registry == "augment" else {}


def _choosers(section: str) -> Mapping[str, str]:
    model = SECTIONS.get(section, Section)
    return model.chooses if issubclass(model, MethodSection) else {}


def _named(section: str, chooser: str, settings: Mapping[str, Value]) -> str:
    return str(settings.get(f"{section}.{chooser}", SECTIONS[section].model_fields[chooser].default))


def _methods_chosen(section: str, settings: Mapping[str, Value]) -> dict[str, type]:
    """Field -> class of the method that settings choose by it; a field with an unknown name is left out."""
    chosen = {}
    for chooser, registry in _choosers(section).items():
        method = methods_of(registry).get(_named(section, chooser, settings))
        if method is not None:
            chosen[chooser] = method
    return chosen


@cache
def _knob_names(method: type) -> frozenset[str]:
    return frozenset(knob.name for knob in parameters_of(method))


def _owners(path: str, settings: Mapping[str, Value]) -> list[str]:
    """The full paths `section.chooser.knob` that a path may mean under the chosen methods; none for a section's own field."""
    section, _, name = path.partition(".")
    if name in SECTIONS.get(section, Section).own_fields():
        return []
    chooser, dot, _ = name.partition(".")
    if dot and chooser in _choosers(section):
        return [path]
    methods = _methods_chosen(section, settings)
    return [f"{section}.{chooser}.{name}" for chooser, method in methods.items() if name in _knob_names(method)]


def _full_path(path: str, settings: Mapping[str, Value]) -> str | None:
    owners = _owners(path, settings)
    return owners[0] if len(owners) == 1 else None


# ------------------------------------------------------------------------------------------------------------- merging


@dataclass(frozen=True)
class _Merged:
    """Layers laid over each other; knobs are kept by their full paths, a name that no method knows as it was given."""

    settings: dict[str, Value] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, layer: Layer) -> None:
        for path in _abandoned(self.settings, layer.settings):
            del self.settings[path], self.origins[path]
        given = {**layer.settings, **_length(layer.settings)}
        chosen = {**self.settings, **given}
        for path, value in given.items():
            owners = _owners(path, chosen)
            if len(owners) > 1:
                rule = f"several methods have a knob of this name: {' and '.join(owners)}"
                where = f"{path} ({layer.origin_of(path)})"
                self.problems.append(Problem(where, rule, value, f"Set the one that is meant: {' or '.join(owners)}."))
                continue
            key = owners[0] if owners else path
            self.settings[key] = value
            self.origins[key] = layer.origin_of(path)

    def origins_of(self, config: TrialConfig) -> dict[str, str]:
        """The origins by full path and, of what the configuration has, by the path of its flat form."""
        origins = dict(self.origins)
        for name, section in config.sections():
            if isinstance(section, MethodSection):
                for (chooser, knob), flat in flat_names(type(section), section.parameters).items():
                    if (full := f"{name}.{chooser}.{knob}") in self.origins:
                        origins[f"{name}.{flat}"] = self.origins[full]
        return origins


def _merge(layers: tuple[Layer, ...]) -> _Merged:
    merged = _Merged()
    for layer in layers:
        merged.add(layer)
    return merged


def _abandoned(merged: Mapping[str, Value], settings: Mapping[str, Value]) -> list[str]:
    """The knobs set so far whose method a layer replaces by another one."""
    abandoned = []
    for section in SECTIONS:
        changed = {
            chooser
            for chooser in _choosers(section)
            if f"{section}.{chooser}" in settings
            and settings[f"{section}.{chooser}"] != _named(section, chooser, merged)
        }
        if not changed:
            continue
        kept = set(_choosers(section)) - changed
        for path in merged:
            owner, _, name = path.partition(".")
            if owner == section and name not in SECTIONS[section].own_fields() and name.partition(".")[0] not in kept:
                abandoned.append(path)
    return abandoned


def _length(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Steps and epochs exclude each other: to set one is to take back the other."""
    given = [path for path in LENGTHS if settings.get(path) is not None]
    return {path: None for path in LENGTHS if len(given) == 1 and path not in given}


# ------------------------------------------------------------------------------------------------------------- sections


@dataclass(frozen=True)
class _Part:
    """The settings of one section; equal where they are written the same."""

    text: str
    settings: Mapping[str, Value] = field(compare=False)


def _sections_of(settings: Mapping[str, Value]) -> tuple[dict[str, Section], list[Problem]]:
    """Every section that is sound in itself, from settings by full path, and the problems of the others."""
    parts: dict[str, dict[str, Value]] = {name: {} for name in SECTIONS}
    problems = []
    for path, value in sorted(settings.items()):
        section, _, name = path.partition(".")
        if section in parts:
            parts[section][name] = value
        elif path != "seed":
            known = [
                *TrialConfig.model_fields,
                *(f"{name}.{key}" for name, m in SECTIONS.items() for key in m.own_fields()),
            ]
            problems.append(Problem(path, "unknown setting", value, nearest(path, known, what="section")))
    sound = {}
    for name, part in parts.items():
        methods = _methods_chosen(name, settings)
        section, wrong = _section(name, tuple(methods.items()), _Part(repr(part), part))
        problems += wrong
        if section is not None and not wrong:
            sound[name] = section
    return sound, problems


@lru_cache(SECTION_MEMORY)
def _section(
    name: str, methods: tuple[tuple[str, type], ...], part: _Part
) -> tuple[Section | None, tuple[Problem, ...]]:
    """One section from its settings; `methods`: those it chooses, as far as their names are known."""
    model = SECTIONS[name]
    own: dict[str, Any] = {key: value for key, value in part.settings.items() if key in model.own_fields()}
    knobs = {key: value for key, value in part.settings.items() if key not in own}
    known = model.own_fields()
    problems: list[Problem] = []
    if issubclass(model, MethodSection):
        own["parameters"], problems = _chosen_knobs(name, dict(methods), own, knobs)
        known += [knob for _, method in methods for knob in sorted(_knob_names(method))]
        unknown_method = len(methods) < len(model.chooses)  # the rest may be knobs of the one that was meant
        knobs = {} if unknown_method else {k: v for k, v in knobs.items() if k.partition(".")[0] not in model.chooses}
    problems += [
        Problem(f"{name}.{key}", "unknown setting", value, nearest(key, known, what="setting"))
        for key, value in knobs.items()
    ]
    try:
        section = model(**own)
    except ValidationError as error:
        return None, (*problems, *problems_of(error, name, known))
    return section, tuple(problems)


def _chosen_knobs(
    section: str, methods: Mapping[str, type], own: Mapping[str, Value], knobs: Mapping[str, Value]
) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """The knobs of each method that a section chooses, checked; `knobs` by `chooser.knob`."""
    model = SECTIONS[section]
    assert issubclass(model, MethodSection)  # noqa: S101 - for the type checker: only such a section is asked
    names = flat_names(model, {chooser: _knob_names(method) for chooser, method in methods.items()})
    parameters = {}
    problems: list[Problem] = []
    for chooser, registry in model.chooses.items():
        name = str(own.get(chooser, model.model_fields[chooser].default))
        if chooser not in methods:
            remedy = nearest(name, list(methods_of(registry)), what="name")
            problems.append(Problem(f"{section}.{chooser}", f"unknown {registry} method", name, remedy))
            continue
        given = {key.partition(".")[2]: value for key, value in knobs.items() if key.partition(".")[0] == chooser}
        shared = any("." in flat for (field_name, _), flat in names.items() if field_name == chooser)
        place = f"{section}.{chooser}" if shared else section
        parameters[chooser], wrong = checked_knobs(methods[chooser], {**_presets_of(registry, name), **given}, place)
        problems += wrong
    return parameters, problems


# --------------------------------------------------------------------------------------------------------------- checks


def _with_origin(problem: Problem, origins: Mapping[str, str]) -> Problem:
    origin = origins.get(problem.place)
    return problem if origin is None else replace(problem, place=f"{problem.place} ({origin})")


def _cross_checks(config: TrialConfig, sound: Mapping[str, Section]) -> list[Problem]:
    """Rules that tie settings together and need no data.

    A section that is not sound in itself has its defaults in `config`; what follows from those is nobody's problem.
    """
    from trainables.regularizers.schedules import SCHEDULES
    from trainables.samplers import sampler_problems
    from trainables.tasks import task_of

    batch, data, model = config.batch, config.data, config.model
    problems = []
    if config.regularizer.schedule not in SCHEDULES:
        remedy = nearest(config.regularizer.schedule, list(SCHEDULES))
        problems.append(Problem("regularizer.schedule", "unknown name", config.regularizer.schedule, remedy))
    problems += sampler_problems(batch.sampler, batch.batch_size, batch.instances_per_class)
    problems += _length_problems(config.training)
    if data.folds is not None and data.fold >= data.folds:
        problems.append(Problem("data.fold", f"must lie in 0 .. {data.folds - 1}", data.fold))
    if model.freeze_bn_affine and not model.freeze_bn:
        rule = "only a frozen batch normalisation can keep its gamma and beta"
        problems.append(Problem("model.freeze_bn_affine", rule, True, "Set model.freeze_bn=true."))
    if "task" in sound:
        problems += task_of(config).problems()
    return [problem for problem in problems if problem.place.partition(".")[0] in sound]


def _length_problems(training: TrainingConfig) -> list[Problem]:
    steps, epochs = training.steps, training.epochs
    if (steps is None) == (epochs is None):
        rule = "give either training.steps or training.epochs"
        return [Problem("training.steps", rule, {"steps": steps, "epochs": epochs}, "Set one to null.")]
    if steps is not None and training.eval_every > steps:
        rule = f"training.eval_every must not exceed training.steps ({steps})"
        return [Problem("training.eval_every", rule, training.eval_every, "Lower it.")]
    return []
