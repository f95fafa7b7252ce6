"""The first parts of a report: divergence, the most important knob, a worthwhile next step, Figure 1."""

import re
from types import SimpleNamespace

import pytest
from helpers.toys import METRIC, RHO, bare_sweep, crossed, rho_space, space_of, write_sweep
from judging import TWO_KNOBS, diverged, section_of

from tune_dml.cli._status_table import status_table
from tune_dml.planning.plan import Search
from tune_dml.report import summary
from tune_dml.report.analysis import analyse
from tune_dml.report.analysis.traces import Line
from tune_dml.report.drawing.canvas import text_width
from tune_dml.report.drawing.charts import HeatCell, Whisker, _row_names, draw_heat_map, draw_lines, draw_whiskers
from tune_dml.report.naming import metric_name
from tune_dml.report.questions import answers
from tune_dml.report.questions.configurations.knobs_together import (
    _draw_parallel_coordinates,
    _draw_plane,
    _searched_knobs,
    _SearchedKnob,
)
from tune_dml.report.questions.knobs._curve import curve_figure
from tune_dml.report.steps import Step
from tune_dml.space import Grid, Knob, LogRange

LR = Knob("optim.lr", Grid((0.001, 0.1, 1000.0, 1e12), scale="log"), symbol="lr")


def test_values_that_always_diverge_are_named_and_their_trials_are_drawn(tmp_path):
    labels = ("lr=0.1", "lr=1000", "lr=1e+12")
    lost = diverged(*labels, seeds=2)
    means = {0.001: 60.0, 0.1: 25.0, 1000.0: 5.0, 1e12: 5.0}
    results = write_sweep(tmp_path / "lr", space=space_of(LR), means=means, baseline=None, seeds=(0, 1), failures=lost)
    said = summary(results).answer.sentences
    assert "lr = 0.1, 1000 and 1e+12 always diverge." in said
    (figure,) = section_of(analyse(results), "trust").figures
    assert all(label in figure.draw(False).document() for label in labels)


def test_a_value_that_diverges_at_every_setting_of_the_other_knob_is_named_alone(tmp_path):
    rates = Knob("optim.lr", Grid((0.1, 1e12), scale="log"), symbol="lr")
    means = {(rho, lr): 60.0 for rho in (0.1, 0.5, 0.9) for lr in (0.1, 1e12)}
    lost = diverged(*(f"rho={rho}, lr=1e+12" for rho in (0.1, 0.5, 0.9)), seeds=2)
    rho = Knob("regularizer.rho", Grid((0.1, 0.5, 0.9)), symbol="rho")
    options = {"means": means, "baseline": None, "seeds": (0, 1), "histories": False, "evidence": False}
    every = write_sweep(tmp_path / "all", space=space_of(rho, rates), failures=lost, **options)
    assert "lr = 1e+12 always diverges." in summary(every).answer.sentences
    lost.pop(("rho=0.5, lr=1e+12", 1))
    some = write_sweep(tmp_path / "some", space=space_of(rho, rates), failures=lost, **options)
    said = summary(some).answer.sentences
    assert (
        "rho = 0.1, lr = 1e+12; and rho = 0.9, lr = 1e+12 always diverge; rho = 0.5, lr = 1e+12 diverges in 1 of 2 trials."
    ) in said


@pytest.mark.parametrize("domain", [Grid((0.123411, 0.123412, 0.5), scale="log"), LogRange(0.1, 1.0)])
def test_values_that_rounding_makes_equal_keep_their_own_cells(tmp_path, domain):
    """A search may propose values that differ in the fifth digit only."""
    means = {0.123411: 70.0, 0.123412: 40.0, 0.5: 60.0}
    space = rho_space(scientific=(Knob("regularizer.rho", domain, symbol="rho"),), published=())
    found = summary(bare_sweep(tmp_path / "s", space=space, means=means))
    rows = {row.label: round(row.mean / 10) for row in found.rows}
    assert rows == {"no SEC": 6, "rho=0.1234": 7, "rho=0.1234 (#3)": 4, "rho=0.5": 6}
    assert "from rho = 0.123411 to 0.123412." in found.answer.sentences[0]


