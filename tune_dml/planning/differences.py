"""Find the settings in which a run differs from a protocol, and group them into factors that can change alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainables.config import SECTIONS, MethodSection, Settings, TrialConfig, canonical, flat_names, identity_settings
from trainables.errors import ConfigError, Problem
from trainables.resolve import Layer, resolve
from tune_dml.catalogue import protocol_of_loss, protocols
from tune_dml.planning.arms.fitting import TrainingPart
from tune_dml.planning.arms.settings import method_layers, trial_layers
from tune_dml.planning.checks.effects import effective_settings
from tune_dml.planning.files.sweep_file import read_mapping
from tune_dml.planning.grouping import grouped
from tune_dml.space import Protocol, Value

_LENGTH = ("training.steps", "training.epochs")
_WITHOUT_EFFECT = ("evaluation.sheet", "evaluation.clustering", "evaluation.feature", "evaluation.keep", "seeds.")
"""Prefixes of settings that decide only what is shown or stored, or which seed is used."""
_SHARED = ("data.name", "task.name")
_EXAMPLE = "Example: loss: {name: triplet, margin: 0.2}, or loss.name: triplet."


@dataclass(frozen=True)
class Factor:
    """Settings that differ and change together: one setting, or a method with its knobs."""

    name: str
    yours: Mapping[str, Value]
    protocol: Mapping[str, Value]

    def joined_with(self, second: Factor) -> Factor:
        """Return a factor that changes the settings of both."""
        name = f"{self.name} with {second.name}"
        return Factor(name, {**self.yours, **second.yours}, {**self.protocol, **second.protocol})


@dataclass(frozen=True)
class Differences:
    """The differences between a user's run and a protocol."""

    reference: TrialConfig
    factors: tuple[Factor, ...]
    ineffective: tuple[str, ...] = ()  # settings that differ without an effect on training
    unscreened: tuple[str, ...] = ()  # settings that differ but cannot be mixed, because they choose other pictures

    def settings(self, chosen: Iterable[Factor]) -> dict[str, Value]:
        """Return the protocol's settings with the user's values of the chosen factors."""
        return _settings(self.reference, chosen)


def reference_config(protocol: Protocol, loss: str, part: TrainingPart | None = None) -> TrialConfig:
    """Return the configuration of a protocol, with this loss unless it names one. Raise ConfigError if it is invalid.

    `part` limits the batch of our own protocol to a folder's classes, as in a sweep.
    """
    own = {} if "loss.name" in protocol.settings else {"loss.name": loss}
    layers = method_layers(protocol, protocol.settings.get("loss.name", loss), part=part)
    return resolve(Layer("protocol", {"data.name": protocol.dataset}), *layers, Layer("loss", own)).config


def find_protocol(name: str | None, config: TrialConfig) -> Protocol:
    """Return the named protocol, or the one printed for the run's loss. Raise ConfigError if there is none."""
    if name is not None:
        if name not in protocols():
            remedy = "Or pass a number, such as --against 68.4."
            raise ConfigError(
                Problem("--against", "unknown protocol", name, remedy, known=protocols(), kind="protocol")
            )
        return protocols()[name]
    found = protocol_of_loss(config.data.name, config.task.name, config.loss.name)
    if found is None:
        rule = f"there is no protocol for {config.data.name}"
        remedy = "Declare one: see CONTRIBUTING.md, `A search space and a protocol`."
        raise ConfigError(Problem("--against", rule, None, remedy))
    return found


def read_trial_file(path: Path, protocol: Protocol | None) -> TrialConfig:
    """Read a run from a YAML file of sections or dotted settings; the protocol supplies missing settings.

    Raise ConfigError if the file cannot be read, or has wrong settings.
    """
    settings = _trial_settings(read_mapping(path, "configuration of a run", _EXAMPLE))
    return resolve(*trial_layers(protocol, settings), Layer(str(path), settings)).config


def is_trial_file(content: Mapping[str, object]) -> bool:
    """Return whether a mapping holds the settings of one run rather than a sweep."""
    return bool(content) and all(key == "seed" or key.partition(".")[0] in SECTIONS for key in content)


def _trial_settings(content: Settings) -> dict[str, Value]:
    """Return the dotted settings of a mapping of sections or dotted settings, without the seed."""
    flat: dict[str, Value] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif key != "seed":
            flat[key] = value
    return flat


def differences(run: TrialConfig, reference: TrialConfig) -> Differences:
    """Return how a run differs from a protocol's configuration.

    A method that differs forms one factor with its knobs. A setting that is invalid or has no effect alone is joined
    with the setting that it needs. Raise ConfigError if the two have different data sets or tasks.
    """
    yours, theirs = _identity(run), _identity(reference)
    _refuse_other_data(yours, theirs)
    own_data = {f"data.{name}" for name in SECTIONS["data"].own_fields()}
    paths = [
        path
        for path in {**theirs, **yours}
        if yours.get(path) != theirs.get(path) or (path in yours) != (path in theirs)
    ]
    unscreened = tuple(path for path in paths if path.startswith("data.") and path not in own_data)
    factors = _group_paths([path for path in paths if path not in unscreened], run, reference)
    factors, idle = _join_stuck(factors, reference)
    return Differences(reference, tuple(factors), tuple(idle), unscreened)


