"""Fit a study's batch sizes and pictures per class to a user's pictures or stored features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trainables.option_names import spell
from tune_dml.planning.arms.pair_counts import COUNT, with_scaled_values
from tune_dml.planning.files.folder import TrainingPart
from tune_dml.space import Grid, Space, Value

_BATCH, _PER_CLASS, _PICTURES = "batch.batch_size", "batch.instances_per_class", "data.pictures_per_class"
_MEASURED_SETTINGS = ("optim.lr", "training.steps")


def fitting_space(
    space: Space, part: TrainingPart | None, settings: Mapping[str, Value]
) -> tuple[Space, tuple[str, ...]]:
    """Return the space with its grids scaled to the size of the user's folder, and a note for each scaled grid.

    A user's own sweep file and settings stay as they are.
    """
    if part is None or space.origin:
        return space, ()
    notes: list[str] = []
    for path, fit in ((_BATCH, _fit_batches), (_PER_CLASS, _fit_instances), (_PICTURES, _fit_pictures)):
        values = _grid_values(space, path)
        if not values or path in settings or (path == _PER_CLASS and _BATCH in settings):
            continue
        fitted = fit(space, values, part)
        if fitted is not space:
            batch = f", in batches of {fitted.fixed[_BATCH]}" if path == _PER_CLASS else ""
            notes.append(
                f"{path} is {_text(_grid_values(fitted, path))} in place of {_text(values)}{batch}: there are "
                f"{part.classes} training classes of at most {part.pictures} pictures"
            )
        space = fitted
    return space, tuple(notes)


def untuned_notes(space: Space, dataset: str, settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Note settings that keep general values, because no brief training on the user's pictures has chosen them."""
    chosen = {*space.fixed, *settings, *(knob.path for knob in space.knobs)}
    missing = [path for path in _MEASURED_SETTINGS if path not in chosen]
    if dataset != "image_folder" or "data.root" not in settings or not missing:
        return ()
    verb = "have general values" if len(missing) > 1 else "has a general value"
    probe = f"`tune-dml init {settings['data.root']}` trains briefly and proposes values for {spell('settings')}"
    if "task.name" in chosen:  # `init` trains for retrieval
        probe = f"Compare a few values with {spell('settings')}"
    return (f"{' and '.join(missing)} {verb} for small networks: nothing was measured on these pictures. {probe}",)


def _fit_batches(space: Space, values: Sequence[int], part: TrainingPart) -> Space:
    """Scale the batch sizes so that the largest batch holds every class."""
    per_class = int(space.fixed.get(_PER_CLASS, 1))
    largest = part.classes * per_class
    if max(values) <= largest:
        return space
    return with_scaled_values(space, _BATCH, _scaler(largest / max(values), per_class, 2))


def _fit_instances(space: Space, values: Sequence[int], part: TrainingPart) -> Space:
    """Reduce the batch to the existing classes, and replace each value by the nearest divisor of the batch size."""
    batch = int(space.fixed.get(_BATCH, 0))
    if not batch or batch <= min(values) * part.classes:
        return space

    def nearest_divisors(size: int) -> dict[int, int]:
        allowed = [d for d in range(2, size // 2 + 1) if size % d == 0 and size // d <= part.classes]
        return {value: min(allowed, key=lambda d: (abs(d - value), d)) for value in values} if allowed else {}

    sizes = range(2, min(values) * part.classes + 1)
    chosen = max(sizes, key=lambda size: (len(set(nearest_divisors(size).values())), size))
    divisors = nearest_divisors(chosen)
    if not divisors:
        return space
    scaled = with_scaled_values(space, _PER_CLASS, lambda value: divisors[int(str(value))])
    scaled = with_scaled_values(scaled, COUNT, _scaler(chosen / batch, 2, 1))
    return replace(scaled, fixed={**scaled.fixed, _BATCH: chosen})


def _fit_pictures(space: Space, values: Sequence[int], part: TrainingPart) -> Space:
    """Scale the values to the pictures of the largest class; no value falls below two."""
    if max(values) <= part.pictures:
        return space
    return with_scaled_values(space, _PICTURES, _scaler(part.pictures / max(values), 1, 2))


def _scaler(factor: float, step: int, fewest: int) -> Callable[[Value], Value]:
    def scale(value: Value) -> Value:
        return step * max(fewest, round(float(str(value)) * factor / step))

    return scale


def _grid_values(space: Space, path: str) -> list[int]:
    domains = [knob.domain for knob in space.knobs if knob.path == path]
    return [int(str(value)) for domain in domains if isinstance(domain, Grid) for value in domain.values]


def _text(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
