"""Search spaces, protocols and printed numbers as declared: spaces resolve into cells without data, and cite sources."""

import importlib
import math
import pkgutil
import sys
from collections import defaultdict
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from helpers.together import for_each
from helpers.toys import rho_space, space_of

import search_spaces
from search_spaces import papers
from trainables import methods
from trainables.errors import ConfigError
from trainables.resolve import Layer, resolve
from tune_dml import catalogue
from tune_dml.catalogue import default_protocol, protocols, spaces, tried_values
from tune_dml.papers import published as printed_numbers
from tune_dml.papers.published import published_curve, published_rows
from tune_dml.planning.arms.settings import method_layers, protocol_layer
from tune_dml.planning.checks.conditions import conditions_of
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.plan import Plan, make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.space import METHOD, CurveReference, Grid, Knob, Paper, Protocol, SourcedSettings, Space, Tie

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
    of_papers = [protocol for protocol in protocols().values() if protocol.origin == "paper"]
    assert {name.partition("/")[0] for name in protocols()} >= {"sec", "dro", "mpa", "proxy_anchor", "soft_triple"}
    for protocol in of_papers:
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


RHO = replace(rho_space().published[0], note="One run per value")


def test_values_that_arms_do_not_share_are_all_listed():
    listed = tried_values(spaces()["sec_mu"], lambda knob: str(knob.domain.values))
    assert listed == {"regularizer.eta": "(0.1, 0.5, 1.0) or (0.001, 0.005, 0.01, 0.1)"}
    listed = tried_values(spaces()["sec_rho"], lambda knob: str(knob.domain.values))
    assert listed == {"regularizer.rho": "(0.01, 0.1, 0.5, 0.9, 1.0)"}


def test_rho_curve_of_the_sec_supplement():
    curve = published_curve(RHO)
    assert curve.values() == {0.01: 74.57, 0.1: 72.00, 0.5: 68.54, 0.9: 68.28, 1.0: 67.89}
    assert curve.baseline == 60.84
    assert curve.source == "SEC-supplement, Table 4, Cars196, BN-Inception"
    assert curve.notes[0] == "One run per value."
    assert any("60.79 in Table 5" in note for note in curve.notes)
    assert any(note.startswith("Eta not printed") for note in curve.notes)
    assert curve.values("final_norm_var")[1.0] == 0.02
    assert curve.baseline_others["final_norm_mean"] == 8.03


GAMMA = CurveReference("DRO", "4", "In-Shop", ("DRO-KL-G",), "gamma", baseline_method="LS", embedding_dim=64)
PROXIES = CurveReference("MPA", "7", "CUB200-2011", ("MPA",), "proxies_per_class", runs=3)


@pytest.mark.parametrize(
    ("reference", "values", "baseline", "note"),
    [
        (GAMMA, {0.001: 85.7, 0.01: 85.8, 0.1: 85.1, 1.0: 84.8}, 82.6, "impossible"),
        (PROXIES, {1: 68.4, 4: 69.0, 8: 69.1, 12: 69.3, 16: 67.6}, None, ""),
    ],
)
def test_a_curve_has_the_printed_numbers(reference, values, baseline, note):
    curve = published_curve(reference)
    assert (curve.values(), curve.baseline) == (values, baseline)
    assert note in " ".join(curve.notes)


def test_two_curves_of_a_table_are_selected_by_their_settings():
    compared = {"metric": "top1", "baseline_method": "NT-Xent"}
    eta = CurveReference("SEC-supplement", "7", "CIFAR-10", ("NT-Xent+SEC",), "eta", **compared)
    with pytest.raises(ConfigError, match="one number per value"):
        published_curve(eta)
    found = {epochs: published_curve(replace(eta, where={"epochs": epochs})) for epochs in (100, 200)}
    assert {epochs: curve.values() for epochs, curve in found.items()} == {100: {0.25: 86.87}, 200: {0.25: 90.35}}
    assert {epochs: curve.baseline for epochs, curve in found.items()} == {100: 84.76, 200: 89.05}


def test_every_published_number_is_complete():
    rows = published_rows()
    assert len(rows) == 1222
    assert all(math.isfinite(row.value) and row.metric and row.method for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": "44"}, "no package has numbers of this table"),
        ({"methods": ("Tripel+SEC",)}, "no such method"),
        ({"hyperparameter": "rhoo"}, "varies with 'rhoo'"),
        ({"hyperparameter": "eta"}, "one number per value"),
    ],
)
def test_declarations_of_unknown_tables_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        published_curve(replace(RHO, **change))


def test_a_wrong_reference_is_named_before_training(cache_dir):
    space = replace(spaces()["sec_rho"], published=(replace(RHO, table="44"),))
    with pytest.raises(ConfigError, match="no package has numbers of this table"):
        prepare(Request(space, "glyphs", name="x", seeds=1), cache_dir=cache_dir, decode=False)


@pytest.mark.parametrize(
    ("line", "got"),
    [("me,1,d,m,rho=1,R@1,7,", "JSONDecodeError"), ("me,1,d,m,{},R@1,-,", "could not convert"), ("me,1", "TypeError")],
)
def test_a_wrong_line_of_printed_numbers_is_named(tmp_path, line, got):
    file = tmp_path / "published.csv"
    file.write_text(f"paper,table,dataset,method,hyperparameters,metric,value,note\n{line}\n")
    with pytest.raises(ConfigError, match=rf"published.csv, line 2: a line must have the columns .*{got}"):
        list(printed_numbers._read_rows(file))


