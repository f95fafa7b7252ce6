"""Claims of a report with lost seeds, diverged values or cells stopped early."""

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from helpers.claims import results_with
from helpers.toys import ETA, FLAT, RHO, STEEP, bare_sweep, crossed, opened, plan_of, rho_space, space_of, write_sweep
from judging import GRID, TWO_KNOBS, diverged, judged, report_of, section_of

from tune_dml.planning.study import Search
from tune_dml.report import summary
from tune_dml.report.analysis import analyse
from tune_dml.space import Grid, Knob
from tune_dml.stats.sequential.looks import level_left


def test_a_lost_seed_widens_an_interval_and_removes_no_cell(tmp_path: Path) -> None:
    whole = judged(tmp_path / "whole", seeds=range(5))
    lost = judged(tmp_path / "lost", seeds=range(5), failures={("rho=0.01", 1): ("failed", "no disk")})
    assert lost.knob["sensitivity"]["verdict"] == "sensitive"
    assert lost.knob["sensitivity"]["cells"] == 5
    width = {
        name: next(d["high"] - d["low"] for d in one.knob["sensitivity"]["differences"] if d["first"] == "rho=0.01")
        for name, one in (("whole", whole), ("lost", lost))
    }
    assert width["lost"] > width["whole"]
    cell = next(cell for cell in lost.data["cells"] if cell["label"] == "rho=0.01")
    assert (cell["n"], cell["planned"], cell["lost"]) == (4, 5, "seed 1 failed: no disk")
    assert cell["against_baseline"]["verdict"] == "better"
    assert "Without a result: rho=0.01 (seed 1 failed: no disk). A value with other seeds keeps them" in lost.text


def test_a_baseline_that_lost_hard_seeds_is_not_said_to_be_the_best() -> None:
    """Its mean is higher then, but within seeds another value is better by 2 points."""
    plan = plan_of(space=rho_space(published=(), fixed={"loss.name": "triplet", "regularizer.name": "sec"}), seeds=4)
    gains = np.array([0.0 if cell.baseline else 2.0 if cell.label == "rho=0.1" else -5.0 for cell in plan.cells])
    values = (
        60 + gains[:, None] + [10.0, 10.0, 0.0, 0.0] + 0.1 * np.random.default_rng(0).standard_normal((len(gains), 4))
    )
    values[0, 2:] = np.nan
    facts = dict(summary(results_with(plan, values)).answer.facts)
    assert facts["Best configuration"].startswith("rho=0.1: ")


TENTHS = tuple(round(0.1 * index, 1) for index in range(1, 11))


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        (diverged(*(f"rho={rho:g}" for rho in TENTHS[3:])), "; diverged at 7 of 10 values."),
        (diverged(*(f"rho={rho:g}" for rho in TENTHS[3:])), "the other that finished training is undecided."),
        (diverged(*(f"rho={rho:g}" for rho in TENTHS)), "only the baseline has a result"),
        (diverged(*(f"rho={rho:g}" for rho in TENTHS), seeds=1), "candidate with a result diverged under another"),
        (diverged("no SEC", *(f"rho={rho:g}" for rho in TENTHS)), "no configuration has a result"),
        ({(f"rho={rho:g}", 0): ("diverged", "collapsed") for rho in TENTHS}, "no result (in 10 of 11 configurations)."),
        ({("rho=0.5", 0): ("stopped", "")}, "1 of 11 configurations was stopped early (1 at step 200)."),
        ({("rho=0.5", 0): ("stopped", "")}, "The scheduler stopped 1 trial early."),
    ],
)
def test_lost_trials_are_counted_in_words(tmp_path, failures, said):
    space = rho_space(scientific=(Knob("regularizer.rho", Grid(TENTHS), symbol="rho"),), published=())
    means = {rho: 60.0 + 10 * rho for rho in TENTHS}
    assert said in judged(tmp_path, space=space, means=means, failures=failures).text


def test_one_trial_that_has_not_finished_is_named_in_the_singular(tmp_path: Path) -> None:
    found = summary(bare_sweep(tmp_path / "s", missing=[("rho=0.1", 2)]))
    assert found.answer.sentences[0] == "Provisional: 1 of 18 trials has not finished."


