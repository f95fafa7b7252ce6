"""Identities 1 to 10 of the norm regularizers and of their weight over training, their state and their errors."""

import pytest
import torch
from helpers.together import drawn

from trainables.errors import ConfigError
from trainables.regularizers import SCHEDULES, add_penalty, build_regularizer, eta_at
from trainables.regularizers.schedules import schedule_problems

CASES = [
    *(("none", {}), ("l2", {}), ("sec", {}), ("sec", {"rho": 0.3}), ("sec", {"rho": 0})),
    *(("sec_fixed", {"mu": 2.5}), ("sec_fixed", {"mu": "first_batch"})),
]
BAD_MEANS = (-1.0, float("nan"), float("inf"))


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


def test_identity_1_running_mean_with_rho_1_is_sec_at_every_step():
    reg = build_regularizer("sec", rho=1)
    for f in batches():
        value, truth = reg(f), naive(f, mean(norms_of(f)))
        same(value, truth)
        same(gradient(value, f), gradient(truth, f))


def test_eta_0_survives_infinite_embeddings_and_still_observes():
    reg = build_regularizer("sec")
    value = torch.tensor(3.0, requires_grad=True)
    embeddings = torch.full((2, 3), torch.inf, requires_grad=True)
    assert add_penalty(value, reg, embeddings, 0.0) is value
    assert reg.initialized
    f = batches(1)[0]
    same(add_penalty(value.double(), build_regularizer("l2"), f, 0.5), 3 + 0.5 * build_regularizer("l2")(f))


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_none_has_a_gradient_of_0_and_sees_the_norms(dtype):
    embeddings, none = batches(1, dtype=dtype)[0].requires_grad_(), build_regularizer("none")
    assert (gradient(none(embeddings), embeddings) == 0).all()
    seen = none.diagnostics()
    with torch.no_grad():
        assert none(embeddings).dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    assert none.diagnostics() == seen
    assert none(torch.zeros(4, 3, dtype=dtype, requires_grad=True)) == 0


@pytest.mark.parametrize(("name", "knobs"), [case for case in CASES if case[0] != "none"])
def test_identity_5_gradient_is_radial(name, knobs):
    f = batches(1)[0]
    reg = build_regularizer(name, **knobs)
    slope = gradient(reg(f), f)
    unit = f.detach() / f.detach().norm(dim=1, keepdim=True)
    same(slope, (slope * unit).sum(dim=1, keepdim=True) * unit)
    assert slope.abs().max() > 1e-3


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
    zero = build_regularizer("sec_fixed")
    zero.set_mean(0.0)
    same(zero(f), naive(f, 0.0))


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


@pytest.mark.parametrize("name", ["sec", "l2"])
def test_identity_7_scaling_scales_the_penalty_by_the_square(name):
    f = batches(1)[0].detach()
    same(build_regularizer(name)(3 * f), 9 * build_regularizer(name)(f))


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_diagnostics_are_statistics_of_the_last_batch(name, knobs):
    reg = build_regularizer(name, **knobs)
    assert reg.diagnostics() == {}
    for f in batches(2):
        reg(f)
    seen = reg.diagnostics()
    same(seen["norm_mean"], mean(norms_of(f)))
    same(seen["norm_variance"], naive(f.detach(), mean(norms_of(f))))
    assert ("mu" in seen) == name.startswith("sec")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda bad=bad: build_regularizer("sec_fixed").set_mean(bad), "finite and >= 0") for bad in BAD_MEANS),
        (lambda: build_regularizer("sec_fixed", mu=1.0).set_mean(2), "only for mu='initial_train_mean'"),
        (lambda: build_regularizer("sec")(torch.zeros(3)), "float tensor of shape"),
        (lambda: build_regularizer("sec")(torch.zeros(2, 2, dtype=torch.long)), "float tensor of shape"),
        (lambda: build_regularizer("sce"), "Did you mean 'sec'"),
        (lambda: build_regularizer("sec", rho=1.5), r"regularizer\.rho"),
        (lambda: build_regularizer("sec", rho=-0.1), r"regularizer\.rho"),
        (lambda: build_regularizer("sec_fixed", mu=-1), r"regularizer\.mu"),
        (lambda: build_regularizer("sec_fixed", mu="second_batch"), r"regularizer\.mu"),
    ],
)
def test_inconsistent_settings_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def at(schedule, step, *, eta=2.0, total_steps=1600, epochs=16):
    return eta_at(schedule, eta, step=step, total_steps=total_steps, epochs=epochs)


def test_identity_10_epoch_ramp():
    assert [at("epoch_ramp", step) for step in (0, 100, 299, 300)] == [0, 0, 0, 0]
    assert at("epoch_ramp", 301) == pytest.approx(2.0 * 0.01)
    assert at("epoch_ramp", 350) == 1.0
    assert at("epoch_ramp", 399) == pytest.approx(2.0 * 0.99)
    assert [at("epoch_ramp", step) for step in (400, 401, 1599, 1600)] == [2.0] * 4


def test_identity_10_capped_linear_reaches_eta_in_time():
    eta, total = 1.0, 50_000
    reached = int(eta * total / 500)
    assert at("capped_linear", reached - 1, eta=eta, total_steps=total) == pytest.approx(0.99)
    for step in (reached, reached + 1, total):
        assert at("capped_linear", step, eta=eta, total_steps=total) == eta


def test_identity_10_linear_ends_at_eta():
    assert at("linear", 0) == 0
    assert at("linear", 400) == 0.5
    assert at("linear", 1600) == 2.0
    assert eta_at("linear", 2.0, step=400, total_steps=1600, epochs=0.5) == 0.5


@drawn(100)
def test_eta_stays_in_range_and_never_falls(random):
    schedule, eta, epochs = random.choice(sorted(SCHEDULES)), 100 * random.random(), int(random.integers(1, 301))
    total = int(10 ** random.uniform(0, 6))
    step = int(random.choice([0, 1, random.random()]) * (total - 1))
    now, later = (at(schedule, t, eta=eta, total_steps=total, epochs=epochs) for t in (step, step + 1))
    assert 0 <= now <= later <= eta * (1 + 1e-12)


def test_a_ramp_that_never_begins_is_reported_before_training():
    assert schedule_problems("epoch_ramp", epochs=16) == []
    assert schedule_problems("constant", epochs=1) == []
    assert "must last longer" in str(schedule_problems("epoch_ramp", epochs=3)[0])