OWN, OWN_PROTOCOL = rho_space(name="own"), Protocol("own/quick", "glyphs", {"training.steps": 3})
OUR_NAME, OUR_PROTOCOL = rho_space(), replace(OWN_PROTOCOL, name="glyphs/triplet")


@pytest.mark.parametrize(
    ("group", "named", "said"),
    [
        ("spaces", "OWN", None),
        ("protocols", "OWN_PROTOCOL", None),
        (
            "spaces",
            "OUR_NAME",
            "a space's name must be unique, space module search_spaces.sec_rho has it already, but got 'sec_rho'",
        ),
        ("protocols", "OUR_PROTOCOL", "a protocol's name must be unique, .* has it already, but got 'glyphs/triplet'"),
        ("spaces", "plan_of", "must name a Space of tune_dml.space, but got '<function plan_of"),
        ("protocols", "OWN", r"must name a Protocol of tune_dml.space, but got \"?'?Space"),
    ],
)
def test_declarations_of_other_packages_add_to_ours(monkeypatch, group, named, said):
    """A space or protocol of another package would otherwise replace ours."""
    ours = EntryPoint("papers", "search_spaces", "tune_dml.space_packages")
    entries = EntryPoints([ours, EntryPoint("x", f"{__name__}:{named}", f"tune_dml.{group}")])
    monkeypatch.setattr(methods, "_entry_points", lambda path: entries)
    find = getattr(catalogue, group).__wrapped__
    if said is None:
        assert {"own", "own/quick"} & set(find())
    else:
        with pytest.raises(ConfigError, match=f"entry point tune_dml.{group}.x: {said}"):
            find()


def test_a_package_of_spaces_may_be_one_module(monkeypatch):
    entries = EntryPoints([EntryPoint("x", __name__, "tune_dml.space_packages")])
    monkeypatch.setattr(methods, "_entry_points", lambda path: entries)
    assert set(catalogue.protocols.__wrapped__()) == {"own/quick", "glyphs/triplet"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = [][0]", r"my_spaces.mine: must be importable, but got 'IndexError: list index out of range \(line 1"),
        ("x = (", r"my_spaces.mine: must be importable, but got .SyntaxError: '\(' was never closed"),
        ("from dataclasses import replace\nfrom search_spaces.sec_rho import SPACE\nSPACE = replace(SPACE, title='Mine')",
         "search_spaces.sec_rho: a space's name must be unique, space module my_spaces.mine has it already, but got 'sec_rho'"),
    ],
)  # fmt: skip
def test_a_wrong_module_of_a_package_of_spaces_is_named(monkeypatch, tmp_path, source, said):
    (tmp_path / "my_spaces").mkdir()
    (tmp_path / "my_spaces/__init__.py").touch()
    (tmp_path / "my_spaces/mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("search_spaces", "my_spaces")
    entries = EntryPoints([EntryPoint(name, name, "tune_dml.space_packages") for name in names])
    monkeypatch.setattr(methods, "_entry_points", lambda path: entries)
    for name in [name for name in sys.modules if name.startswith("my_spaces")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=f"^space module {said}"):
        catalogue.spaces.__wrapped__()


PAPERS = [value for value in vars(papers).values() if isinstance(value, Paper)]
TABLES = {(table.source, table.number): table for paper in PAPERS for table in paper.tables}


def rows_of_tables():
    rows = defaultdict(list)
    for row in published_rows():
        rows[row.paper, row.table].append(row)
    return rows


def test_every_printed_table_belongs_to_a_paper_and_holds_its_data_sets():
    rows = rows_of_tables()
    assert set(TABLES) == set(rows)
    for key, table in TABLES.items():
        assert set(table.datasets) == {row.dataset for row in rows[key]}, key


def test_values_stated_for_a_table_agree_with_its_rows():
    for key, rows in rows_of_tables().items():
        for field in ("backbone", "embedding_dim", "runs"):
            said = {row.hyperparameters[field] for row in rows if field in row.hyperparameters}
            assert not said or getattr(TABLES[key], field) in said, (key, field)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_a_paper_lists_the_data_sets_of_its_tables(paper):
    measured = {dataset for table in paper.tables for dataset in table.datasets} - {"worked example"}
    assert measured <= set(paper.datasets)
    assert all(table.source.partition("-")[0] == paper.key for table in paper.tables)


def test_a_table_is_found_by_its_number_and_part():
    assert papers.SEC.table("4", "supplement").holds.startswith("the triplet loss with SEC-EMA")
    assert papers.SEC.table("4", "rebuttal").holds.startswith("the tuplet margin loss")
    with pytest.raises(KeyError, match="4"):
        papers.SEC.table("4")


def test_a_curve_carries_what_its_table_states():
    curve = papers.DRO.table("4").curve("In-Shop", ("DRO-KL-G",), "gamma", baseline="LS")
    assert (curve.paper, curve.table, curve.embedding_dim, curve.baseline_method) == ("DRO", "4", 64, "LS")
    assert str(papers.DRO.cite("Table 4")).endswith("ECCV 2020, Table 4")
