"""Wrongly written methods of other packages: each mistake is one message with the place and the remedy."""

import importlib
import re
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import Annotated

import pytest
import torch
from helpers.processes import printed_by
from pydantic import Field

from trainables import methods, registries
from trainables.data import DATASETS
from trainables.errors import ConfigError
from trainables.losses import LOSSES, Loss
from trainables.losses.triplet import TripletLoss
from trainables.method_checks import check_value, checked_diagnostics
from trainables.models import BACKBONES, build_model
from trainables.models.small_conv import SmallConv
from trainables.regularizers import REGULARIZERS, Regularizer, build_regularizer
from trainables.samplers import SAMPLERS
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request

GROUP = "tune_dml.losses"


class SquaredLength(Loss):
    """Return the squared length of its input, changed by `like`."""

    name, citation, section = "whole", "nobody", "1"

    def __init__(self, *, like: Annotated[int, Field(description="which mistake")] = 0) -> None:
        super().__init__()
        self.like = like

    def value(self, embeddings, labels):
        value = embeddings.square().mean()
        mistakes = (value, value.item(), None, value.detach(), value.long(), embeddings.mean(1), value[None])
        return mistakes[self.like]


class NamelessLoss(TripletLoss):
    """A subclass of a loss that declares no name."""


class ValuelessLoss(Loss):
    """A loss without `value`."""

    name, citation, section = "unfinished", "nobody", "1"


class TooFewArguments(SquaredLength):
    name = "without_labels"

    def value(self, embeddings):
        return embeddings.square().mean()


class DuplicateName(SquaredLength):
    name = "triplet"


class PositionalKnobs(SquaredLength):
    name = "in_order"

    def __init__(self, margin: float = 0.5, *, scale=2.0) -> None:
        super().__init__()


class UndefinedType(SquaredLength):
    name = "of_nowhere"

    def __init__(self, *, margin: "Nowhere" = 0.5) -> None:  # noqa: F821
        super().__init__()


class KnobCalledName(SquaredLength):
    name = "hidden"

    def __init__(self, *, name: str = "x") -> None:
        super().__init__()


def function(embeddings, labels):
    """A function in place of a class."""


def losses(monkeypatch, *named):
    places = [name if ":" in name else f"{__name__}:{name}" for name in named]
    entries = [EntryPoint(str(number), place, GROUP) for number, place in enumerate(places)]
    monkeypatch.setattr(methods, "_entry_points", lambda path: EntryPoints(entries))
    return methods.Registry("trainables.losses", Loss, GROUP)