def _identity(config: TrialConfig) -> dict[str, Value]:
    settings = identity_settings(config.settings())
    full = config.settings()
    left_out = {"seed", "data.root", "task.evaluation_root"}
    return {p: full[p] for p in full if p in settings or (p not in left_out and not p.startswith(_WITHOUT_EFFECT))}


def _refuse_other_data(yours: Settings, theirs: Settings) -> None:
    for path in _SHARED:
        if yours.get(path) != theirs.get(path):
            rule = f"the run has {path}={yours.get(path)}, the protocol {theirs.get(path)}: no setting can be compared"
            fitting = [p.name for p in protocols().values() if p.dataset == yours["data.name"]]
            remedy = f"Those for {yours['data.name']}: {', '.join(fitting) or 'none'}."
            raise ConfigError(Problem("--against", rule, None, remedy))


def _group_paths(paths: Sequence[str], run: TrialConfig, reference: TrialConfig) -> list[Factor]:
    """Return a factor for each differing method, for the length of training, and for each other differing setting."""
    yours, theirs = run.settings(), reference.settings()
    return [
        Factor(
            name,
            {path: yours[path] for path in members if path in yours},
            {path: theirs[path] for path in members if path in theirs},
        )
        for name, members in grouped(paths, lambda path: _factor_name(path, run, reference)).items()
    ]


def _factor_name(path: str, run: TrialConfig, reference: TrialConfig) -> str:
    """Return the name of a setting's factor: its method if the runs have different ones, otherwise the setting."""
    if path in _LENGTH:
        return "training.steps" if reference.training.steps is not None else "training.epochs"
    section, _, name = path.partition(".")
    model = SECTIONS[section]
    if not issubclass(model, MethodSection) or name in model.chooses:
        return path
    for config in (run, reference):
        part = getattr(config, section)
        for (chooser, _), knob in flat_names(model, part.parameters).items():
            if knob == name and getattr(run, section).flat[chooser] != getattr(reference, section).flat[chooser]:
                return f"{section}.{chooser}"
    return path


def _join_stuck(factors: list[Factor], reference: TrialConfig) -> tuple[list[Factor], list[str]]:
    """Join each factor that cannot change alone with another. Return the factors, and names of those without effect."""
    idle: list[str] = []
    while (stuck := next((factor for factor in factors if _is_stuck(factor, factors, reference)), None)) is not None:
        others = [factor for factor in factors if factor is not stuck]
        if _is_idle(stuck, others, reference):
            idle.append(stuck.name)
            factors = others
            continue
        nearest_first = sorted(others, key=lambda factor: factor.name.partition(".")[0] != stuck.name.partition(".")[0])
        partner = next((factor for factor in nearest_first if _frees(factor, stuck, others, reference)), None)
        if partner is None:
            rule = f"{stuck.name} of the run cannot be combined with the protocol's other settings"
            raise ConfigError(Problem("--against", rule, None, "Name a protocol that is nearer to the run."))
        factors = [partner.joined_with(stuck) if factor is partner else factor for factor in others]
    return factors, idle


def _is_stuck(factor: Factor, factors: Sequence[Factor], reference: TrialConfig) -> bool:
    """Return whether a factor is invalid or has no effect if only it changes, or if all others do."""
    others = [f for f in factors if f is not factor]
    return not (_differ(reference, [], [factor]) and _differ(reference, others, factors))


def _is_idle(factor: Factor, others: Sequence[Factor], reference: TrialConfig) -> bool:
    """Return whether a factor has no effect, neither in the protocol's run nor in the user's."""
    neither, alone, rest, every = (_trained(reference, chosen) for chosen in ([], [factor], others, [*others, factor]))
    return alone is not None and rest is not None and alone == neither and rest == every


def _frees(partner: Factor, stuck: Factor, others: Sequence[Factor], reference: TrialConfig) -> bool:
    """Return whether a stuck factor can change together with a partner."""
    joined = partner.joined_with(stuck)
    return not _is_stuck(joined, [joined, *(f for f in others if f is not partner)], reference)


def _differ(reference: TrialConfig, first: Sequence[Factor], second: Sequence[Factor]) -> bool:
    """Return whether both combinations are valid and train different trials."""
    keys = _trained(reference, first), _trained(reference, second)
    return None not in keys and keys[0] != keys[1]


def _trained(reference: TrialConfig, chosen: Sequence[Factor]) -> str | None:
    """Return what a combination of factors trains, as canonical text; None if it is invalid."""
    try:
        return canonical(effective_settings(resolve(Layer("audit", _settings(reference, chosen))).config.settings()))
    except ConfigError:
        return None


def _settings(reference: TrialConfig, chosen: Iterable[Factor]) -> dict[str, Value]:
    settings = dict(reference.settings())
    for factor in chosen:
        for path in factor.protocol:
            settings.pop(path, None)
        settings |= factor.yours
    return settings
