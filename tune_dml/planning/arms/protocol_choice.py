"""Choose the protocol of an arm on a data set: the one printed for its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainables.errors import Problem, nearest
from trainables.option_names import option_problem, spelled
from trainables.resolve import Layer
from tune_dml.catalogue import RETRIEVAL, default_protocol, protocols, protocols_for
from tune_dml.space import Arm, Protocol, Space, Value


@dataclass(frozen=True)
class Choice:
    """A chosen protocol, with its note and problems."""

    protocol: Protocol | None
    """None if the data set has none: the defaults apply."""
    note: str = ""
    problems: tuple[Problem, ...] = ()


def protocol_layer(protocol: Protocol) -> Layer:
    """Return a protocol's settings, each with the source that states it."""
    origin = f"protocol {protocol.name}"
    sources = {path: f"{origin}: {source}" for path, source in protocol.sources.items()}
    return Layer(origin, protocol.settings, sources)


@dataclass(frozen=True)
class _ProtocolFor:
    """The data set, task and loss that need a protocol."""

    dataset: str
    task: str
    loss: str | None
    """None if the protocol chooses the loss."""

    def is_met_by(self, protocol: Protocol) -> bool:
        """Whether a protocol is for this loss, or for every loss."""
        return self.loss is None or not protocol.methods or self.loss in protocol.methods


def choose_protocol(
    space: Space, arm: Arm, dataset: str, settings: Mapping[str, Value], asked: str | None = None
) -> Choice:
    """Return the requested protocol, else the arm's or space's own for the loss, else the one printed for the loss.

    A loss that the user sets gets the protocol printed for it on the data set, if possible by the space's own source. If
    none is printed, the arm keeps the space's protocol, with a note. A named arm whose loss has printed protocols, but none
    on this data set, is a problem.
    """
    own = {**space.fixed, **settings, **arm.settings}
    loss = own.get("loss.name")
    wanted = _ProtocolFor(dataset, str(own.get("task.name", RETRIEVAL)), None if loss is None else str(loss))
    if asked is not None:
        return _asked_for(asked, wanted)
    declared = [p for p in (arm.protocols or space.protocols) if p.dataset == dataset]
    printed = _printed(wanted, next((p.family for p in declared), None))
    if not declared:
        named = space.location(arm=arm.name) if arm in space.arms else ""
        return _undeclared(wanted, printed, named)
    exact = [protocol for protocol in declared if loss is None or loss in protocol.methods]
    if exact:
        return Choice(exact[0] if loss is None else min(exact, key=lambda protocol: len(protocol.methods)))
    if printed is not None and settings.get("loss.name") == loss != space.fixed.get("loss.name"):
        return Choice(printed, f"protocol {printed.name} follows loss.name={loss}, for which it is printed")
    general = next((protocol for protocol in declared if not protocol.methods), None)
    return Choice(general) if general else Choice(declared[0], _unprinted(declared[0], wanted))


def _undeclared(wanted: _ProtocolFor, printed: Protocol | None, named: str) -> Choice:
    """Choose the protocol of an arm if neither it nor its space declares one; a named one must exist."""
    default = default_protocol(wanted.dataset, wanted.task)
    if printed is not None:
        return Choice(printed)
    if default is None or wanted.is_met_by(default):
        return Choice(default)
    if not named or not any(wanted.loss in protocol.methods for protocol in protocols().values()):
        return Choice(default, _unprinted(default, wanted))  # no protocol is printed for a user's own loss
    rule = f"the arm has no protocol on {wanted.dataset}: none is printed there for {wanted.loss}"
    remedy = f"Choose another {spelled('protocol')}, {spelled('arms')} or {spelled('dataset')}."
    return Choice(default, problems=(Problem(named, rule, None, remedy),))


def _asked_for(name: str, wanted: _ProtocolFor) -> Choice:
    known = protocols()
    here = [protocol.name for protocol in known.values() if protocol.dataset == wanted.dataset]
    if name not in known:
        remedy = nearest(name, here or list(known), what="protocol")
        return Choice(None, problems=(option_problem("protocol", "unknown protocol", name, remedy),))
    if name not in here:
        rule = f"{name} is for {known[name].dataset}, the sweep trains on {wanted.dataset}"
        remedy = f"Those for {wanted.dataset}: {', '.join(here) or 'none'}."
        return Choice(None, problems=(option_problem("protocol", rule, None, remedy),))
    return Choice(known[name], "" if wanted.is_met_by(known[name]) else _unprinted(known[name], wanted))


def _printed(wanted: _ProtocolFor, family: str | None) -> Protocol | None:
    """Return the protocol printed for a loss: of the family, else of the default protocol's family, else any.

    Of several, it is the one for the fewest losses.
    """
    here = protocols_for(wanted.dataset, wanted.task)
    default = next((protocol.family for protocol in here if protocol.default), None)
    fitting = [protocol for protocol in here if wanted.loss in protocol.methods]
    return min(fitting, key=lambda p: (p.family != family, p.family != default, len(p.methods)), default=None)


def _unprinted(protocol: Protocol, wanted: _ProtocolFor) -> str:
    """Return the note that a protocol is for other losses."""
    return (
        f"no protocol is printed for {wanted.loss} on {wanted.dataset}: it trains by {protocol.name}, "
        f"which is for {', '.join(protocol.methods)}"
    )
