"""From settings to a checked configuration: layers, registries of methods, and every rule that needs no data.

    resolved = resolve(Layer("protocol", {...}), Layer("--set", {...}))     later layers win; raises ConfigError, all problems
    resolved.config, resolved.origins                                      the configuration; where each setting comes from
    config = read_settings(config.settings())                              back from the flat form that was resolved before

Within a section a method's knob is named by itself (`model.weights`), and by the field that names the method too where two of
the section's methods share the name (`model.pooling.p`). Imports no torch: methods are looked up when settings are resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from pydantic import ValidationError

from trainables.config import SECTIONS, ConfigSection, MethodSection, TrainingConfig, TrialConfig, Value, flat_names
from trainables.errors import ConfigError, Problem, nearest
from trainables.methods import checked_knobs, knob_names, problems_of
from trainables.option_names import option_names
from trainables.registries import KINDS, knob_keys, method_named, methods_chosen, methods_of, presets_of

_LENGTHS = ("training.steps", "training.epochs")
FOLLOWS_LENGTH = "the length of training"
"""Where `training.eval_every` comes from when it was shortened with a training that ends before it."""
_SECTION_MEMORY = 4096  # checked sections that are remembered: the cells of a sweep differ in a few of theirs


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
    layered: Layered = field(repr=False)

    @cached_property
    def origins(self) -> dict[str, str]:
        """Where each setting of the configuration comes from; `default` where no layer gave it."""
        given = self.layered.origins_by_path()
        return {path: given.get(path, "default") for path in self.config.settings()}


def resolve(*layers: Layer) -> Resolved:
    """Merge layers of flat dotted settings, fill in defaults and check every rule that needs no data.

    A layer that changes a method (`loss.name`) drops that method's knobs set by earlier layers, since they were
    meant for another one; of `training.steps` and `training.epochs` the one set by the later layer counts.
    Raises ConfigError with every problem of every section.
    """
    return Layered().over(*layers).resolve()


def read_settings(settings: Mapping[str, Value]) -> TrialConfig:
    """The configuration whose flat form this is, as `TrialConfig.settings` wrote it after it was resolved.

    Types, domains and names are checked again, rules that tie sections together are not. Raises ConfigError.
    """
    config, _, problems = Layered().over(Layer("settings", settings)).draft()
    if problems:
        raise ConfigError(problems)
    return config


@dataclass(frozen=True)
class _Part:
    """The settings of one section so far, and the methods they choose; equal where they are written the same."""

    section: str
    settings: Mapping[str, Value] = field(compare=False)
    """Fields by name, knobs by `chooser.knob`; what neither is by the name that was given."""
    methods: Mapping[str, type] = field(compare=False)
    """Field -> class, as far as the names are known."""
    text: str

    @classmethod
    def of(cls, section: str, settings: Mapping[str, Value], methods: Mapping[str, type]) -> _Part:
        return cls(section, settings, methods, repr((sorted(settings.items()), list(map(id, methods.values())))))


@dataclass(frozen=True)
class Layered:
    """Layers of settings laid over each other, not yet checked."""

    parts: Mapping[str, _Part] = field(default_factory=dict)
    others: Mapping[str, Value] = field(default_factory=dict)
    """What belongs to no section: the seed, and settings nobody knows."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each setting comes from, a knob by its full path `section.chooser.knob`."""
    problems: tuple[Problem, ...] = ()

    def over(self, *layers: Layer) -> Layered:
        """These settings with further layers on top."""
        layered = self
        for layer in layers:
            layered = layered._with(layer)
        return layered

    def _with(self, layer: Layer) -> Layered:
        """One layer on top: what changes a method drops that method's knobs, with their origins."""
        parts, others, origins = dict(self.parts), dict(self.others), dict(self.origins)
        problems = list(self.problems)
        given: dict[str, dict[str, Value]] = {}
        for path, value in {**layer.settings, **_length(layer.settings)}.items():
            section, _, name = path.partition(".")
            if section in SECTIONS and name:
                given.setdefault(section, {})[name] = value
            else:
                others[path], origins[path] = value, layer.origin_of(path)
        for section, own in given.items():
            before = parts.get(section) or _Part.of(section, {}, {})
            parts[section], keys, wrong = _laid_over(before, own)
            for name in before.settings.keys() - parts[section].settings.keys():
                del origins[f"{section}.{name}"]
            origins |= {f"{section}.{key}": layer.origin_of(f"{section}.{name}") for name, key in keys.items()}
            if section == "training" and (shorter := _evaluated_sooner(parts[section], own)) is not None:
                parts[section] = shorter
                origins["training.eval_every"] = FOLLOWS_LENGTH
            problems += [_placed(p, layer.origin_of(p.place)) for p in wrong]
        return Layered(parts, others, origins, tuple(problems))

    def resolve(self) -> Resolved:
        """The configuration; raises ConfigError with every problem."""
        config, sound, problems = self.draft()
        problems += _cross_checks(config, sound)
        if problems:
            origins = self.origins_by_path()
            raise ConfigError(_placed(p, origins[p.place]) if p.place in origins else p for p in problems)
        return Resolved(config, self)

    def draft(self) -> tuple[TrialConfig, Mapping[str, ConfigSection], list[Problem]]:
        """A configuration of the sections that are sound in themselves, these sections, and the problems of the others."""
        problems = list(self.problems)
        sound = {}
        for name in SECTIONS:
            section, wrong = _section(self.parts.get(name) or _Part.of(name, {}, methods_chosen(name, {})))
            problems += wrong
            if section is not None:
                sound[name] = section
        seed = self.others.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            problems.append(Problem("seed", "must be a whole number >= 0", seed))
            seed = 0
        problems += [self._unknown(path) for path in self.others if path != "seed"]
        return TrialConfig(**{**sound, "seed": seed}), sound, problems

    def _unknown(self, path: str) -> Problem:
        """A setting that belongs to no section, and those that may be meant: `rho` is `regularizer.rho` while SEC is chosen."""
        known = ["seed", *(f"{name}.{key}" for name, model in SECTIONS.items() for key in model.own_fields())]
        for name in SECTIONS:
            methods = self.parts[name].methods if name in self.parts else methods_chosen(name, {})
            known += [f"{name}.{knob}" for method in methods.values() for knob in sorted(knob_names(method))]
        if path in SECTIONS:
            own = [name for name in known if name.startswith(f"{path}.")]
            return Problem(path, "a section is no setting", None, f"Set one of {', '.join(own)}.")
        remedy = nearest(path, known, what="setting", dotted=True)
        listed = remedy.startswith("Known")
        remedy = "Settings are dotted, like loss.margin; `tune-dml train --show` lists them." if listed else remedy
        return Problem(path, "unknown setting", None, remedy)

    def origins_by_path(self) -> dict[str, str]:
        """The origin of each setting, of a knob both by its full path and by `section.knob`."""
        origins = {}
        for path, origin in self.origins.items():
            section, _, name = path.partition(".")
            chooser, dot, knob = name.partition(".")
            if dot and chooser in SECTIONS[section].chooses and knob not in SECTIONS[section].own_fields():
                origins[f"{section}.{knob}"] = origin
            origins[path] = origin
        return origins


