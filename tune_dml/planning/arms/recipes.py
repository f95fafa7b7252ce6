"""Combine the settings stated for a loss, study or arm with a data set's protocol.

The protocol overrides them, so a paper's protocol keeps every printed value. Our own protocols set only network, batch
size, steps and learning rate.
"""

from collections.abc import Sequence
from typing import Any

from trainables.config import SECTIONS
from trainables.resolve import Layer
from tune_dml.catalogue import recipes
from tune_dml.planning.files.folder import TrainingPart
from tune_dml.space import Protocol, SourcedSettings, Value
from tune_dml.text import is_number

_BATCH, _PER_CLASS, _SAMPLER = "batch.batch_size", "batch.instances_per_class", "batch.sampler"
_TASK = "task.name"


CUT = " cut to "
"""Marks the origin of a batch size that is smaller than its protocol's."""


def method_layers(
    protocol: Protocol | None,
    loss: Value = None,
    between: Sequence[Layer] = (),
    part: TrainingPart | None = None,
    lr: Value = None,
) -> list[Layer]:
    """Return the layers of a loss on a data set; later ones win: recipe, study and arm (`between`), protocol.

    Without `loss`, it is that of the protocol or the defaults. The sizes in `part` limit the batches of our protocols.
    `lr` replaces the protocol's learning rate; proxies keep their own.
    """
    protocol_settings = {} if protocol is None else protocol.settings
    chosen = str(loss or protocol_settings.get("loss.name") or _default("loss.name"))
    printed = protocol is not None and protocol.origin == "paper"
    lr = lr if is_number(lr) and lr > 0 else protocol_settings.get("optim.lr", _default("optim.lr"))
    layers = [*_recipe_layers(chosen, None if printed else float(str(lr))), *between]
    layers += [] if protocol is None else [protocol_layer(protocol)]
    return layers + _fitting_batch(layers, protocol, part)


def protocol_layer(protocol: Protocol) -> Layer:
    """Return a protocol's settings, each with the source that states it."""
    origin = f"protocol {protocol.name}"
    sources = {path: f"{origin}: {source}" for path, source in protocol.sources.items()}
    return Layer(origin, protocol.settings, sources)


def stated_layers(owner: str, stated: Sequence[SourcedSettings]) -> list[Layer]:
    """Return the settings stated for a study or an arm, with their sources."""
    return [Layer(f"{owner}: {part.source}", part.settings) for part in stated]


def _recipe_layers(loss: str, lr: float | None) -> list[Layer]:
    """Return a loss's recipe. `lr`, the rate of our own protocol, scales the rate of the loss's parameters."""
    recipe = recipes().get(loss)
    if recipe is None:
        return []
    rate = {} if recipe.loss_lr is None or lr is None else {"optim.loss_lr_multiplier": recipe.loss_lr / lr}
    return [Layer(f"loss {loss}: {recipe.stated.source}", {**recipe.stated.settings, **rate})]


def _fitting_batch(layers: Sequence[Layer], protocol: Protocol | None, part: TrainingPart | None) -> list[Layer]:
    """Reduce the batch of our own protocol to whole classes, and to the existing classes or pictures."""
    settings: dict[str, Any] = {path: _default(path) for path in (_BATCH, _PER_CLASS, _SAMPLER, _TASK)}
    for layer in layers:
        settings |= layer.settings
    if protocol is not None and protocol.origin == "paper":
        return []
    batch, per_class = int(settings[_BATCH]), int(settings[_PER_CLASS])
    if settings[_SAMPLER] == "m_per_class":
        drawn = min(batch // per_class, part.classes if part else batch)
        size = drawn * per_class
        classes = "whole classes" if drawn == batch // per_class else f"the {drawn} training classes"
        fitting = f"{classes} of {per_class}"
    elif settings[_SAMPLER] == "random" and part and settings[_TASK] == part.task:  # other tasks split differently
        size = min(batch, part.fewest)
        fitting = f"the {size} training pictures that every seed has"
    else:
        return []
    source = "defaults" if protocol is None else f"protocol {protocol.name}"
    return [] if size == batch else [Layer(f"{source}: {batch}{CUT}{fitting}", {_BATCH: size})]


def _default(path: str) -> Any:
    section, _, name = path.partition(".")
    return SECTIONS[section].model_fields[name].default
