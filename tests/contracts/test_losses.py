"""The contract of every loss found; a new loss is included automatically."""

import re

import pytest
import torch
from helpers.oracles import ORACLES
from helpers.together import failing
from torch.utils._python_dispatch import TorchDispatchMode

from trainables.losses import LOSSES
from trainables.methods import check_knobs
from trainables.testing import REGULAR, Method, batch, loss_checks


def checks(*beginnings, ends=("",)):
    """Return each loss's checks whose names start and end as given."""
    chosen = {
        name: {str(c): c for c in loss_checks(cls) if str(c).startswith(beginnings) and str(c).endswith(ends)}
        for name, cls in LOSSES.items()
    }
    return pytest.mark.parametrize("kept", [pytest.param(kept, id=name) for name, kept in chosen.items() if kept])


@checks("gradient is orthogonal")
def test_identity_5_gradient_is_orthogonal_to_each_embedding(kept):
    assert failing(kept) == []


@checks("scale")
def test_identity_6_scaling_embeddings_leaves_the_value_and_divides_the_gradient(kept):
    assert failing(kept) == []


@checks("the order")
def test_identity_15_the_order_of_the_batch_does_not_matter(kept):
    assert failing(kept) == []


@checks("finite", ends=(" float32", " float16"))
def test_identity_18_value_and_gradient_are_finite(kept):
    assert failing(kept) == []


@pytest.mark.slow
@checks("finite", ends=(" float64", " bfloat16"))
def test_identity_18_in_types_of_a_wider_range(kept):
    assert failing(kept) == []


@checks("gradient is that", "is", "unknown", "wrong", "autocast", "inputs", "repeats", "diagnostics")
def test_a_loss_fulfils_the_rest_of_its_contract(kept):
    assert failing(kept) == []


def test_every_check_of_the_contract_is_tested():
    names = {(name, str(check)) for name, cls in LOSSES.items() for check in loss_checks(cls)}
    tests = [value for name, value in globals().items() if name.startswith("test_") and hasattr(value, "pytestmark")]
    marked = [mark.args[1] for test in tests for mark in test.pytestmark if mark.args[:1] == ("kept",)]
    assert {(param.id, check) for params in marked for param in params for check in param.values[0]} == names


def test_every_loss_has_an_oracle_a_section_and_an_example():
    assert len(LOSSES) >= 16
    for name, cls in LOSSES.items():
        assert name in ORACLES, f"{name} has no naive oracle: add it to a module of tests/helpers/oracles"
        assert re.fullmatch(r"\d+(\.\d+)?", cls.section), f"{name}: section of docs/specification.md"
        _, problems = check_knobs(cls, dict(cls.example), "loss")
        assert not problems, f"{name}: a knob without a default has a value in `example`"


class Watch(TorchDispatchMode):
    """Record the largest result of each tensor operation, and the operations that wait for the device."""

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


@pytest.mark.parametrize("cls", LOSSES.values(), ids=LOSSES.keys())
def test_memory_is_quadratic_and_no_call_waits_for_the_device(cls):
    """Two classes of 48: all triplets would be 48 times the square of the batch, so any B x P x N tensor shows."""
    embeddings, labels = batch([0, 1] * 48)
    loss = Method(cls).build()
    weights = sum(parameter.numel() for parameter in loss.parameters())
    with Watch() as watch:
        loss(embeddings, labels).backward()
    assert watch.largest <= 4 * max(len(labels) ** 2, len(labels) * weights)
    assert len(watch.waits) <= loss.host_reads


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("cls", LOSSES.values(), ids=LOSSES.keys())
def test_every_loss_compiles(cls, backend):
    embeddings, labels = batch(REGULAR, dtype=torch.float32)
    expected, slope = Method(cls).value_and_slope(embeddings, labels)
    torch.compiler.reset()
    compiled = torch.compile(Method(cls).build(torch.float32), fullgraph=False, backend=backend)
    value = compiled(embeddings, labels)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(value, embeddings)[0], slope, rtol=1e-4, atol=1e-6)
