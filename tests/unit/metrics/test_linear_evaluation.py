"""Linear evaluation against torch's own layer, cross entropy and SGD; fast products are off while metrics are computed."""

import math

import numpy as np
import pytest
import torch

from trainables.errors import ConfigError
from trainables.metrics.inputs import exact_arithmetic, unit_rows
from trainables.metrics.linear_evaluation import _STREAM, LinearProbes, fit_linear_probes

N, F, C = 61, 5, 4


def data(seed=0, n=N):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(C, (n,), generator=generator)
    centres = torch.randn(C, F, generator=generator, dtype=torch.float64)
    return centres[labels] + torch.randn(n, F, generator=generator, dtype=torch.float64), labels


def oracle(features, labels, lr, epochs, batch_size, seed):
    layer = torch.nn.Linear(F, C).double()
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr, momentum=0.9)
    milestones = [round(share * epochs) for share in (0.6, 0.75, 0.9)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.2)
    shuffle = np.random.default_rng((_STREAM, seed))
    for _ in range(epochs):
        order = shuffle.permutation(len(features))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(features[batch]), labels[batch]).backward()
            optimizer.step()
        schedule.step()
    return layer


@pytest.mark.parametrize(("epochs", "batch_size"), [(1, 61), (10, 16), (20, 7)])
def test_probes_equal_torch_sgd_for_every_learning_rate(epochs, batch_size):
    features, labels = data()
    lrs = (0.1, 1.0, 2.0)
    probes = fit_linear_probes(features, labels, num_classes=C, lrs=lrs, epochs=epochs, batch_size=batch_size, seed=3)
    for number, lr in enumerate(lrs):
        layer = oracle(features, labels, lr, epochs, batch_size, seed=3)
        torch.testing.assert_close(probes.weight[:, number].T, layer.weight.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(probes.bias[number], layer.bias.detach(), rtol=1e-9, atol=1e-9)


def test_top_k_equals_a_loop():
    features, labels = data()
    probes = fit_linear_probes(features, labels, num_classes=C, epochs=3, lrs=(0.5, 5.0))
    held_out, classes = data(seed=1, n=200)
    found = probes.top_k(held_out, classes, ks=(1, 3))
    for number in range(2):
        logits = held_out @ probes.weight[:, number] + probes.bias[number]
        for k in (1, 3):
            hits = [
                int(label) in sorted(range(C), key=lambda c: -row[c])[:k]
                for row, label in zip(logits.tolist(), classes, strict=True)
            ]
            assert found[k][number] == pytest.approx(100 * sum(hits) / len(hits))


def test_probes_separate_separable_classes_and_not_noise():
    labels = torch.arange(60) % 3
    features = torch.nn.functional.one_hot(labels, 3).float()
    assert fit_linear_probes(features, labels, num_classes=3).top_k(features, labels)[1] == [100.0] * 4
    noise = torch.randn(3000, 3, generator=torch.Generator().manual_seed(0))
    chance = fit_linear_probes(noise, torch.arange(3000) % 3, num_classes=3, epochs=5, lrs=(0.1,))
    held_out = torch.randn(3000, 3, generator=torch.Generator().manual_seed(1))
    assert chance.top_k(held_out, torch.arange(3000) % 3)[1][0] == pytest.approx(100 / 3, abs=5)


def test_a_constant_or_diverged_probe_is_never_right():
    features, labels = data()
    silent = LinearProbes((1.0,), torch.zeros(F, 1, C).double(), torch.zeros(1, C).double())
    lost = LinearProbes((1.0,), torch.full((F, 1, C), math.nan).double(), torch.zeros(1, C).double())
    for probes in (silent, lost):
        assert probes.top_k(features, labels, ks=(1, C - 1)) == {1: [0.0], C - 1: [0.0]}
    wild = fit_linear_probes(1e200 * features, labels, num_classes=C, epochs=2, lrs=(1e200, 1.0))
    assert not torch.isfinite(wild.weight[:, 0]).all()
    assert wild.top_k(features, labels, ks=(1,))[1][0] == 0


def test_the_same_seed_gives_the_same_probes_and_the_global_generator_is_left_alone():
    features, labels = data()
    before = torch.get_rng_state()
    one, two, other = (
        fit_linear_probes(features, labels, num_classes=C, epochs=2, batch_size=9, seed=s) for s in (0, 0, 1)
    )
    assert torch.equal(one.weight, two.weight)
    assert not torch.equal(one.weight, other.weight)
    assert torch.equal(before, torch.get_rng_state())


def test_defaults_are_the_rates_epochs_and_batches_of_the_paper():
    features, labels = data(n=300)
    papers = {"lrs": (1.0, 2.0, 5.0, 10.0), "epochs": 100, "batch_size": 256, "seed": 0}
    found, same = (fit_linear_probes(features, labels, num_classes=C, **more) for more in ({}, papers))
    assert found.lrs == papers["lrs"]
    assert torch.equal(found.weight, same.weight)


def test_every_misuse_is_named():
    features, labels = data()
    with pytest.raises(ConfigError, match=rf"numbered from 0 to 2, but got \(0, {C - 1}\)"):
        fit_linear_probes(features, labels, num_classes=3)
    with pytest.raises(ConfigError, match="finite"):
        fit_linear_probes(features * math.nan, labels, num_classes=C)


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
    "switch_on", [by_old_name("highest"), by_old_name("high"), by_old_name("medium"), by_cuda_flag, by_new_name]
)
def test_matrix_products_have_full_precision_inside_and_are_restored_after(switch_on):
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
