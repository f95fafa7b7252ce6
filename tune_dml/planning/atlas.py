"""Build the space of an atlas: every numeric knob of every loss, one at a time around its default."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainables.errors import ConfigError, Problem
from trainables.methods import Parameter, parameters_of
from trainables.registries import methods_of
from tune_dml.catalogue import RETRIEVAL, protocol_of_loss
from tune_dml.space import Arm, Grid, Knob, Number, Protocol, Space, Value

_NUMBER_OF_VALUES = 8
_RATIOS = (1, 1 / 2, 2, 1 / 4, 4, 1 / 8, 8, 1 / 16, 16, 3 / 4, 3 / 2, 5 / 4, 7 / 4, 1 / 32)
"""Ratios of a value to the default, in order of preference."""
_VALUES_FROM_ZERO = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_LISTED_VALUES: Mapping[str, tuple[Number, ...]] = {
    "proxies_per_class": (1, 2, 3, 5, 7, 10, 15, 20),
    "threshold": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9),  # a cosine
}
_CENTRES: Mapping[tuple[str, str], Number] = {
    ("dro_topk", "k"): 160,
    ("dro_topk_pn", "k"): 80,
    ("dro_kl", "gamma"): 0.5,
    ("dro_kl_grouped", "gamma"): 0.1,
    ("dro_chi2", "radius"): 1.0,
}
"""Defaults for knobs without one, from our studies."""
_BINOMIAL_KNOBS = ("beta_pos", "beta_neg")
"""Knobs of the binomial pair term. The default pair term, margin, ignores them."""
_NOT_SEARCHED = ("sampling_seed", "samples")


def _knob_values(parameter: Parameter, default: Number) -> tuple[Number, ...]:
    """Return up to eight values of a knob in ascending order, its default among them.

    The values are the default times powers of two and ratios between them, as far as the knob's domain allows.
    """
    numbers = parameter.numbers
    listed = _LISTED_VALUES.get(parameter.name) or (
        _VALUES_FROM_ZERO if default == 0 else [default * ratio for ratio in _RATIOS]
    )
    rounded = [
        default if value == default else round(value) if numbers.integer else float(f"{value:.3g}") for value in listed
    ]
    allowed = [value for value in dict.fromkeys(rounded) if numbers.allows(value)]
    return tuple(sorted(allowed[:_NUMBER_OF_VALUES]))


def _atlas_knobs(loss: str) -> dict[str, tuple[Parameter, Number]]:
    own = parameters_of(methods_of("loss")[loss])
    has_base = any(parameter.name == "base" for parameter in own)
    knobs = {}
    for parameter in own:
        default = _CENTRES.get((loss, parameter.name), parameter.default)
        skipped = parameter.name in _NOT_SEARCHED or (has_base and parameter.name in _BINOMIAL_KNOBS)
        if isinstance(default, int | float) and not isinstance(default, bool) and not skipped:
            knobs[parameter.name] = (parameter, default)
    return knobs


def atlas_space(dataset: str, losses: Sequence[str] = ()) -> Space:
    """Return the space of an atlas: an arm for each loss at its defaults, and an arm for each of its knobs.

    Raise ConfigError if a loss is unknown, or the data set has no protocol.
    """
    losses_by_name = methods_of("loss")
    if unknown := [loss for loss in losses if loss not in losses_by_name]:
        raise ConfigError(Problem("--loss", "unknown loss", unknown[0], known=losses_by_name, kind="loss"))
    arms: list[Arm] = []
    for loss in losses or sorted(losses_by_name):
        knobs = _atlas_knobs(loss)
        centres = {f"loss.{name}": default for name, (_, default) in knobs.items() if (loss, name) in _CENTRES}
        own: dict[str, Value] = {"loss.name": loss, **centres}
        protocols = (_protocol_of(loss, dataset),)
        arms.append(Arm(loss, own, protocols=protocols))
        for name, (parameter, default) in knobs.items():
            values = tuple(value for value in _knob_values(parameter, default) if value != default)
            path = f"loss.{name}"
            fixed = {setting: value for setting, value in own.items() if setting != path}
            knob = Knob(path, Grid(values), origin="ours")
            arms.append(Arm(f"{loss} / {name}", fixed, own_knobs=(knob,), protocols=protocols))
    return Space(
        name="atlas",
        title="Atlas of the losses' own knobs",
        question="Which knobs of which losses matter, and how far can they be moved?",
        citation=None,
        scientific=(),
        fixed={},
        arms=tuple(arms),
        default_dataset=dataset,
        differs="each loss trains by its own protocol; a knob is compared with the default of its loss",
    )


def _protocol_of(loss: str, dataset: str) -> Protocol:
    """Return the protocol printed for a loss on a data set, or the default. Raise ConfigError if there is neither."""
    found = protocol_of_loss(dataset, RETRIEVAL, loss)
    if found is None:
        rule, remedy = "there is no protocol for the data set", "Declare one (CONTRIBUTING.md)."
        raise ConfigError(Problem("DATASET", rule, dataset, remedy))
    return replace(found, methods=())  # a protocol for every loss causes no note
