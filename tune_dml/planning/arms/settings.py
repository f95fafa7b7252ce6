"""Choose the protocol that trains an arm, and combine its settings with those stated for loss, study and arm.

The protocol overrides stated settings, so a paper's protocol keeps every printed value. Our own protocols set only
network, batch size, steps and learning rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainables.config import SECTIONS, TrialConfig
from trainables.errors import Problem
from trainables.option_names import option_place, option_problem, spell
from trainables.resolve import Layer
from tune_dml.catalogue import RETRIEVAL, default_protocol, protocols, protocols_for, recipes
from tune_dml.planning.arms.fitting import TrainingPart, training_part
from tune_dml.planning.cells import StudyArm
from tune_dml.space import Arm, Protocol, Space, Value
from tune_dml.text import is_number

_BATCH, _PER_CLASS, _SAMPLER = "batch.batch_size", "batch.instances_per_class", "batch.sampler"
_TASK = "task.name"
CUT = " cut to "
"""Marks the origin of a batch size that is smaller than its protocol's."""


@dataclass(frozen=True)
class ProtocolChoice:
    """A chosen protocol, with a note for the user and the problems of the choice."""

    protocol: Protocol | None  # None if the data set has none: the defaults apply
    note: str = ""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class _ProtocolQuery:
    """The data set, task and loss that need a protocol."""

    dataset: str
    task: str
    loss: str | None  # None if the protocol chooses the loss

    def accepts(self, protocol: Protocol) -> bool:
        """Return whether a protocol is for this loss or for every loss."""
        return self.loss is None or not protocol.methods or self.loss in protocol.methods


def choose_protocol(
    space: Space, arm: Arm, dataset: str, settings: Mapping[str, Value], requested: str | None = None
) -> ProtocolChoice:
    """Return the requested protocol, else the arm's or space's own for the loss, else the one printed for the loss.

    A loss that the user sets gets the protocol printed for it on the data set, if possible from the space's own source.
    If none is printed, the arm keeps the space's protocol, and a note says so. A named arm whose loss has printed
    protocols only on other data sets is a problem. A program has no protocol.
    """
    if space.program is not None:
        return ProtocolChoice(None)
    own = {**space.fixed, **settings, **arm.settings}
    loss = own.get("loss.name")
    query = _ProtocolQuery(dataset, str(own.get("task.name", RETRIEVAL)), None if loss is None else str(loss))
    if requested is not None:
        return _choose_requested(requested, query)
    declared = [p for p in (arm.protocols or space.protocols) if p.dataset == dataset]
    printed = _find_printed(query, next((p.family for p in declared), None))
    if not declared:
        place = space.location(arm=arm.name) if arm in space.arms else ""
        return _choose_undeclared(query, printed, place)
    exact = [protocol for protocol in declared if loss is None or loss in protocol.methods]
    if exact:
        return ProtocolChoice(exact[0] if loss is None else min(exact, key=lambda protocol: len(protocol.methods)))
    if printed is not None and settings.get("loss.name") == loss != space.fixed.get("loss.name"):
        return ProtocolChoice(printed, f"protocol {printed.name} follows loss.name={loss}, for which it is printed")
    general = next((protocol for protocol in declared if not protocol.methods), None)
    return ProtocolChoice(general) if general else ProtocolChoice(declared[0], _unprinted_note(declared[0], query))


def _choose_undeclared(query: _ProtocolQuery, printed: Protocol | None, place: str) -> ProtocolChoice:
    """Choose the protocol of an arm if neither it nor its space declares one. `place` is empty for a nameless arm."""
    default = default_protocol(query.dataset, query.task)
    if printed is not None:
        return ProtocolChoice(printed)
    if default is None or query.accepts(default):
        return ProtocolChoice(default)
    if not place or not any(query.loss in protocol.methods for protocol in protocols().values()):
        return ProtocolChoice(default, _unprinted_note(default, query))  # no protocol is printed for a user's own loss
    rule = f"the arm has no protocol on {query.dataset}: none is printed there for {query.loss}"
    remedy = f"Choose another {spell('protocol')}, {spell('arms')} or {spell('dataset')}."
    return ProtocolChoice(default, problems=(Problem(place, rule, None, remedy),))


def _choose_requested(name: str, query: _ProtocolQuery) -> ProtocolChoice:
    by_name = protocols()
    names = [protocol.name for protocol in by_name.values() if protocol.dataset == query.dataset]
    if name not in by_name:
        place, known = option_place("protocol"), names or by_name
        return ProtocolChoice(None, "", (Problem(place, "unknown protocol", name, known=known, kind="protocol"),))
    if name not in names:
        rule = f"{name} is for {by_name[name].dataset}, the sweep trains on {query.dataset}"
        remedy = f"Those for {query.dataset}: {', '.join(names) or 'none'}."
        return ProtocolChoice(None, problems=(option_problem("protocol", rule, None, remedy),))
    return ProtocolChoice(by_name[name], "" if query.accepts(by_name[name]) else _unprinted_note(by_name[name], query))


