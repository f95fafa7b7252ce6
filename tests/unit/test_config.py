"""The trial configuration: layers, defaults, identity, and every problem at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainables.config import parse_value
from trainables.errors import ConfigError
from trainables.resolve import Layer, resolve


def resolved(**layers):
    return resolve(*(Layer(name, settings) for name, settings in layers.items()))


def test_settings_round_trip():
    config = resolved(a={"loss.name": "multi_similarity", "loss.beta": 50, "regularizer.name": "sec"}).config
    again = resolved(b=config.settings()).config
    assert again == config
    assert again.digest() == config.digest()


def test_defaults_are_filled_in_and_count_for_the_identity():
    both = resolved(a={"loss.name": "triplet"})
    implicit, origins = both.config, both.origins
    explicit = resolved(a={"loss.name": "triplet", "loss.margin": 1.0}).config
    assert implicit.settings()["loss.margin"] == 1.0
    assert origins["loss.margin"] == "default"
    assert implicit.digest() == explicit.digest()


def test_whole_numbers_and_floats_of_equal_value_are_one_cell():
    one = resolved(a={"regularizer.name": "sec", "regularizer.rho": 1}).config
    same = resolved(a={"regularizer.name": "sec", "regularizer.rho": 1.0}).config
    assert one.digest() == same.digest()


def test_seed_and_root_are_not_part_of_the_cell(tmp_path):
    plain = resolved(a={}).config
    moved = resolved(a={"seed": 7, "data.root": str(tmp_path)}).config
    other = resolved(a={"optim.lr": 0.5}).config
    assert plain.digest() == moved.digest() != other.digest()


def test_later_layers_win_and_origins_are_kept():
    both = resolved(space={"optim.lr": 0.1, "loss.margin": 0.3}, flag={"optim.lr": 0.2})
    config, origins = both.config, both.origins
    assert config.optim.lr == 0.2
    assert origins["optim.lr"] == "flag"
    assert origins["loss.margin"] == "space"


def test_another_method_does_not_inherit_the_knobs_of_the_first():
    both = resolved(space={"loss.name": "triplet", "loss.margin": 1.0}, flag={"loss.name": "semihard_triplet"})
    config, origins = both.config, both.origins
    assert config.loss.knobs() == {"margin": 0.2}
    assert origins["loss.margin"] == "default"


def test_every_problem_is_reported_at_once_with_place_rule_value_and_remedy():
    with pytest.raises(ConfigError) as error:
        resolved(
            flag={
                "loss.name": "tripplet",
                "regularizer.name": "sec",
                "regularizer.rho": 1.5,
                "optim.lrr": 0.1,
                "batch.batch_size": 91,
                "model.backbone": "smal_conv",
                "lossy.margin": 1,
            }
        )
    text = str(error.value)
    for part in ("'triplet'", "regularizer.rho", "1.5", "optim.lrr", "'lr'", "lossy.margin"):
        assert part in text
    assert len(error.value.problems) == 6


def test_sizes_that_do_not_divide_name_the_nearest_valid_ones():
    with pytest.raises(ConfigError, match="90") as error:
        resolved(flag={"batch.batch_size": 91})
    assert "batch_size (flag)" in str(error.value)


@pytest.mark.parametrize(("rho", "legal"), [(0, True), (0.0, True), (1, True), (1.5, False), (-0.1, False)])
def test_rho_is_legal_from_zero_to_one(rho, legal):
    settings = {"regularizer.name": "sec", "regularizer.rho": rho}
    if legal:
        assert resolved(a=settings).config.regularizer.knobs()["rho"] == rho
    else:
        with pytest.raises(ConfigError, match=r"regularizer\.rho"):
            resolved(a=settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "abc", None, [1]])
def test_values_that_are_no_numbers_are_refused(value):
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        resolved(a={"optim.lr": value})


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("0.5", 0.5), ("true", True), ("null", None), ("[1, 2]", [1, 2]), ("abc", "abc")],
)
def test_values_typed_on_the_command_line(text, value):
    assert parse_value(text) == value


def test_importing_the_configuration_loads_no_torch():
    code = "import trainables.resolve, tune_dml.space, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
