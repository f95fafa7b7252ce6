"""Settings that apply to a method on every data set, stated for its loss, study or arm.

The data set's protocol overrides them, so a paper's protocol keeps every printed value. Our own protocols set network,
batch size, steps and rate only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainables.config import SECTIONS
from trainables.resolve import Layer
from tune_dml.catalogue import recipes
from tune_dml.planning.arms.protocol_choice import protocol_layer
from tune_dml.space import Protocol, Stated, Value

_BATCH, _PER_CLASS, _SAMPLER = "batch.batch_size", "batch.instances_per_class", "batch.sampler"


CUT = " cut to "
"""Marks the origin of a batch size that is smaller than its protocol's."""


def method_layers(
    protocol: Protocol | None, loss: Value = None, between: Sequence[Layer] = (), classes: int | None = None
) -> list[Layer]:
    """Return the layers of a loss on a data set; later ones win: recipe, study and arm, protocol.

    Args:
        protocol: the data set's; None means the defaults.
        loss: the trained loss; None means that of the protocol or the defaults.
        between: settings stated for study and arm (`stated_layers`).
        classes: number of training classes, which limits the batches of our protocols; None if unknown.
    """
    protocol_settings = {} if protocol is None else protocol.settings
    chosen = str(loss or protocol_settings.get("loss.name") or _default("loss.name"))
    printed = protocol is not None and protocol.origin == "paper"
    lr = None if printed else float(protocol_settings.get("optim.lr", _default("optim.lr")))
    layers = [*_recipe_layers(chosen, lr), *between]
    layers += [] if protocol is None else [protocol_layer(protocol)]
    return layers + _whole_classes(layers, protocol, classes)


def stated_layers(owner: str, stated: Sequence[Stated]) -> list[Layer]:
    """Return the settings stated for a study or an arm, with their sources."""
    return [Layer(f"{owner}: {part.source}", part.settings) for part in stated]


def _recipe_layers(loss: str, lr: float | None) -> list[Layer]:
    """Return a loss's recipe. For our protocols the rate of its parameters is a multiple of the protocol's."""
    recipe = recipes().get(loss)
    if recipe is None:
        return []
    rate = {} if recipe.loss_lr is None or lr is None else {"optim.loss_lr_multiplier": recipe.loss_lr / lr}
    return [Layer(f"loss {loss}: {recipe.stated.source}", {**recipe.stated.settings, **rate})]


def _whole_classes(layers: Sequence[Layer], protocol: Protocol | None, classes: int | None) -> list[Layer]:
    """Reduce the batch of our own protocol to whole classes, and to the number of classes that exist."""
    given: dict[str, Any] = {path: _default(path) for path in (_BATCH, _PER_CLASS, _SAMPLER)}
    for layer in layers:
        given |= layer.settings
    if given[_SAMPLER] != "m_per_class" or (protocol is not None and protocol.origin == "paper"):
        return []
    batch, per_class = int(given[_BATCH]), int(given[_PER_CLASS])
    drawn = min(batch // per_class, classes or batch)
    if drawn * per_class == batch:
        return []
    source = "defaults" if protocol is None else f"protocol {protocol.name}"
    fitting = "whole classes" if drawn == batch // per_class else f"the {drawn} training classes"
    return [Layer(f"{source}: {batch}{CUT}{fitting} of {per_class}", {_BATCH: drawn * per_class})]


def _default(path: str) -> Any:
    section, _, name = path.partition(".")
    return SECTIONS[section].model_fields[name].default