def test_figures_at_the_end_of_training_are_of_trials_that_finished(tmp_path: Path) -> None:
    results = write_sweep(tmp_path / "s", failures=diverged("rho=0.01", "rho=0.1"), evidence=False)
    analysis = analyse(results)
    mechanism, training = (section_of(analysis, name, traces=True) for name in ("mechanism", "training"))
    assert mechanism is not None
    assert training is not None
    assert {final.label for final in mechanism.data["mechanism"]} == {"rho=0.5", "rho=0.9", "rho=1", "no SEC"}
    views = [view.sentence for section in (mechanism, training) for view in section.figures[0].views]
    assert not any("rho=0.1 " in sentence or "rho=0.01 " in sentence for sentence in views[:-2])
    assert views[-1] == "At the end, training loss is 0 at every value."


def test_an_opened_sweep_of_which_every_cell_diverged_once_has_a_report(tmp_path: Path) -> None:
    """As when seeds are added after the opening. Validation can then select no cell."""
    lost = diverged("no SEC", *(f"rho={rho:g}" for rho in STEEP), seeds=1)
    found = report_of(opened(bare_sweep(tmp_path / "s", failures=lost)), tmp_path)
    assert found.data["opened_test"] is None
    assert "Opened test metrics" not in found.text


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_a_claim_that_failed_trials_may_explain_says_so(tmp_path: Path, goal: Literal["maximize", "minimize"]) -> None:
    """One value is better in three seeds and failed in two: it may only lack its bad results."""
    better = 75.0 if goal == "maximize" else 45.0
    means = {rho: better if rho == 0.01 else 60.0 for rho in FLAT}
    lost = {("rho=0.01", seed): ("failed", "no disk") for seed in (0, 1)}
    options = {"space": space_of(RHO, goal=goal), "means": means, "baseline": None, "seeds": range(5)}
    found = judged(tmp_path / "better", **options, failures=lost)
    assert found.knob["sensitivity"]["verdict"] == "sensitive"
    said = "If these trials failed because of their results, it would be undecided whether rho matters."
    assert said in found.text
    other = {("rho=0.5", seed): ("failed", "no disk") for seed in (0, 1)}
    elsewhere = judged(tmp_path / "another", **options, failures=other)
    assert "Without a result: rho=0.5" in elsewhere.text
    assert said not in elsewhere.text


def test_comparisons_with_a_cell_that_lost_many_trials_say_that_they_may_be_wrong(tmp_path: Path) -> None:
    said = "If trials without a result were lost because of their results, comparisons with no SEC may be wrong."
    for lost, count in ((1, 0), (2, 2)):
        failures = {("no SEC", seed): ("failed", "no disk") for seed in range(lost)}
        found = summary(bare_sweep(tmp_path / str(lost), seeds=range(5), failures=failures))
        sentences = [" ".join(found.answer.sentences), *found.verdicts]
        assert sum(said in sentence for sentence in sentences) == count


def test_an_optimum_beside_a_value_that_lost_many_trials_says_that_it_may_be_wrong(tmp_path: Path) -> None:
    """Where the best three of ten trials of the best value fail, 8 % of sweeps call the optimum inside."""
    failures = {("rho=0.1", seed): ("failed", "no disk") for seed in (0, 1)}
    found = judged(tmp_path, means=STEEP, seeds=range(5), failures=failures).knob["optimum"]["sentence"]
    assert found.endswith("because of their results, comparisons with rho = 0.1 may be wrong.")


def test_values_without_any_seed_keep_none_and_are_named_in_the_answer(tmp_path: Path) -> None:
    failures = {(f"rho={rho}", seed): ("failed", "no disk") for rho in (0.9, 1) for seed in range(3)}
    failures["rho=1", 2] = ("failed", "no network")
    found = judged(tmp_path, failures=failures)
    assert (
        "Without a result: rho=0.9 (seeds 0, 1 and 2 failed: no disk); rho=1 (seeds 0 and 1 failed: no disk; seed 2 failed: "
        "no network)."
    ) in found.text
    assert "keeps them" not in found.text
    said = found.files.summary.answer.sentences
    assert "6 of 18 trials failed (most often: no disk), among them all trials of rho = 0.9 and 1." in said


