"""Resolve layers of settings to a checked configuration.

    resolved = resolve(Layer("protocol", {...}), Layer("--set", {...}))     later layers win; raises ConfigError, all problems
    resolved.config, resolved.origins                                      the configuration; the origin of each setting
    config = read_settings(config.settings())                              back from the flat form

Within a section a knob has its own name (`model.weights`), or that of field and knob if methods share the name
(`model.pooling.p`). The module imports torch only to look up methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from pydantic import ValidationError

from trainables.config import (
    SECTIONS,
    SEED_LIMIT,
    ConfigSection,
    MethodSection,
    TrainingConfig,
    TrialConfig,
    Value,
    flat_names,
)
from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from trainables.methods import check_knobs, knob_names, problems_of, unknown_problem
from trainables.option_names import option_names
from trainables.registries import KINDS, knob_keys, method_name, methods_chosen, methods_of, presets_of

_LENGTHS = ("training.steps", "training.epochs")
FOLLOWS_LENGTH = "the length of training"
"""Origin of a `training.eval_every` that was shortened with the training."""
_SECTION_MEMORY = 4096  # cached sections: a sweep's cells share most of theirs


@dataclass(frozen=True)
class Layer:
    """Settings from one source: `--set`, a file, a space, a protocol."""

    origin: str
    settings: Mapping[str, Value]
    sources: Mapping[str, str] = field(default_factory=dict)  # more exact origins of single settings

    def origin_of(self, path: str) -> str:
        """Return the origin of a setting of this layer."""
        return self.sources.get(path, self.origin)


@dataclass(frozen=True)
class ResolvedConfig:
    """A checked configuration and the layers that it comes from."""

    config: TrialConfig
    stack: LayerStack = field(repr=False)

    @cached_property
    def origins(self) -> dict[str, str]:
        """Origin of each setting; `default` if no layer gave it."""
        stated = self.stack.origins_by_path()
        return {path: stated.get(path, "default") for path in self.config.settings()}


def resolve(*layers: Layer) -> ResolvedConfig:
    """Merge layers of flat dotted settings, fill in defaults and check every rule that needs no data.

    A layer that changes a method (`loss.name`) drops the previous method's knobs. Of `training.steps` and
    `training.epochs`, the one in the later layer counts.

    Raises:
        ConfigError: every problem of every section.

    Example:
        >>> from trainables.resolve import Layer, resolve
        >>> resolved = resolve(Layer("--set", {"loss.name": "npair", "loss.scale": 10}))
        >>> resolved.config.settings()["loss.scale"], resolved.origins["loss.name"]
        (10.0, '--set')
    """
    return LayerStack().with_layers(*layers).resolve()


def read_settings(settings: Mapping[str, Value]) -> TrialConfig:
    """Return the configuration of resolved settings, as `TrialConfig.settings` wrote them.

    Check types, domains and names again, but not rules between sections. Raise ConfigError with every problem.
    """
    config, _, problems = LayerStack().with_layers(Layer("settings", settings)).draft()
    raise_if_any(problems)
    return config


@dataclass(frozen=True)
class _SectionSettings:
    """Merged settings of one section and the methods they choose; two are equal if their texts are equal."""

    section: str
    settings: Mapping[str, Value] = field(compare=False)
    """Fields by name, knobs by `chooser.knob`, and unknown settings as stated."""
    methods: Mapping[str, type] = field(compare=False)  # field -> class, for known names
    text: str

    @classmethod
    def of(cls, section: str, settings: Mapping[str, Value], methods: Mapping[str, type]) -> _SectionSettings:
        return cls(section, settings, methods, repr((sorted(settings.items()), list(map(id, methods.values())))))


@dataclass(frozen=True)
class LayerStack:
    """Merged layers of settings, not yet checked."""

    parts: Mapping[str, _SectionSettings] = field(default_factory=dict)
    unsectioned: Mapping[str, Value] = field(default_factory=dict)  # the seed, and unknown settings outside sections
    origins: Mapping[str, str] = field(default_factory=dict)
    """Origin of each setting, a knob by its full path `section.chooser.knob`."""
    problems: tuple[Problem, ...] = ()

    def with_layers(self, *layers: Layer) -> LayerStack:
        """Return these settings with further layers on top."""
        stack = self
        for layer in layers:
            stack = stack._add_layer(layer)
        return stack

    def _add_layer(self, layer: Layer) -> LayerStack:
        """Add one layer; a change of method drops that method's knobs and their origins."""
        parts, unsectioned, origins = dict(self.parts), dict(self.unsectioned), dict(self.origins)
        problems = list(self.problems)
        by_section: dict[str, dict[str, Value]] = {}
        for path, value in {**layer.settings, **_exclusive_length(layer.settings)}.items():
            section, _, name = path.partition(".")
            if section in SECTIONS and name:
                by_section.setdefault(section, {})[name] = value
            else:
                unsectioned[path], origins[path] = value, layer.origin_of(path)
        for section, own in by_section.items():
            old_part = parts.get(section) or _SectionSettings.of(section, {}, {})
            parts[section], keys, new_problems = _merge(old_part, own)
            for name in old_part.settings.keys() - parts[section].settings.keys():
                del origins[f"{section}.{name}"]
            origins |= {f"{section}.{key}": layer.origin_of(f"{section}.{name}") for name, key in keys.items()}
            if section == "training" and (shorter := _shorten_interval(parts[section], own)) is not None:
                parts[section] = shorter
                origins["training.eval_every"] = FOLLOWS_LENGTH
            problems += [_with_place(p, layer.origin_of(p.place)) for p in new_problems]
        return LayerStack(parts, unsectioned, origins, tuple(problems))

    def resolve(self) -> ResolvedConfig:
        """Return the configuration. Raise ConfigError with every problem."""
        config, valid, problems = self.draft()
        problems += _cross_problems(config, valid)
        if problems:
            origins = self.origins_by_path()
            raise ConfigError(_with_place(p, origins[p.place]) if p.place in origins else p for p in problems)
        return ResolvedConfig(config, self)

    def draft(self) -> tuple[TrialConfig, Mapping[str, ConfigSection], list[Problem]]:
        """Return a configuration of the valid sections, these sections, and the problems of the others."""
        problems = list(self.problems)
        valid = {}
        for name in SECTIONS:
            part = self.parts.get(name) or _SectionSettings.of(name, {}, methods_chosen(name, {}))
            section, section_problems = _check_section(part)
            problems += section_problems
            if section is not None:
                valid[name] = section
        seed = self.unsectioned.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEED_LIMIT:
            problems.append(Problem("seed", "must be a whole number from 0, below 2^63", seed))
            seed = 0
        problems += [self._unknown_problem(path) for path in self.unsectioned if path != "seed"]
        return TrialConfig(**{**valid, "seed": seed}), valid, problems

    def _unknown_problem(self, path: str) -> Problem:
        """Return the problem of a setting outside all sections, with similar names."""
        names = ["seed", *(f"{name}.{key}" for name, model in SECTIONS.items() for key in model.own_fields())]
        for name in SECTIONS:
            methods = self.parts[name].methods if name in self.parts else methods_chosen(name, {})
            names += [f"{name}.{knob}" for method in methods.values() for knob in sorted(knob_names(method))]
        if path in SECTIONS:
            own = [name for name in names if name.startswith(f"{path}.")]
            return Problem(path, "is a section, not a setting", None, f"Set one of {', '.join(own)}.")
        remedy = nearest(path, names, what="setting", dotted=True)
        is_list = remedy.startswith("Known")
        remedy = "Settings are dotted, like loss.margin; `tune-dml train --show` lists them." if is_list else remedy
        return Problem(path, "unknown setting", None, remedy)

    def origins_by_path(self) -> dict[str, str]:
        """Return the origin of each setting; knobs have their full path and `section.knob`."""
        origins = {}
        for path, origin in self.origins.items():
            section, _, name = path.partition(".")
            chooser, dot, knob = name.partition(".")
            if dot and chooser in SECTIONS[section].chooses and knob not in SECTIONS[section].own_fields():
                origins[f"{section}.{knob}"] = origin
            origins[path] = origin
        return origins


