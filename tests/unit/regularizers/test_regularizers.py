"""Identities 1 to 9 of the norm regularizers, their state and their errors."""

import pytest
import torch

from trainables.errors import ConfigError
from trainables.losses import build_loss
from trainables.methods import parameters_of
from trainables.regularizers import REGULARIZERS, build_regularizer, penalised

KNOBS = {
    "none": [{}],
    "l2": [{}],
    "sec": [{}, {"rho": 0.3}, {"rho": 0}],
    "sec_fixed": [{"mu": 2.5}, {"mu": "first_batch"}],
}
CASES = [(name, knobs) for name, several in KNOBS.items() for knobs in several]


def batches(n=4, *, size=7, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 5, generator=generator, dtype=torch.float64) * (1 + t)).to(dtype).requires_grad_()
        for t in range(n)
    ]


def norms_of(embeddings):
    return [float(sum(float(x) ** 2 for x in row)) ** 0.5 for row in embeddings.detach()]


def naive(embeddings, mu):
    norms = [row.square().sum().sqrt() for row in embeddings]
    return sum((n - mu) ** 2 for n in norms) / len(norms)


def mean(values):
    return sum(values) / len(values)


def gradient(value, embeddings):
    return torch.autograd.grad(value, embeddings)[0]


def same(found, expected, rtol=1e-12):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), rtol=rtol, atol=1e-13)


def test_every_regularizer_is_listed_here_and_cites_its_source():
    assert set(KNOBS) == set(REGULARIZERS)
    for cls in REGULARIZERS.values():
        assert "20" in cls.citation
        assert cls.section
        assert all(parameter.description for parameter in parameters_of(cls))


def test_identity_1_running_mean_with_rho_1_is_sec_at_every_step():
    reg = build_regularizer("sec", rho=1)
    for f in batches():
        value, truth = reg(f), naive(f, mean(norms_of(f)))
        same(value, truth)
        same(gradient(value, f), gradient(truth, f))


