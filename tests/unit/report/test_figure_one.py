"""Figure 1 says what the sentence beside it says, and does not end an interval that goes on."""

import re

import pytest
from helpers.toys import ETA, RHO, crossed, rho_space, write_sweep

from tune_dml.report.analysis import analyse
from tune_dml.report.drawing.charts import Whisker, whiskers
from tune_dml.report.questions.knobs._curve import curve_figure

GRID = dict.fromkeys(crossed((0.01, 0.1, 0.5), (0.25, 1.0)), 70.0)
LOST = {("rho=0.1, eta=1", 2): ("diverged", "loss is not finite at step 180")}


def drawn(analysis, knob):
    return curve_figure(analysis, knob, "").draw(False)


def means_of(canvas):
    """Value -> the difference that the thick line has there."""
    said = (re.match(r"mean at (\S+): (\S+)", mark.text) for mark in canvas.marks if mark.kind == "dot")
    return {match[1]: float(match[2].replace("−", "-")) for match in said if match}


def shapes_of(canvas):
    return [mark.shape for mark in canvas.marks if mark.kind == "dot"]


def test_a_lost_trial_of_a_grid_moves_the_thick_line_no_further_than_the_sentence(tmp_path):
    """The average over the other knob keeps the seed's other trials: the whole seed was dropped from the line alone."""
    space = rho_space(scientific=(RHO, ETA), published=())
    results = write_sweep(
        tmp_path / "s", space=space, means=GRID, failures=LOST, sd=6.0, seed_sd=8.0, histories=False, evidence=False
    )
    analysis = analyse(results)
    knob = next(knob for knob in analysis.knobs if knob.path == RHO.path)
    line = means_of(drawn(analysis, knob))
    for difference in knob.sensitivity.differences:
        first, second = (label.partition("=")[2] for label in (difference.first, difference.second))
        assert line[first] - line[second] == pytest.approx(difference.estimate, abs=0.5)


@pytest.mark.parametrize(("sd", "heads"), [(0.1, False), (30.0, True)])
def test_an_interval_that_goes_on_beyond_the_frame_ends_in_an_arrowhead(tmp_path, sd, heads):
    results = write_sweep(
        tmp_path / "s", seeds=(0, 1), sd=sd, space=rho_space(published=()), histories=False, evidence=False
    )
    analysis = analyse(results)
    shapes = shapes_of(drawn(analysis, analysis.knobs[0]))
    assert ("triangle" in shapes, "down" in shapes) == (heads, heads)


def test_whiskers_that_are_cut_end_in_an_arrowhead():
    items = [Whisker("a", 0.0, -1.0, 1.0), Whisker("b", 2.0, -100.0, 2.5)]
    shapes = shapes_of(whiskers(items, "points", narrow=False))
    assert shapes.count("left") == 1
    assert "right" not in shapes


def test_on_a_telephone_the_letters_of_printed_curves_do_not_lie_on_each_other(steep):
    analysis = analyse(steep.results)
    canvas = curve_figure(analysis, analysis.knobs[0], "").draw(True)
    placed = [mark.points[0][1] for mark in canvas.marks if mark.kind == "text" and mark.text in set("abcd")]
    assert len(placed) == len(analysis.knobs[0].published)
    assert all(abs(a - b) >= 13 for i, a in enumerate(placed) for b in placed[:i])