def test_a_class_of_another_package_is_found(monkeypatch):
    registry = losses(monkeypatch, "SquaredLength")
    assert registry["whole"] is SquaredLength
    assert "triplet" in registry


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("function", "must name a class derived from trainables.losses.base.Loss"),
        ("NamelessLoss", "must name a class with its own attribute `name`"),
        ("ValuelessLoss", "must name a class that implements value"),
        ("TooFewArguments", 'must name a class whose value takes embeddings and labels, but got "<class'),
        ("DuplicateName", "a method's name must be unique, trainables.losses.triplet.TripletLoss has it already"),
        ("Nowhere", 'must be importable, but got "AttributeError'),
        ("no_such_package:Loss", 'must be importable, but got "ModuleNotFoundError'),
        ("exits_on_import:Loss", "must be importable, but got 'SystemExit: 0'"),
    ],
)
def test_missing_parts_of_an_entry_point_are_named(monkeypatch, tmp_path, named, text):
    (tmp_path / "exits_on_import.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as error:
        len(losses(monkeypatch, named))
    assert text in str(error.value)


def test_every_entry_point_that_cannot_be_imported_is_named(monkeypatch):
    with pytest.raises(ConfigError) as error:
        len(losses(monkeypatch, "no_such_package:Loss", "SquaredLength", "Nowhere"))
    assert [problem.place for problem in error.value.problems] == [f"entry point {GROUP}.0", f"entry point {GROUP}.2"]


def test_wrongly_declared_knobs_are_named():
    with pytest.raises(ConfigError) as error:
        methods.parameters_of(PositionalKnobs)
    found = {problem.value: problem.rule for problem in error.value.problems}
    assert found == {"margin": "knobs must be keyword-only", "scale": "a knob must have a type"}
    with pytest.raises(ConfigError, match="the types of its knobs must resolve, but got \"name 'Nowhere'"):
        methods.parameters_of(UndefinedType)


def test_a_knob_with_the_name_of_a_setting_is_refused():
    known = {**registries._registries(), "loss": {"hidden": KnobCalledName}}
    (problem,) = registries._clash_problems(known)
    assert (problem.rule, problem.value) == ("a knob must not be called like the setting loss.name", "name")


@pytest.mark.parametrize("like", [1, 2, 4, 5, 6])
def test_a_value_that_is_not_a_scalar_is_named(like):
    rule = r"value of the loss SquaredLength: must be a float tensor of shape \(\), but got"
    with pytest.raises(ConfigError, match=rule):
        SquaredLength(like=like)(torch.ones(4, 3, requires_grad=True), torch.arange(4))


def test_a_value_without_required_gradient_is_named():
    embeddings = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(ConfigError, match="must have a gradient for the embeddings"):
        SquaredLength(like=3)(embeddings, torch.arange(4))
    assert SquaredLength(like=3)(embeddings.detach(), torch.arange(4)) == 1
    with torch.no_grad():
        assert SquaredLength()(embeddings, torch.arange(4)) == 1


class ProxiesOnlyLoss(Loss):
    """A loss that trains only its proxies: embeddings are normalised without gradient."""

    name, citation, section = "of_its_own", "nobody", "1"

    def __init__(self, like=0):
        super().__init__()
        self.like = like
        self.proxies = torch.nn.Parameter(torch.ones(2, 3))

    def value(self, embeddings, labels):
        with torch.set_grad_enabled(bool(self.like)):
            directions = torch.nn.functional.normalize(embeddings)
        return (directions @ self.proxies.T).square().mean()


def test_a_value_on_another_device_is_named():
    embeddings = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(ConfigError, match="must be on the device of the embeddings, cpu, but got 'meta'"):
        check_value("value of the loss Mine", embeddings.mean().to("meta"), embeddings)


def test_a_loss_that_trains_only_its_parameters_is_named():
    leaf, labels = torch.ones(4, 3, requires_grad=True), torch.arange(4)
    rule = "ProxiesOnlyLoss: must have a gradient for the embeddings, not for parameters"
    for embeddings in (leaf, leaf * 2, (leaf * 2).half()):
        with pytest.raises(ConfigError, match=rule):
            ProxiesOnlyLoss()(embeddings, labels)
        ProxiesOnlyLoss(like=1)(embeddings, labels).backward()
    ProxiesOnlyLoss()(leaf.detach(), labels)
    with torch.no_grad():
        ProxiesOnlyLoss()(leaf, labels)


class UnregisteredProxies(ProxiesOnlyLoss):
    """Holds proxies unknown to the optimizer, or a scale that no checkpoint stores."""

    name = "hides"

    def __init__(self, like=0):
        super().__init__(like=1)
        self.way = like
        self.listed = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2)]
        self.scale = torch.tensor(2.0, requires_grad=True)

    def value(self, embeddings, labels):
        if self.way == 3 and not hasattr(self, "late"):
            self.late = torch.nn.Parameter(torch.ones(2, 3))
        value = super().value(embeddings, labels)
        passing = torch.ones((), requires_grad=True)  # for example of an adversarial loss
        ways = (passing, self.listed[0].sum() + self.listed[1].sum(), self.scale, getattr(self, "late", passing).sum())
        return value * ways[self.way]


