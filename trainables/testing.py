"""Provide contract checks of losses, regularizers and data sets, for your own tests.

    import pytest
    from trainables import testing

    @pytest.mark.parametrize("check", testing.loss_checks(MyLoss), ids=str)
    def test_my_loss(check):
        check()

Each check raises AssertionError with the broken rule, and needs no pytest. Rules that a class excludes (`uses_norms`,
`depends_on_order`, `surrogate_gradient`) are left out.
"""

import copy
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainables import methods
from trainables.data.base import DataSet, Pictures
from trainables.errors import ConfigError
from trainables.losses.base import Loss
from trainables.regularizers.base import Regularizer, add_penalty

CLASSES, DIMENSION = 8, 6
REGULAR = (0, 3, 0, 1, 1, 3, 0, 2, 1, 2, 3, 5)
DEGENERATE = {
    "regular": REGULAR,
    "two views": (0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5),
    "single class": (2, 2, 2, 2, 2, 2),
    "all unique": (0, 1, 2, 3, 4, 5),
    "one sample": (1,),
    "two of a kind": (1, 1),
    "two strangers": (1, 4),
}
"""Labels of degenerate batches."""
SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda f: f,
    "identical": lambda f: f[:1].expand_as(f),
    "a zero vector": lambda f: torch.cat((torch.zeros_like(f[:1]), f[1:])),
    "all zero": torch.zeros_like,
    "opposite": lambda f: f[:1] * (1 - 2 * (torch.arange(len(f)) % 2))[:, None].to(f.dtype),
    "huge": lambda f: nn.functional.normalize(f) * 1e4,
    "tiny": lambda f: nn.functional.normalize(f) * 1e-4,
}
"""Transformations of the embeddings of such a batch."""
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Check:
    """One rule; call it to check it."""

    name: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Raise AssertionError if the rule is broken."""
        self.run()

    def __str__(self) -> str:
        return self.name


def batch(labels: Sequence[int] = REGULAR, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return raw embeddings (B, DIMENSION) with norms of about 1 to 4, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(len(labels), DIMENSION, generator=generator, dtype=torch.float64) + 0.5
    return embeddings.to(dtype).requires_grad_(), torch.tensor(labels)


@dataclass(frozen=True)
class Method:
    """A loss or regularizer with its knobs, rebuilt for each check."""

    cls: type[Loss] | type[Regularizer]
    knobs: Mapping[str, object] = field(default_factory=dict)

    def build(self, dtype: torch.dtype = torch.float64) -> Any:
        """Build the method with the same seeded weights each time."""
        torch.default_generator.manual_seed(0)  # faster than torch.manual_seed
        context = {"num_classes": CLASSES, "embedding_dim": DIMENSION}
        knobs = {**getattr(self.cls, "example", {}), **self.knobs}
        module = methods.construct(self.cls, knobs, context, place=self.cls.name).to(dtype)
        if getattr(module, "needs_mean", False):
            module.set_mean(1.0)
        return module

    def value(self, embeddings: Tensor, labels: Tensor, module: nn.Module | None = None) -> Tensor:
        """Return the value, of `module` if given."""
        module = module or self.build(torch.float64 if embeddings.dtype == torch.float64 else torch.float32)
        value: Tensor = module(embeddings, labels) if issubclass(self.cls, Loss) else module(embeddings)
        return value

    def value_and_slope(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and its gradient with respect to the embeddings."""
        value = self.value(embeddings, labels)
        return value, torch.autograd.grad(value, embeddings)[0]


def loss_checks(cls: type[Loss], **knobs: object) -> list[Check]:
    """Return the checks of a loss, built with its `example` knobs and these."""
    method = Method(cls, knobs)
    promises = {
        "wrong batches are refused": (_refuses_wrong_batches, True),
        "is called as pytorch-metric-learning calls a loss": (_is_called_by_pml, True),
        "the order of the batch does not matter": (_ignores_order, not cls.depends_on_order),
        "scale does not matter": (_ignores_scale, not cls.uses_norms),
        "gradient is orthogonal to each embedding": (_slope_is_orthogonal, not cls.uses_norms),
        "gradient is that of the value": (_slope_is_exact, not cls.surrogate_gradient),
    }
    own = [Check(name, partial(check, method)) for name, (check, promised) in promises.items() if promised]
    return [*_checks_of_both(method), *own]