def _find_printed(query: _ProtocolQuery, family: str | None) -> Protocol | None:
    """Return the protocol printed for a loss: of this family, else of the default protocol's family, else of any.

    Among several, choose the one for the fewest losses.
    """
    candidates = protocols_for(query.dataset, query.task)
    default = next((protocol.family for protocol in candidates if protocol.default), None)
    fitting = [protocol for protocol in candidates if query.loss in protocol.methods]
    return min(fitting, key=lambda p: (p.family != family, p.family != default, len(p.methods)), default=None)


def _unprinted_note(protocol: Protocol, query: _ProtocolQuery) -> str:
    return (
        f"no protocol is printed for {query.loss} on {query.dataset}: it trains by {protocol.name}, "
        f"which is for {', '.join(protocol.methods)}"
    )


def protocol_notes(choices: Mapping[str, ProtocolChoice]) -> list[str]:
    """Return each choice's note once, with its arms unless it applies to all; then the arms' protocols if they differ."""
    arms: dict[str, list[str]] = {}
    for name, choice in choices.items():
        arms.setdefault(choice.note, []).append(name)
    notes = [
        note if len(names) == len(choices) else f"{note} ({', '.join(arm or 'all but the baseline' for arm in names)})"
        for note, names in arms.items()
        if note
    ]
    protocol_of = {arm: choice.protocol.name if choice.protocol else "defaults" for arm, choice in choices.items()}
    if len(set(protocol_of.values())) > 1:
        listed = ", ".join(f"{arm or 'the others'} by {name}" for arm, name in protocol_of.items())
        notes.append(f"each arm trains by its own protocol: {listed}; {spell('protocol', 'NAME')} trains all by one")
    return notes


def study_arm(
    space: Space,
    arm: Arm,
    protocol: Protocol | None,
    *,
    dataset: str,
    settings: Mapping[str, Value],
    part: TrainingPart | None = None,
) -> StudyArm:
    """Return an arm of a space, trained by a protocol; None means the defaults.

    Of its settings, later layers win: data set, recipe, protocol, space, user (`settings`), arm.
    """
    fixed, owner = space.fixed, f"space {space.name}"
    loss = {**settings, **arm.settings}.get("loss.name", fixed.get("loss.name"))
    if protocol is not None and loss != fixed.get("loss.name") and loss in protocol.methods:
        # the protocol is printed for this loss; the space fixes settings of another loss
        fixed = {path: value for path, value in fixed.items() if not path.startswith("loss.")}
    if space.program is not None:
        overridable = {path: value for path, value in fixed.items() if path not in settings}
        layers = [Layer(owner, overridable), Layer("--set", settings)]
    else:
        stated = [Layer(f"{owner}: {part.source}", part.settings) for part in space.stated]
        stated += [Layer(f"arm {arm.name}: {part.source}", part.settings) for part in arm.stated]
        lr = {**fixed, **settings, **arm.settings}.get("optim.lr")
        layers = [
            Layer("--dataset", {"data.name": dataset}),
            *method_layers(protocol, loss, stated, part, lr),
            Layer(owner, fixed),
            Layer("--set", settings),
            *([Layer(f"arm {arm.name}", arm.settings)] if arm.settings else []),
        ]
    return StudyArm(arm.name, space, tuple(layers), protocol)


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


def trial_layers(protocol: Protocol | None, settings: Mapping[str, Value]) -> list[Layer]:
    """Return the layers below a single trial's own settings; None means the data set's protocol for the task."""
    dataset = str(settings.get("data.name") or (protocol.dataset if protocol else TrialConfig().data.name))
    task = str(settings.get("task.name", RETRIEVAL))
    data = [] if protocol is None else [Layer("--protocol", {"data.name": protocol.dataset})]
    protocol = protocol or default_protocol(dataset, task)
    part, lr = training_part(dataset, settings, task), settings.get("optim.lr")
    return [*data, *method_layers(protocol, settings.get("loss.name"), part=part, lr=lr)]


def protocol_layer(protocol: Protocol) -> Layer:
    """Return a protocol's settings, each with the source that states it."""
    origin = f"protocol {protocol.name}"
    sources = {path: f"{origin}: {source}" for path, source in protocol.sources.items()}
    return Layer(origin, protocol.settings, sources)


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
