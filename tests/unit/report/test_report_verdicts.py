"""Claims of a report on typical sweeps: with lost seeds, diverged values, searches and looks."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toys import ETA, FLAT, RHO, STEEP, bare_sweep, crossed, rho_space, space_of, write_sweep
from judging import GRID, TWO_KNOBS, diverged, judged, report_of, section_of
from pages import by_id

from tune_dml.planning.study import Search
from tune_dml.record.judging.looks import Look
from tune_dml.record.results import Results
from tune_dml.report import summary
from tune_dml.report.analysis import analyse
from tune_dml.report.cells import as_cell
from tune_dml.report.section import Table
from tune_dml.space import Grid, Knob, LogRange, Range
from tune_dml.stats.sequential.looks import level_left

LR = Knob("optim.lr", LogRange(1e-4, 1e-1), symbol="lr")
MARGIN = Knob("loss.margin", Range(0.1, 1.0), symbol="m")
GOOD = {0.01: 68.0, 0.1: 70.0, 0.5: 73.0, 0.9: 76.0, 1.0: 70.0}


def test_no_optimum_while_it_is_undecided_whether_the_knob_matters(tmp_path: Path) -> None:
    found = judged(tmp_path, means=FLAT, sd=1.0)
    assert found.knob["sensitivity"]["verdict"] == "undecided"
    optimum = found.knob["optimum"]
    assert (optimum["verdict"], optimum["candidates"], optimum["extend"]) == ("undecided", [], [])
    assert found.files.summary.verdicts[1] == (
        "It is undecided where the optimum of rho lies: it is undecided whether rho matters."
    )


def test_the_best_value_is_among_the_named_ones(tmp_path: Path) -> None:
    means = {0.01: 60.0, 0.1: 66.0, 0.5: 73.0, 0.9: 73.1, 1.0: 61.0}
    found = judged(tmp_path, means=means, seeds=range(6), sd=0.2)
    optimum = found.knob["optimum"]
    assert optimum["verdict"] == "interior"
    assert optimum["candidates"] == ["rho=0.5", "rho=0.9"]
    assert "The best is one of rho=0.5, rho=0.9" in optimum["sentence"]
    assert "All values from rho=0.5 to rho=0.9 are equivalent to the best." in optimum["sentence"]
    assert [label for label, _ in optimum["behind"]] == [f"rho={value:g}" for value in means]


@pytest.mark.parametrize(
    ("means", "verdict", "headline"),
    [
        ({"linear": 60.0, "constant": 73.0, "epoch_ramp": 66.0}, "found", ["The best schedule is constant."]),
        ({"linear": 60.0, "constant": 73.0, "epoch_ramp": 72.9}, "undecided", ["The best schedule is constant or epoch_ramp."]),
        ({"linear": 73.0, "constant": 73.05, "epoch_ramp": 73.1}, "none", []),
    ],
)  # fmt: skip
def test_the_best_of_values_without_an_order_is_named(tmp_path: Path, means, verdict, headline) -> None:
    knob = Knob("regularizer.schedule", Grid(tuple(means), scale="category"), symbol="schedule")
    found = judged(tmp_path, space=space_of(knob), means=means, baseline=None, seeds=range(6), sd=0.2)
    optimum = found.knob["optimum"]
    assert (optimum["verdict"], optimum["within"], optimum["extend"]) == (verdict, [], [])
    assert "Which schedule is the best?" in found.text
    assert "edge of the range" not in found.text
    assert [line for line in found.files.summary.answer.sentences if "best schedule" in line] == headline


def test_a_parabola_is_a_suggestion_and_no_verdict(tmp_path: Path) -> None:
    domain = tuple(np.linspace(0.1, 0.9, 9).round(2).tolist())
    knob = Knob("loss.margin", Grid(domain), symbol="m")
    means = {x: 70 - 40 * (x - 0.4) ** 2 for x in domain}
    found = judged(tmp_path, space=space_of(knob), means=means, baseline=None, seeds=range(5), sd=0.2)
    parabola = found.knob["optimum"]["parabola"]
    assert parabola["verdict"] == "interior"
    assert 0.3 < parabola["low"] < 0.4 < parabola["high"] < 0.5
    assert "This assumes the shape and is not a verdict" in found.text
    assert not [sentence for sentence in found.files.summary.verdicts if "parabola" in sentence]


def test_a_random_search_claims_the_importance_of_no_knob(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    means = {
        (float(10 ** -random.uniform(1, 4)), float(random.uniform(0.1, 1))): float(50 + 20 * random.random())
        for _ in range(12)
    }
    space = space_of(LR, MARGIN)
    found = judged(tmp_path, space=space, means=means, baseline=None, search=Search("random", 12), seeds=range(5))
    verdicts = [knob["sensitivity"]["verdict"] for knob in found.data["knobs"]]
    assert verdicts == ["undecided", "undecided"]
    said = found.files.summary.verdicts
    assert not [sentence for sentence in said if re.match(r"(lr|m) (matters|does not)", sentence)]
    assert "lr and m: undecided, since not all values were tried" in " ".join(said)
    assert found.data["importance"][0]["shares"] == []
    assert "The importance of the knobs is unknown" in " ".join(said)
    best = found.data["configuration"]
    truth = {cell["label"]: cell["mean"] for cell in found.data["cells"]}
    assert truth[best["label"]] == max(truth.values())
    assert best["score"]["low"] < best["score"]["mean"] < best["score"]["high"]
    assert best["command"] in {"tune-dml extend s --seeds 6", "tune-dml extend s --num-samples 12"}
    assert "Which configuration is best, and which knob mattered?" in found.text


@pytest.mark.slow
def test_a_search_names_the_important_knob_if_a_model_predicts(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    points = [(float(10 ** -random.uniform(1, 4)), float(random.uniform(0.1, 1))) for _ in range(24)]
    means = {(lr, m): float(70 - 6 * (np.log10(lr) + 2.5) ** 2) for lr, m in points}
    options: dict[str, Any] = {"baseline": None, "search": Search("random", 24), "seeds": range(3)}
    found = judged(tmp_path, space=space_of(LR, MARGIN), means=means, **options)
    (one,) = found.data["importance"]
    shares = {row["knob"]: row for row in one["shares"]}
    assert shares["lr"]["low"] > 0.5
    assert shares["m"]["low"] == 0
    assert one["predicted"] > 0.5
    by_knob = {knob["path"]: knob["sensitivity"] for knob in found.data["knobs"]}
    assert by_knob["optim.lr"]["effect"]
    assert not by_knob["loss.margin"]["effect"]
    assert "lr has an effect on" in found.text
    assert "Every configuration by lr and m" in found.files.html.read_text()
    assert "Why? The mechanism behind" not in found.text  # the other knob changed too
    tested = r"lr has an effect: .* \(permutation test over 24 configurations, p = 0.0\d*; significant up to 0.0\d*\)"
    assert re.search(tested, found.text)
    assert "undecided whether m matters: no effect is significant (permutation test" in found.text
    verdicts = " ".join(found.files.summary.verdicts)
    assert "undecided where the optimum of lr lies: the size of its effect is undecided" in verdicts
    is_certain = shares["lr"]["low"] > shares["m"]["high"]
    assert ("lr explains significantly more than any other knob" in found.text) == is_certain
    assert ("It is undecided which knob explains most" in found.text) != is_certain
    assert "What each knob explains of" in found.text
    options["search"] = Search("tpe", 24)
    unlisted = judged(tmp_path / "tpe", space=space_of(LR, MARGIN), means=means, **options)
    assert not any(knob["sensitivity"]["effect"] for knob in unlisted.data["knobs"])  # its false claims exceed 5 %


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_the_score_of_an_adaptive_search_may_be_optimistic(tmp_path: Path, method: Any) -> None:
    """The search proposed the best configuration because others close to it were good under the same seeds."""
    means = {(10.0**-power, 0.1 * power): 70.0 - power for power in range(1, 6)}
    search = {"baseline": None, "search": Search(method, 5), "histories": False, "evidence": False}
    found = summary(write_sweep(tmp_path / "s", space=space_of(LR, MARGIN), means=means, **search))
    said = f"{method} chose where to search by all seeds, so this may still be optimistic."
    assert any(said in verdict for verdict in found.verdicts) == (method == "tpe")


def test_a_nuisance_knob_that_was_not_crossed_is_not_tuned_away(tmp_path: Path) -> None:
    """Every value of rho has one random learning rate: differences are those of the learning rates."""
    random = np.random.default_rng(1)
    means = {(rho, float(10 ** -random.uniform(1, 4))): float(50 + 20 * random.random()) for rho in STEEP}
    space = rho_space(published=(), nuisance=(LR,))
    found = judged(tmp_path, space=space, means=means, search=Search("random", 5), seeds=range(5))
    assert found.knob["sensitivity"]["verdict"] == "undecided"
    assert "not tried with the same settings" in found.knob["sensitivity"]["reason"]
    assert found.knob["optimum"]["verdict"] == "undecided"


def test_a_crossed_nuisance_knob_is_tuned_for_each_value_and_all_seeds_judge(tmp_path: Path) -> None:
    rates = Knob("optim.lr", Grid((0.001, 0.01, 0.1)), symbol="lr")
    means = {(rho, lr): STEEP[rho] - 3 * abs(np.log10(lr) + 2) for rho, lr in crossed(list(STEEP), [0.001, 0.01, 0.1])}
    space = rho_space(published=(), nuisance=(rates,))
    found = judged(tmp_path, space=space, means=means, seeds=range(6))
    assert found.knob["sensitivity"]["seeds"] == 6
    assert "best nuisance setting, chosen on the same seeds" in found.knob["isolated"]
    assert found.knob["sensitivity"]["verdict"] == "sensitive"
    assert "against every setting of the other" in found.knob["sensitivity"]["algorithm"]
    assert {seed for point in found.knob["points"] for seed, _ in point["seeds"]} == set(range(6))
    (against,) = (text for text in found.files.summary.verdicts if text.startswith("Against no SEC"))
    assert "configurations" in against
    assert "value" not in against


def test_the_gain_of_the_best_configuration_has_no_selection_bias(tmp_path: Path) -> None:
    found = judged(tmp_path, space=TWO_KNOBS, means=dict.fromkeys(GRID, 65.0), baseline=65.0, sd=1.0)
    best, naive = found.data["configuration"], max(cell["mean"] for cell in found.data["cells"])
    assert best["gain"]["low"] < 0 < best["gain"]["high"]
    assert best["gain"]["mean"] < naive - found.data["cells"][0]["mean"]
    assert len(best["candidates"]) > 10


@pytest.mark.parametrize(("others", "said"), [((), "better than no SEC. "), ((2,), "did not select it. ")])
def test_a_gain_on_a_single_seed_or_on_none_has_no_interval(tmp_path: Path, others, said) -> None:
    """The baseline has one seed, which the other cells lack in the second case."""
    lost = {"no SEC": (0, 1)} | {f"rho={rho:g}, eta={eta:g}": others for rho, eta in GRID}
    failures = {(label, seed): ("failed", "no disk") for label, seeds in lost.items() for seed in seeds}
    found = judged(tmp_path, space=TWO_KNOBS, means=dict.fromkeys(GRID, 65.0), baseline=60.0, failures=failures)
    (sentence,) = (line for line in found.files.summary.verdicts if line.startswith("The best configuration found"))
    assert said in sentence
    assert "(gain )" not in sentence


def test_a_knob_whose_effects_cancel_is_called_flat_only_on_average(tmp_path: Path) -> None:
    """Up by 4 points with one value of the other knob, down by 4 with the other: no two means over it differ."""
    space = rho_space(scientific=(Knob("regularizer.rho", Grid((0.1, 1.0)), "rho"), ETA), published=())
    means = {(rho, eta): 68.0 + 4 * eta * rho - 2 * rho for rho in (0.1, 1.0) for eta in (0.0, 0.5, 1.0)}
    found = judged(tmp_path, space=space, means=means, seeds=range(6), sd=0.2)
    summary = found.files.summary
    plain = " ".join(summary.answer.sentences)
    assert "rho does not matter on glyphs, averaged over the other knobs: no two" in plain
    assert "rho and eta interact: statements about one of them are averages over the other." in plain
    assert any(line.startswith("rho does not matter, averaged over") for line in summary.verdicts)
    assert any(line.startswith("eta matters, averaged over the other knobs: ") for line in summary.verdicts)
    assert any(line.startswith("Does the knob matter, averaged over the others? ") for line in summary.verdicts)


def test_main_effects_and_interactions_of_a_full_grid(tmp_path: Path) -> None:
    means = {(a, b): STEEP[a] + b * (10 if a == 0.01 else 0) for a, b in GRID}
    found = judged(tmp_path, space=TWO_KNOBS, means=means, seeds=range(5))
    (pair,) = found.data["interactions"]
    (importance,) = found.data["importance"]
    assert sum(row["share"] for row in importance["shares"]) == pytest.approx(1)
    assert importance["pairs"][0]["share"] > 0
    assert (pair["first"], pair["second"], pair["verdict"]) == ("rho", "eta", "interact")
    assert "rho=0.01" in pair["levels"]
    assert "rho and eta interact." in found.files.summary.verdicts
    additive = {(a, b): STEEP[a] + b for a, b in GRID}
    plain = judged(tmp_path / "plain", space=TWO_KNOBS, means=additive, seeds=range(5))
    assert plain.data["interactions"][0]["verdict"] != "interact"


def test_of_two_equal_knobs_none_matters_most(tmp_path: Path) -> None:
    means = {(a, b): 60 + 4 * (a == 0.01) + 3.4 * (b == 0.0) for a, b in GRID}
    found = judged(tmp_path, space=TWO_KNOBS, means=means, seeds=range(4))
    (importance,) = found.data["importance"]
    assert len(importance["shares"]) == 2
    assert importance["sentence"].startswith("It is undecided which knob explains most. Shares of what")
    assert "explains significantly more than any other knob" not in found.text


def test_a_grid_with_a_diverged_corner_is_averaged_where_every_value_trained(tmp_path: Path) -> None:
    means = {(a, b): STEEP[a] + b for a, b in GRID}
    found = judged(tmp_path, space=TWO_KNOBS, means=means, failures=diverged("rho=1, eta=1"))
    assert found.knob["sensitivity"]["verdict"] == "sensitive"
    assert found.knob["sensitivity"]["cells"] == 5
    points = {point["label"]: point["mean"] for point in found.knob["points"]}
    assert points["rho=0.01"] - points["rho=1"] == pytest.approx(6.7, abs=1)
    where = "2 of 3 settings of the other knobs where every value has a number"
    assert found.files.summary.verdicts[0].startswith(f"rho matters, averaged over the {where}: ")
    assert f"rho matters on glyphs, averaged over the {where}: " in found.files.summary.answer.sentences[0]


def test_a_knob_compared_at_a_single_value_of_another_has_a_note(tmp_path: Path) -> None:
    """As for a knob of one of two methods, where the other method trained with each of its values."""
    space = rho_space(scientific=(RHO, Knob("regularizer.eta", Grid((0.0, 0.5)), "eta")), published=())
    means = {(a, b): STEEP[a] for a, b in crossed(list(STEEP), [0.0, 0.5])}
    found = judged(tmp_path, space=space, means=means, failures=diverged("rho=1, eta=0.5"))
    where = ", at the one of 2 settings of the other knobs where every value has a number: "
    assert where in found.files.summary.verdicts[0]
    assert found.knob["isolated"].startswith("at the one of 2")


@pytest.mark.parametrize(("seeds", "known"), [(1, False), (2, True), (3, True)])
def test_a_number_has_the_same_uncertainty_everywhere(tmp_path: Path, seeds: int, known: bool) -> None:
    found = judged(tmp_path, seeds=range(seeds))
    cells = {cell["label"]: cell for cell in found.data["cells"]}
    rows = {row.label: row for row in found.files.summary.rows}
    for point in analyse(found.results).knobs[0].points:
        cell, row = cells[point.label], rows[point.label]
        assert row.mean == cell["mean"] == point.mean
        if known:
            assert (row.low, row.high) == (cell["low"], cell["high"])
            assert cell["high"] == pytest.approx(min(point.mean + point.half_bar, 100.0))
        else:
            assert cell["low"] is None
            assert np.isnan([row.low, row.high, point.half_bar]).all()
    assert "Bars leave out the variation of all cells together" in found.text


def test_two_seeds_give_wide_intervals(tmp_path: Path) -> None:
    found = judged(tmp_path, means=FLAT, seeds=range(2), sd=0.3)
    assert found.knob["sensitivity"]["verdict"] == "undecided"
    assert "With two seeds each pair has one degree of freedom" in by_id(found.page, "trust").text


def test_the_section_on_trust_has_spent_error_and_uneven_noise(tmp_path: Path) -> None:
    found = judged(tmp_path, seeds=range(5), failures={("rho=0.5", 2): ("failed", "no disk")})
    trust = found.data["trust"]
    assert trust["level"] == trust["error_spent"] == pytest.approx(0.04 * 29 / 30)  # the rest waits for the lost trial
    assert trust["planned_seeds"] == 5
    assert 0.25 <= trust["epsilon"]["regularizer.rho"] <= 1
    text = by_id(found.page, "trust").text
    assert "1 of 30 trials gave no result" in text
    assert "3.87% of 5% is spent" in text
    assert "once, at 4.83 seeds a cell; planned before the first: 5" in text


def test_of_many_values_only_the_deciding_difference_is_listed(tmp_path: Path) -> None:
    values = tuple(round(0.02 * (index + 1), 2) for index in range(41))
    space = rho_space(scientific=(Knob("regularizer.rho", Grid(values), symbol="rho"),), published=())
    section = section_of(analyse(bare_sweep(tmp_path / "s", space=space, means=dict.fromkeys(values, 60.0))), "curve")
    (table,) = section.tables
    assert (len(table.rows), table.folded) == (1, "The difference that decides, of all pairs of 41 values")


def test_results_near_a_limit_have_skewed_noise(tmp_path: Path) -> None:
    warning = "Validation R@1 is near its limit, where noise is skewed"
    for level, is_near in ((60.0, False), (97.0, True), (3.0, True)):
        found = judged(tmp_path / str(level), means=dict.fromkeys(FLAT, level), baseline=level, sd=0.1, seed_sd=0.1)
        assert (warning in by_id(found.page, "trust").text) == is_near


def test_recorded_looks_reduce_the_level_of_the_next_one(tmp_path):
    results = bare_sweep(tmp_path / "s", seeds=range(8))
    earlier = tuple(Look(seeds, 5, "report", 1.0, 6 * seeds, str(seeds), cells=6) for seeds in (3, 5))
    results = replace(results, looks=earlier)
    analysis = analyse(results)
    assert analysis.looks.level == pytest.approx(level_left([3, 5, 8], planned=5))
    assert f"{100 * (1 - level_left([3, 5, 8], planned=5)):.3g}% simultaneous interval" in summary(results).verdicts[0]
    text = by_id(report_of(results, tmp_path).page, "trust").text
    assert "3 times, at 3, 5, 8 seeds a cell; planned before the first: 5" in text


def test_no_refused_command_is_suggested(tmp_path):
    results = bare_sweep(tmp_path / "s", seeds=range(3), means=FLAT, sd=0.3)
    assert any("tune-dml extend" in command for command in summary(results).commands)
    older = replace(results, plan=replace(results.plan, protocol_version=results.plan.protocol_version - 1))
    assert not summary(older).commands


def test_the_answer_claims_no_difference_that_percentages_cannot_have(tmp_path: Path) -> None:
    results = write_sweep(tmp_path / "s", means=FLAT, seeds=range(2), sd=25.0, histories=False)
    said = "with 2 seeds the true difference may be much larger (smallest that matters: 1 point)."
    assert said in summary(results).answer.sentences[0]


def test_no_interval_reaches_where_percentages_cannot(tmp_path: Path) -> None:
    """Two seeds that disagree: a t distribution of one degree of freedom is unbounded, R@1 is not."""
    means = {(a, b): 90.0 + a for a, b in GRID if b < 1}
    files = judged(tmp_path, space=TWO_KNOBS, means=means, seeds=(0, 1), sd=6.0).files
    assert max(float(end) for end in re.findall(r"-?\d+\.\d+", (files.html.parent / "tables.md").read_text())) <= 200
    for low, high in re.findall(r"interval (-?[\d.]+) to (-?[\d.]+)", " ".join(files.summary.verdicts)):
        assert -100 <= float(low) <= float(high) <= 100


def test_tables_of_fresh_seeds_show_no_end_that_percentages_cannot_have(tmp_path: Path) -> None:
    for name, baseline in (("with", 50.0), ("without", None)):
        results = bare_sweep(tmp_path / name, baseline=baseline, confirmed={1000: 6.0, 1001: -6.0})
        section = section_of(analyse(results), "confirmation")
        tables = [item for item in section.body if isinstance(item, Table) and item.name != "confirmation-trials"]
        assert all(abs(as_cell(cell).value or 0) <= 100 for table in tables for row in table.rows for cell in row)


def test_the_same_outcome_for_two_tables_is_printed_once(tmp_path: Path) -> None:
    space = replace(rho_space(), published=rho_space().published * 2)
    answer = " ".join(summary(write_sweep(tmp_path / "s", space=space, sd=0.05, histories=False)).answer.sentences)
    order = "Published differences are significant in 7 of 10 pairs; our order is the same in all of these"
    assert f"{order} (Cars196, another backbone; Cars196, another backbone)." in answer


def of_queries(results: Results, queries: float) -> Results:
    """Return the sweep as if every trial had so many queries, each with its own loss."""
    counts = {"val/queries": queries, "test/queries": queries}
    trials = (replace(t, metrics={**t.metrics, **counts, "train/loss": 0.1 + n}) for n, t in enumerate(results.trials))
    return replace(results, trials=tuple(trials))


@pytest.mark.parametrize(
    "means", [{0.01: 75.0, 0.1: 62.5, 0.5: 62.5, 0.9: 62.5}, dict.fromkeys((0.01, 0.1, 0.5, 0.9), 62.5)]
)
def test_seeds_that_come_out_equal_on_eight_queries_decide_nothing(tmp_path: Path, means: dict[float, float]) -> None:
    alike = {"means": means, "baseline": 62.5, "sd": 0.0, "seed_sd": 0.0}
    results = bare_sweep(tmp_path / "s", **alike)
    certain, few = (analyse(of_queries(results, queries)) for queries in (1e9, 8))
    assert certain.knobs[0].sensitivity.verdict != "undecided"
    assert few.knobs[0].sensitivity.verdict == "undecided"
    assert {row.verdict for row in few.against_baseline or ()} == {"undecided"}
    bars = list(few.bars.values())
    assert min(bars) > 6  # half a step
    said = summary(of_queries(results, 8)).verdicts
    assert said[0].startswith("It is undecided whether rho matters")
    level = len(set(means.values())) == 1
    assert ("R@1 has the same mean at every value" in said[0], "0.00 points higher" in said[0]) == (level, False)
    assert ("R@1 is the same at every rho" in " ".join(summary(of_queries(results, 8)).answer.sentences)) == level
    assert "our order is significantly the same in 0, significantly the opposite in 0" in said[2]
    assert said[3].endswith("undecided at all 4 values.")
