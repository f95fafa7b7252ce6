"""Comparison of arms: each at its best on seeds that did not choose it, all pairs together; and knobs within an arm."""

import re
from itertools import combinations

import numpy as np
import pytest
from helpers.arms import MEANS, space_of_arms
from helpers.toys import METRIC, RHO, Driver, bare_sweep, crossed, rho_space, space_of, write_sweep
from judging import section_of, with_metrics

from tune_dml.papers.published import published_curve
from tune_dml.planning.continuation import confirmation_plan
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.record.results import Results, load_results, load_results_and_look
from tune_dml.report import write_report
from tune_dml.report.analysis import analyse
from tune_dml.report.analysis.cell import best_cells
from tune_dml.report.notebook import notebook_html
from tune_dml.report.questions import answers
from tune_dml.report.questions.methods.methods_by_knob import _fastest
from tune_dml.report.section import tables_of
from tune_dml.space import METHOD, Arm, CurveReference, Grid, Knob
from tune_dml.stats.verdicts.selection import choose_best_cells, expected_best
from tune_dml.stats.verdicts.sensitivity import compare_all_with_best_of


def written(folder, means=MEANS, seeds=range(6), sd=0.3, **options):
    given = {"means": means, "seeds": tuple(seeds), "sd": sd, "dataset": "digits", **options}
    return bare_sweep(folder / "toy", space=space_of_arms(), **given)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return written(tmp_path_factory.mktemp("arms"))


def section(analysis, name="arms"):
    return section_of(analysis, name)


def test_arms_have_their_cells_and_knobs_are_judged_within_each(results):
    analysis = analyse(results)
    arms = [(arm.name, arm.baseline, len(arm.cells)) for arm in analysis.arms]
    assert arms == [("SEC", False, 4), ("L2", False, 2), ("plain", True, 1)]
    table = results.table()
    assert list(table.columns[:4]) == ["arm", "cell", "seed", "status"]
    assert set(table["arm"]) == {"SEC", "L2", "plain"}
    assert [(knob.arm, knob.path) for knob in analysis.knobs] == [
        ("SEC", "batch.batch_size"),
        ("SEC", "regularizer.rho"),
        ("L2", "batch.batch_size"),
    ]
    assert {knob.sensitivity.alpha for knob in analysis.knobs} == {analysis.looks.level / 3}
    rho = analysis.knobs[1]
    assert rho.sensitivity.verdict == "sensitive"
    assert [point.label for point in rho.points] == ["rho=0.1", "rho=1"]
    assert rho.points[0].mean == pytest.approx(74.25, abs=1.5)
    assert rho.isolated.problem == ""


def test_the_best_arm_is_named_with_every_pair_corrected_once(results):
    found = section(analyse(results))
    data = found.data["arms"]
    best = data["rows"][0]
    assert [(row.arm, row.score.n) for row in data["rows"]] == [("SEC", 6), ("L2", 6), ("plain", 6)]
    assert best.configuration == "SEC: B=9, rho=0.1"
    assert best.score.low < best.score.mean < best.score.high
    assert "intervals allow for the selection" in data["sentences"][1]
    assert len(data["pairs"]) == 3
    assert found.title == "Which method is better?"
    assert [table.name for table in found.tables] == ["arms", "arm-pairs"]
    assert found.card.word == "SEC"
    assert "Of 3 methods SEC has the best validation R@1" in found.verdicts[0]
    assert "significantly better than" in found.verdicts[0]
    assert (best.against_baseline.first, best.against_baseline.second) == ("SEC", "plain")
    assert best.against_baseline.estimate == pytest.approx(14.5, abs=1)
    assert not found.steps