def test_no_reason_of_equally_many_failures_is_called_the_most_frequent(tmp_path: Path) -> None:
    failures = {(f"rho={rho}", seed): ("failed", f"no {rho}") for rho in (0.9, 1) for seed in range(3)}
    answer = " ".join(judged(tmp_path, failures=failures).files.summary.answer.sentences)
    assert "6 of 18 trials failed (for example: no " in answer


def test_a_lost_seed_of_a_grid_leaves_its_main_effects(tmp_path: Path) -> None:
    grid = {(a, b): a + b for a, b in crossed([10.0, 25.0, 40.0], [0.0, 1.0, 2.0])}
    first = Knob("optim.lr", Grid((10.0, 25.0, 40.0)), symbol="lr")
    second = Knob("loss.margin", Grid((0.0, 1.0, 2.0)), symbol="m")
    failures = {("lr=10, m=1", 1): ("failed", "no disk")}
    found = judged(tmp_path, space=space_of(first, second), means=grid, baseline=None, failures=failures)
    labels = {cell["label"] for cell in found.data["cells"]}
    assert labels >= {label for label, _ in failures}
    verdict = found.knob["sensitivity"]
    assert verdict["verdict"] == "sensitive"
    assert verdict["largest"]["estimate"] == pytest.approx(30, abs=2)
    points = {point["label"]: point["mean"] for point in found.knob["points"]}
    assert verdict["largest"]["estimate"] == pytest.approx(points["lr=40"] - points["lr=10"])


def test_values_without_shared_seeds_are_compared_within_seeds(tmp_path: Path) -> None:
    """Means of other seeds differ by the seeds: 62 under an easy seed is no better than 60 under a hard one."""
    elsewhere = [(f"rho={rho}", seed) for rho in ("0.5", "0.9", "1") for seed in range(3)]

    def said(name: str, *lost: tuple[str, int]) -> str:
        failures = dict.fromkeys([*lost, *elsewhere], ("diverged", "loss is nan"))
        found = judged(tmp_path / name, means=FLAT, sd=0.0, seed_sd=9.0, failures=failures)
        return str(found.data["answer"]["sentences"][0])

    none = said("none", ("rho=0.01", 1), ("rho=0.01", 2), ("rho=0.1", 0))
    assert none == "It is undecided whether rho matters on glyphs: no two values share two seeds."
    assert "R@1 falls 0.1 points from rho = 0.1 to 0.01, but no two" in said("one", ("rho=0.01", 2), ("rho=0.1", 0))


def test_only_undecided_pairs_are_called_undecided(tmp_path: Path) -> None:
    """Values with equal differences under both seeds are certain; a value with one seed is not."""
    means = dict.fromkeys(FLAT, 50.0) | {0.1: 50.01}
    options = {"means": means, "sd": 0.0, "seed_sd": 0.0, "seeds": range(2)}
    found = judged(tmp_path, failures={("rho=0.5", 1): ("diverged", "loss is nan")}, **options)
    sentences = found.data["answer"]["sentences"]
    (said,) = (text for text in sentences if text.startswith("It is undecided whether rho matters"))
    assert said.endswith("with 2 seeds the true difference may be much larger (smallest that matters: 1 point).")


def test_a_value_that_diverged_does_not_beat_the_baseline(tmp_path: Path) -> None:
    means = {0.1: 70.0, 0.5: 71.0, 1.0: 72.0}
    found = judged(tmp_path, means=means, sd=0.1, failures=diverged("rho=1"))
    said = found.data["answer"]["sentences"]
    assert "rho = 1 always diverges." in said
    assert "Every value of rho that finished training is significantly better than training without SEC." in said