def regularizer_checks(cls: type[Regularizer], **knobs: object) -> list[Check]:
    """Return the checks of a regularizer; one that needs a mean norm gets 1."""
    method = Method(cls, knobs)
    return [
        *_checks_of_both(method),
        Check("the order of the batch does not matter", partial(_ignores_order, method)),
        Check("an empty batch costs nothing", partial(_empty_batch_costs_nothing, method)),
        Check("weight 0 is the baseline", partial(_weight_0_is_the_baseline, method)),
    ]


def _checks_of_both(method: Method) -> Iterator[Check]:
    yield Check("is described", partial(_is_described, method))
    for dtype in DTYPES:
        for shape in SHAPES:
            if dtype != torch.float16 or shape not in {"huge", "tiny"}:
                name = f"finite: {shape}, {dtype}".replace("torch.", "")
                yield Check(name, partial(_is_finite, method, dtype, shape))
    unknown = Method(method.cls, {**method.knobs, "nonsense": 1})
    yield Check("unknown knobs are refused", partial(_raises_config_error, unknown.build, "an unknown knob"))
    yield Check("autocast outside changes nothing", partial(_ignores_autocast, method))
    yield Check("inputs are left alone", partial(_leaves_inputs_alone, method))
    yield Check("repeats exactly, also as a copy", partial(_repeats_exactly, method))
    yield Check("diagnostics are detached scalars", partial(_diagnostics_are_scalars, method))


def _require(condition: object, rule: str) -> None:
    if not condition:
        raise AssertionError(rule)


def _close(found: Tensor, expected: Tensor, rule: str, rtol: float = 1e-9, atol: float = 1e-13) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=lambda text: f"{rule}: {text}")


def _raises_config_error(call: Callable[[], object], rule: str) -> None:
    try:
        call()
    except ConfigError:
        return
    raise AssertionError(f"{rule}: a ConfigError is expected")


def _is_described(method: Method) -> None:
    cls = method.cls
    _require(cls.__doc__, "a method has a docstring")
    _require(re.search(r"\b(19|20)\d\d\b", cls.citation), f"a citation has a year: {cls.citation!r}")
    for parameter in methods.parameters_of(cls):
        _require(parameter.description, f"the knob {parameter.name!r} has a description")


def _is_finite(method: Method, dtype: torch.dtype, shape: str) -> None:
    """Check value and gradient of every degenerate batch; half precision computes in float32."""
    full = torch.float64 if dtype == torch.float64 else torch.float32
    for case, labels in DEGENERATE.items():
        embeddings, numbers = batch(labels)
        embeddings = SHAPES[shape](embeddings.detach()).to(dtype).requires_grad_()
        value, slope = method.value_and_slope(embeddings, numbers)
        _require(value.ndim == 0, f"{case}: the value is a scalar")
        _require(value.dtype == full, f"{case}: the value must be {full}, but is {value.dtype}")
        _require(value.isfinite(), f"{case}: the value must be finite, but is {value}")
        _require(slope.dtype == dtype, f"{case}: the gradient must be {dtype}, but is {slope.dtype}")
        _require(slope.isfinite().all(), f"{case}: the gradient is finite")


def _ignores_autocast(method: Method) -> None:
    embeddings, labels = batch(dtype=torch.float32)
    expected, slope = method.value_and_slope(embeddings, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = method.value(embeddings, labels)
    _require(torch.equal(value, expected), "the value under autocast")
    _require(torch.equal(torch.autograd.grad(value, embeddings)[0], slope), "the gradient under autocast")


def _leaves_inputs_alone(method: Method) -> None:
    embeddings, labels = batch()
    before, labels_before = embeddings.detach().clone(), labels.clone()
    method.value_and_slope(embeddings, labels)
    _require(torch.equal(embeddings.detach(), before), "the embeddings are as they were")
    _require(torch.equal(labels, labels_before), "the labels are as they were")


def _repeats_exactly(method: Method) -> None:
    """Check that twins, copies, pickles and restored state give the same next value."""
    embeddings, labels = batch()
    module, twin = method.build(), method.build()
    value = method.value(embeddings, labels, module)
    _require(torch.equal(value, method.value(embeddings, labels, twin)), "two of the same seed are equal")
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]  # noqa: S301 - our own bytes
    restored = method.build()
    restored.load_state_dict(module.state_dict())
    torch.manual_seed(1)
    embeddings, labels = batch(seed=1)  # a memory of the same batch would not change a mean over pairs
    expected = method.value(embeddings, labels, module)
    for copied in (*copies, restored):
        _require(
            torch.equal(method.value(embeddings, labels, copied), expected), "a copy continues as the original does"
        )