def test_arms_within_noise_lead_to_more_seeds(tmp_path):
    results = written(tmp_path, dict.fromkeys(MEANS, 60.0), seeds=range(3), sd=3.0)
    found = section(analyse(results))
    assert found.card.word == "undecided"
    assert not found.steps
    assert "would be below 50%" in found.hint
    close = {**dict.fromkeys(MEANS, 60.0), "L2: B=6": 63.0, "L2: B=9": 63.0}
    likely = section(analyse(written(tmp_path / "likely", close, seeds=range(3), sd=0.6)))
    (step,) = likely.steps
    assert step.command.startswith("tune-dml extend toy --seeds ")
    assert step.settles.startswith("how ")
    assert step.chance >= 0.5
    assert not likely.hint


def of_plain_methods(folder, **values):
    """Return the analysis of methods without knobs that have these values, one for each seed."""
    arms = [Arm(name, {"loss.margin": 0.1 + 0.01 * place}) for place, name in enumerate(values)]
    seeds = tuple(range(len(next(iter(values.values())))))
    means = dict.fromkeys(values, 60.0)
    results = bare_sweep(folder / "toy", space=space_of(arms=tuple(arms)), means=means, seeds=seeds, dataset="digits")
    return analyse(with_metrics(results, lambda trial: {METRIC: float(values[trial.cell.label][trial.seed])}))


def test_methods_close_to_the_best_are_not_said_to_be_close_to_each_other(tmp_path):
    random = np.random.default_rng(0)
    noise = random.normal(size=(3, 10))
    noise -= noise.mean(axis=1, keepdims=True)
    quiet, noisy, low = noise * np.array([[0.05], [0.4], [0.05]]) + np.array([[60.9], [60.8], [60.0]])
    found = section(of_plain_methods(tmp_path, quiet=quiet, noisy=noisy, low=low))
    assert "quiet has the best validation R@1, 60.90: equivalent to noisy (+0.10), low (+0.90)" in found.verdicts[0]
    assert found.headline == "quiet leads on digits, less than 1 point ahead of noisy and low."
    assert found.card.word == "undecided"


def test_a_method_is_the_best_of_many_only_if_it_beats_each_of_them(tmp_path):
    values = np.random.default_rng(0).normal(60.0, 1.0, size=(42, 5))
    values[0] -= 8
    found = section(of_plain_methods(tmp_path, **{f"M{row}": numbers for row, numbers in enumerate(values)}))
    assert found.card.word == "undecided"
    assert re.search("leads on digits, but cannot yet be told apart from 40 others", found.headline)
    assert len(found.data["arms"]["pairs"]) == 42 * 41 / 2


def test_two_seeds_tune_and_judge_a_method_and_one_does_neither(tmp_path):
    assert section(analyse(written(tmp_path / "one", seeds=range(1)))) is None
    found = section(analyse(written(tmp_path / "two", seeds=range(2))))
    assert all(row.score.n == 2 for row in found.data["arms"]["rows"])
    assert len(found.data["arms"]["pairs"]) == 3


def test_methods_that_come_out_equal_lead_together(tmp_path):
    means = MEANS | dict.fromkeys([label for label in MEANS if label.startswith("L2")], 74.5)
    failures = {(label, 1): ("failed", "no disk") for label in means}
    found = section(analyse(written(tmp_path, means, seeds=range(2), sd=0.0, failures=failures)))
    assert "SEC and L2 have the best validation R@1" in found.verdicts[0]
    assert found.headline == "SEC and L2 lead on digits; one seed gives no noise estimate."
    noisy = written(tmp_path / "noisy", seeds=range(4))
    numbers = {"SEC": (90.0, 99.0, 98.0, 93.0), "L2": (99.0, 90.0, 93.0, 98.0), "plain": (80.0, 88.0, 83.0, 81.0)}
    found = section(analyse(with_metrics(noisy, lambda trial: {METRIC: numbers[trial.cell.arm][trial.seed]})))
    assert found.headline == "SEC and L2 lead on digits, but cannot yet be told apart."


def test_a_fully_diverged_arm_is_named_and_never_called_equal(tmp_path):
    means = dict.fromkeys(MEANS, 60.0)
    failures = {(label, 0): ("diverged", "loss is not finite") for label in means if label.startswith("L2")}
    found = section(analyse(written(tmp_path, means, sd=0.01, failures=failures)))
    assert found.data["arms"]["lost"] == ("L2",)
    assert "Every configuration of L2 diverged or failed" in " ".join(found.data["arms"]["sentences"])


