"""What every loss promises, checked for every loss that is found; a new one takes part by being there."""

import copy
import importlib.util
import inspect
import math
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainables.errors import ConfigError
from trainables.losses import LOSSES, build_loss
from trainables.parameters import parameters_of, resolve

CLASSES, DIMENSION = 8, 6
NAMES = sorted(LOSSES)
ORACLE_FOLDER = Path(__file__).parents[1] / "unit" / "losses"


def oracles():
    """Name -> naive oracle, from every oracles_*.py."""
    found = {}
    sys.path.insert(0, str(ORACLE_FOLDER))
    try:
        for path in sorted(ORACLE_FOLDER.glob("oracles_*.py")):
            spec = importlib.util.spec_from_file_location(path.stem, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found.update(module.ORACLES)
    finally:
        sys.path.remove(str(ORACLE_FOLDER))
    return found


def build(name, dtype=torch.float64, **knobs):
    """The loss with its example knobs and the same seeded weights each time."""
    torch.manual_seed(0)
    loss = build_loss(name, num_classes=CLASSES, embedding_dim=DIMENSION, **{**LOSSES[name].example, **knobs})
    return loss.to(dtype)


def batch(labels, *, dtype=torch.float64, seed=0):
    """Raw embeddings around a common direction, their norms between about 1 and 4."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(len(labels), DIMENSION, generator=generator, dtype=torch.float64) + 0.5
    return embeddings.to(dtype).requires_grad_(), torch.tensor(labels)


REGULAR = [0, 3, 0, 1, 1, 3, 0, 2, 1, 2, 3, 5]
TWO_VIEWS = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]  # each class once in each half: a contrastive batch


def gradient_of(loss, embeddings, labels):
    value = loss(embeddings, labels)
    return value, torch.autograd.grad(value, embeddings)[0]


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def test_losses_are_found():
    assert len(NAMES) >= 16


def test_every_loss_has_an_oracle_a_citation_and_a_section():
    known = oracles()
    for name, cls in LOSSES.items():
        assert name in known, f"{name} has no naive oracle: add it to an oracles_*.py in tests/unit/losses"
        assert cls.__doc__, name
        assert re.search(r"\b(19|20)\d\d\b", cls.citation), f"{name}: a citation has a year"
        assert re.fullmatch(r"\d+(\.\d+)?", cls.section), f"{name}: section of the method specification"


def test_every_knob_is_described_and_every_missing_default_has_an_example(name):
    for parameter in parameters_of(LOSSES[name]):
        assert parameter.description, f"{name}.{parameter.name}"
    _, problems = resolve(LOSSES[name], dict(LOSSES[name].example), "loss")
    assert not problems


def test_unknown_knobs_are_refused(name):
    with pytest.raises(ConfigError, match="has no parameter 'nonsense'"):
        build(name, nonsense=1)


DEGENERATE = {
    "regular": REGULAR,
    "two views": TWO_VIEWS,
    "single class": [2, 2, 2, 2, 2, 2],
    "all unique": [0, 1, 2, 3, 4, 5],
    "one sample": [1],
    "two of a kind": [1, 1],
    "two strangers": [1, 4],
}


def _identical(f):
    return f[:1].expand_as(f)


def _zero_vector(f):
    return torch.cat((torch.zeros_like(f[:1]), f[1:]))


SHAPES = {
    "plain": lambda f: f,
    "identical": _identical,
    "a zero vector": _zero_vector,
    "all zero": torch.zeros_like,
    "opposite": lambda f: f[:1] * (1 - 2 * (torch.arange(len(f)) % 2))[:, None].to(f.dtype),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_identity_18_value_and_gradient_are_finite(name, dtype, shape):
    full = torch.float64 if dtype == torch.float64 else torch.float32
    for case, classes in DEGENERATE.items():
        embeddings, labels = batch(classes)
        embeddings = shape(embeddings.detach()).to(dtype).requires_grad_()
        value, gradient = gradient_of(build(name, dtype=full), embeddings, labels)
        assert value.ndim == 0, case
        assert value.dtype == full, case
        assert value.isfinite(), case
        assert gradient.dtype == dtype, case
        assert gradient.isfinite().all(), case


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", [1e4, 1e-4])
def test_identity_18_huge_and_tiny_norms_are_finite(name, norm, dtype):
    for classes in DEGENERATE.values():
        embeddings, labels = batch(classes)
        embeddings = (torch.nn.functional.normalize(embeddings.detach()) * norm).to(dtype).requires_grad_()
        value, gradient = gradient_of(build(name, dtype=torch.float32), embeddings, labels)
        assert value.isfinite()
        assert gradient.isfinite().all()


def test_a_zero_loss_is_still_on_the_graph(name):
    for classes in DEGENERATE.values():
        embeddings, labels = batch(classes)
        value = build(name)(embeddings, labels)
        assert value.requires_grad
        value.backward()
        assert embeddings.grad.shape == embeddings.shape


def test_autocast_outside_changes_nothing(name):
    embeddings, labels = batch(REGULAR, dtype=torch.float32)
    expected, expected_gradient = gradient_of(build(name, dtype=torch.float32), embeddings, labels)
    loss = build(name, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(embeddings, labels)
    assert torch.equal(value, expected)
    assert torch.equal(torch.autograd.grad(value, embeddings)[0], expected_gradient)


def test_identity_15_the_order_of_the_batch_does_not_matter(name):
    if LOSSES[name].depends_on_order:
        pytest.skip("depends on the order within a class, or draws at random")
    embeddings, labels = batch(REGULAR)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    value, gradient = gradient_of(build(name), embeddings, labels)
    permuted, permuted_gradient = gradient_of(build(name), embeddings[order].detach().requires_grad_(), labels[order])
    torch.testing.assert_close(permuted, value, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(permuted_gradient, gradient[order], rtol=1e-9, atol=1e-13)


def test_identity_5_gradient_is_orthogonal_to_each_embedding(name):
    if LOSSES[name].uses_norms:
        pytest.skip("the raw norm is part of this loss")
    embeddings, labels = batch(REGULAR)
    _, gradient = gradient_of(build(name), embeddings, labels)
    assert gradient.abs().max() > 1e-5
    assert (gradient * embeddings).sum(dim=1).abs().max() < 1e-12 * max(1.0, gradient.abs().max().item())


def test_identity_6_scaling_embeddings_leaves_the_value_and_divides_the_gradient(name):
    if LOSSES[name].uses_norms:
        pytest.skip("the raw norm is part of this loss")
    embeddings, labels = batch(REGULAR)
    value, gradient = gradient_of(build(name), embeddings, labels)
    scaled, scaled_gradient = gradient_of(build(name), (4 * embeddings.detach()).requires_grad_(), labels)
    torch.testing.assert_close(scaled, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(4 * scaled_gradient, gradient, rtol=1e-9, atol=1e-14)


def test_gradcheck(name):
    if LOSSES[name].surrogate_gradient:
        pytest.skip("the method holds weights constant: its gradient is not that of the value")
    embeddings, labels = batch(REGULAR)
    weights = list(build(name).parameters())

    def fresh(f, *given):
        loss = build(name)  # a random loss draws the same numbers at every call
        names = [key for key, _ in loss.named_parameters()]
        return torch.func.functional_call(loss, dict(zip(names, given, strict=True)), (f, labels))

    given = tuple(weight.detach().clone().requires_grad_() for weight in weights)
    assert torch.autograd.gradcheck(fresh, (embeddings, *given), fast_mode=True)


@pytest.mark.parametrize("classes", [REGULAR, TWO_VIEWS], ids=["regular", "two views"])
def test_agrees_with_its_oracle(name, classes):
    embeddings, labels = batch(classes, seed=5)
    loss = build(name)
    knobs, _ = resolve(LOSSES[name], dict(LOSSES[name].example), "loss")
    weights = {key: value.detach() for key, value in loss.named_parameters()}
    function = oracles()[name]
    accepted = inspect.signature(function).parameters
    if not weights.keys() <= accepted.keys():
        pytest.skip("its oracle takes the weights in its own way; see its own tests")
    expected = torch.as_tensor(function(embeddings, labels, **weights, **knobs), dtype=torch.float64)
    torch.testing.assert_close(loss(embeddings, labels).detach(), expected.detach(), rtol=1e-9, atol=1e-12)


def test_wrong_shapes_and_types_are_config_errors(name):
    loss = build(name, dtype=torch.float32)
    good, labels = torch.randn(4, DIMENSION), torch.tensor([0, 0, 1, 1])
    for embeddings, given in (
        (good[0], labels),
        (good.long(), labels),
        (good, labels.float()),
        (good, labels[:3]),
        (good, labels[:, None]),
        (good, labels > 0),
        (good[:0], labels[:0]),
    ):
        with pytest.raises(ConfigError):
            loss(embeddings, given)


def test_can_be_called_as_pml_trainers_do(name):
    embeddings, labels = batch(REGULAR)
    loss = build(name)
    twin = build(name)
    assert torch.equal(loss(embeddings, labels, None), twin(embeddings, labels))
    with pytest.raises(ConfigError, match="miner"):
        loss(embeddings, labels, (labels, labels, labels))


def test_the_inputs_are_left_alone(name):
    embeddings, labels = batch(REGULAR)
    before, labels_before = embeddings.detach().clone(), labels.clone()
    build(name)(embeddings, labels).backward()
    assert torch.equal(embeddings.detach(), before)
    assert torch.equal(labels, labels_before)


def test_repeats_exactly_and_survives_state_dict_copy_and_pickle(name):
    embeddings, labels = batch(REGULAR)
    loss, twin = build(name), build(name)
    assert torch.equal(loss(embeddings, labels), twin(embeddings, labels))
    copies = [copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))]  # noqa: S301
    torch.manual_seed(1)
    restored = build_loss(name, num_classes=CLASSES, embedding_dim=DIMENSION, **LOSSES[name].example).to(torch.float64)
    restored.load_state_dict(loss.state_dict())
    expected = loss(embeddings, labels)
    for other in (*copies, restored):
        assert torch.equal(other(embeddings, labels), expected)


def test_diagnostics_are_detached_scalars(name):
    embeddings, labels = batch(REGULAR)
    loss = build(name)
    loss(embeddings, labels)
    for key, value in loss.diagnostics().items():
        assert value.ndim == 0, key
        assert not value.requires_grad, key
        assert math.isfinite(value.item()), key


class Watch(TorchDispatchMode):
    """Sees every tensor operation of forward and backward: the largest result, and what waits for the device."""

    WAITS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2"})

    def __init__(self):
        super().__init__()
        self.largest = 0
        self.waits = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        operation = function._schema.name
        by_mask = operation == "aten::index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if operation in self.WAITS or by_mask:
            self.waits.append(operation)
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_memory_is_quadratic_and_nothing_waits_for_the_device(name):
    """Two classes of 48: all triplets would be 48 x the square of the batch, so that any B x P x N tensor shows."""
    embeddings, labels = batch([0, 1] * 48)
    loss = build(name)
    weights = sum(parameter.numel() for parameter in loss.parameters())
    with Watch() as watch:
        loss(embeddings, labels).backward()
    assert watch.largest <= 4 * max(len(labels) ** 2, len(labels) * weights)
    assert len(watch.waits) <= loss.host_reads


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles(name, backend):
    embeddings, labels = batch(REGULAR, dtype=torch.float32)
    expected, expected_gradient = gradient_of(build(name, dtype=torch.float32), embeddings, labels)
    torch.compiler.reset()
    compiled = torch.compile(build(name, dtype=torch.float32), fullgraph=False, backend=backend)
    value, gradient = gradient_of(compiled, embeddings, labels)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