def _merge(
    part: _SectionSettings, changes: Mapping[str, Value]
) -> tuple[_SectionSettings, dict[str, str], list[Problem]]:
    """Return a section's settings with new ones on top, the key of each new setting, and problems.

    Drop the knobs of a method that another method replaces.
    """
    section, model = part.section, SECTIONS[part.section]
    fields = model.own_fields()
    changed = {
        chooser
        for chooser in model.chooses
        if chooser in changes and changes[chooser] != method_name(section, chooser, part.settings)
    }
    kept_prefixes = tuple(f"{chooser}." for chooser in model.chooses if chooser not in changed)
    settings = {n: v for n, v in part.settings.items() if not changed or n in fields or n.startswith(kept_prefixes)}
    methods = methods_chosen(section, {**settings, **changes})
    keys, problems = {}, []
    for name, value in changes.items():
        candidates = [name] if name in fields else knob_keys(section, name, methods) or [name]
        if len(candidates) > 1:
            paths = [f"{section}.{key}" for key in candidates]
            rule = f"several methods have a knob of this name: {' and '.join(paths)}"
            remedy = f"Set one of them by its full name: {' or '.join(paths)}."
            problems.append(Problem(f"{section}.{name}", rule, value, remedy))
            continue
        keys[name] = candidates[0]
        settings[candidates[0]] = value
    return _SectionSettings.of(section, settings, methods), keys, problems