def test_no_difference_is_claimed_for_a_value_without_results(tmp_path: Path) -> None:
    failures = {("rho=1", seed): ("failed", "no disk") for seed in range(8)}
    found = judged(tmp_path, means=FLAT, seeds=range(8), sd=0.3, margin=1.5, failures=failures)
    assert found.knob["sensitivity"]["verdict"] == "insensitive"
    assert "; rho=1 gave no result." in found.files.summary.verdicts[0]
    assert found.data["answer"]["sentences"][0].endswith("differ by 1.5 points or more; rho=1 gave no result.")


def test_diverged_values_are_never_called_insensitive(tmp_path: Path) -> None:
    found = judged(tmp_path, means=FLAT, seeds=range(8), sd=0.3, margin=1.5, failures=diverged("rho=1", seeds=8))
    assert found.knob["sensitivity"]["verdict"] == "undecided"
    sentence = found.files.summary.verdicts[0]
    assert sentence.startswith(
        "Among the values that trained, rho does not matter: every difference is significantly below 1.50 points, the "
        "smallest that matters. But rho=1 diverged."
    )
    assert found.knob["sensitivity"]["diverged"] == ["rho=1"]
    assert found.knob["sensitivity"]["seeds_needed"] is None
    assert found.knob["optimum"]["verdict"] == "undecided"
    assert "extend" not in " ".join(found.files.summary.commands)


def test_a_single_diverged_seed_is_a_result(tmp_path: Path) -> None:
    options = {"means": FLAT, "seeds": range(8), "sd": 0.3, "margin": 1.5}
    for status, verdict in (("diverged", "undecided"), ("failed", "insensitive")):
        found = judged(tmp_path / status, failures={("rho=1", 3): (status, "a reason")}, **options)
        assert found.knob["sensitivity"]["verdict"] == verdict


def test_knobs_are_never_said_not_to_interact_beside_a_diverged_trial(tmp_path: Path) -> None:
    """A value that diverges beside one value of the other knob, and not beside another one, interacts with it."""
    options = {"space": TWO_KNOBS, "means": dict.fromkeys(GRID, 65.0), "seeds": range(6), "sd": 0.1, "margin": 3.0}
    for status, verdict in (("diverged", "undecided"), ("failed", "do not interact")):
        failures = {("rho=1, eta=1", 3): (status, "a reason")}
        found = judged(tmp_path / status, failures=failures, **options)
        assert [pair["verdict"] for pair in found.data["interactions"]] == [verdict]
        small = any("rho and eta interact by less than 3 points." in text for text in found.files.summary.verdicts)
        assert small == (status == "failed")


def test_a_range_that_ends_in_divergence_is_not_extended(tmp_path: Path) -> None:
    rising = dict(zip(STEEP, [60.0, 62.0, 64.0, 70.0, 0.0], strict=True))
    found = judged(tmp_path, means=rising, failures=diverged("rho=1"), seeds=range(3))
    optimum = found.knob["optimum"]
    assert (optimum["verdict"], optimum["side"], optimum["best"]) == ("edge", "high", "rho=0.9")
    assert optimum["extend"] == []
    assert optimum["ends_in_divergence"]
    assert "Training diverges there or beyond, so the range cannot be extended." in optimum["sentence"]
    assert "extend" not in " ".join(found.files.summary.commands)
    assert not [finding for finding in found.files.findings if "optimum" in finding]


BEHIND = ("stopped", "at step 200: place 4 of 5 there, and 2 went on")
OFTEN = {"training.eval_every": 40}
STOPPED = {(f"rho={rho}", seed): BEHIND for rho in (0.5, 0.9, 1) for seed in range(5)}


def of(tmp_path, **options):
    options = {"seeds": range(5), "search": Search(stopping="asha"), "cell_settings": OFTEN, **options}
    return write_sweep(tmp_path / "toy", evidence=False, **options)


def test_the_answer_starts_with_stopped_cells(tmp_path):
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
    assert not re.search("interior|at the edge|matches|compatible|not comparable", verdicts)
    assert not found.findings


