"""Look up methods by the field that names them, and the domains of their knobs. Loads torch at first use."""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from trainables.config import SECTIONS, Value
from trainables.errors import Problem, raise_if_any
from trainables.methods import KnobDomain, domain_of_rules, knob_names, parameters_of


class _NoKnobs:
    """A method without knobs."""


KINDS: Mapping[str, str] = {"data": "data set", "augment": "augmentation", "lr_schedule": "learning-rate schedule"}
"""Registry -> name of its methods in messages, if it differs from the registry's name."""


@cache
def _registries() -> Mapping[str, Mapping[str, type]]:
    from trainables.data import DATASETS
    from trainables.data.augment import AUGMENTATIONS, Augmentation
    from trainables.losses import LOSSES
    from trainables.models import BACKBONES, HEADS, POOLINGS
    from trainables.optimizers import OPTIMIZERS
    from trainables.rates import RATES
    from trainables.regularizers import REGULARIZERS
    from trainables.samplers import SAMPLERS
    from trainables.tasks import TASKS

    registries: dict[str, Mapping[str, type]] = {
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
        "sampler": SAMPLERS,
    }
    for registry in registries.values():  # imports other packages before a trial starts
        len(registry)
    raise_if_any(_clash_problems(registries))
    return registries


def _clash_problems(registries: Mapping[str, Mapping[str, type]]) -> Iterator[Problem]:
    """Yield a problem for each knob that has the name of a setting of its section."""
    for section, model in SECTIONS.items():
        for registry in model.chooses.values():
            for cls in registries[registry].values():
                for name in sorted(knob_names(cls) & set(model.own_fields())):
                    rule = f"a knob must not be called like the setting {section}.{name}"
                    yield Problem(f"{cls.__module__}.{cls.__qualname__}", rule, name, "Rename it.")


def methods_of(registry: str) -> Mapping[str, type]:
    """Return name -> class of the methods of one kind: task, loss, regularizer, data, augment, backbone ..."""
    return _registries()[registry]


def presets_of(registry: str, method: str) -> Mapping[str, object]:
    """Return the knobs in which a named variant differs from its class's defaults."""
    from trainables.data.augment import AUGMENTATIONS

    return AUGMENTATIONS.get(method, {}) if registry == "augment" else {}


def method_name(section: str, chooser: str, settings: Mapping[str, Value]) -> str:
    """Return the name of the method that a section's settings choose, or the default."""
    return str(settings[chooser] if chooser in settings else SECTIONS[section].model_fields[chooser].default)


def methods_chosen(section: str, settings: Mapping[str, Value]) -> dict[str, type]:
    """Return field -> class of each method that a section's settings choose, without unknown names."""
    return {
        chooser: methods_of(registry)[name]
        for chooser, registry in SECTIONS[section].chooses.items()
        if (name := method_name(section, chooser, settings)) in methods_of(registry)
    }


def foreign_packages(settings: Mapping[str, Value]) -> set[str]:
    """Return the other packages whose code a trial trains with. Data sets do not count, because they only decode."""
    methods = [methods_of("sampler").get(method_name("batch", "sampler", _section_settings("batch", settings)))]
    for section in SECTIONS.keys() - {"data"}:
        methods += methods_chosen(section, _section_settings(section, settings)).values()
    return {method.__module__.partition(".")[0] for method in methods if method is not None} - {"trainables"}


def foreign_code(settings: Mapping[str, Value]) -> dict[str, str]:
    """Return module -> digest of its file for all imported modules of `foreign_packages`."""
    packages = foreign_packages(settings)
    digests: dict[str, str] = {}
    for name, module in sorted(sys.modules.items()) if packages else ():  # thousands of modules
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in packages and file and file.endswith(".py"):
            with suppress(OSError):  # the module is in an archive, or its file was deleted
                digests[name] = source_digest(file)
    return digests


def source_digest(file: str) -> str:
    """Return the digest of a module's file."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def _section_settings(section: str, settings: Mapping[str, Value]) -> dict[str, Value]:
    return {path.partition(".")[2]: value for path, value in settings.items() if path.startswith(section + ".")}


def knob_keys(section: str, name: str, methods: Mapping[str, type]) -> list[str]:
    """Return the knobs `chooser.knob` that a name may mean under the chosen methods."""
    chooser, dot, _ = name.partition(".")
    if dot and chooser in SECTIONS[section].chooses:
        return [name]
    return [f"{chooser}.{name}" for chooser, method in methods.items() if name in knob_names(method)]


def every_setting() -> list[str]:
    """Return the dotted names of all settings, including the knobs of every method."""
    names: dict[str, None] = {}
    for section, model in SECTIONS.items():
        names |= dict.fromkeys(f"{section}.{name}" for name in model.own_fields())
        for registry in model.chooses.values():
            knobs = [knob for method in methods_of(registry).values() for knob in sorted(knob_names(method))]
            names |= dict.fromkeys(f"{section}.{knob}" for knob in knobs)
    return list(names)


def domain_of(path: str, settings: Mapping[str, Value]) -> KnobDomain:
    """Return a numeric setting's domain under a cell's settings; unbounded without a declaration. Loads torch."""
    section, _, name = path.partition(".")
    if section not in SECTIONS:
        return KnobDomain()
    model = SECTIONS[section]
    if name in model.own_fields():
        info = model.model_fields[name]
        return domain_of_rules(info.metadata, info.annotation)
    methods = methods_chosen(section, _section_settings(section, settings))
    for key in knob_keys(section, name, methods):
        chooser, _, knob = key.partition(".")
        if chooser in methods:
            return next((item.numbers for item in parameters_of(methods[chooser]) if item.name == knob), KnobDomain())
    return KnobDomain()


def takes_whole_numbers(path: str, settings: Mapping[str, Value]) -> bool:
    """Return whether a setting takes whole numbers only, for every method that has it if none is chosen."""
    section, _, name = path.partition(".")
    if section not in SECTIONS or name in SECTIONS[section].own_fields():
        return domain_of(path, settings).integer
    declared = []
    for chooser, registry in SECTIONS[section].chooses.items():
        by_name, chosen = methods_of(registry), settings.get(f"{section}.{chooser}")
        methods = [by_name[chosen]] if isinstance(chosen, str) and chosen in by_name else by_name.values()
        declared += [item.numbers.integer for cls in methods for item in parameters_of(cls) if item.name == name]
    return bool(declared) and all(declared)
