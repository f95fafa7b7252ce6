"""Search spaces and protocols as declared: each resolves into cells without data, and cites its sources."""

import importlib
import math
import pkgutil

import pytest
from helpers.together import for_each
from helpers.toys import space_of

import search_spaces
from trainables.errors import ConfigError
from trainables.resolve import Layer, resolve
from tune_dml.catalogue import default_protocol, protocols, spaces
from tune_dml.papers.published import published_curve
from tune_dml.planning.arms.recipes import method_layers, protocol_layer
from tune_dml.planning.checks.conditions import conditions_of
from tune_dml.planning.plan import Plan, make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.space import METHOD, Grid, Knob, Protocol, SourcedSettings, Space, Tie

PAIRS = {(name, protocol.dataset): None for name, space in spaces().items() for protocol in space.protocols}


def plan_of(name, dataset, **options):
    return make_plan(study_of(Request(name, dataset, seeds=1, name=name, **options)))


@for_each("name, dataset", PAIRS)
def test_every_space_plans_on_every_data_set_it_has_a_protocol_for(name, dataset):
    space, plan = spaces()[name], plan_of(name, dataset)
    expected = 0
    for arm in space.every_arm:
        expected += math.prod(len(knob.domain.values) for knob in space.knobs_of(arm) if isinstance(knob.domain, Grid))
    assert len(plan.cells) == expected
    for cell in plan.cells:
        assert cell.config.digest() == cell.digest
        for knob in plan.arm(cell.arm).knobs:
            assert cell.settings[knob.path] in knob.domain.values


@for_each("name", spaces())
def test_every_space_runs_on_the_embedded_data_and_names_one_protocol_a_data_set_and_loss(name):
    space = spaces()[name]
    for protocols_of in (space.protocols, *(arm.protocols for arm in space.arms if arm.protocols)):
        pairs = [(protocol.dataset, protocol.methods) for protocol in protocols_of]
        assert len(pairs) == len(set(pairs))
        assert space.default_dataset in {dataset for dataset, _ in pairs}


@for_each("name", spaces())
def test_published_numbers_of_every_space_are_found(name):
    space = spaces()[name]
    arms = {arm.name: arm for arm in space.every_arm}
    for published in space.published:
        curve = published_curve(published)
        if published.hyperparameter == METHOD:
            known = {point.x for point in curve.points if conditions_of(point.row)}
            missing = known - set(arms)
            assert not missing or known & set(arms), (published.table, missing)
            continue
        grids = [
            {float(value) for value in knob.domain.values}
            for arm in arms.values()
            for knob in space.knobs_of(arm)
            if knob.path.endswith(f".{published.hyperparameter}") or knob.symbol == published.hyperparameter
        ]
        assert grids, published
        printed = {point.x for point in curve.points}
        assert any(printed <= grid for grid in grids), (published.table, published.methods, printed)


@for_each("name", protocols())
def test_every_protocol_resolves_alone_and_every_setting_is_used(name):
    protocol = protocols()[name]
    layers = method_layers(protocol, next(iter(protocol.methods), None))
    resolved = resolve(Layer("data", {"data.name": protocol.dataset}), *layers)
    config, origins = resolved.config, resolved.origins
    resolved = config.settings()
    for path, value in protocol.settings.items():
        assert resolved[path] == value, path
        assert origins[path].startswith(f"protocol {name}"), path


def test_a_protocol_of_a_paper_cites_the_source_of_each_value():
    papers = [protocol for protocol in protocols().values() if protocol.origin == "paper"]
    assert {name.partition("/")[0] for name in protocols()} >= {"sec", "dro", "mpa", "proxy_anchor", "soft_triple"}
    for protocol in papers:
        assert set(protocol.sources) == set(protocol.settings), protocol.name
        for path, source in protocol.sources.items():
            assert source.startswith(("paper", "code: ", "open: ")), (protocol.name, path, source)