def test_a_space_without_arms_has_no_section_on_methods(tmp_path):
    analysis = analyse(bare_sweep(tmp_path / "s"))
    assert section(analysis) is None
    assert [(arm.name, arm.baseline) for arm in analysis.arms] == [("no SEC", True), ("", False)]
    assert [knob.key for knob in analysis.knobs] == ["regularizer.rho"]
    assert rho_space().every_arm[1] == Arm("")
    assert rho_space().knobs_of(Arm("")) == (RHO,)
    assert section_of(analyse(write_sweep(tmp_path / "toy")), "methods-by-knob", traces=True) is None


def test_a_baseline_that_is_tuned_too_is_compared_at_its_best(tmp_path):
    rates = Knob("optim.lr", Grid((1e-3, 1e-2), "log"), "lr", origin="ours")
    rho = Knob("regularizer.rho", Grid((0.1, 1.0), "log"), "rho")
    off = Arm("no SEC", {"regularizer.name": "none"}, knobs=(), own_knobs=(rates,))
    space = rho_space(scientific=(rho,), nuisance=(rates,), baseline=off, published=())
    means = dict(zip(crossed((0.1, 1.0), (1e-3, 1e-2)), (70.0, 60.0, 60.0, 71.0), strict=True))
    results = bare_sweep(tmp_path / "s", space=space, means=means, seeds=tuple(range(6)), sd=0.2)
    analysis = analyse(results)
    off_cells = [cell for cell in analysis.cells if cell.cell.baseline]
    assert [cell.label for cell in off_cells] == ["no SEC: lr=0.001", "no SEC: lr=0.01"]
    assert analysis.baseline.mean == max(cell.mean for cell in off_cells)
    assert len(analysis.against_baseline) == 4
    rows = compare_all_with_best_of(analysis.table, [cell.label for cell in off_cells], alpha=analysis.looks.level)
    assert [(r.label, r.low, r.high) for r in analysis.against_baseline] == [(d.first, d.low, d.high) for d in rows]
    assert "Against the best of 2 cells of no SEC" in section(analysis, "against-baseline").verdicts[0]
    data = section(analysis).data["arms"]
    assert [row.arm for row in data["rows"]] == ["sec_rho", "no SEC"]
    assert data["rows"][0].configuration == "rho=1, lr=0.01"
    assert section(analysis).card.word == "sec_rho"
    assert [(row.arm, row.tried) for row in data["rows"]] == [("sec_rho", 4), ("no SEC", 2)]
    others = np.array([[c.values[s] for s in range(6)] for c in analysis.cells if not c.cell.baseline])
    assert data["rows"][0].of_equal_cells == pytest.approx(expected_best(others, 2))
    assert data["rows"][0].of_equal_cells < data["rows"][0].score.mean
    assert "Expected best of 2 each: sec_rho 68" in data["sentences"][-1]
    assert [knob.path for knob in analysis.knobs] == ["regularizer.rho"]
    ranked = best_cells(results)
    off = next(cell for cell in ranked if cell.baseline)
    confirmed = confirmation_plan(results.plan, off, ranked[:1], (), 2).cells
    assert [cell.label for cell in confirmed] == [analysis.baseline.label, "rho=1, lr=0.01"]


def test_an_arm_gains_nothing_by_having_more_cells_and_loses_no_seed_with_one():
    """Six equal arms of 1 to 6 equal cells: their best means rise with the number of cells, and no arm is called better."""
    random = np.random.default_rng(3)
    drawn = [choose_best_cells([random.normal(size=(cells, 6)) for cells in range(1, 7)]) for _ in range(100)]
    means = np.mean([found.values.mean(1) for found in drawn], 0)
    assert means[-1] > 0.4
    assert np.mean([(found.tuned.pairs().low > 0).any() for found in drawn]) <= 0.05
    arms = [np.arange(3.0)[None], np.ones((1, 3))]
    assert choose_best_cells(arms).values.tolist() == [[0, 1, 2], [1, 1, 1]]
    assert choose_best_cells(arms).tuned is None