def _diagnostics_are_scalars(method: Method) -> None:
    embeddings, labels = batch()
    module = method.build()
    method.value(embeddings, labels, module)
    for key, value in module.diagnostics().items():
        _require(value.ndim == 0 and not value.requires_grad, f"{key} is a detached scalar")
        _require(math.isfinite(value.item()), f"{key} is finite")


def _ignores_order(method: Method) -> None:
    embeddings, labels = batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    value, slope = method.value_and_slope(embeddings, labels)
    permuted, permuted_slope = method.value_and_slope(embeddings[order].detach().requires_grad_(), labels[order])
    _close(permuted, value, "the value of the permuted batch", rtol=1e-12, atol=1e-14)
    _close(permuted_slope, slope[order], "the gradient of the permuted batch")


def _ignores_scale(method: Method) -> None:
    embeddings, labels = batch()
    value, slope = method.value_and_slope(embeddings, labels)
    scaled, scaled_slope = method.value_and_slope((4 * embeddings.detach()).requires_grad_(), labels)
    _close(scaled, value, "the value of scaled embeddings", rtol=1e-12, atol=0)
    _close(4 * scaled_slope, slope, "the gradient of scaled embeddings", atol=1e-14)


def _slope_is_orthogonal(method: Method) -> None:
    embeddings, labels = batch()
    _, slope = method.value_and_slope(embeddings, labels)
    _require(slope.abs().max() > 1e-5, "the gradient of a regular batch is not zero")
    along = (slope * embeddings).sum(dim=1).abs().max()
    bound = 1e-12 * max(1.0, slope.abs().max().item())
    _require(along < bound, f"the gradient has no part along the embedding: {along}")


def _slope_is_exact(method: Method) -> None:
    """Check gradients of embeddings and weights in float64 against differences."""
    embeddings, labels = batch()
    weights = dict(method.build().named_parameters())

    def compute_value(f: Tensor, *parameters: Tensor) -> Tensor:
        module = method.build()  # a random loss draws the same numbers at every call
        value: Tensor = torch.func.functional_call(module, dict(zip(weights, parameters, strict=True)), (f, labels))
        return value

    parameters = tuple(weight.detach().clone().requires_grad_() for weight in weights.values())
    is_exact = torch.autograd.gradcheck(compute_value, (embeddings, *parameters), fast_mode=True)
    _require(is_exact, "the gradient is that of the value")


def _refuses_wrong_batches(method: Method) -> None:
    loss = method.build(torch.float32)
    valid, labels = torch.randn(4, DIMENSION), torch.tensor([0, 0, 1, 1])
    for rule, embeddings, wrong_labels in (
        ("one embedding alone", valid[0], labels),
        ("whole-number embeddings", valid.long(), labels),
        ("labels that are not whole numbers", valid, labels.float()),
        ("too few labels", valid, labels[:3]),
        ("labels in a column", valid, labels[:, None]),
        ("labels that are true or false", valid, labels > 0),
        ("nothing", valid[:0], labels[:0]),
    ):
        _raises_config_error(partial(loss, embeddings, wrong_labels), rule)


def _is_called_by_pml(method: Method) -> None:
    embeddings, labels = batch()
    loss, twin = method.build(), method.build()
    _require(torch.equal(loss(embeddings, labels, None), twin(embeddings, labels)), "no miner's output changes nothing")
    _raises_config_error(lambda: loss(embeddings, labels, (labels, labels, labels)), "a miner's output")


def _empty_batch_costs_nothing(method: Method) -> None:
    empty = torch.zeros(0, DIMENSION, requires_grad=True)
    value = method.value(empty, torch.zeros(0, dtype=torch.long))
    value.backward()  # type: ignore[no-untyped-call]
    _require(value == 0, "the penalty of an empty batch is 0")


def _weight_0_is_the_baseline(method: Method) -> None:
    embeddings, _ = batch()
    value = embeddings.sum()
    objective = add_penalty(value, method.build(), embeddings, 0.0)
    _require(objective is value, "with weight 0 the objective is the same tensor")