def test_identity_2_eta_0_is_the_baseline_bitwise():
    for name, knobs in CASES:
        weights = []
        for regularized in (False, True):
            torch.manual_seed(0)
            network, loss = torch.nn.Linear(6, 4), build_loss("triplet")
            optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
            reg = build_regularizer(name, **knobs)
            for step in range(5):
                x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
                embeddings = network(x)
                value = loss(embeddings, torch.arange(8) // 2)
                value = penalised(value, reg, embeddings, 0.0) if regularized else value
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
            weights.append([p.detach().clone() for p in network.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True)), name


def test_eta_0_survives_infinite_embeddings_and_still_observes():
    reg = build_regularizer("sec")
    value = torch.tensor(3.0, requires_grad=True)
    embeddings = torch.full((2, 3), torch.inf, requires_grad=True)
    assert penalised(value, reg, embeddings, 0.0) is value
    assert reg.initialized
    f = batches(1)[0]
    same(penalised(value.double(), build_regularizer("l2"), f, 0.5), 3 + 0.5 * build_regularizer("l2")(f))


def test_identity_3_fixed_mean_0_is_l2():
    f = batches(1)[0]
    fixed, l2 = build_regularizer("sec_fixed", mu=0)(f), build_regularizer("l2")(f)
    same(fixed, l2)
    same(gradient(fixed, f), gradient(l2, f))
    same(l2, naive(f, 0.0))


def test_identity_4_sec_is_the_biased_variance_and_0_for_equal_norms():
    f = batches(1)[0]
    same(build_regularizer("sec")(f), f.detach().norm(dim=1).var(correction=0))
    equal = torch.nn.functional.normalize(f.detach()).mul(4).requires_grad_()
    value = build_regularizer("sec")(equal)
    assert value < 1e-28
    assert gradient(value, equal).abs().max() < 1e-14
    one = batches(1, size=1)[0]
    value = build_regularizer("sec")(one)
    assert value == 0
    assert gradient(value, one).abs().max() == 0


@pytest.mark.parametrize(("name", "knobs"), [case for case in CASES if case[0] != "none"])
def test_identity_5_gradient_is_radial(name, knobs):
    f = batches(1)[0]
    reg = build_regularizer(name, **knobs)
    slope = gradient(reg(f), f)
    unit = f.detach() / f.detach().norm(dim=1, keepdim=True)
    same(slope, (slope * unit).sum(dim=1, keepdim=True) * unit)
    assert slope.abs().max() > 1e-3


def test_identity_5_the_metric_gradient_is_orthogonal_to_the_regularizers():
    f, labels = batches(1)[0], torch.tensor([0, 0, 1, 1, 2, 2, 2])
    metric = gradient(build_loss("triplet")(f, labels), f)
    radial = gradient(build_regularizer("sec")(f), f)
    assert (metric * radial).sum(dim=1).abs().max() < 1e-12


def test_the_gradient_of_sec_is_2_over_the_batch_times_the_deviation():
    f = batches(1)[0]
    norms = f.detach().norm(dim=1, keepdim=True)
    expected = 2 / len(f) * (norms - norms.mean()) * f.detach() / norms
    same(gradient(build_regularizer("sec")(f), f), expected)


def test_identity_7_scaling_scales_sec_by_the_square():
    f = batches(1)[0].detach()
    same(build_regularizer("sec")(3 * f), 9 * build_regularizer("sec")(f))


@pytest.mark.parametrize("rho", [0.0, 0.01, 0.5, 1.0])
def test_identity_8_the_running_mean_follows_its_recursion(rho):
    reg, mu = build_regularizer("sec", rho=rho), None
    for f in batches(6):
        batch = mean(norms_of(f))
        mu = batch if mu is None else (1 - rho) * mu + rho * batch
        value, truth = reg(f), naive(f, mu)
        same(value, truth)
        same(gradient(value, f), gradient(truth, f))
        same(reg.mu, mu)
        assert reg.mu.grad_fn is None
        assert not reg.mu.requires_grad


def test_identity_8_evaluation_leaves_the_state_alone():
    first, second = batches(2)
    reg = build_regularizer("sec", rho=0.1)
    same(reg.eval()(first), naive(first, mean(norms_of(first))))  # nothing to remember yet
    assert not reg.initialized
    reg.train()(first)
    mu = reg.mu.clone()
    same(reg.eval()(second), naive(second, float(mu)))
    assert torch.equal(reg.mu, mu)
    sec = build_regularizer("sec")
    sec(first)
    same(sec.eval()(second), second.detach().norm(dim=1).var(correction=0))


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_identity_8_state_dict_round_trip_is_exact(name, knobs, tmp_path):
    reg, twin = build_regularizer(name, **knobs), build_regularizer(name, **knobs)
    *seen, last = batches()
    for f in seen:
        reg(f)
    torch.save(reg.state_dict(), tmp_path / "state.pt")
    twin.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(twin(last), reg(last))
    for key, tensor in reg.state_dict().items():
        assert torch.equal(twin.state_dict()[key], tensor), key


def test_identity_9_equal_batch_means_keep_mu_constant():
    reg = build_regularizer("sec", rho=0.01)
    for f in batches(5):
        reg(f.detach() * 3 / f.detach().norm(dim=1).mean())
        same(reg.mu, 3.0)


def test_first_batch_is_the_running_mean_that_never_moves():
    fixed, running = build_regularizer("sec_fixed", mu="first_batch"), build_regularizer("sec", rho=0)
    for f in batches():
        same(fixed(f), running(f))
    assert torch.equal(fixed.mu, running.mu)


def test_initial_train_mean_is_set_once_measured_and_travels_with_the_checkpoint():
    reg, f = build_regularizer("sec_fixed"), batches(1)[0]
    assert reg.needs_mean
    with pytest.raises(ConfigError, match="must be measured before the first batch"):
        reg(f)
    reg.set_mean(8.7)
    assert not reg.needs_mean
    same(reg(f), naive(f, 8.7))
    resumed = build_regularizer("sec_fixed")
    resumed.load_state_dict(reg.state_dict())
    assert not resumed.needs_mean
    same(resumed(f), naive(f, 8.7))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_mean_norm_must_be_a_number(bad):
    with pytest.raises(ConfigError, match="finite and >= 0"):
        build_regularizer("sec_fixed").set_mean(bad)


def test_a_mean_can_be_set_only_where_it_is_asked_for():
    reg = build_regularizer("sec_fixed", mu=1.0)
    assert not reg.needs_mean
    with pytest.raises(ConfigError, match="only for mu='initial_train_mean'"):
        reg.set_mean(2)


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_zero_vectors_and_empty_batches_are_finite(name, knobs):
    for f in (torch.zeros(3, 4), torch.cat([torch.zeros(1, 4), torch.ones(2, 4)]), torch.zeros(0, 4)):
        f.requires_grad_()
        value = build_regularizer(name, **knobs)(f)
        assert value.ndim == 0
        assert value.isfinite()
        assert gradient(value, f).isfinite().all()


def test_an_empty_batch_leaves_the_state_alone():
    reg = build_regularizer("sec", rho=0.5)
    reg(torch.zeros(0, 4))
    assert not reg.initialized
    assert reg.diagnostics() == {}


@pytest.mark.parametrize(("name", "knobs"), CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(name, knobs, dtype):
    f = batches(1, dtype=dtype)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = build_regularizer(name, **knobs)(f)
    assert value.dtype == torch.float32
    same(value, build_regularizer(name, **knobs)(f.detach().float()))
    assert gradient(value, f).dtype == dtype


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_diagnostics_are_detached_statistics_of_the_last_batch(name, knobs):
    reg = build_regularizer(name, **knobs)
    assert reg.diagnostics() == {}
    for f in batches(2):
        reg(f)
    found = reg.diagnostics()
    same(found["norm_mean"], mean(norms_of(f)))
    same(found["norm_variance"], naive(f.detach(), mean(norms_of(f))))
    assert ("mu" in found) == name.startswith("sec")
    assert all(value.ndim == 0 and not value.requires_grad for value in found.values())


def test_wrong_shapes_names_and_knobs_are_config_errors():
    for bad in (torch.zeros(3), torch.zeros(2, 2, dtype=torch.long)):
        with pytest.raises(ConfigError, match="float tensor of shape"):
            build_regularizer("sec")(bad)
    with pytest.raises(ConfigError, match="Did you mean 'sec'"):
        build_regularizer("sce")
    for knobs in ({"rho": 1.5}, {"rho": -0.1}, {"roh": 1}):
        with pytest.raises(ConfigError, match="regularizer"):
            build_regularizer("sec", **knobs)
    with pytest.raises(ConfigError):
        build_regularizer("sec_fixed", mu=-1)
    with pytest.raises(ConfigError):
        build_regularizer("sec_fixed", mu="second_batch")


def test_identity_6_the_loss_ignores_scale_and_the_regularizer_sees_it():
    f, labels = batches(1)[0], torch.tensor([0, 0, 1, 1, 2, 2, 2])
    loss, l2 = build_loss("triplet"), build_regularizer("l2")
    same(loss(2 * f, labels), loss(f, labels))
    same(l2(2 * f), 4 * l2(f))