def test_the_expected_best_is_the_average_over_all_choices_of_so_many_cells():
    table = np.random.default_rng(0).normal(size=(6, 7)) + np.arange(6)[:, None] / 2
    for count in range(1, 7):
        scores = []
        for chosen in combinations(range(6), count):
            best = max(chosen, key=lambda row: table[row, :2].mean())
            scores.append(table[best, 2:].mean())
        assert expected_best(table, count) == pytest.approx(np.mean(scores))
    table[5, :2] = np.nan  # no seed that chooses: it cannot be chosen
    assert expected_best(table, 6) != expected_best(table, 6)
    with pytest.raises(ValueError, match="1 <= count <= cells"):
        expected_best(table, 7)


def test_methods_that_share_a_knob_have_one_line_each_of_logged_values(results, monkeypatch):
    def history(results, key):
        (trial,) = (trial for trial in results.trials if trial.key == key)
        size, slow = trial.cell.knobs.get("batch.batch_size", 6), 2 if trial.cell.arm == "L2" else 1
        pairs = {"train/loss": 1.0, "train/positive_pairs": 2 / (size - 1)}
        trained = [{"step": step, "time/seconds": slow * size * step / 100, **pairs} for step in (25, 50)]
        evaluated = {"step": 50, "val/recall_at_1": 60.0, "time/seconds": 1000.0}
        return [*trained, evaluated, {"step": 75, "train/loss": 1.0, "time/seconds": 1000 + slow * size / 4}]

    monkeypatch.setattr(Results, "history", history)
    (figure,) = section_of(analyse(results), "methods-by-knob", traces=True).figures
    ratio, seconds = figure.views
    assert re.search(r"SEC, 0\.33\d*: 72\.\d", ratio.draw(False).svg())  # 2 of 8 pairs are positive at B = 9, M = 3
    assert seconds.sentence == "At B 9 SEC is fastest (0.09 s per step) and L2 slowest (0.18 s), without evaluation."
    assert "plain" not in seconds.description


def test_methods_are_timed_at_a_value_that_two_of_them_have():
    curves = {"A": [(6.0, [1.0]), (9.0, [2.0])], "B": [(6.0, [3.0]), (9.0, [1.0]), (12.0, [4.0])]}
    assert _fastest("M", curves).startswith("At M 9 B is fastest (1 s per step) and A slowest (2 s)")
    assert _fastest("M", {"A": curves["A"], "B": [(7.0, [1.0]), (12.0, [4.0])]}).startswith("No two methods")


def test_the_reduction_of_norm_variance_is_shown_with_the_gain(tmp_path, results):
    arms = [
        Arm(f"{loss}+{penalty}", {"loss.name": loss, "regularizer.name": penalty}, knobs=())
        for loss in ("triplet", "recall_at_k_surrogate")  # which has a list among its knobs
        for penalty in ("none", "sec", "l2")
    ]
    means = {arm.name: 60.0 + place for place, arm in enumerate(arms)}
    space = space_of_arms(tuple(arms), "triplet+none")
    sweep = write_sweep(tmp_path / "toy", space=space, means=means, dataset="digits", evidence=False)
    trials = {(trial.cell.label, trial.seed): trial for trial in sweep.trials}
    found = section_of(analyse(sweep), "norm-variance", traces=True)
    rows = found.data["norm_variance"]
    assert [row["cell"] for row in rows] == [arm.name for arm in arms if "none" not in arm.name]
    for row in rows:
        assert row["without"] == f"{row['cell'].partition('+')[0]}+none"
        pairs = [(trials[row["cell"], seed], trials[row["without"], seed]) for seed in sweep.plan.seeds]
        mine, other = ([side[i].metrics["train/norm_variance"] for side in pairs] for i in (0, 1))
        assert row["left"] == pytest.approx(sum(mine) / sum(other))
        assert row["gain"] == pytest.approx(np.mean([a.metrics[METRIC] - b.metrics[METRIC] for a, b in pairs]))
    (figure,) = found.figures
    assert "Spearman correlation" in figure.description
    gain = max(row["gain"] for row in rows)  # below 0 if every penalty harms
    assert f" has the largest gain, {gain:+.2f} points; gains are not tested here." in figure.description
    assert "recall_at_k_surrogate+l2: " in figure.draw(True).svg()
    assert section_of(analyse(results), "norm-variance", traces=True) is None


