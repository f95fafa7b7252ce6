"""Architectures of PyTorch Image Models (timm) with a feature map; needs the extra `vision`."""

import copy
import importlib
from functools import cache
from math import isqrt
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables import distributed
from trainables.errors import ConfigError, DataError, Problem, nearest, raise_if_any
from trainables.models.base import Backbone, refuse_other_channels, standardise
from trainables.models.batch_norm import normalise_over_workers
from trainables.models.weights import load_weights, obtain

_HUB = "timm"  # value of `weights` for timm's own download


class Timm(Backbone):
    """The feature map before global pooling of any timm architecture: convolutional networks and vision transformers.

    A transformer's patch tokens form the map, without class token and registers. Batch norm covers all workers;
    parameters that the map does not depend on do not train. Pictures are standardised as the weights expect; grey ones
    are repeated over the channels.
    """

    name = "timm"
    citation = "Wightman, PyTorch Image Models, 2019; each architecture has its own paper"
    published = "model.weights=timm, which timm downloads"

    def __init__(
        self,
        *,
        in_channels: int,
        architecture: Annotated[
            str, Field(description="a name that timm.list_models() gives, with or without .TAG of its weights")
        ] = "resnet50",
        weights: Annotated[
            str | None, Field(description="as for other backbones, or `timm`: those that timm itself downloads")
        ] = None,
    ) -> None:
        super().__init__()
        refuse_other_channels(self.name, in_channels)
        raise_if_any(self.file_problems(architecture=architecture, weights=weights))
        network = _create_network(architecture, fetch=weights == _HUB)
        if weights not in (None, _HUB):
            path = obtain(str(weights), published=self.published)
            names = network.pretrained_cfg.get("classifier") or ()
            load_weights(network, path, without=[f"{n}." for n in ([names] if isinstance(names, str) else names)])
        _normalise_over_workers(network)
        self.network = network
        self.mean, self.std = network.pretrained_cfg["mean"], network.pretrained_cfg["std"]
        self.prefix = int(getattr(network, "num_prefix_tokens", 0))
        self.out_channels, self.axis = self._probe()

    @classmethod
    def file_problems(cls, **knobs: object) -> list[Problem]:
        weights, architecture = knobs.get("weights"), str(knobs.get("architecture", "resnet50"))
        try:
            timm = _import_timm()
        except ConfigError as error:
            return list(error.problems)
        problems = [] if weights == _HUB else super().file_problems(weights=weights)
        name, _, tag = architecture.partition(".")
        if ":" in architecture or not timm.is_model(name):
            remedy = nearest(name, timm.list_models(), what="architecture")
            remedy = remedy if len(remedy) < 200 else "timm.list_models() names them."
            problems.append(Problem("model.architecture", "timm knows no such architecture", architecture, remedy))
        elif tag and architecture not in (tagged := timm.list_pretrained(f"{name}.*")):
            rule = "timm knows no such weights"
            problems.append(Problem("model.architecture", rule, architecture, known=tagged, kind="tag"))
        elif weights == _HUB and not timm.list_pretrained(f"{name}.*"):
            rule = "timm has no weights of this architecture"
            problems.append(Problem("model.weights", rule, architecture, "Set model.weights=null."))
        return problems

    @classmethod
    def size_problems(cls, size: int, **knobs: object) -> list[Problem]:
        architecture = str(knobs.get("architecture", "resnet50"))
        if cls.file_problems(architecture=architecture):
            return []  # `file_problems` reports the problem
        about = _import_timm().get_pretrained_cfg(architecture)
        if about is None:
            return []
        fixed_size, smallest_size = about.input_size[-1], (about.min_input_size or (3, 1, 1))[-1]
        if about.fixed_input_size and size != fixed_size:
            rule = f"{architecture} takes pictures of {fixed_size} pixels and no others"
            return [
                Problem("data.size", rule, size, f"Cut them to {fixed_size}, or choose another model.architecture.")
            ]
        if size < smallest_size:
            rule = f"{architecture} needs pictures of at least {smallest_size} pixels"
            remedy = f"Set data.size or augment.crop to {smallest_size} or more, or choose another model.architecture."
            return [Problem("data.size", rule, size, remedy)]
        return []

    @classmethod
    def start(cls, **knobs: object) -> str:
        if knobs.get("weights") != _HUB:
            return super().start(**knobs)
        about = _import_timm().get_pretrained_cfg(str(knobs.get("architecture", "resnet50")))
        return f"The backbone starts from timm's own weights {about.architecture}.{about.tag}."

    def to_input(self, images: Tensor) -> Tensor:
        return standardise(super().to_input(images), self.mean, self.std)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.forward_features(images)
        if features.ndim == 4:
            return features.movedim(self.axis, 1)
        patches = features[:, self.prefix :].transpose(1, 2)
        side = isqrt(patches.shape[2])
        return patches.reshape(*patches.shape[:2], side, side)

    def _probe(self) -> tuple[int, int]:
        """Return channels and axis of the map from a pass without data; freeze parameters outside it."""
        network: Any = copy.deepcopy(self.network).to("meta")
        size = network.pretrained_cfg["input_size"][-1]
        features = network.eval().forward_features(torch.zeros(2, 3, size, size, device="meta"))
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        channels = network.num_features
        axis = next((axis for axis in (1, -1) if isinstance(shape, tuple) and shape[axis] == channels), None)
        tokens = shape[1] - self.prefix if isinstance(shape, tuple) and len(shape) == 3 else 1
        if axis is None or not 3 <= len(shape) <= 4 or (len(shape) == 3 and axis == 1) or isqrt(tokens) ** 2 != tokens:
            rule = "the architecture must give a feature map, or tokens of a square grid"
            raise ConfigError(Problem("model.architecture", rule, shape, "Choose another one."))
        features.sum().backward()
        for own, probed in zip(self.network.parameters(), network.parameters(), strict=True):
            own.requires_grad_(own.requires_grad and probed.grad is not None)
        return channels, axis


