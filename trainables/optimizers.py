"""Define optimizers by name, and the learning rate and weight decay of each parameter group.

Groups are backbone, head and loss (proxies, centres, class weights); network parts also have groups without weight
decay (docs/specification.md, section 9.6).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from trainables.arithmetic import without_compiler
from trainables.config import OptimConfig
from trainables.models.embedder import parameter_groups

Groups = list[dict[str, object]]
Beta = Annotated[float, Field(ge=0, lt=1, description="decay of a running mean")]
Epsilon = Annotated[float, Field(gt=0, description="added to the root of the second moment")]
Momentum = Annotated[float, Field(ge=0, lt=1, description="momentum")]


class OptimizerRecipe(ABC):
    """An optimizer and its knobs; groups set learning rate and weight decay."""

    name: ClassVar[str]

    @abstractmethod
    def build(self, groups: Groups) -> torch.optim.Optimizer:
        """Return the optimizer over these groups."""


@dataclass(frozen=True, kw_only=True)
class _Adaptive(OptimizerRecipe):
    """Adam's two running means. The fused kernel takes a fifth of the time of a loop over parameters."""

    kind: ClassVar[type[torch.optim.Optimizer]]
    kernel: ClassVar[Callable[..., None]]

    beta1: Beta = 0.9
    beta2: Beta = 0.999
    eps: Epsilon = 1e-8

    def build(self, groups: Groups) -> torch.optim.Optimizer:
        kind = _with_direct_step(self.kind, type(self).kernel)  # type: ignore[arg-type]  # a class is hashable
        return kind(groups, betas=(self.beta1, self.beta2), eps=self.eps, fused=True)


_SHARED = ("lr", "weight_decay", "eps", "amsgrad", "maximize")
"""Settings of a parameter group that its kernel takes, beside the betas."""


@cache
def _with_direct_step(kind: type[Any], kernel: Callable[..., None]) -> Callable[..., torch.optim.Optimizer]:
    """Return Adam or AdamW whose step calls torch's fused kernel directly if all parameters are on the CPU.

    torch's own step sorts the tensors by device and type and opens a profiler's range first: 85 microseconds, more than
    a linear head's gradient. The numbers are equal. On CUDA, torch's own step runs, because fp16 needs it.
    """
    base: Any = without_compiler(kind)  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self: Any) -> None:
        if any(parameter.device.type != "cpu" for group in self.param_groups for parameter in group["params"]):
            base.step(self)
        else:
            step_together([self])

    def zero_grad(self: Any) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    step.__dict__["hooked"] = True  # torch then adds no profiler's range
    return type(kind.__name__, (base,), {"step": step, "zero_grad": zero_grad, "kernel": staticmethod(kernel)})


@torch.no_grad()
def step_together(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Step several optimizers on the CPU; Adam and AdamW with one call of their kernel for groups of equal settings."""
    merged: dict[tuple[object, ...], tuple[list[Any], ...]] = {}
    for optimizer in optimizers:
        kernel = getattr(optimizer, "kernel", None)
        if kernel is None:
            optimizer.step()
            continue
        for group in optimizer.param_groups:
            key = (kernel, *group["betas"], *(group[name] for name in _SHARED))
            columns = merged.setdefault(key, ([], [], [], [], [], []))
            optimizer._init_group(group, *columns)  # type: ignore[attr-defined]  # appends to each column
    for (kernel, beta1, beta2, *shared), columns in merged.items():
        if columns[0]:
            torch._foreach_add_(columns[-1], 1)
            keywords = dict(zip(_SHARED, shared, strict=True))
            kernel(*columns, beta1=beta1, beta2=beta2, **keywords)  # type: ignore[operator]


class AdamW(_Adaptive):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""

    name = "adamw"
    kind = torch.optim.AdamW
    kernel = torch._fused_adamw_


class Adam(_Adaptive):
    """Adam (Kingma and Ba, ICLR 2015); weight decay is coupled: added to the gradient."""

    name = "adam"
    kind = torch.optim.Adam
    kernel = torch._fused_adam_


@dataclass(frozen=True, kw_only=True)
class SGD(OptimizerRecipe):
    """Stochastic gradient descent; weight decay is added to the gradient."""

    name = "sgd"
    momentum: Momentum = 0.9
    nesterov: Annotated[bool, Field(description="look ahead by one momentum step")] = False

    def build(self, groups: Groups) -> torch.optim.Optimizer:
        nesterov = self.nesterov and self.momentum > 0
        return without_compiler(torch.optim.SGD)(groups, momentum=self.momentum, nesterov=nesterov, fused=True)


@dataclass(frozen=True, kw_only=True)
class RMSprop(OptimizerRecipe):
    """RMSprop (Tieleman and Hinton, 2012), as in powerful-benchmarker."""

    name = "rmsprop"
    alpha: Beta = 0.99
    momentum: Momentum = 0.0
    eps: Epsilon = 1e-8

    def build(self, groups: Groups) -> torch.optim.Optimizer:
        return without_compiler(torch.optim.RMSprop)(groups, alpha=self.alpha, momentum=self.momentum, eps=self.eps)


OPTIMIZERS: dict[str, type[OptimizerRecipe]] = {recipe.name: recipe for recipe in (Adam, AdamW, RMSprop, SGD)}


def build_optimizer(optim: OptimConfig, network: nn.Module, loss: nn.Module) -> torch.optim.Optimizer:
    """Return the configured optimizer over all trainable parameters; each group has its `initial_lr`."""
    recipe: OptimizerRecipe = OPTIMIZERS[optim.name](**optim.knobs())
    return recipe.build(_groups(optim, network, loss))


def _groups(optim: OptimConfig, network: nn.Module, loss: nn.Module) -> Groups:
    """Return the groups backbone, head, loss and `..._no_decay` of all trainable parameters."""
    rates = {"backbone": optim.lr * optim.backbone_lr_multiplier, "head": optim.lr}
    groups: Groups = []
    for name, parameters in parameter_groups(network, optim.weight_decay_on).items():
        part, without_decay = name.removesuffix("_no_decay"), name.endswith("_no_decay")
        decay = 0.0 if without_decay else optim.weight_decay
        groups.append({"name": name, "params": parameters, "lr": rates[part], "weight_decay": decay})
    if proxies := [parameter for parameter in loss.parameters() if parameter.requires_grad]:
        rate, decay = optim.lr * optim.loss_lr_multiplier, optim.loss_weight_decay
        groups.append({"name": "loss", "params": proxies, "lr": rate, "weight_decay": decay})
    for group in groups:
        group["initial_lr"] = group["lr"]
    return groups