@pytest.mark.parametrize(("like", "got"), [(1, [(2, 3), (2, 3)]), (2, [()]), (3, [(2, 3)])])
def test_unregistered_parameters_of_a_loss_are_named(like, got):
    embeddings, labels = torch.ones(4, 3, requires_grad=True), torch.arange(4)
    with pytest.raises(ConfigError, match="UnregisteredProxies: a loss's parameters must be registered") as error:
        UnregisteredProxies(like)(embeddings * 2, labels)
    assert error.value.problems[0].value == got
    UnregisteredProxies()(embeddings * 2, labels).backward()


def test_a_regularizer_with_parameters_is_refused(monkeypatch):
    class LearningPenalty(LengthPenalty):
        def __init__(self):
            super().__init__()
            self.target = torch.nn.Parameter(torch.ones(()))

    monkeypatch.setitem(REGULARIZERS.data, "learns", LearningPenalty)
    with pytest.raises(ConfigError, match=r"regularizer LearningPenalty: must have no parameters.* 'target'"):
        build_regularizer("learns")


class InPlaceLoss(Loss):
    """Normalise its input in place, unseen by autograd: a regularizer would see lengths of 1."""

    name, citation, section = "careless", "nobody", "1"

    def value(self, embeddings, labels):
        with torch.no_grad():
            embeddings.div_(embeddings.norm(dim=1, keepdim=True))
        return embeddings.square().mean()


def test_a_loss_that_modifies_its_embeddings_is_named():
    leaf = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(ConfigError, match="value of the loss InPlaceLoss: must not change its inputs in place"):
        InPlaceLoss()(leaf * 2, torch.arange(4))


class LengthPenalty(Regularizer):
    """Return the mean length, changed by `like`."""

    name, citation, section = "penalty", "nobody", "1"

    def __init__(self, like=0):
        super().__init__()
        self.like = like

    def value(self, norms):
        if self.like == 3:
            norms.sub_(1)
        return (norms.mean(), norms, norms.detach().mean(), norms.mean())[self.like]


@pytest.mark.parametrize(
    ("like", "rule"),
    [(1, "must be a float tensor of shape"), (2, "must have a gradient"), (3, "must not change its inputs")],
)
def test_a_regularizer_is_checked_like_a_loss(like, rule):
    embeddings = torch.ones(4, 3, requires_grad=True)
    assert LengthPenalty()(embeddings).item() == pytest.approx(3**0.5)
    with pytest.raises(ConfigError, match=f"value of the regularizer LengthPenalty: {rule}"):
        LengthPenalty(like)(embeddings)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"each": torch.ones(3)}, ", diagnostics() 'each': must be a tensor of a single number, but got (3,)."),
        ({"all": 3.0}, ", diagnostics() 'all': must be a tensor of a single number, but got 'float'."),
        (None, ": diagnostics() must return a dictionary, but got 'NoneType'."),
        (
            {"loss": torch.ones(())},
            ": diagnostics() must not use the name of another figure of a step, but got 'loss'.",
        ),
        (dict.fromkeys(("eta", "norm_mean"), torch.ones(())), "another figure of a step, but got 'eta, norm_mean'."),
    ],
)
def test_a_diagnostic_must_be_a_single_number_with_its_own_name(figures, said):
    penalty, sound = LengthPenalty(), {"active": torch.ones(1, requires_grad=True)}
    penalty(torch.ones(4, 3, requires_grad=True))
    found = checked_diagnostics(penalty, SimpleNamespace(diagnostics=lambda: sound))
    assert list(found) == ["norm_mean", "norm_variance", "active"]
    assert not found["active"].requires_grad
    with pytest.raises(ConfigError, match=rf"loss SimpleNamespace.*{re.escape(said)}"):
        checked_diagnostics(penalty, SimpleNamespace(diagnostics=lambda: figures))


OURS = SquaredLength.__module__.partition(".")[0]