def test_stopped_cells_are_in_no_table_count_for_the_error_level_and_are_named_with_their_bias(tmp_path):
    analysis = analyse(of(tmp_path, failures=STOPPED))
    assert analysis.table.labels == ("no SEC", "rho=0.01", "rho=0.1")
    assert analysis.looks.level == pytest.approx(level_left([5.0], planned=5) * 2 / 5)
    (knob,) = analysis.knobs
    assert knob.stopped == ("rho=0.5", "rho=0.9", "rho=1")
    assert [point.stopped for point in knob.points] == [0, 0, 5, 5, 5]  # trials, as of those that failed
    assert [cell.stopped for cell in analysis.cells] == [None, None, None, 200, 200, 200]
    text = str(section_of(analysis, "trust").body)
    assert "at step 200: rho=0.5 (place 4 of 5 there, and 2 went on)" in text
    assert "biased towards cells that learn fast" in text


def test_a_baseline_without_a_rival_is_compared_with_nothing(tmp_path):
    failures = {(f"rho={rho:g}", seed): ("failed", "no disk") for rho in STEEP for seed in range(5)}
    said = summary(of(tmp_path, failures=failures, search=None))
    assert said.verdicts[-1] == "Nothing can be compared with no SEC: no other value has results."
    assert said.answer.facts[0] == ("Best configuration", "only the baseline has a result")


def test_equal_values_do_not_matter_only_among_those_that_finished(tmp_path):
    flat = dict.fromkeys((0.01, 0.1, 0.5, 0.9, 1.0), 68.0)
    (knob,) = analyse(of(tmp_path, failures=STOPPED, means=flat, sd=0.01)).knobs
    assert knob.sensitivity.flat
    assert knob.sensitivity.verdict == "undecided"
    assert knob.sensitivity.reason.endswith("but rho=0.5, rho=0.9, rho=1 were stopped early")


def test_several_knobs_are_not_compared_and_the_best_is_flattered(tmp_path):
    means = {point: 60.0 + 3 * place for place, point in enumerate(crossed((0.01, 0.1), (0.0, 0.5, 1.0)))}
    options = {"space": space_of(RHO, ETA, name="two"), "means": means, "baseline": None, "seeds": range(4)}
    labels = [cell.label for cell in of(tmp_path / "whole", **options).cells]
    failures = {(label, seed): BEHIND for label in labels[:4] for seed in range(4)}
    stopped = of(tmp_path, failures=failures, **options)
    found = summary(stopped)
    assert "of the 2 that finished training." in " ".join(found.answer.sentences)
    assert "is the best" not in " ".join(found.answer.sentences)
    verdicts = " ".join(found.verdicts)
    assert "is unknown: 4 of 6 configurations were stopped early" in verdicts
    assert "rho and eta: undecided, since configurations were stopped early by their results." in verdicts
    assert "of the 2 that finished training" in verdicts
    assert "This mean is optimistic" in verdicts
    assert all(knob.isolated.problem for knob in analyse(stopped).knobs)
    assert "Among the 0" not in verdicts
    assert "have no final result" not in verdicts
    assert not any("significantly" in sentence for sentence in found.answer.sentences)


def test_a_single_finished_value_is_not_compared(tmp_path):
    failures = {(f"rho={rho}", seed): BEHIND for rho in (0.1, 0.5, 0.9, 1) for seed in range(5)}
    found = summary(of(tmp_path, failures=failures, baseline=None, space=rho_space(baseline=None)))
    assert "Nothing can be said about rho on glyphs: only one value has results." in found.answer.sentences
    assert found.verdicts[0] == "It is undecided whether rho matters: only one value has results."
    against = summary(of(tmp_path / "against", failures=failures)).verdicts[-1]
    assert against.endswith("better at rho=0.01; 4 others were stopped early and not compared.")


def test_lost_trials_enter_no_statement_on_training_or_seeds(tmp_path: Path) -> None:
    lost = [f"rho={value:g}" for value in STEEP if value != 0.01]
    alone = judged(tmp_path, histories=True, failures=diverged(*lost), baseline=None)
    assert "steps 100 to 200" not in alone.text
    assert {label for label, _ in alone.knob["still_gaining"]} <= {"rho=0.01"}
    assert alone.knob["selection_rules"] == []
    assert "No two values share two seeds, so there is no interval." in alone.text
    assert "One seed gives no interval." not in alone.text
    assert "Seeds move all cells together" not in alone.text
