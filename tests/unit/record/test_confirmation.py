"""Confirmation: the winner measured again, on seeds that did not choose it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.toys import METRIC, STEEP, Driver, bare_sweep, rho_space
from scipy.stats import t as student

from trainables.errors import ConfigError
from tune_dml import operations
from tune_dml.cli._answers import state_of
from tune_dml.planning.continuation import confirmation_plan
from tune_dml.planning.request import Session
from tune_dml.record.judging.looks import Look, look_at
from tune_dml.record.results import load_results, results_of
from tune_dml.record.state import read_state
from tune_dml.report import summary, write_report
from tune_dml.report.analysis import analyse
from tune_dml.report.analysis.cell import best_cells
from tune_dml.report.questions.configurations.confirmation import confirmation
from tune_dml.stats.sequential.looks import level_left
from tune_dml.stats.verdicts.selection import best_first
from tune_dml.tracking.projection import Projection

FRESH = {1000: 0.1, 1001: -0.2, 1002: 0.3, 1003: 0.0, 1004: -0.1}
"""How far the trials of each fresh seed lie from the truth."""


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory):
    return bare_sweep(tmp_path_factory.mktemp("confirmed") / "toy", confirmed=FRESH)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return bare_sweep(tmp_path_factory.mktemp("alone") / "toy")


def test_fresh_seeds_follow_those_of_earlier_confirmations_and_miss_the_sweeps(alone):
    plan, best = alone.plan, best_cells(alone)
    off = next(cell for cell in plan.cells if cell.baseline)
    first = confirmation_plan(plan, off, best[:2], (), 3)
    assert first.seeds == (1000, 1001, 1002)
    assert [cell.label for cell in first.cells] == ["no SEC", "rho=0.01", "rho=0.1"]
    more = confirmation_plan(plan, off, best[:1], first.seeds, 5)
    assert more.seeds[:3] == first.seeds
    assert len(set(more.seeds)) == 5
    assert confirmation_plan(plan, off, best[:1], first.seeds, 2).seeds == first.seeds[:2]
    assert not {trial.key for trial in first.trials()} & {trial.key for trial in plan.trials()}
    late = confirmation_plan(plan.extend(seeds=[1000]), off, best[:1], (), 1)
    assert late.seeds == (1001,)


def test_confirming_trials_enter_no_table_or_other_verdict(confirmed, alone, tmp_path):
    assert [trial.key for trial in confirmed.trials] == [trial.key for trial in alone.trials]
    assert confirmed.table()[[*confirmed.table()][:3]].equals(alone.table()[[*alone.table()][:3]])
    assert len(confirmed.confirmed) == 2 * len(FRESH)
    one, two = (
        json.loads(write_report(results, tmp_path / name).verdicts.read_text())
        for name, results in (("with", confirmed), ("without", alone))
    )
    assert two.pop("confirmation") is None
    assert one.pop("confirmation")
    assert one["sentences"].pop(one["sentences"].index(_answer(confirmed).verdicts[0]))
    assert one["answer"]["sentences"].pop(one["answer"]["sentences"].index(_answer(confirmed).headline))
    assert one == two


def _answer(results):
    return confirmation.section(analyse(results), None)


def test_scores_intervals_and_optimism(confirmed):
    found = _answer(confirmed).data["confirmation"]
    baseline, winner = found.cells
    assert (baseline.label, winner.label, found.winner) == ("no SEC", "rho=0.01", "rho=0.01")
    own = [t.metrics[METRIC] for t in confirmed.trials if t.cell.label == "rho=0.01"]
    fresh = [t.metrics[METRIC] for t in confirmed.confirmed if t.cell.label == "rho=0.01"]
    others = [t.metrics[METRIC] for t in confirmed.confirmed if t.cell.baseline]
    assert winner.selection.mean == pytest.approx(np.mean(own))
    assert winner.fresh.mean == pytest.approx(np.mean(fresh))
    assert winner.optimism == pytest.approx(np.mean(own) - np.mean(fresh))
    gains = np.subtract(fresh, others)
    reach = student.isf(0.02, 4) * gains.std(ddof=1) / np.sqrt(5)  # a planned look has 4 %
    assert winner.gain.low == pytest.approx(gains.mean() - reach)
    assert winner.gain.high == pytest.approx(gains.mean() + reach)
    assert baseline.gain is None
    assert found.verdict == "holds"
    assert "rho=0.01 holds up: on fresh seeds it is better than no SEC, +13." in found.sentences[0]
    assert _answer(confirmed).headline == "On 5 fresh seeds, rho = 0.01 is 14 points better than no SEC."
    before = np.mean(own) - np.mean([t.metrics[METRIC] for t in confirmed.trials if t.cell.baseline])
    assert found.sentences[1] == f"On the seeds that selected it, the difference was +{before:.2f}."
    assert f"rho=0.01 {np.mean(own):.2f} and {np.mean(fresh):.2f}, no SEC" in found.sentences[2]


UNDECIDED = "It is undecided whether rho = 0.01 beats no SEC on fresh seeds."


@pytest.mark.parametrize(
    ("means", "offsets", "verdict", "said"),
    [
        ({0.01: 60.8, 0.1: 50.0}, FRESH, "undecided", UNDECIDED),
        ({0.01: 58.0, 0.1: 50.0}, FRESH, "worse", "On 5 fresh seeds, rho = 0.01 is 2.8 points worse than no SEC."),
        ({0.01: 74.0, 0.1: 50.0}, {1000: 0.5}, "undecided", ""),
    ],
)
def test_lost_and_unknown_gains_are_reported(tmp_path, means, offsets, verdict, said):
    results = bare_sweep(tmp_path / "toy", means=means, confirmed=offsets)
    assert _answer(results).data["confirmation"].verdict == verdict
    assert _answer(results).headline == said
    assert not any(text.startswith("No rho") for text in summary(results).answer.sentences)


def test_without_a_baseline_the_score_is_measured_again(tmp_path):
    results = bare_sweep(tmp_path / "toy", space=rho_space(baseline=None), baseline=None, confirmed=FRESH)
    section = _answer(results)
    assert section.data["confirmation"].verdict == "measured again"
    assert "has validation R@1 74.6" in section.verdicts[0]
    assert section.headline.startswith("On 5 fresh seeds, rho = 0.01 reaches 74.6")
    assert section.headline.endswith(" on those that selected it).")
    assert [table.name for table in section.tables] == ["confirmation", "confirmation-trials"]


def test_when_less_is_better_optimism_has_the_same_sign(tmp_path):
    means = {0.01: 50.0, 0.1: 55.0}
    results = bare_sweep(tmp_path / "toy", space=rho_space(goal="minimize"), means=means, confirmed=FRESH)
    found = _answer(results).data["confirmation"]
    winner = next(cell for cell in found.cells if cell.label == "rho=0.1")  # the toys confirm the highest
    assert winner.optimism == pytest.approx(winner.fresh.mean - winner.selection.mean)
    assert found.verdict == "holds"


def test_a_lost_confirming_trial_is_named(tmp_path):
    results = bare_sweep(tmp_path / "toy", confirmed=FRESH)
    key = results.confirmed[1].key
    Driver(results.folder, results.plan).ended(results.confirmed[1], "diverged", reason="nan at 3")
    again = results_of(results.folder)
    assert next(trial for trial in again.confirmed if trial.key == key).status == "diverged"
    found = _answer(again).data["confirmation"]
    assert "No result: rho=0.01, seed 1000 diverged: nan at 3." in found.sentences
    assert found.cells[1].fresh.n == 4
    assert found.cells[1].gain.n == 4


@pytest.mark.parametrize("lost", [2, 5])
def test_a_winner_that_diverges_on_fresh_seeds_does_not_hold_up(tmp_path, lost):
    """Formerly the seeds that were left said `On 3 fresh seeds, rho = 0.01 is 14 points better than no SEC`."""
    results = bare_sweep(tmp_path / "toy", confirmed=FRESH)
    own = [trial.key for trial in results.confirmed if not trial.cell.baseline][:lost]
    gone = [replace(t, status="diverged", metrics={}) if t.key in own else t for t in results.confirmed]
    section = _answer(replace(results, confirmed=tuple(gone)))
    said = f"rho = 0.01 diverged under {lost} of 5 fresh seeds."
    assert section.data["confirmation"].verdict == "undecided"
    assert section.headline == said
    assert section.verdicts[0].startswith(said)


def test_mlflow_shows_confirming_trials_separately(confirmed):
    projection = Projection(read_state(confirmed.folder))
    projection.update()
    key = confirmed.confirmed[0].key
    assert projection.trial_tags(key)["tune_dml.confirmation"] == "true"
    assert projection.trial_tags(key)["seed"] == "1000"
    assert "tune_dml.confirmation" not in projection.trial_tags(confirmed.trials[0].key)
    assert projection.parent_tags()["tune_dml.finished"] == str(len(confirmed.trials))


def test_a_sweep_without_a_finished_cell_has_no_winner(tmp_path):
    failures = {(f"rho={rho:g}", seed): ("failed", "x") for rho in STEEP for seed in range(3)}
    results = bare_sweep(tmp_path / "toy", failures=failures)
    with pytest.raises(ConfigError, match="only a cell that has finished a trial"):
        operations.confirm("toy", Session(results.folder.parent))


def test_confirming_seeds_cannot_extend_the_sweep(confirmed):
    with pytest.raises(ConfigError, match="must not take part in the selection"):
        operations.extend("toy", Session(confirmed.folder.parent), seeds=[1002])


def test_ranks_do_not_depend_on_lost_seeds():
    generator = np.random.default_rng(0)
    truth = np.arange(6.0)[::-1]
    values = truth[:, None] + 100 * generator.normal(size=(1, 5)) + 1e-3 * generator.normal(size=(6, 5))
    assert best_first(values) == list(range(6))
    for _ in range(50):
        holes = values.copy()
        holes[generator.random(holes.shape) < 0.3] = np.nan
        holes[:, 0] = values[:, 0]  # one seed joins them all
        assert best_first(holes) == list(range(6))
    holes[2] = np.nan
    assert best_first(holes) == [0, 1, 3, 4, 5]
    assert best_first(np.full((2, 3), np.nan)) == []


@pytest.fixture
def interrupted(tmp_path):
    whole = bare_sweep(tmp_path / "toy", confirmed={1000: 0.1, 1001: 0.2})
    lost, path = whole.confirmed[-1].key, tmp_path / "toy" / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not (lost in line and '"ended"' in line)))
    read_state(tmp_path / "toy").record_look("sweep")
    return load_results(tmp_path, "toy")


def test_status_and_report_of_an_interrupted_confirmation_have_the_resume_command(interrupted, command_line):
    assert state_of(interrupted) == "confirmation interrupted 3/4"
    assert summary(interrupted).answer.step.command.startswith("tune-dml resume toy")
    _, out, _ = command_line("status", "toy", "--storage", interrupted.folder.parent)
    assert "3 of 4 confirming trials finished" in out
    assert out.count("tune-dml resume toy") == 1
    assert "Complete" not in out


@pytest.fixture
def intents(monkeypatch):
    """What the sessions that begin are to do; they do nothing."""
    begun = []
    monkeypatch.setattr(operations, "_execute", lambda *given: begun.append(given[-1]))
    monkeypatch.setattr(operations, "_continuing_session", lambda state, session, *rest: session)
    return begun


def test_resume_continues_a_confirmation(interrupted, intents):
    operations.resume("toy", Session(interrupted.folder.parent))
    (intent,) = intents
    assert intent.verb == "confirm"
    assert {trial.key for trial in intent.confirmation.trials()} == {trial.key for trial in interrupted.confirmed}


def test_failed_confirming_trials_are_retried(tmp_path, intents, command_line):
    """Formerly no command retried them: `resume --retry-failed` knew only the trials of the sweep."""
    results = bare_sweep(tmp_path / "toy", confirmed={1000: 0.1, 1001: -0.2})
    Driver(results.folder, results.plan).ended(results.confirmed[-1], "failed", reason="lost 3 times")
    _, out, _ = command_line("status", "toy", "--storage", tmp_path)
    assert "1 trial failed or diverged; to try again: tune-dml resume toy --retry-failed" in out
    operations.resume("toy", Session(tmp_path), retry_failed=True)
    assert intents[0].verb == "confirm"
    assert read_state(results.folder).confirmation_left == 1


def test_confirmed_cells_share_the_error_once_the_sweep_was_extended(confirmed):
    """Another confirmed cell may then be the best, and is judged on fresh seeds that have been seen."""
    second = next(cell for cell in confirmed.cells if cell.label == "rho=0.1")
    others = [replace(t, cell=second, key=f"{t.key}-2") for t in confirmed.confirmed if not t.cell.baseline]
    two = replace(confirmed, confirmed=(*confirmed.confirmed, *others))
    ended = len(two.trials)

    def level(seen, results=two):
        looks = (Look(3.0, 3, "sweep", 1.0, seen, "a"), Look(3.0, 3, "report", 9.0, ended, "b"))
        fresh = (Look(5.0, 5, "confirm", 2.0, len(results.confirmed), "c", subject="confirmation"),)
        return analyse(replace(results, looks=looks, confirmation_looks=fresh)).confirmation_looks.level

    assert level(ended) == pytest.approx(0.04)
    assert level(ended - 6) == pytest.approx(0.02)
    assert level(ended - 6, confirmed) == pytest.approx(0.04)
    assert analyse(two).confirmation_looks.level == pytest.approx(0.04)


def test_a_confirmation_that_continues_with_fewer_cells_counts_their_seeds(confirmed):
    """As a mean over all confirmed cells, the second look had 1.75 % instead of 1.5 %, and four looks erred in 6 %."""
    six = confirmed.cells
    plan = [
        (cell, seed) for cells, seeds in ((six, range(5)), (six[:2], range(5, 10))) for cell in cells for seed in seeds
    ]
    trials = [replace(confirmed.confirmed[0], key=f"{c.label} {seed}", cell=c, seed=seed) for c, seed in plan]
    looks = ()
    for count in (30, 40):
        seen = {trial.key: trial for trial in trials[:count]}
        current = analyse(
            replace(confirmed, confirmed=tuple(seen.values()), confirmation_looks=looks)
        ).confirmation_looks
        looks += (look_at(seen, dict.fromkeys(seen, "finished"), "confirm", 5, "confirmation"),)
        assert current.seeds == tuple(look.seeds for look in looks)
    assert current.seeds == (5, 10)
    assert current.level == pytest.approx(level_left([5, 10], planned=5))
