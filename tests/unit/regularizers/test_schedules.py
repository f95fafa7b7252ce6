"""Identity 10: the weight eta over training."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainables.errors import ConfigError
from trainables.regularizers import SCHEDULES, eta_at, schedule_problems


def at(schedule, step, *, eta=2.0, total_steps=1600, epochs=16):
    return eta_at(schedule, eta, step=step, total_steps=total_steps, epochs=epochs)


def test_the_four_schedules_are_there():
    assert set(SCHEDULES) == {"constant", "epoch_ramp", "capped_linear", "linear"}


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


@settings(derandomize=True, deadline=None)
@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.floats(0, 100),
    st.integers(1, 10**6),
    st.integers(1, 300),
    st.floats(0, 1),
)
def test_eta_stays_in_range_and_never_falls(schedule, eta, total, epochs, part):
    step = int(part * (total - 1))
    now, later = (at(schedule, t, eta=eta, total_steps=total, epochs=epochs) for t in (step, step + 1))
    assert 0 <= now <= later <= eta * (1 + 1e-12)


def test_misuse_is_a_config_error_that_names_everything():
    with pytest.raises(ConfigError, match="Did you mean 'linear'"):
        at("lineer", 0)
    with pytest.raises(ConfigError) as caught:
        eta_at("linear", -1, step=-1, total_steps=0, epochs=0)
    assert len(caught.value.problems) == 4


def test_a_ramp_that_never_begins_is_reported_before_training():
    assert schedule_problems("epoch_ramp", epochs=16) == []
    assert schedule_problems("constant", epochs=1) == []
    assert "must last longer" in str(schedule_problems("epoch_ramp", epochs=3)[0])
    assert "unknown schedule" in str(schedule_problems("ramp", epochs=3)[0])
