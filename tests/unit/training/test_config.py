"""The trial configuration: layers, defaults, identity, and every problem at once."""

from types import SimpleNamespace
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from pydantic import Field

from trainables import methods
from trainables.config import parse_value
from trainables.errors import ConfigError, Problem
from trainables.losses import LOSSES
from trainables.losses.triplet import TripletLoss
from trainables.methods import KnobDomain
from trainables.models import HEADS
from trainables.models.heads import LinearHead
from trainables.registries import domain_of
from trainables.resolve import Layer, read_settings, resolve
from trainables.tasks import task_of


def resolved(**layers):
    return resolve(*(Layer(name, settings) for name, settings in layers.items()))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"loss.name": "triplet"}, {"loss.name": "triplet", "loss.margin": 1.0}, True),  # its default
        ({"regularizer.name": "sec", "regularizer.rho": 1}, {"regularizer.name": "sec", "regularizer.rho": 1.0}, True),
        ({}, {"seed": 7, "data.root": "/elsewhere"}, True),
        ({}, {"optim.lr": 0.5}, False),
    ],
)
def test_the_identity_of_a_cell(one, other, is_same):
    assert (resolved(a=one).config.digest() == resolved(a=other).config.digest()) is is_same


@pytest.mark.parametrize(
    ("flag", "path", "value", "origin"),
    [
        ({"optim.lr": 0.2}, "optim.lr", 0.2, "flag"),
        ({"optim.lr": 0.2}, "loss.margin", 0.3, "space"),
        ({"loss.name": "semihard_triplet"}, "loss.margin", 0.2, "default"),  # no method inherits another's knobs
        ({}, "training.steps", resolved().config.training.steps, "default"),
    ],
)
def test_later_layers_win_and_origins_are_kept(flag, path, value, origin):
    both = resolved(space={"loss.name": "triplet", "optim.lr": 0.1, "loss.margin": 0.3}, flag=flag)
    assert (both.config.settings()[path], both.origins[path]) == (value, origin)


@pytest.mark.parametrize("steps", [50, 5e1])
def test_evaluations_follow_a_shorter_training(steps):
    assert resolved(a={"training.steps": steps}).config.training.eval_every == 50


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("0.5", 0.5), ("true", True), ("null", None), ("[1, 2]", [1, 2]), ("abc", "abc")]
)
def test_values_of_the_command_line_are_parsed(text, value):
    assert parse_value(text) == value


class HeadWithExponent(LinearHead):
    """A head with a knob of the same name as the exponent of the pooling `gem`."""

    def __init__(self, in_features, embedding_dim, *, p: Annotated[float, Field(gt=0, lt=1)] = 0.5):
        super().__init__(in_features, embedding_dim)
        self.p = p


@pytest.fixture
def shared_name(monkeypatch):
    monkeypatch.setitem(HEADS, "keeping", HeadWithExponent)
    return {"model.pooling": "gem", "model.head": "keeping"}


def test_two_methods_of_a_section_may_share_a_knobs_name(shared_name):
    both = resolved(space={**shared_name, "model.pooling.p": 4.0}, flag={"model.head.p": 0.25})
    config, settings = both.config, both.config.settings()
    assert config.model.knobs("pooling") == {"p": 4.0}
    assert config.model.knobs("head") == {"p": 0.25}
    assert (settings["model.pooling.p"], settings["model.head.p"]) == (4.0, 0.25)
    assert "model.p" not in settings
    assert (both.origins["model.pooling.p"], both.origins["model.head.p"]) == ("space", "flag")
    assert resolved(again=settings).config == read_settings(settings) == config
    assert config.digest() != resolved(space=shared_name).config.digest()
    assert domain_of("model.head.p", settings) == KnobDomain(0, 1, low_open=True, high_open=True)
    network = task_of(config).build_network(SimpleNamespace(in_channels=3, image_size=32))
    assert (network.pooling.p, network.head.p) == (4.0, 0.25)


def test_an_ambiguous_knob_name_is_refused(shared_name):
    with pytest.raises(ConfigError) as error:
        resolved(flag={**shared_name, "model.p": 4.0})
    (problem,) = error.value.problems
    assert problem.place == "model.p (flag)"
    assert problem.value == 4.0
    assert all(["model.pooling.p", "model.head.p"][n] in problem.rule for n in (0, 1))
    assert problem.remedy == "Set one of them by its full name: model.pooling.p or model.head.p."
    with pytest.raises(ConfigError, match=r"model\.head\.p \(flag\): must be less than 1, but got 4\.0"):
        resolved(flag={**shared_name, "model.head.p": 4.0})