def dataset_checks(build: Callable[[Path], DataSet], cache_dir: Path) -> list[Check]:
    """Return the checks of a data set with correct files.

    Args:
        build: creates the data set, given the folder of decoded pictures.
        cache_dir: an empty folder; pictures are decoded into it once.
    """
    prepared = cache(lambda: build(cache_dir).prepare())
    return [
        Check("is described", lambda: _dataset_is_described(build(cache_dir))),
        Check("sound files have no problem", lambda: _sound_files_have_no_problem(build(cache_dir))),
        Check("the digest is stable", lambda: _digest_is_stable(build, cache_dir)),
        Check("labels and classes fit the pictures", lambda: _labels_fit(prepared())),
        Check("pictures are bytes, read-only", lambda: _pictures_are_bytes(prepared())),
        Check("preparing again opens what was prepared", lambda: _opens_again(build(cache_dir), prepared())),
        Check("pictures are pickled by path", lambda: _pickled_by_path(prepared())),
        Check("counts are those of the pictures", lambda: _counts_agree(build(cache_dir), prepared())),
    ]


def _dataset_is_described(dataset: DataSet) -> None:
    for attribute in ("name", "citation", "licence", "source", "__doc__"):
        _require(getattr(type(dataset), attribute, ""), f"a data set says its {attribute}")
    for parameter in methods.parameters_of(type(dataset)):
        _require(parameter.description, f"the knob {parameter.name!r} has a description")


def _sound_files_have_no_problem(dataset: DataSet) -> None:
    problems = [*dataset.check(), *dataset.verify()]
    _require(not problems, "\n".join(map(str, problems)))


def _digest_is_stable(build: Callable[[Path], DataSet], cache_dir: Path) -> None:
    first, elsewhere = build(cache_dir).digest(), build(cache_dir / "elsewhere").digest()
    _require(re.fullmatch("[0-9a-f]{64}", first), f"a digest is a hexadecimal SHA-256, not {first!r}")
    _require(first == elsewhere, "the digest does not depend on where pictures are decoded to")


def _labels_fit(pictures: Pictures) -> None:
    labels, names = pictures.labels, pictures.class_names
    _require(labels.dtype == np.int64 and labels.shape == (len(pictures),), "labels are int64, one a picture")
    _require(len(pictures.images) == len(labels) > 0, "there is a label for each picture")
    _require(labels.min() >= 0 and labels.max() < len(names), "each label is a class number")
    _require(len(set(names)) == len(names), "class names differ")
    once = len(set(pictures.test_classes)) == len(pictures.test_classes)
    _require(once and set(pictures.test_classes) <= set(range(len(names))), "test classes are classes, once each")


def _pictures_are_bytes(pictures: Pictures) -> None:
    picture = np.asarray(pictures.images[0])
    if pictures.are_features:
        _require(picture.dtype == np.float16 and picture.shape[:2] == (1, 1), "features are float16, (1, 1, D)")
        return
    _require(picture.dtype == np.uint8, f"a picture is uint8, not {picture.dtype}")
    _require(picture.ndim == 3 and picture.shape[-1] in {1, 3}, f"a picture is (H, W, 1 or 3), not {picture.shape}")
    _require(not pictures.images[0].flags.writeable, "decoded pictures cannot be written to")


def _opens_again(dataset: DataSet, pictures: Pictures) -> None:
    _require(dataset.is_prepared(), "a prepared data set knows it")
    again = dataset.prepare()
    _require((again.digest, again.directory) == (pictures.digest, pictures.directory), "the same folder is opened")
    _require(pictures.digest == dataset.digest() and pictures.name == dataset.name, "pictures say whose they are")


def _pickled_by_path(pictures: Pictures) -> None:
    pickled = pickle.dumps(pictures)
    _require(len(pickled) < 4096, f"a pickle holds the path, never the pixels, but it has {len(pickled)} bytes")
    received = pickle.loads(pickled)  # noqa: S301 - our own bytes
    _require(np.array_equal(received.images[0], pictures.images[0]), "the same pictures arrive")
    _require(np.array_equal(received.labels, pictures.labels), "the same labels arrive")


def _counts_agree(dataset: DataSet, pictures: Pictures) -> None:
    counts = dataset.counts()
    _require(set(dataset.expected) <= set(counts) or not counts, "counts go by the names of `expected`")
    _require(counts.get("images", len(pictures)) == len(pictures), f"{counts} has as many images as there are pictures")
    classes = {len(pictures.class_names), len(np.unique(pictures.labels))}
    _require(counts.get("classes") in {None, *classes}, f"{counts} has as many classes as the pictures have")