def test_the_gain_of_a_penalty_is_over_the_same_value_of_the_other_knobs(tmp_path):
    methods = ((f"{loss} {penalty}", loss, penalty) for loss in ("triplet", "npair") for penalty in ("none", "sec"))
    arms = tuple(Arm(name, {"loss.name": loss, "regularizer.name": penalty}) for name, loss, penalty in methods)
    rates = Knob("optim.lr", Grid((0.01, 0.1)), symbol="lr")
    means = {f"{arm.name}: lr={lr:g}": 100 * lr for arm in arms for lr in (0.01, 0.1)}
    space = space_of(rates, arms=arms)
    sweep = write_sweep(tmp_path / "toy", space=space, means=means, dataset="digits", evidence=False)
    found = section_of(analyse(sweep), "norm-variance", traces=True)
    rows = found.data["norm_variance"]
    assert [row["without"] for row in rows] == [row["cell"].replace("sec", "none") for row in rows]
    assert "Over 4 configurations of 2 losses" in found.figures[0].description


def test_a_method_with_zero_loss_throughout_learnt_nothing(results, monkeypatch):
    idle = {trial.key for trial in results.trials if trial.cell.label == "L2: B=6"}
    without = set(idle)
    monkeypatch.setattr(Results, "history", lambda self, key: [{"step": 25, "train/loss": float(key not in without)}])
    analysis = analyse(with_metrics(results, lambda t: {**t.metrics, "train/loss": float(t.key not in idle)}))
    found = section(analysis, "untrained")
    assert found.data == {"untrained": ["L2: B=6"]}
    said = "L2: B=6 learned nothing: the loss was 0 at every logged step, so there was no gradient."
    assert found.headline == said
    history = Results.history
    monkeypatch.setattr(Results, "history", lambda self, key: [])  # lost: the last loss alone shows nothing
    assert section(analysis, "untrained") is None
    monkeypatch.setattr(Results, "history", history)
    without.pop()
    assert section(analysis, "untrained") is None


def test_arms_are_matched_to_methods_of_a_printed_table_by_name(tmp_path):
    """SEC supplement, Table 5 on CUB: the order of Triplet, +L2-reg, +SEC, and their NMI beside ours."""
    table = CurveReference("SEC-supplement", "5", "CUB200-2011", methods=(), hyperparameter=METHOD)
    arms = tuple(
        Arm(name, {"regularizer.name": kind, "regularizer.eta": eta}, knobs=())
        for name, kind, eta in (("Triplet", "none", 0.0), ("Triplet+L2-reg", "l2", 0.01), ("Triplet+SEC", "sec", 0.5))
    )
    space = space_of_arms(arms, "Triplet", published=(table,))
    means = {"Triplet": 60.0, "Triplet+L2-reg": 70.0, "Triplet+SEC": 65.0}
    results = bare_sweep(tmp_path / "toy", space=space, means=means, seeds=range(4), sd=0.2, dataset="digits")
    nmi = {name: 80.0 + place for place, name in enumerate(means)}
    known = with_metrics(results, lambda trial: {**trial.metrics, "val/nmi": nmi[trial.cell.label]})
    found = section(analyse(known, paper_sd=0.1), "printed-methods")
    (entry,) = found.data["printed_methods"]
    assert [arm["arm"] for arm in entry["arms"]] == list(means)
    printed = {arm["arm"]: arm["published"] for arm in entry["arms"]}
    pairs = [(printed[a] - printed[b]) * (means[a] - means[b]) > 0 for a, b in combinations(means, 2)]
    assert (entry["order"]["same"], entry["order"]["opposite"]) == (sum(pairs), 3 - sum(pairs))
    (unsure,) = section(analyse(known, paper_sd=100.0), "printed-methods").data["printed_methods"]
    assert (unsure["order"]["paper_certain"], unsure["order"]["open"]) == (0, 3)
    tables = {table.name: table for table in tables_of([found])}
    rows = {(row[1].text, row[2].text): (row[3].value, row[4].value) for row in tables["printed-metrics"].cells}
    assert {name: rows["NMI", name][0] for name in means} == nmi
    assert rows["NMI", "Triplet"][1] == published_curve(table).others["NMI"][0].y