def test_full_knob_paths_always_work_and_short_ones_while_unique(shared_name):
    alone = resolved(space={"model.pooling": "gem", "model.pooling.p": 4.0})
    assert alone.config.settings()["model.p"] == 4.0
    assert alone.origins["model.p"] == "space"
    later = resolved(space={"model.pooling": "gem", "model.p": 4.0}, flag={"model.head": "keeping"})
    assert later.config.settings()["model.pooling.p"] == 4.0
    assert later.origins["model.pooling.p"] == "space"
    assert later.origins["model.head.p"] == "default"
    back = resolved(space={**shared_name, "model.pooling.p": 4.0, "model.head.p": 0.1}, flag={"model.head": "fc"})
    assert back.config.settings()["model.p"] == 4.0


@pytest.mark.parametrize(
    ("path", "domain"),
    [
        ("optim.lr", KnobDomain(0, low_open=True)),
        ("batch.batch_size", KnobDomain(1, integer=True)),
        ("loss.margin", KnobDomain(0)),
        ("optim.beta1", KnobDomain(0, 1, high_open=True)),
        ("model.width", KnobDomain(4, integer=True, multiple_of=4)),
        ("loss.nothing", KnobDomain()),
        ("nothing.at_all", KnobDomain()),
    ],
)
def test_the_domain_of_a_knob_is_read_off_its_declaration(path, domain):
    assert domain_of(path, resolved(a={}).config.settings()) == domain


@pytest.mark.parametrize("path", ["seed", "seeds.init", "seeds.order", "seeds.split"])
@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_beyond_the_generators_is_refused(path, seed):
    assert resolved(flag={path: 2**63 - 1}).config.settings()[path] == 2**63 - 1
    with pytest.raises(ConfigError, match=rf"{path} \(flag\): must be .* but got {seed}"):
        resolved(flag={path: seed})


def test_settings_are_read_back_with_their_types_and_domains_checked():
    settings = resolved(a={"loss.name": "dro_kl", "loss.gamma": 0.5, "seed": 3}).config.settings()
    assert read_settings(settings).settings() == settings
    for path, value in {"loss.gamma": -1.0, "optim.lr": "fast", "loss.alpha": 2.0, "model.backbone": "vgg"}.items():
        with pytest.raises(ConfigError, match=path.replace(".", r"\.")):
            read_settings({**settings, path: value})


@pytest.mark.parametrize(
    ("settings", "digest"),
    [
        ({}, "8c32a40988d3f7e6"),
        ({"loss.name": "margin_all"}, "87b7a84d912e9029"),
        ({"loss.name": "mpa"}, "1b4650c991d2121f"),
    ],
)
def test_cells_of_old_plans_keep_their_identity(settings, digest):
    """Changes only together with PROTOCOL_VERSION; a new setting has a default that leaves trials as they are (_CAME_LATER)."""
    assert resolve(Layer("test", settings)).config.digest() == digest


def test_a_problem_shows_a_scalar_of_numpy_or_torch_as_a_number():
    for value in (np.int64(0), np.float32(0), torch.tensor(0)):
        assert str(Problem("training.steps", "must be at least 1", value)).endswith(("but got 0.", "but got 0.0."))


class Capped(TripletLoss):
    """Knobs that may have no value."""

    name = "capped"

    def __init__(
        self,
        *,
        cap: float | None = None,
        reduce: Literal["sum", None] = None,
        mu: Annotated[float, Field(ge=0)] | str = 0.0,
    ) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"loss.cap": "none"}, "loss.cap (x): must be a number, but got 'none'. Write null for no value."),
        ({"loss.reduce": "None"}, "loss.reduce (x): must be 'sum' or null, but got 'None'."),
        ({"training.micro_batch": "None"}, "must be a whole number, but got 'None'. Write null for no value."),
        ({"batch.batch_size": "none"}, "batch.batch_size (x): must be a whole number, but got 'none'."),
    ],
)
def test_no_value_is_written_null(monkeypatch, setting, said):
    monkeypatch.setitem(LOSSES.data, "capped", Capped)
    with pytest.raises(ConfigError) as caught:
        resolved(x={"loss.name": "capped", **setting})
    assert str(caught.value).endswith(said)


def test_types_and_rules_are_shown_as_they_are_written():
    cap, reduce, mu = methods.parameters_of(Capped)
    assert (cap.type, reduce.type, mu.type) == ("float | None", "Literal['sum', None]", "float | str")
    assert reduce.rule == "sum or null"
