"""Arms: named methods of a study, each with settings, knobs, ties and protocol, crossed with the shared knobs."""

from dataclasses import replace

import pytest
from helpers.cuda import write_pictures
from helpers.toys import plan_of, space_of

from trainables.errors import ConfigError
from tune_dml.catalogue import protocols
from tune_dml.papers.paper import Citation
from tune_dml.planning.cells import plan_arms
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.plan import Plan, make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.rules import arm_problems
from tune_dml.planning.study import Search, study_of
from tune_dml.space import Arm, Grid, Knob, LogRange, Protocol, Space, Tie

SIZES = Knob("batch.batch_size", Grid((6, 9), "log"), symbol="B")
MARGIN = Knob("loss.margin", Grid((0.1, 0.2)), symbol="m")
SHORT = {"training.steps": 4, "training.eval_every": 2, "batch.instances_per_class": 3}
TRIPLET = Arm("triplet", {"loss.name": "triplet"}, own_knobs=(MARGIN,))
TOPK = Arm("topk", {"loss.name": "dro_topk"}, ties=(Tie("loss.k", "batch.batch_size", 2),))
PLAIN = Arm("plain", {"loss.name": "margin_all"}, knobs=())


def space(*arms, **changes) -> Space:
    return space_of(SIZES, **{"fixed": SHORT, "arms": arms or (TRIPLET, TOPK, PLAIN), **changes})


def said(make, *arguments, **options) -> list[str]:
    with pytest.raises(ConfigError) as error:
        make(*arguments, **options)
    return [str(problem) for problem in error.value.problems]


def test_shared_knobs_are_crossed_with_the_knobs_of_each_arm():
    plan = plan_of(space=space())
    triplets = [f"triplet: B={size}, m={margin}" for size in (6, 9) for margin in (0.1, 0.2)]
    assert [cell.label for cell in plan.cells] == [*triplets, "topk: B=6", "topk: B=9", "plain"]
    assert [cell.index for cell in plan.cells] == list(range(7))
    assert [cell.arm for cell in plan.cells] == ["triplet"] * 4 + ["topk"] * 2 + ["plain"]
    assert [cell.settings["loss.k"] for cell in plan.cells if cell.arm == "topk"] == [12, 18]
    assert "loss.k" not in plan.cells[0].settings
    assert {cell.config.digest() for cell in plan.cells} == {cell.digest for cell in plan.cells}
    by_name = {arm.name: arm for arm in plan.arms}
    assert by_name["topk"].base_settings["loss.base"] == "margin"
    assert by_name["topk"].origins["loss.name"] == "arm topk"
    assert "batch.batch_size" not in by_name["triplet"].base_settings
    assert "loss.name" not in plan.base_settings
    assert plan.base_settings["training.steps"] == 4


def test_an_arm_can_be_the_baseline():
    plan = plan_of(space=space(baseline="plain"))
    assert [cell.label for cell in plan.cells if cell.baseline] == ["plain"]
    assert [arm.name for arm in plan.main_arms] == ["triplet", "topk"]


def test_an_arm_may_have_other_values_of_a_shared_knob():
    topk = replace(TOPK, own_knobs=(replace(SIZES, domain=Grid((3,))),))
    plan = plan_of(space=space(TRIPLET, topk))
    assert [cell.knobs["batch.batch_size"] for cell in plan.cells if cell.arm == "topk"] == [3]
    assert {cell.knobs["batch.batch_size"] for cell in plan.cells if cell.arm == "triplet"} == {6, 9}


def test_a_plan_with_arms_reads_back_and_its_identity_depends_on_arms(tmp_path):
    plan = plan_of(space=space())
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    renamed = plan_of(space=space(TRIPLET, replace(TOPK, name="other"), PLAIN))
    wider = plan_of(space=space(TRIPLET, TOPK))
    search = Search("tpe", 4)
    assert len({p.identity() for p in (plan, renamed, wider)}) == 3
    assert plan_of(space=space(), search=search).identity() != plan_of(space=wider.space, search=search).identity()


def test_a_citation_stored_with_the_old_key_place_keeps_its_location(tmp_path):
    plan = plan_of(space=replace(space(), citation=Citation("A. Author", "A Paper", "V", 2020, "Table 4")))
    plan.save(path := tmp_path / "plan.json")
    stored = path.read_text()
    path.write_text(stored.replace('"location": "Table 4"', '"place": "Table 4"'))
    assert path.read_text() != stored
    assert Plan.load(path) == plan


def test_a_request_chooses_arms_and_an_extension_adds_others(cache_dir):
    asked = Request(space(differs="M is each paper's"), "digits", arms=["topk", "plain"], settings={"optim.lr": 2e-3})
    plan = prepare(asked, cache_dir=cache_dir).plan
    assert [arm.name for arm in plan.arms] == ["topk", "plain"]
    grown = plan.extend(arms=["triplet"])
    assert grown.cells[: len(plan.cells)] == plan.cells
    assert [cell.arm for cell in grown.cells[len(plan.cells) :]] == ["triplet"] * 4
    assert {cell.settings["optim.lr"] for cell in grown.cells} == {2e-3}
    whole = prepare(replace(asked, arms=None), cache_dir=cache_dir).plan
    assert {cell.digest for cell in grown.cells} == {cell.digest for cell in whole.cells}
    assert "already" in said(plan.extend, arms=["plain"])[0]
    assert "Did you mean 'triplet'?" in said(plan.extend, arms=["tripet"])[0]