def _laid_over(part: _Part, given: Mapping[str, Value]) -> tuple[_Part, dict[str, str], list[Problem]]:
    """A section's settings with others on top, the key under which each of these is kept, and what cannot be understood.

    Knobs set so far are dropped where their method is replaced by another one.
    """
    section, model = part.section, SECTIONS[part.section]
    fields = model.own_fields()
    changed = {
        chooser
        for chooser in model.chooses
        if chooser in given and given[chooser] != method_named(section, chooser, part.settings)
    }
    kept = tuple(f"{chooser}." for chooser in model.chooses if chooser not in changed)
    settings = {n: v for n, v in part.settings.items() if not changed or n in fields or n.startswith(kept)}
    methods = methods_chosen(section, {**settings, **given})
    keys, problems = {}, []
    for name, value in given.items():
        candidates = [name] if name in fields else knob_keys(section, name, methods) or [name]
        if len(candidates) > 1:
            paths = [f"{section}.{key}" for key in candidates]
            rule = f"several methods have a knob of this name: {' and '.join(paths)}"
            remedy = f"Set the one that is meant: {' or '.join(paths)}."
            problems.append(Problem(f"{section}.{name}", rule, value, remedy))
            continue
        keys[name] = candidates[0]
        settings[candidates[0]] = value
    return _Part.of(section, settings, methods), keys, problems


def _evaluated_sooner(part: _Part, given: Mapping[str, Value]) -> _Part | None:
    """The settings of training with an evaluation at its end, where a layer made it shorter than the first evaluation is away."""
    steps = given.get("steps")
    every = part.settings.get("eval_every", TrainingConfig().eval_every)
    if "eval_every" in given or not isinstance(steps, int) or not isinstance(every, int) or not 0 < steps < every:
        return None
    return _Part.of(part.section, {**part.settings, "eval_every": steps}, part.methods)


