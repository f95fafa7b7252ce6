"""Choose the protocol that trains an arm on a data set, preferably the one printed for the arm's loss."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainables.errors import Problem, nearest
from trainables.option_names import option_problem, spell
from tune_dml.catalogue import RETRIEVAL, default_protocol, protocols, protocols_for
from tune_dml.space import Arm, Protocol, Space, Value


@dataclass(frozen=True)
class ProtocolChoice:
    """A chosen protocol, with a note for the user and the problems of the choice."""

    protocol: Protocol | None
    """None if the data set has none: the defaults apply."""
    note: str = ""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class _ProtocolQuery:
    """The data set, task and loss that need a protocol."""

    dataset: str
    task: str
    loss: str | None
    """None if the protocol chooses the loss."""

    def accepts(self, protocol: Protocol) -> bool:
        """Return whether a protocol is for this loss or for every loss."""
        return self.loss is None or not protocol.methods or self.loss in protocol.methods


def choose_protocol(
    space: Space, arm: Arm, dataset: str, settings: Mapping[str, Value], requested: str | None = None
) -> ProtocolChoice:
    """Return the requested protocol, else the arm's or space's own for the loss, else the one printed for the loss.

    A loss that the user sets gets the protocol printed for it on the data set, if possible from the space's own source.
    If none is printed, the arm keeps the space's protocol, and a note says so. A named arm whose loss has printed
    protocols only on other data sets is a problem.
    """
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
        remedy = nearest(name, names or list(by_name), what="protocol")
        return ProtocolChoice(None, problems=(option_problem("protocol", "unknown protocol", name, remedy),))
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