def test_an_added_arm_gets_the_batches_that_a_small_folder_allows(cache_dir, tmp_path):
    write_pictures(tmp_path)
    arms = (TRIPLET, Arm("margin", {"loss.name": "margin_all"}))
    asked = Request(space_of(arms=arms), "image_folder", arms=["triplet"], settings={"data.root": str(tmp_path)})
    plan = prepare(asked, cache_dir=cache_dir).plan
    whole = prepare(replace(asked, arms=None), cache_dir=cache_dir).plan
    assert {cell.digest for cell in plan.extend(arms=["margin"]).cells} == {cell.digest for cell in whole.cells}
    assert whole.cells[0].settings["batch.batch_size"] < protocols()["image_folder/small"].settings["batch.batch_size"]


def test_given_values_replace_those_of_an_arms_own_knob_and_of_a_nuisance_knob():
    own = replace(TOPK, own_knobs=(Knob("loss.base", Grid(("margin", "binomial"))),))
    tune = {"loss.base": ("binomial",), "optim.lr": (1e-3,)}
    asked = Request(replace(space(own), nuisance=(Knob("optim.lr", LogRange(1e-4, 1e-2)),)), "digits", tune=tune)
    plan = make_plan(study_of(asked))
    assert {cell.settings["loss.base"] for cell in plan.cells if cell.arm == "topk"} == {"binomial"}
    assert {cell.settings["optim.lr"] for cell in plan.cells} == {1e-3}
    (problem,) = map(str, study_of(replace(asked, tune={"loss.k": (3, 4)})).problems)
    assert problem.endswith("ties loss.k to another knob. Leave it out.")


def test_an_added_arm_trains_by_the_requested_protocol(cache_dir):
    asked = Request(space(), "digits", arms=["topk"], protocol="digits/quick")
    plan = prepare(asked, cache_dir=cache_dir).plan.extend(arms=["plain"])
    assert [arm.protocol.name for arm in plan.arms] == ["digits/quick"] * 2
    wrong = replace(TRIPLET, name="wrong", settings={"loss.name": "triplet", "loss.k": 3})
    begun = prepare(Request(space(TOPK, wrong), "digits", arms=["topk"]), cache_dir=cache_dir).plan
    (problem, *_) = said(begun.extend, arms=["wrong"])
    assert "loss.k (arm wrong): unknown setting of triplet. Leave it out, or set" in problem
    assert "to a method that has it: dro_topk" in problem


def test_cells_shared_by_two_arms_run_once_with_a_note(cache_dir):
    again = replace(TRIPLET, name="again", own_knobs=(replace(MARGIN, domain=Grid((0.1, 0.3))),))
    checked = prepare(Request(space(TRIPLET, again), "digits"), cache_dir=cache_dir)
    assert [cell.label for cell in checked.plan.cells[4:]] == ["again: B=6, m=0.3", "again: B=9, m=0.3"]
    shared = [note for note in checked.notes if "count as theirs" in note]
    assert shared == ["again: 2 of its cells equal cells of earlier arms, and count as theirs"]


def test_values_are_added_to_a_knob_in_every_arm_that_lists_it():
    grown = plan_of(space=space()).extend(values={"batch.batch_size": [3]})
    assert [cell.label for cell in grown.cells[7:]] == ["triplet: B=3, m=0.1", "triplet: B=3, m=0.2", "topk: B=3"]
    grown = plan_of(space=space()).extend(values={"loss.margin": [0.3]})
    assert [cell.label for cell in grown.cells[7:]] == ["triplet: B=6, m=0.3", "triplet: B=9, m=0.3"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"arms": (TRIPLET, replace(TOPK, name="triplet"))}, "the arms of a space must have different names"),
        ({"arms": (replace(TRIPLET, knobs=("loss.margn",)),)}, "`knobs` of an arm must be knobs of its space"),
        ({"arms": (replace(TOPK, knobs=()),)}, "toy.topk.loss.k: a tie must follow a knob of the arm"),
        ({"arms": (replace(TRIPLET, settings={"loss.margin": 1.0}),)}, "an arm cannot both search and set a knob"),
        ({"arms": (replace(TOPK, settings={"loss.k": 4}),)}, "that follows a knob cannot be searched or fixed"),
        ({"arms": (replace(TOPK, ties=TOPK.ties * 2),)}, "a setting can follow only one knob"),
        ({"arms": (replace(TRIPLET, own_knobs=(replace(MARGIN, symbol="B"),)),)}, "have the symbol 'B'"),
        ({"baseline": "plian"}, "the baseline must be one of the arms, but got 'plian'. Did you mean 'plain'?"),
        ({"scientific": (SIZES, replace(MARGIN, symbol="B"))}, "have the symbol 'B'"),
        ({"scientific": (SIZES, SIZES)}, "a knob may be declared once"),
    ],
)
def test_contradictory_declarations_are_refused(changed, words):
    assert any(words in str(problem) for problem in replace(space(), **changed).problems())


