"""Scale K of DRO-TopK to the batch size, so that K selects the paper's share of the positive pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trainables.config import Settings
from trainables.errors import ConfigError
from tune_dml.planning.cells import StudyArm
from tune_dml.space import Grid, Knob, Space, Value

COUNT = "loss.k"


def positive_pairs(settings: Settings) -> int | None:
    """Return the number of unordered same-class pairs of a batch; None if batches are not drawn by class."""
    if settings.get("batch.sampler") != "m_per_class":
        return None
    return int(settings["batch.batch_size"]) * (int(settings["batch.instances_per_class"]) - 1) // 2


def with_scaled_counts(space: Space, arms: Sequence[StudyArm]) -> tuple[Space, list[str]]:
    """Return the space with each K scaled to the paper's share of the positive pairs, and a note if that changes K.

    K does not change under a paper's protocol, or if batches are not drawn by class. It also does not change if the
    space states no number of pairs, or if the batches have that number.
    """
    printed = space.positive_pairs
    pairs = _pairs_of(space, arms) if printed else None
    if not printed or pairs is None or pairs == printed:
        return space, []
    scale = _scaler(pairs, printed)
    # positive_pairs=pairs keeps a stored space from being scaled again
    before, scaled = _values(space), replace(with_scaled_values(space, COUNT, scale), positive_pairs=pairs)
    note = (
        f"K counts pairs: {_text(before)}, for {printed} positive pairs in the paper's batches, become "
        f"{_text(_values(scaled))} for the {pairs} in these batches"
    )
    return scaled, [note]


def _pairs_of(space: Space, arms: Sequence[StudyArm]) -> int | None:
    """Return the positive pairs of a batch in the first arm with a K; None if its cells differ in their number."""
    for arm in arms:
        try:
            settings = arm.settings
        except ConfigError:
            return None  # reported when the arm is planned
        if COUNT in settings:
            if arm.protocol is not None and arm.protocol.origin == "paper":
                return None
            searched = {knob.path for knob in arm.knobs}
            return None if searched & {"batch.batch_size", "batch.instances_per_class"} else positive_pairs(settings)
    return None


def _scaler(pairs: int, printed: int) -> Callable[[Value], Value]:
    def scale(value: Value) -> Value:
        assert isinstance(value, int)  # noqa: S101 - K is a number of pairs
        return max(2, 2 * round(value * pairs / printed / 2))  # even: half of the pairs are positive

    return scale


def with_scaled_values(space: Space, path: str, scale: Callable[[Value], Value]) -> Space:
    """Return the space with `scale` applied to every value of a setting; equal values of a grid merge."""

    def scale_settings(settings: Settings) -> dict[str, Value]:
        return {name: scale(value) if name == path else value for name, value in settings.items()}

    def scale_knob(knob: Knob) -> Knob:
        if knob.path != path or not isinstance(knob.domain, Grid):
            return knob
        return replace(knob, domain=replace(knob.domain, values=tuple(dict.fromkeys(map(scale, knob.domain.values)))))

    scaled = space.map_knobs(scale_knob).map_arms(lambda arm: replace(arm, settings=scale_settings(arm.settings)))
    return replace(scaled, fixed=scale_settings(space.fixed))


def _values(space: Space) -> list[Value]:
    """Return the distinct values of K in a space."""
    found = [space.fixed[COUNT]] if COUNT in space.fixed else []
    found += [arm.settings[COUNT] for arm in space.every_arm if COUNT in arm.settings]
    domains = [knob.domain for arm in space.every_arm for knob in space.knobs_of(arm) if knob.path == COUNT]
    found += [value for domain in domains if isinstance(domain, Grid) for value in domain.values]
    return list(dict.fromkeys(found))


def _text(values: Sequence[Value]) -> str:
    return ", ".join(map(str, values))