def _length(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Steps and epochs exclude each other: to set one is to take back the other."""
    given = [path for path in _LENGTHS if settings.get(path) is not None]
    return {path: None for path in _LENGTHS if len(given) == 1 and path not in given}


def _placed(problem: Problem, origin: str) -> Problem:
    return replace(problem, place=option_names().setting(problem.place, origin))


@lru_cache(_SECTION_MEMORY)
def _section(part: _Part) -> tuple[ConfigSection | None, tuple[Problem, ...]]:
    """One section from its settings, None where it is not sound, and its problems."""
    model, name = SECTIONS[part.section], part.section
    known = list(model.own_fields())
    own: dict[str, Any] = {key: value for key, value in part.settings.items() if key in known}
    knobs = {key: value for key, value in part.settings.items() if key not in own}
    wrong: list[Problem] = []
    if issubclass(model, MethodSection):
        own["parameters"], wrong = _chosen_knobs(part, model)
        known += [knob for method in part.methods.values() for knob in sorted(knob_names(method))]
        some_unknown = len(part.methods) < len(model.chooses)  # the rest may be knobs of the one that was meant
        knobs = {} if some_unknown else {k: v for k, v in knobs.items() if k.partition(".")[0] not in model.chooses}
    paths = [f"{name}.{key}" for key in known]
    unknown = [_unknown_in(part, key, paths) for key in sorted(knobs)]
    try:
        section = model(**own)
    except ValidationError as error:
        return None, (*wrong, *unknown, *problems_of(error, name, known))
    return None if wrong else section, (*wrong, *unknown)


def _unknown_in(part: _Part, key: str, known: Sequence[str]) -> Problem:
    """A setting that no chosen method of its section has, and the methods that have it; else what may be meant."""
    path = f"{part.section}.{key}"
    for chooser, registry in SECTIONS[part.section].chooses.items():
        own = method_named(part.section, chooser, part.settings)
        others = [name for name, method in methods_of(registry).items() if key in knob_names(method)]
        if others and own in methods_of(registry):
            remedy = f"Leave it out, or set {part.section}.{chooser} to what has it: {', '.join(others)}."
            return Problem(path, f"unknown setting of {own}", None, remedy)
    return Problem(path, "unknown setting", None, nearest(path, known, what="setting", dotted=True))


def _chosen_knobs(part: _Part, model: type[MethodSection]) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """The knobs of each method that a section chooses, checked."""
    names = flat_names(model, {chooser: knob_names(method) for chooser, method in part.methods.items()})
    parameters = {}
    problems: list[Problem] = []
    for chooser, registry in model.chooses.items():
        method = method_named(part.section, chooser, part.settings)
        if chooser not in part.methods:
            kind = KINDS.get(registry, registry)
            remedy = nearest(method, list(methods_of(registry)), what=kind)
            problems.append(Problem(f"{part.section}.{chooser}", f"unknown {kind}", method, remedy))
            continue
        given = {k.partition(".")[2]: v for k, v in part.settings.items() if k.startswith(chooser + ".")}
        shared = any("." in name for (field_name, _), name in names.items() if field_name == chooser)
        place = f"{part.section}.{chooser}" if shared else part.section
        knobs = {**presets_of(registry, method), **given}
        parameters[chooser], wrong = checked_knobs(part.methods[chooser], knobs, place)
        problems += wrong
    return parameters, problems


def _cross_checks(config: TrialConfig, sound: Mapping[str, ConfigSection]) -> list[Problem]:
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
    if "loss" in sound:
        problems += _memory_problems(config)
    if data.folds is not None and data.fold >= data.folds:
        problems.append(Problem("data.fold", f"must lie in 0 .. {data.folds - 1}", data.fold))
    if model.freeze_bn_affine and not model.freeze_bn:
        rule = "only a frozen batch normalisation can keep its gamma and beta"
        problems.append(Problem("model.freeze_bn_affine", rule, True, "Set model.freeze_bn=true."))
    if "task" in sound:
        problems += task_of(config).problems()
    return [problem for problem in problems if problem.place.partition(".")[0] in sound]


def _memory_problems(config: TrialConfig) -> list[Problem]:
    from trainables.losses import LOSSES
    from trainables.losses.parts.pairs import PairLoss

    memory, loss = config.memory, config.loss.name
    if memory.size and not issubclass(LOSSES[loss], PairLoss):
        pairs = ", ".join(name for name, cls in LOSSES.items() if issubclass(cls, PairLoss))
        rule = f"only a loss of pairs can compare a batch with remembered pictures, and {loss} is none"
        return [Problem("memory.size", rule, memory.size, f"Set memory.size=0, or loss.name to one of {pairs}.")]
    if not memory.size and (memory.start or memory.weight != 1):
        given = f"start={memory.start}, weight={memory.weight:g}"
        rule = "settings of a memory that holds nothing change nothing"
        return [Problem("memory.size", rule, f"{memory.size} with {given}", "Set memory.size to a number of pictures.")]
    return []


def _length_problems(training: TrainingConfig) -> list[Problem]:
    steps, epochs = training.steps, training.epochs
    if (steps is None) == (epochs is None):
        rule = "give either training.steps or training.epochs"
        return [Problem("training.steps", rule, {"steps": steps, "epochs": epochs}, "Set one to null.")]
    if steps is not None and training.eval_every > steps:
        rule = f"must not exceed training.steps ({steps})"
        remedy = "Lower it, or leave it out: then it follows training.steps."
        return [Problem("training.eval_every", rule, training.eval_every, remedy)]
    return []