def test_methods_without_knobs_have_training_curves_one_interval_each_and_a_figure_in_notebooks(tmp_path):
    arms = (Arm("triplet", {"loss.name": "triplet"}), Arm("n-pair", {"loss.name": "npair"}))
    means = {"triplet": 70.0, "n-pair": 60.0}
    toy = write_sweep(tmp_path / "toy", space=space_of(arms=arms), means=means, baseline=None, dataset="digits")
    sections = answers(analyse(toy), traces=True)
    (training,) = [found for found in sections if found.name == "training-of-methods"]
    assert "How did training go, for each method?" in training.title
    assert {"triplet", "n-pair"} <= set(re.findall(r"triplet|n-pair", training.body[0].views[0].description))
    analysis = analyse(toy)
    (compared,) = [found for found in sections if found.name == "arms"]
    for row in tables_of((compared,))[0].cells:
        cell = next(one for one in analysis.cells if one.label == row[0].text)
        assert (row[3].value, row[4].value) == pytest.approx(analysis.bar(cell), nan_ok=True)
    assert "data:image/svg+xml" in notebook_html(load_results_and_look(tmp_path, "toy", "report"))


def test_arms_whose_names_differ_only_in_signs_or_case_have_files_of_their_own(tmp_path):
    signs = {"SEC+L": "sec", "SEC-L": "l2", "sec+l": "sec_fixed", "plain": "none"}
    arms = tuple(Arm(name, {"regularizer.name": method}) for name, method in signs.items())
    means = {f"{name}: B={size}": 60.0 + size for name in signs for size in (6, 9)}
    results = bare_sweep(tmp_path / "toy", space=space_of_arms(arms), means=means, dataset="digits")
    files = [path.name.lower() for path in write_report(results, tmp_path / "report").csv]
    assert len(set(files)) == len(files)
    assert {f"differences-{arm}-batch-batch-size.csv" for arm in ("sec-l", "sec-l-2", "sec-l-2-2")} <= set(files)


def test_a_sweep_of_one_arm_has_only_its_knobs(tmp_path):
    steps = {"training.steps": [100, 200]}
    alone = ["mean of binomial losses"]
    request = Request("dro_variants", dataset="glyphs", arms=alone, tune=steps, seeds=2, name="alone")
    driver = Driver(tmp_path / "alone", make_plan(study_of(request), "d" * 64))
    driver.session()
    driver.run(*driver.trials)
    found = load_results(tmp_path, "alone")
    assert [knob.path for knob in found.plan.knobs] == ["training.steps"]  # not K and gamma of the other arms
    page = write_report(found, tmp_path / "report").folder / "report.html"
    assert "loss.gamma" not in page.read_text(encoding="utf-8")


def test_methods_are_compared_at_configurations_that_finished_training(tmp_path):
    first = next(label for label in MEANS if label.startswith("SEC"))
    stopped = {(first, seed): ("stopped", "") for seed in range(6)}
    headline = section(analyse(written(tmp_path, failures=stopped))).headline
    assert headline.endswith("each at its best configuration that finished training.")
