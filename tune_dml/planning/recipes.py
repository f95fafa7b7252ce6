"""The settings that travel with a method to every data set: those of its loss, of the study and of the arm.

They lie under the data set's protocol, so a paper's protocol keeps every value that the paper printed for that data set.
Our own protocols say network, size of the batch, steps and rate, and leave these settings to the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainables.config import SECTIONS
from trainables.resolve import Layer
from tune_dml.catalogue import recipes
from tune_dml.planning.protocol_choice import protocol_layer
from tune_dml.space import Protocol, Stated, Value

_BATCH, _PER_CLASS, _SAMPLER = "batch.batch_size", "batch.instances_per_class", "batch.sampler"


CUT = " cut to "
"""In the origin of a batch size that is smaller than its protocol's."""


def method_layers(
    protocol: Protocol | None, loss: Value = None, between: Sequence[Layer] = (), classes: int | None = None
) -> list[Layer]:
    """The layers of a loss on a data set: its recipe, what travels with study and arm, the protocol. A later one wins.

    Args:
        protocol: the data set's; None where defaults train.
        loss: the loss that is trained; None where the protocol or the defaults name it.
        between: what travels with the study and the arm (`stated_layers`).
        classes: training classes of the data, which a batch of ours has at most; None where they are not known.
    """
    protocol_settings = {} if protocol is None else protocol.settings
    chosen = str(loss or protocol_settings.get("loss.name") or _default("loss.name"))
    printed = protocol is not None and protocol.origin == "paper"
    lr = None if printed else float(protocol_settings.get("optim.lr", _default("optim.lr")))
    layers = [*_recipe_layers(chosen, lr), *between]
    layers += [] if protocol is None else [protocol_layer(protocol)]
    return layers + _whole_classes(layers, protocol, classes)


def stated_layers(owner: str, stated: Sequence[Stated]) -> list[Layer]:
    """What travels with a study or an arm, each setting with the source that states it."""
    return [Layer(f"{owner}: {part.source}", part.settings) for part in stated]


def _recipe_layers(loss: str, lr: float | None) -> list[Layer]:
    """A loss's recipe; the rate of its own parameters is stored as a multiple of the protocol's, unless a paper's."""
    recipe = recipes().get(loss)
    if recipe is None:
        return []
    rate = {} if recipe.loss_lr is None or lr is None else {"optim.loss_lr_multiplier": recipe.loss_lr / lr}
    return [Layer(f"loss {loss}: {recipe.stated.source}", {**recipe.stated.settings, **rate})]


def _whole_classes(layers: Sequence[Layer], protocol: Protocol | None, classes: int | None) -> list[Layer]:
    """The batch cut to whole classes and to those there are, where that of our own protocol does not fit."""
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
