"""A sweep whose cells were stopped early: said first, in every statement, and nothing is claimed that needs all values."""

from __future__ import annotations

import pytest
from helpers.toys import ETA, RHO, crossed, rho_space, space_of, write_sweep

from tune_dml.planning.study import Search
from tune_dml.report import summary
from tune_dml.report.analysis import analyse
from tune_dml.report.questions import answers
from tune_dml.stats.sequential.looks import level_left

BEHIND = ("stopped", "at step 200: place 4 of 5 there, and 2 went on")
OFTEN = {"training.eval_every": 40}
STOPPED = {(f"rho={rho}", seed): BEHIND for rho in (0.5, 0.9, 1) for seed in range(5)}


def of(tmp_path, **options):
    options = {"seeds": range(5), "search": Search(stopping="asha"), "cell_settings": OFTEN, **options}
    return write_sweep(tmp_path / "toy", evidence=False, **options)


def test_the_answer_begins_with_what_was_stopped_and_speaks_of_the_others(tmp_path):
    found = summary(of(tmp_path, failures=STOPPED))
    first, *rest = found.answer.sentences
    assert first.startswith("3 of 6 configurations were stopped early (3 at step 200). The report compares only")
    assert rest[0].startswith("Training had not converged: rho = 0.1 gained another")
    assert rest[1].startswith("Among the 2 of 5 values that finished training: rho matters on glyphs")
    assert found.answer.step.command.startswith("tune-dml confirm toy")
    assert found.answer.step.trials == 5 * 3  # the two that finished, and the baseline
    assert not any("extend" in command for command in found.commands)
    verdicts = " ".join(found.verdicts)
    assert "3 of 5 values were stopped early, and have no final result" in verdicts
    assert "3 others were stopped early and not compared" in verdicts
    for claim in ("interior", "at the edge", "matches", "compatible", "not comparable"):
        assert claim not in verdicts
    assert not found.findings


def test_a_stopped_cell_is_in_no_table_and_errors_count_the_comparisons_that_were_begun(tmp_path):
    analysis = analyse(of(tmp_path, failures=STOPPED))
    assert analysis.table.labels == ("no SEC", "rho=0.01", "rho=0.1")
    assert analysis.looks.level == pytest.approx(level_left([5.0], planned=5) * 2 / 5)
    (knob,) = analysis.knobs
    assert knob.stopped == ("rho=0.5", "rho=0.9", "rho=1")
    assert [point.stopped for point in knob.points] == [0, 0, 1, 1, 1]
    assert [cell.stopped for cell in analysis.cells] == [None, None, None, 200, 200, 200]


def test_equal_values_do_not_matter_only_among_those_that_finished(tmp_path):
    flat = dict.fromkeys((0.01, 0.1, 0.5, 0.9, 1.0), 68.0)
    (knob,) = analyse(of(tmp_path, failures=STOPPED, means=flat, sd=0.01)).knobs
    assert knob.sensitivity.flat
    assert knob.sensitivity.verdict == "undecided"
    assert knob.sensitivity.reason.endswith("but rho=0.5, rho=0.9, rho=1 were stopped early")


def test_trust_names_each_cell_with_its_step_and_place_and_the_bias(tmp_path):
    sections = answers(analyse(of(tmp_path, failures=STOPPED)), traces=False)
    trust = next(section for section in sections if section.name == "trust")
    text = str(trust.body)
    assert "at step 200: rho=0.5 (place 4 of 5 there, and 2 went on)" in text
    assert "biased towards cells that learn fast" in text


def test_several_knobs_are_not_compared_and_the_best_is_flattered(tmp_path):
    means = {point: 60.0 + 3 * place for place, point in enumerate(crossed((0.01, 0.1), (0.0, 0.5, 1.0)))}
    options = {"space": space_of(RHO, ETA, name="two"), "means": means, "baseline": None, "seeds": range(4)}
    labels = [cell.label for cell in of(tmp_path / "whole", **options).cells]
    failures = {(label, seed): BEHIND for label in labels[:4] for seed in range(4)}
    stopped = of(tmp_path, failures=failures, **options)
    found = summary(stopped)
    verdicts = " ".join(found.verdicts)
    assert "is unknown: 4 of 6 configurations were stopped early" in verdicts
    assert "of the 2 that finished training" in verdicts
    assert "This mean is optimistic" in verdicts
    assert all(knob.isolated.problem for knob in analyse(stopped).knobs)
    assert not any("significantly" in sentence for sentence in found.answer.sentences)


def test_where_one_value_finished_nothing_is_compared(tmp_path):
    failures = {(f"rho={rho}", seed): BEHIND for rho in (0.1, 0.5, 0.9, 1) for seed in range(5)}
    found = summary(of(tmp_path, failures=failures, baseline=None, space=rho_space(baseline=None)))
    assert "Nothing can be said about rho on glyphs: only one value has results." in found.answer.sentences
