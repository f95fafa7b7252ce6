"""What a loss or a regularizer hands back, looked at before anything is trained on it: theirs may be anybody's code."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainables.errors import ConfigError, Problem, raise_if_any


def check_value(place: str, value: object, given: Tensor) -> None:
    """That a value computed from `given` can be trained on, before it is looked at. Raises ConfigError."""
    if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
        got = (tuple(value.shape), str(value.dtype)) if isinstance(value, Tensor) else type(value).__name__
        remedy = "Reduce what it has for each picture or pair: its mean, say."
        raise ConfigError(Problem(place, "must be a float tensor of shape ()", got, remedy))
    if torch.is_grad_enabled() and given.requires_grad and not value.requires_grad:
        remedy = "Compute it from them by torch's functions, without detach(), item() or float()."
        raise ConfigError(Problem(place, "must have a gradient for the embeddings", None, remedy))


def check_path(place: str, value: Tensor, given: Tensor) -> None:
    """That a value's gradient comes to `given`, not to a loss's own parameters alone. Raises ConfigError.

    It takes longer than a small loss, so a trial looks at its first batch.
    """
    if not _leads_to(value, given):
        rule = "must have a gradient for the embeddings, not for parameters of the loss alone"
        raise ConfigError(Problem(place, rule, None, "Compute it from them without detach() and torch.no_grad()."))


def _leads_to(value: Tensor, given: Tensor) -> bool:
    goal, waiting, seen = given.grad_fn, [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node is goal or getattr(node, "variable", None) is given:  # of a tensor that nothing was computed for
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False


def versions(*tensors: Tensor) -> tuple[int, ...]:
    """How often each was written to; 0 for tensors of inference mode, which nobody counts."""
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)


def check_untouched(place: str, before: tuple[int, ...], *tensors: Tensor) -> None:
    """That what was given is as it was: others see it afterwards. Raises ConfigError."""
    if versions(*tensors) != before:
        rule = "must leave what it is given as it is, for others see it afterwards"
        raise ConfigError(Problem(place, rule, None, "Work on a copy: x / length, not x.div_(length)."))


def check_figures(figures: Mapping[str, Tensor]) -> None:
    """That each diagnostic is one number. Raises ConfigError."""
    raise_if_any(
        Problem(f"diagnostics() {name!r}", "must be a single number", tuple(figure.shape))
        for name, figure in figures.items()
        if figure.numel() != 1
    )