def _import_timm() -> Any:
    """Import timm, even with a CUDA build of torchvision beside a CPU build of torch.

    Torchvision's import then fails, since its operators were never registered ("operator torchvision::nms does not
    exist"). Declare them and import again; timm's networks do not use them. Raises ConfigError without the extra.
    """
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        remedy = "Install the extra: pip install 'tune-dml[vision]'."
        raise ConfigError(Problem("model.backbone", f"timm needs the package {error.name}", "timm", remedy)) from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for operator in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", schema)
    return importlib.import_module("timm")


def _create_network(architecture: str, *, fetch: bool) -> Any:
    """Create the network without classifier. Raise DataError if timm cannot fetch its weights."""
    try:
        return _import_timm().create_model(architecture, pretrained=fetch, num_classes=0)
    except Exception as error:  # the hub's client raises many kinds
        if not fetch:
            raise
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        remedy = "Check the network, or pass the path of a file as model.weights."
        raise DataError(
            Problem("model.weights", "timm must be able to download its weights", reason, remedy)
        ) from error


def _normalise_over_workers(network: nn.Module) -> None:
    """Replace batch norms by ones over all workers; their names, parameters and one worker's numbers stay equal."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, importlib.import_module("timm.layers").BatchNormAct2d)
    for part in network.modules():
        if type(part) in kinds:
            part.__class__ = _global_batch_norm(type(part))  # type: ignore[arg-type]


@cache
def _global_batch_norm(kind: Any) -> Any:
    """Return a subclass of a batch norm (with timm's activation, if any) over all workers."""

    class Global(kind):  # type: ignore[misc]
        def forward(self, values: Tensor) -> Tensor:
            if not (self.training and distributed.is_distributed()):
                alone: Tensor = super().forward(values)
                return alone
            normalised = normalise_over_workers(self, values)
            return self.act(self.drop(normalised)) if hasattr(self, "act") else normalised

    Global.__name__ = Global.__qualname__ = f"Global{kind.__name__}"
    return Global
