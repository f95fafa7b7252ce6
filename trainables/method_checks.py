"""Check the results of losses and regularizers, which may be third-party code."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from trainables import generators
from trainables.errors import ConfigError, Problem, raise_if_any

_SHOWN = 3  # shapes in a message


def check_value(place: str, value: object, embeddings: Tensor) -> None:
    """Raise ConfigError unless a value computed from `embeddings` is a trainable scalar."""
    if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
        got = (tuple(value.shape), str(value.dtype)) if isinstance(value, Tensor) else type(value).__name__
        remedy = "Reduce the values of pictures or pairs, for example by their mean."
        raise ConfigError(Problem(place, "must be a float tensor of shape ()", got, remedy))
    if value.device != embeddings.device:
        rule = f"must be on the device of the embeddings, {embeddings.device}"
        raise ConfigError(Problem(place, rule, str(value.device), "Make new tensors with device=embeddings.device."))
    if torch.is_grad_enabled() and embeddings.requires_grad and not value.requires_grad:
        remedy = "Compute it from them with torch's functions, without detach(), item() or float()."
        raise ConfigError(Problem(place, "must have a gradient for the embeddings", None, remedy))


def check_path(place: str, value: Tensor, embeddings: Tensor, loss: nn.Module, registered: Iterable[Tensor]) -> None:
    """Check that a value's gradient reaches `embeddings`, and no parameter that is not registered.

    Parameters that the module does not register (kept in a list, or created at the first batch) are neither trained nor
    saved. `registered` are the loss's parameters before the batch. A trial checks only its first batch, because the
    check takes longer than a small loss. Raises ConfigError.
    """
    is_connected, leaves = _trace(value, embeddings)
    if not is_connected:
        rule = "must have a gradient for the embeddings, not for parameters of the loss alone"
        raise ConfigError(Problem(place, rule, None, "Compute it from them without detach() and torch.no_grad()."))
    trained = {id(parameter) for parameter in registered}
    plain = {id(value) for module in loss.modules() for value in vars(module).values() if isinstance(value, Tensor)}
    unregistered = [leaf for leaf in leaves if id(leaf) not in trained]
    if hidden := [leaf for leaf in unregistered if isinstance(leaf, nn.Parameter) or id(leaf) in plain]:
        rule = "a loss's parameters must be registered before its first batch, others are neither trained nor saved"
        shapes = [tuple(leaf.shape) for leaf in hidden[:_SHOWN]]
        remedy = "Make each an nn.Parameter in the constructor: as an attribute, or in an nn.ParameterList."
        raise ConfigError(Problem(place, rule, shapes, remedy))


def _trace(value: Tensor, embeddings: Tensor) -> tuple[bool, list[Tensor]]:
    """Return whether a value's graph contains `embeddings`, and the other leaves of the graph."""
    goal, waiting, visited, is_connected, leaves = embeddings.grad_fn, [value.grad_fn], set(), False, []
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if node is goal or leaf is embeddings:
            is_connected = True
        elif leaf is not None:
            leaves.append(leaf)
        else:
            waiting += [next_node for next_node, _ in node.next_functions]
    return is_connected, leaves


def check_resumes(kind: str, used: nn.Module, new: nn.Module, value_of: Callable[[nn.Module], Tensor]) -> None:
    """Raise ConfigError unless a new instance with the stored state of a used one has the same next value."""
    place = f"{kind} {type(used).__name__}"
    remedy = "Make state that outlives a batch a buffer, in the constructor: self.register_buffer(name, tensor)."
    try:
        new.load_state_dict(used.state_dict())
    except RuntimeError as error:
        rule = "its stored state must fit a new instance, as after a resumption"
        raise ConfigError(Problem(place, rule, " ".join(str(error).split())[:200], remedy)) from error
    drawn = generators.states()
    expected = value_of(used).detach()
    generators.restore(drawn)
    if not torch.allclose(value_of(new).detach(), expected, rtol=1e-4, equal_nan=True):
        rule = "must give the same value after a resumption, which restores its parameters and buffers alone"
        raise ConfigError(Problem(place, rule, None, remedy))


def versions(*tensors: Tensor) -> tuple[int, ...]:
    """Return each tensor's version counter; 0 for inference tensors, which have none."""
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)


def check_untouched(place: str, before: tuple[int, ...], *tensors: Tensor) -> None:
    """Raise ConfigError if the inputs were changed in place."""
    if versions(*tensors) != before:
        rule = "must not change its inputs in place, because other code uses them"
        raise ConfigError(Problem(place, rule, None, "Work on a copy: x / length, not x.div_(length)."))


def checked_diagnostics(regularizer: nn.Module, loss: nn.Module) -> dict[str, Tensor]:
    """Return the detached diagnostics of a regularizer and a loss.

    Raises ConfigError for a value that is not a tensor of one number, and for a name that another figure has.
    """
    found: dict[str, Tensor] = {}
    for kind, method in (("regularizer", regularizer), ("loss", loss)):
        place = f"{kind} {type(method).__name__}"
        figures = _checked_figures(place, method.diagnostics())  # type: ignore[operator]
        if taken := [name for name in figures if name in {"loss", "eta", *found}]:
            rule = "diagnostics() must not use the name of another figure of a step"
            raise ConfigError(Problem(place, rule, ", ".join(taken), "Rename it."))
        found |= {name: figure.detach() for name, figure in figures.items()}
    return found


def checked_metrics(place: str, figures: Mapping[str, object]) -> dict[str, float]:
    """Return the figures of a validation as numbers. Raise ConfigError for other values, and for other names.

    A figure of the test pictures would not be sealed.
    """
    if wrong := [name for name in figures if not name.startswith("val/")]:
        remedy = "Figures of test pictures belong in test(), which seals them."
        raise ConfigError(
            Problem(place, "the names of validate's figures must begin with val/", wrong[:_SHOWN], remedy)
        )
    numbers: dict[str, float] = {}
    for name, figure in figures.items():
        try:
            numbers[name] = float(figure)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError) as error:
            problem = Problem(f"{place}, {name}", "must be a single number", type(figure).__name__)
            raise ConfigError(problem) from error
    return numbers


def _checked_figures(place: str, figures: object) -> Mapping[str, Tensor]:
    """Return diagnostics. Raise ConfigError unless each is a tensor of one number."""
    if not isinstance(figures, Mapping):
        raise ConfigError(Problem(place, "diagnostics() must return a dictionary", type(figures).__name__))
    rule = "must be a tensor of a single number"
    raise_if_any(
        Problem(f"{place}, diagnostics() {name!r}", rule, tuple(getattr(figure, "shape", ())) or type(figure).__name__)
        for name, figure in figures.items()
        if not (isinstance(figure, Tensor) and figure.numel() == 1)
    )
    return figures