def test_the_values_of_a_nuisance_knob_are_in_the_order_of_their_size(tmp_path):
    sizes = Knob("batch.batch_size", Grid((6, 12, 120), scale="log"), symbol="B")
    means = {(rho, size): 60.0 + size for rho in (0.1, 1.0) for size in (6, 12, 120)}
    space = rho_space(nuisance=(sizes,), published=())
    analysis = analyse(bare_sweep(tmp_path / "s", space=space, means=means, baseline=None))
    (knob,) = [knob for knob in _searched_knobs(analysis, analysis.cells) if knob.name == "B"]
    assert (knob.axis, knob.levels) == ("log", (6, 12, 120))


def test_a_knob_whose_symbol_is_its_path_is_named_once():
    assert Knob("lr", Grid((0.1, 1.0)), symbol="lr").label == "lr"


def test_a_line_is_drawn_to_its_end_where_one_trial_is_at_0_on_a_logarithmic_axis():
    lines = [
        Line("a", (1, 2, 3), (1.0, 100.0, 5.0), (1.0, 100.0, 0.0), (1.0, 100.0, 10.0)),
        Line("b", (1, 2, 3), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    ]
    canvas = draw_lines(lines, "loss", "step", narrow=False, log=True)
    assert [len(mark.points) for mark in canvas.marks if mark.kind == "line" and mark.text] == [3, 3]
    assert "nan" not in canvas.document()


@pytest.mark.parametrize("sd", [0.05, 3.0], ids=["both matter", "both are undecided"])
def test_knobs_are_ordered_by_the_size_of_their_effect(tmp_path, sd):
    first = Knob("optim.lr", Grid((0.01, 0.1)), symbol="lr")
    second = Knob("regularizer.eta", Grid((0.5, 1.0)), symbol="eta")
    means = {(a, b): 60.0 + 20 * b + 20 * a for a, b in crossed((0.01, 0.1), (0.5, 1.0))}
    space = space_of(first, second)
    results = write_sweep(tmp_path / "two", space=space, means=means, baseline=None, sd=sd, histories=False)
    sections = answers(analyse(results), traces=False)
    titles = [section.title for section in sections if section.title.startswith("How sensitive")]
    assert titles == [f"How sensitive is the outcome to {name}?" for name in ("eta", "lr")]


@pytest.mark.parametrize(("trials", "chance", "urgency", "worth"), [
    (288, 0.5, 40, False), (36, 0.6, 40, True), (36, None, 50, True), (288, None, 90, True), (36, 0.1, 40, False),
])  # fmt: skip
def test_the_cost_of_a_step_is_weighed_against_that_of_the_sweep(tmp_path, trials, chance, urgency, worth):
    results = bare_sweep(tmp_path / "toy")  # 18 trials
    assert Step("tune-dml extend toy", "it", trials, urgency, chance).is_worth_it(results) is worth


def test_cells_of_a_search_are_listed_from_the_best(tmp_path):
    space, means = space_of(Knob("optim.lr", LogRange(1e-5, 1e-1), symbol="lr")), {1e-4: 60.0, 1e-2: 70.0, 1e-3: 65.0}
    results = write_sweep(
        tmp_path / "s", space=space, means=means, baseline=None, search=Search("tpe", 3), histories=False
    )
    assert results.plan.metric == METRIC
    labels = [label for label, _ in status_table(results).renderables[1].cells]
    assert labels == ["lr=0.01", "lr=0.001", "lr=0.0001"]


@pytest.mark.parametrize("narrow", [False, True])
def test_long_values_of_the_upright_knob_stay_inside_the_map(narrow):
    knobs = [_SearchedKnob(name, name, "log", (0.0001146, 0.000123456, 0.04835)) for name in ("margin", "lr")]
    cells = [
        SimpleNamespace(label="", cell=SimpleNamespace(knobs={"margin": number, "lr": number}), mean=float(score))
        for score, number in enumerate(knobs[0].levels)
    ]
    analysis = SimpleNamespace(metric=metric_name("val/recall_at_1"))
    texts = [mark for mark in _draw_plane(analysis, knobs, cells, narrow=narrow).marks if mark.kind == "text"]
    assert [mark.text for mark in texts if mark.anchor == "end"] == ["0.0001146", "0.04835"]
    assert all(mark.points[0][0] >= text_width(mark.text) for mark in texts if mark.anchor == "end")


@pytest.mark.parametrize("narrow", [False, True])
def test_long_names_leave_room_for_the_drawing(narrow):
    names = [
        f"{place} of the names that are longer than a phone is wide, {'so ' * 30}" for place in ("first", "second")
    ]
    knobs = [_SearchedKnob(name, name, "ordered", tuple(names)) for name in names]
    cells = [
        SimpleNamespace(label="", cell=SimpleNamespace(knobs=dict.fromkeys(names, value)), mean=60.0 + len(value))
        for value in names
    ]
    analysis = SimpleNamespace(metric=metric_name("val/recall_at_1"))
    fields = [[HeatCell(1.0, "1.00"), HeatCell(2.0, "2.00")]] * 2
    for canvas in (
        _draw_plane(analysis, knobs, cells, narrow=narrow),
        _draw_parallel_coordinates(analysis, knobs, cells, narrow=narrow),
        draw_heat_map(["a", "b"], ["c", "d"], fields, (names[0], names[1]), narrow=narrow),
    ):
        drawn = [mark.points for mark in canvas.marks if mark.kind != "text"]
        assert all(0 <= x <= canvas.width for points in drawn for x, _ in points)
        assert all(points[0][0] < points[1][0] for points in drawn if len(points) == 4)  # boxes


def test_shortened_row_names_stay_unique():
    rows = [f"a method with a name that fills the phone's width, eta=0.5, rho={rho}" for rho in (0.1, 0.2)]
    names = _row_names(rows, 400.0)[1]
    assert len(set(names)) == 2
    assert _row_names(["a", "b"], 400.0)[1] == ["a", "b"]
    methods = [f"SemihardTriplet+{name}" for name in ("L2-reg", "SEC", "SEC-EMA")]
    drawn = draw_whiskers([Whisker(name, 1.0, 0.0, 2.0) for name in methods], "gain", narrow=True).document()
    assert all(f">{name}<" in drawn for name in methods)


GRID = dict.fromkeys(crossed((0.01, 0.1, 0.5), (0.25, 1.0)), 70.0)
LOST = {("rho=0.1, eta=1", 2): ("diverged", "loss is not finite at step 180")}


def drawn(analysis, knob):
    return curve_figure(analysis, knob, "").draw(False)


def means_of(canvas):
    """Value -> the difference that the thick line shows."""
    said = (re.match(r"mean at (\S+): (\S+)", mark.text) for mark in canvas.marks if mark.kind == "dot")
    return {match[1]: float(match[2].replace("−", "-")) for match in said if match}


def shapes_of(canvas):
    return [mark.shape for mark in canvas.marks if mark.kind == "dot"]


def test_a_lost_trial_of_a_grid_moves_the_thick_line_no_further_than_the_sentence(tmp_path):
    """The average over the other knob keeps the seed's other trials."""
    results = bare_sweep(tmp_path / "s", space=TWO_KNOBS, means=GRID, failures=LOST, sd=6.0, seed_sd=8.0)
    analysis = analyse(results)
    knob = next(knob for knob in analysis.knobs if knob.path == RHO.path)
    line = means_of(drawn(analysis, knob))
    for difference in knob.sensitivity.differences:
        first, second = (label.partition("=")[2] for label in (difference.first, difference.second))
        assert line[first] - line[second] == pytest.approx(difference.estimate, abs=0.5)


@pytest.mark.parametrize(("sd", "heads"), [(0.1, False), (30.0, True)])
def test_an_interval_beyond_the_frame_ends_in_an_arrowhead(tmp_path, sd, heads):
    results = bare_sweep(tmp_path / "s", seeds=(0, 1), sd=sd, space=rho_space(published=()))
    analysis = analyse(results)
    shapes = shapes_of(drawn(analysis, analysis.knobs[0]))
    assert ("triangle" in shapes, "down" in shapes) == (heads, heads)


def test_clipped_whiskers_end_in_an_arrowhead():
    items = [Whisker("a", 0.0, -1.0, 1.0), Whisker("b", 2.0, -100.0, 2.5)]
    shapes = shapes_of(draw_whiskers(items, "points", narrow=False))
    assert shapes.count("left") == 1
    assert "right" not in shapes


def test_letters_of_printed_curves_do_not_overlap_on_a_phone(steep):
    analysis = analyse(steep.results)
    canvas = curve_figure(analysis, analysis.knobs[0], "").draw(True)
    placed = [mark.points[0][1] for mark in canvas.marks if mark.kind == "text" and mark.text in set("abcd")]
    assert len(placed) == len(analysis.knobs[0].published)
    assert all(abs(a - b) >= 13 for i, a in enumerate(placed) for b in placed[:i])