def test_a_value_outside_the_domain_of_one_arms_method_names_the_arm():
    wrong = replace(TRIPLET, own_knobs=(replace(MARGIN, domain=Grid((-1.0, 0.1))),))
    (problem,) = said(plan_of, space=space(wrong, TOPK))
    assert problem.startswith("loss.margin")
    assert "of triplet" in problem


def test_arms_share_protocol_pair_term_and_reduction_unless_explained():
    sums = Arm("sums", {"loss.name": "lifted_structure"}, knobs=())
    means = Arm("means", {"loss.name": "dro_kl_grouped", "loss.gamma": 0.1}, knobs=())
    binomial = replace(TOPK, settings={"loss.name": "dro_topk", "loss.base": "binomial"})
    (problem,) = said(plan_of, space=space(sums, means))
    assert "arms that are compared must share their reduction, but got 'sums: sum; means: mean'" in problem
    (problem,) = said(plan_of, space=space(TOPK, replace(binomial, name="b")))
    assert "share their pair term, but got 'topk: margin; b: binomial'" in problem
    (problem,) = said(plan_of, space=space(PLAIN, Arm("all", {"loss.name": "binomial"}, knobs=())))
    assert "share their pair term, but got 'plain: margin; all: binomial'" in problem
    assert plan_of(space=space(sums, means, differs="each as its paper has it")).cells
    protocols = tuple(Protocol(name, "digits", {"optim.lr": 0.1}) for name in ("x", "y"))
    apart = (replace(TRIPLET, protocols=protocols[:1]), replace(TOPK, protocols=protocols[1:]))
    (problem,) = said(prepare, Request(space(*apart), "digits"))
    assert "share their protocol, but got 'triplet: x; topk: y'" in problem


def test_arms_without_protocols_use_those_of_their_losses_with_a_note():
    arms = (Arm("triplet", {"loss.name": "triplet"}), Arm("ms", {"loss.name": "multi_similarity"}))
    settings = {"data.root": "/x", "batch.instances_per_class": 3}
    study = study_of(Request(space_of(SIZES, arms=arms, fixed={}), "cars196", settings=settings))
    own = "triplet by sec/cars196, ms by sec/cars196-ms"
    assert study.notes == (f"each arm trains by its own protocol: {own}; protocol=NAME trains all by one",)
    assert not arm_problems(study.space, plan_arms(study.arms)[0])


def test_arms_never_differ_in_data():
    other = replace(TOPK, settings={**TOPK.settings, "data.validation_fraction": 0.2})
    problems = said(plan_of, space=space(TRIPLET, other, differs="for no reason"))
    assert "data.validation_fraction must be the same for all" in problems[0]


def test_all_problems_of_arms_are_reported_together(cache_dir):
    declared = space(TRIPLET, replace(TOPK, knobs=()))
    wrong = Request(declared, "digits", name="../x", arms=["tripet"], settings={"loss.name": "npair"})
    problems = " | ".join(said(prepare, wrong, cache_dir=cache_dir))
    expected = ("unknown arm of toy", "knob of the arm", "differs between the arms of toy", "a sweep's name must have")
    assert [words for words in expected if words not in problems] == []


def test_a_metric_missing_from_an_arm_is_refused(cache_dir):
    other = replace(TOPK, settings={**TOPK.settings, "evaluation.ks": [2]})
    (problem,) = said(prepare, Request(space(TRIPLET, other, differs="x"), "digits"), cache_dir=cache_dir)
    assert problem.startswith("toy.metric of topk: arms that are compared share the metric, but got 'val/recall_at_1'.")


def test_a_search_proposes_cells_of_arms_with_knobs(cache_dir):
    searched = replace(space(TRIPLET, PLAIN), scientific=(Knob("optim.lr", LogRange(1e-4, 1e-1)),))
    plan = plan_of(space=searched, search=Search("tpe", 4))
    assert [cell.label for cell in plan.cells] == ["plain"]
    (problem,) = said(plan_of, space=space(PLAIN), search=Search("tpe", 4))
    assert "a search needs an arm with knobs" in problem


def test_a_divided_tie_keeps_the_number_of_pictures_seen():
    steps = (Tie("training.steps", "batch.batch_size", 63_360, divided=True),)
    cells = plan_of(space=space(TRIPLET, ties=steps, fixed={})).cells
    sizes = {cell.settings["batch.batch_size"]: cell.settings["training.steps"] for cell in cells}
    assert len(sizes) > 1
    assert all(number == round(63_360 / size) for size, number in sizes.items())
