"""The embedding network: backbone, pooling and head."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainables.errors import ConfigError, Problem
from trainables.models.base import Backbone, Head, Pooling
from trainables.models.batch_norm import batch_norms, freeze

DecayScope = Literal["weights", "all_but_norms", "all"]
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.InstanceNorm2d)


class Embedder(nn.Module):
    """Pictures (B, C, H, W), uint8 in 0..255 or float in 0..1, to RAW un-normalised embeddings (B, d).

    `freeze_bn` keeps the backbone's batch norms on their running statistics, even in `train()`; `freeze_bn_affine` also
    freezes their gamma and beta.
    """

    autocast: torch.dtype | None = None  # type of torch.autocast; None computes in the weights' type
    micro_batch: int | None = None
    """Number of pictures whose backbone activations exist at a time; None for the whole batch."""

    def __init__(
        self,
        backbone: Backbone,
        pooling: Pooling,
        head: Head,
        *,
        embedding_dim: int,
        freeze_bn: bool = False,
        freeze_bn_affine: bool = False,
    ) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.backbone, self.pooling, self.head = backbone, pooling, head
        self.freeze_bn, self.freeze_bn_affine = freeze_bn, freeze_bn_affine
        self.train()

    def prepare(self, device: torch.device, precision: str, *, channels_last: bool) -> Self:
        """Move the network to a device, and set the type and the memory layout that it computes in."""
        self.autocast = _AUTOCAST.get(precision)
        dtype = torch.float64 if precision == "float64" else torch.float32
        layout = torch.channels_last if channels_last else torch.preserve_format
        return self.to(device, dtype, memory_format=layout)  # type: ignore[call-overload, no-any-return]

    def precision(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the context of torch.autocast in which the network computes."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, dtype=self.autocast)

    def forward(self, images: Tensor) -> Tensor:
        with self.precision(images.device):
            embeddings = self.project(self.features(images))
        return embeddings if self.autocast is None else embeddings.float()

    def project(self, vectors: Tensor) -> Tensor:
        """Return the head's embeddings of pooled features. Raise ConfigError for a wrong shape."""
        embeddings: Tensor = self.head(vectors)
        _check_vectors(f"output of the head {self.head.name}", embeddings, self.embedding_dim)
        return embeddings

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features before the head, (B, F).

        With `micro_batch` activations are recomputed part by part in the backward pass. Values and gradients are those
        of the whole batch for backbones without batch statistics (gradient caching, Gao et al., Scaling Deep
        Contrastive Learning Batch Size under Memory Limited Setup, 2021). The head sees the whole batch.
        """
        if self.micro_batch is None or len(images) <= self.micro_batch:
            return self._features(images)
        parts = torch.split(images, self.micro_batch)
        if not torch.is_grad_enabled():
            return torch.cat([self._features(part) for part in parts])
        return torch.cat([checkpoint(self._features, part, use_reentrant=False) for part in parts])

    def _features(self, images: Tensor) -> Tensor:
        maps: Tensor = self.backbone(self.backbone.to_input(images))
        if maps.ndim != 4 or maps.shape[1] != self.backbone.out_channels:
            rule = f"must be (B, out_channels, h, w), and its out_channels is {self.backbone.out_channels}"
            raise ConfigError(Problem(f"feature map of the backbone {self.backbone.name}", rule, tuple(maps.shape)))
        features: Tensor = self.pooling(maps)
        _check_vectors(f"output of the pooling {self.pooling.name}", features, self.backbone.out_channels)
        return features

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.freeze_bn:
            freeze(self.backbone, affine=self.freeze_bn_affine)
        return self


def _check_vectors(place: str, vectors: object, width: int) -> None:
    if not isinstance(vectors, Tensor) or vectors.ndim != 2 or vectors.shape[1] != width:
        got = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
        raise ConfigError(Problem(place, f"must be a tensor of shape (B, {width})", got))


def parameter_groups(model: nn.Module, decay_scope: DecayScope = "weights") -> dict[str, list[nn.Parameter]]:
    """Return the trainable parameters by part and weight decay (docs/specification.md, sections 9.1 and 9.6).

    Keys are `backbone`, `backbone_no_decay`, `head` (with pooling), `head_no_decay`, without empty groups. With
    `weights`, biases, normalisation and other vectors or scalars do not decay; with `all_but_norms`, only gamma and
    beta do not.
    """
    without_decay = _ids_without_decay(model, decay_scope)
    groups: dict[str, list[nn.Parameter]] = {
        key: [] for part in ("backbone", "head") for key in (part, f"{part}_no_decay")
    }
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part = "backbone" if name.startswith("backbone.") else "head"
            groups[f"{part}_no_decay" if id(parameter) in without_decay else part].append(parameter)
    return {key: group for key, group in groups.items() if group}


def _ids_without_decay(model: nn.Module, decay_scope: DecayScope) -> set[int]:
    if decay_scope == "all":
        return set()
    if decay_scope == "weights":
        return {id(parameter) for parameter in model.parameters() if parameter.ndim <= 1}
    norms = [*batch_norms(model), *(part for part in model.modules() if isinstance(part, _NORMS))]
    return {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
