"""Fast products switched on for training are off while metrics are computed, and on again afterwards."""

import pytest
import torch

from trainables.metrics.inputs import exact_arithmetic, unit_rows

MATMUL, CPU_MATMUL = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)


def settings() -> list[object]:
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:
        legacy = "mixed"
    return [legacy, *(getattr(switch, "fp32_precision", None) for switch in (MATMUL, CPU_MATMUL))]


@pytest.fixture
def _as_before():
    found = settings()
    yield
    torch.set_float32_matmul_precision(found[0])
    for switch, value in zip((MATMUL, CPU_MATMUL), found[1:], strict=True):
        if value is not None:
            switch.fp32_precision = value


def by_old_name(precision: str):
    return lambda: torch.set_float32_matmul_precision(precision)


def by_cuda_flag():
    MATMUL.allow_tf32 = True


def by_new_name():
    MATMUL.fp32_precision = "tf32"


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize(
    "switch_on",
    [by_old_name("highest"), by_old_name("high"), by_old_name("medium"), by_cuda_flag, by_new_name],
)
def test_products_are_full_inside_and_as_before_afterwards(switch_on):
    if switch_on is by_new_name and not hasattr(MATMUL, "fp32_precision"):
        pytest.skip("torch before 2.9")
    switch_on()
    before = settings()
    with torch.autocast("cpu", dtype=torch.bfloat16), exact_arithmetic(torch.device("cpu")):
        assert settings()[0] == "highest"
        assert set(settings()[1:]) <= {"ieee", None}
        assert not MATMUL.allow_tf32
        assert (torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)).dtype == torch.float32
        assert not torch.is_grad_enabled()
    assert settings() == before
    with pytest.raises(KeyError), exact_arithmetic(torch.device("cpu")):
        raise KeyError
    assert settings() == before
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_rows_survive_the_ends_of_the_float_range(dtype):
    largest, smallest = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    rows = torch.tensor([[largest, largest], [smallest, smallest], [0, 0], [3, 4]], dtype=dtype)
    half = 0.5**0.5
    want = torch.tensor([[half, half], [half, half], [0, 0], [0.6, 0.8]], dtype=dtype)
    torch.testing.assert_close(unit_rows(rows), want)
