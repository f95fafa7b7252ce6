"""What a loss or a regularizer hands back, looked at before anything is trained on it: theirs may be anybody's code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from trainables.errors import ConfigError, Problem, raise_if_any

_SHOWN = 3  # shapes of tensors


def check_value(place: str, value: object, given: Tensor) -> None:
    """That a value computed from `given` can be trained on, before it is looked at. Raises ConfigError."""
    if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
        got = (tuple(value.shape), str(value.dtype)) if isinstance(value, Tensor) else type(value).__name__
        remedy = "Reduce what it has for each picture or pair: its mean, say."
        raise ConfigError(Problem(place, "must be a float tensor of shape ()", got, remedy))
    if torch.is_grad_enabled() and given.requires_grad and not value.requires_grad:
        remedy = "Compute it from them by torch's functions, without detach(), item() or float()."
        raise ConfigError(Problem(place, "must have a gradient for the embeddings", None, remedy))


def check_path(place: str, value: Tensor, given: Tensor, loss: nn.Module, registered: Iterable[Tensor]) -> None:
    """That a value's gradient comes to `given`, and else to nothing but what the optimizer trains. Raises ConfigError.

    It takes longer than a small loss, so a trial looks at its first batch. What a loss holds where torch does not see it
    (in a list, or made as the first batch came) would stay at its initial value and in no checkpoint, without a word.

    Args:
        place: whose value it is.
        value: what was computed.
        given: what it was computed from.
        loss: what computed it.
        registered: the loss's parameters as they were before.
    """
    leads, leaves = _ends(value, given)
    if not leads:
        rule = "must have a gradient for the embeddings, not for parameters of the loss alone"
        raise ConfigError(Problem(place, rule, None, "Compute it from them without detach() and torch.no_grad()."))
    trained, held = {id(parameter) for parameter in registered}, {id(tensor) for tensor in _held(loss)}
    strangers = [leaf for leaf in leaves if id(leaf) not in trained]  # what a value makes for itself is its own affair
    if hidden := [leaf for leaf in strangers if isinstance(leaf, nn.Parameter) or id(leaf) in held]:
        rule = "a loss's parameters must be registered before its first batch, others are neither trained nor kept"
        shapes = [tuple(leaf.shape) for leaf in hidden[:_SHOWN]]
        remedy = "Make each an nn.Parameter in the constructor: an attribute of its own, or in an nn.ParameterList."
        raise ConfigError(Problem(place, rule, shapes, remedy))


def _ends(value: Tensor, given: Tensor) -> tuple[bool, list[Tensor]]:
    """Whether a value was computed from `given`, and the tensors that nothing was computed for, where it also began."""
    goal, waiting, seen, leads, leaves = given.grad_fn, [value.grad_fn], set(), False, []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if node is goal or leaf is given:
            leads = True
        elif leaf is not None:
            leaves.append(leaf)
        else:
            waiting += [following for following, _ in node.next_functions]
    return leads, leaves


def _held(loss: nn.Module) -> Iterator[Tensor]:
    """Tensors that are plain attributes."""
    for module in loss.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


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