def test_proxies_on_objects_start_as_in_their_papers():
    """Without it the embeddings of MPA with eight proxies nearly collapse (docs/log.md)."""
    ours, mpa = (protocols()[name].settings for name in ("objects/proxy", "mpa/cub200"))
    for path in ("optim.freeze_backbone_epochs", "optim.clip_value"):
        assert ours[path] == mpa[path]


def test_default_protocols_are_unique_and_spaces_fall_back_on_them():
    chosen = [protocol.dataset for protocol in protocols().values() if protocol.default]
    assert len(chosen) == len(set(chosen))
    assert default_protocol("glyphs").name == "glyphs/triplet"
    assert default_protocol("cub200").name == "sec/cub200"
    assert default_protocol("glyphs", "contrastive").name == "glyphs/simclr"
    assert default_protocol("webface", "face_recognition").name == "sec/webface"
    assert default_protocol("webface") is None  # its protocols are of another task


def test_names_are_unique():
    infos = pkgutil.walk_packages(search_spaces.__path__, prefix="search_spaces.")
    modules = [importlib.import_module(info.name) for info in infos]
    for kind in (Space, Protocol):
        found = [value for module in modules for value in vars(module).values() if isinstance(value, kind)]
        names = {value.name for value in found}
        assert len({id(value) for value in found}) == len(names)


def test_a_tied_setting_follows_its_knob_through_grid_proposals_and_files(tmp_path):
    plan = plan_of("dro_imbalance", "glyphs")
    top = [cell for cell in plan.cells if cell.arm == "DRO-TopK_M"]
    sizes = [(cell.settings["batch.batch_size"], cell.settings["loss.k"]) for cell in top]
    assert sizes == [(80, 160), (160, 320), (320, 640), (480, 960), (640, 1280)]
    assert "loss.k" not in plan.base_settings
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.cell(9, {"batch.batch_size": 100}, "DRO-TopK_M").settings["loss.k"] == 200
    grown = loaded.extend(values={"batch.batch_size": [40]})
    added = [cell for cell in grown.cells if cell.arm == "DRO-TopK_M" and cell.settings["batch.batch_size"] == 40]
    assert [cell.settings["loss.k"] for cell in added] == [80]
    with pytest.raises(ConfigError, match=r"loss\.k follows batch\.batch_size"):
        plan_of("dro_imbalance", "glyphs", settings={"loss.k": 3})


def test_contradictory_ties_are_refused():
    def problems(*tie):
        space = space_of(Knob("optim.lr", Grid((0.1, 0.2))), fixed={"loss.margin": 0.1}, ties=(Tie(*tie, 0.5),))
        return "".join(map(str, space.problems()))

    assert problems("optim.weight_decay", "optim.lr") == ""
    assert "follow" in problems("optim.weight_decay", "optim.beta1")
    assert "fixed" in problems("loss.margin", "optim.lr")
    assert "fixed" in problems("optim.lr", "optim.lr")


def test_a_later_source_overrides_an_earlier_one():
    paper = SourcedSettings("paper: a", {"optim.lr": 1.0, "optim.beta1": 0.5})
    protocol = Protocol.from_paper("x/y", "glyphs", paper, SourcedSettings("code: b", {"optim.lr": 2.0}))
    assert protocol.settings == {"optim.lr": 2.0, "optim.beta1": 0.5}
    origins = resolve(protocol_layer(protocol)).origins
    assert origins["optim.lr"] == "protocol x/y: code: b"
    assert origins["optim.beta1"] == "protocol x/y: paper: a"


def test_a_space_may_list_its_knobs():
    knobs = [Knob("loss.margin", Grid([0.1, 0.2]))], [Knob("optim.lr", Grid([0.01, 0.1]))]
    space = Space("toy", "", "", None, knobs[0], {}, nuisance=knobs[1])
    assert [knob.path for knob in space.knobs] == ["loss.margin", "optim.lr"]
    assert len(make_plan(study_of(Request(space, "digits"))).cells) == 4