@pytest.mark.parametrize(
    ("registry", "settings", "packages"),
    [
        (LOSSES, {"loss.name": "whole"}, {OURS}),
        (BACKBONES, {"model.backbone": "whole", "model.embedding_dim": 8}, {OURS}),
        (SAMPLERS, {"batch.sampler": "whole"}, {OURS}),
        (DATASETS, {"data.name": "whole"}, set()),  # decoded before anything trains
        (LOSSES, {"loss.name": "proxy_anchor", "regularizer.name": "sec"}, set()),
        (LOSSES, {}, set()),
    ],
)
def test_trials_with_third_party_code_are_known(monkeypatch, registry, settings, packages):
    """Their process runs no further trial."""
    monkeypatch.setitem(registry.data, "whole", SquaredLength)
    assert registries.foreign_packages(settings) == packages


def test_the_code_of_a_trial_is_identified_by_its_files(monkeypatch, tmp_path):
    """Other modules of the package count too."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_code").mkdir()
    for name, text in (("__init__", ""), ("loss", "from own_code import parts\n\n\nclass Own: ...\n"), ("parts", "")):
        (tmp_path / "own_code" / f"{name}.py").write_text(text)
    monkeypatch.setitem(LOSSES.data, "own", importlib.import_module("own_code.loss").Own)
    before = registries.foreign_code({"loss.name": "own"})
    (tmp_path / "own_code" / "parts.py").write_text("x = 1\n")
    after = registries.foreign_code({"loss.name": "own"})
    assert list(before) == ["own_code", "own_code.loss", "own_code.parts"]
    assert [name for name in before if before[name] != after[name]] == ["own_code.parts"]
    assert not registries.foreign_code({"loss.name": "triplet"})


@pytest.mark.slow
def test_every_package_is_imported_before_a_trial_begins():
    """Changes of torch at import are made before seeds and types are set, for the first trial too."""
    ask = "from trainables.resolve import resolve; resolve(); from trainables import samplers; print(vars(samplers.SAMPLERS))"
    assert "m_per_class" in printed_by(ask)


class PoolingBackbone(SmallConv):
    name = "flat"

    def forward(self, images):
        return super().forward(images).mean((2, 3))


class WrongChannels(SmallConv):
    name = "wider"

    def __init__(self, *, in_channels: int):
        super().__init__(in_channels=in_channels)
        self.out_channels += 1


class UndeclaredChannels(SmallConv):
    name = "uncounted"

    def __init__(self, *, in_channels: int):
        super().__init__(in_channels=in_channels)
        del self.out_channels


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        (PoolingBackbone, r"map of the backbone flat: must be \(B, out_channels, h, w\).* 64, but got \(2, 64\)"),
        (WrongChannels, "feature map of the backbone wider: .* its out_channels is 65, but got \\(2, 64, 2, 2\\)"),
        (UndeclaredChannels, "backbone uncounted: its constructor must set out_channels"),
    ],
)
def test_a_backbone_must_return_its_declared_map(monkeypatch, backbone, said):
    monkeypatch.setitem(BACKBONES.data, backbone.name, backbone)
    with pytest.raises(ConfigError, match=said):
        build_model(backbone=backbone.name, in_channels=1)(torch.zeros(2, 1, 16, 16))


def test_rules_of_knobs_are_shown_as_intervals():
    rules = {knob.name: knob.domain for loss in LOSSES.values() for knob in methods.parameters_of(loss) if knob.domain}
    assert rules["sampling_seed"].startswith(">= 0, < 9")
    assert not [rule for rule in rules.values() if "(" in rule]


@pytest.mark.parametrize(("like", "said"), [(0, None), (2, "got 'NoneType'"), (7, None)])
def test_errors_of_every_trial_are_reported_before_the_first(monkeypatch, cache_dir, like, said):
    """A loss that fails here (7: an invalid value) may fail only on this machine."""
    monkeypatch.setitem(LOSSES.data, "whole", SquaredLength)
    quick = {"loss.name": "whole", "loss.like": like, "training.steps": 2, "training.eval_every": 1}
    request = Request("sec_rho", dataset="digits", seeds=1, settings=quick, name="w")
    if said is None:
        prepare(request, cache_dir=cache_dir)
        return
    with pytest.raises(ConfigError, match=f"value of the loss SquaredLength: must be a float tensor.*{said}"):
        prepare(request, cache_dir=cache_dir)