def _shorten_interval(part: _SectionSettings, changes: Mapping[str, Value]) -> _SectionSettings | None:
    """Return training's settings with an evaluation at its end, if a layer made it shorter than one interval."""
    steps, every = changes.get("steps"), part.settings.get("eval_every", TrainingConfig().eval_every)
    if "eval_every" in changes or not isinstance(steps, int | float) or not isinstance(every, int | float):
        return None  # 1e2 is a float
    shorter = {**part.settings, "eval_every": steps}
    return _SectionSettings.of(part.section, shorter, part.methods) if 0 < steps < every else None


def _exclusive_length(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Unset epochs if a layer sets steps, and steps if it sets epochs."""
    stated = [path for path in _LENGTHS if settings.get(path) is not None]
    return {path: None for path in _LENGTHS if len(stated) == 1 and path not in stated}


def _with_place(problem: Problem, origin: str) -> Problem:
    return replace(problem, place=option_names().setting(problem.place, origin))


@lru_cache(_SECTION_MEMORY)
def _check_section(part: _SectionSettings) -> tuple[ConfigSection | None, tuple[Problem, ...]]:
    """Return one section, None if it is invalid, and its problems."""
    model, name = SECTIONS[part.section], part.section
    names = list(model.own_fields())
    own: dict[str, Any] = {key: value for key, value in part.settings.items() if key in names}
    knobs = {key: value for key, value in part.settings.items() if key not in own}
    problems: list[Problem] = []
    if issubclass(model, MethodSection):
        own["parameters"], problems = _check_chosen_knobs(part, model)
        names += [knob for method in part.methods.values() for knob in sorted(knob_names(method))]
        is_incomplete = len(part.methods) < len(model.chooses)  # unknown knobs may belong to the misspelt method
        knobs = {} if is_incomplete else {k: v for k, v in knobs.items() if k.partition(".")[0] not in model.chooses}
    paths = [f"{name}.{key}" for key in names]
    unknown_problems = [_unknown_setting_problem(part, key, paths) for key in sorted(knobs)]
    try:
        section = model(**own)
    except ValidationError as error:
        return None, (*problems, *unknown_problems, *problems_of(error, name, names, model))
    return None if problems else section, (*problems, *unknown_problems)


def _unknown_setting_problem(part: _SectionSettings, key: str, known: Sequence[str]) -> Problem:
    """Return the problem of a setting that no chosen method has. Name methods that have it, or similar settings."""
    path = f"{part.section}.{key}"
    for chooser, registry in SECTIONS[part.section].chooses.items():
        own = method_name(part.section, chooser, part.settings)
        fitting = [name for name, method in methods_of(registry).items() if key in knob_names(method)]
        if fitting and own in methods_of(registry):
            remedy = f"Leave it out, or set {part.section}.{chooser} to a method that has it: {', '.join(fitting)}."
            return Problem(path, f"unknown setting of {own}", None, remedy)
    return Problem(path, "unknown setting", None, nearest(path, known, what="setting", dotted=True))


def _check_chosen_knobs(
    part: _SectionSettings, model: type[MethodSection]
) -> tuple[dict[str, dict[str, object]], list[Problem]]:
    """Return the checked knobs of each method that a section chooses."""
    names = flat_names(model, {chooser: knob_names(method) for chooser, method in part.methods.items()})
    parameters = {}
    problems: list[Problem] = []
    for chooser, registry in model.chooses.items():
        method = method_name(part.section, chooser, part.settings)
        if chooser not in part.methods:
            kind, place = KINDS.get(registry, registry), f"{part.section}.{chooser}"
            problems.append(unknown_problem(methods_of(registry), kind, method, place))
            continue
        stated = {key.partition(".")[2]: value for key, value in part.settings.items() if key.startswith(chooser + ".")}
        shared = any("." in name for (field_name, _), name in names.items() if field_name == chooser)
        place = f"{part.section}.{chooser}" if shared else part.section
        knobs = {**presets_of(registry, method), **stated}
        parameters[chooser], knob_problems = check_knobs(part.methods[chooser], knobs, place)
        problems += knob_problems
    return parameters, problems


def _cross_problems(config: TrialConfig, valid: Mapping[str, ConfigSection]) -> list[Problem]:
    """Check rules between settings that need no data.

    An invalid section has its defaults in `config`; problems of such sections are dropped.
    """
    from trainables.regularizers.schedules import SCHEDULES
    from trainables.samplers import sampler_problems
    from trainables.tasks import task_of

    batch, data, model = config.batch, config.data, config.model
    problems = []
    if config.regularizer.schedule not in SCHEDULES:
        schedule = config.regularizer.schedule
        problems.append(Problem("regularizer.schedule", "unknown name", schedule, known=SCHEDULES))
    problems += sampler_problems(batch.sampler, batch.batch_size, batch.instances_per_class)
    problems += _length_problems(config.training)
    if "loss" in valid:
        problems += _memory_problems(config)
    if data.folds is not None and data.fold >= data.folds:
        problems.append(Problem("data.fold", f"must lie in 0 .. {data.folds - 1}", data.fold))
    if model.freeze_bn_affine and not model.freeze_bn:
        rule = "only a frozen batch normalisation can keep its gamma and beta"
        problems.append(Problem("model.freeze_bn_affine", rule, True, "Set model.freeze_bn=true."))
    if "task" in valid:
        problems += task_of(config).problems()
    return [problem for problem in problems if problem.place.partition(".")[0] in valid]


def _memory_problems(config: TrialConfig) -> list[Problem]:
    from trainables.losses import LOSSES
    from trainables.losses.parts.pairs import PairLoss

    memory, loss = config.memory, config.loss.name
    if memory.size and not issubclass(LOSSES[loss], PairLoss):
        pairs = ", ".join(name for name, cls in LOSSES.items() if issubclass(cls, PairLoss))
        rule = f"only a pair loss can compare a batch with remembered pictures, and {loss} is not one"
        return [Problem("memory.size", rule, memory.size, f"Set memory.size=0, or loss.name to one of {pairs}.")]
    if not memory.size and (memory.start or memory.weight != 1):
        value = f"{memory.size} with start={memory.start}, weight={memory.weight:g}"
        rule = "settings of an empty memory have no effect"
        return [Problem("memory.size", rule, value, "Set memory.size to a number of pictures.")]
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
