"""Caveats at the start of an answer: floors above all cells, unconverged training, collapsed trials."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.toys import METRIC, STEEP, bare_sweep, rho_space, write_sweep
from judging import GRID, TWO_KNOBS, with_metrics

from search_spaces.protocols.ours import GLYPHS_TRIPLET
from tune_dml.programs.command import Program
from tune_dml.record.results import Results
from tune_dml.report import summary, write_report
from tune_dml.report.analysis import analyse
from tune_dml.report.naming import metric_of
from tune_dml.report.questions import answers, first_sentence
from tune_dml.report.questions.validity.caveats import unconverged
from tune_dml.report.section import Fold, Text
from tune_dml.space import Grid, Knob
from tune_dml.stats.intervals.paired import cell_interval


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caveats") / "toy"
    return bare_sweep(folder, space=rho_space(published=()), sd=0.1)


def with_floors(results, pixels, untrained=10.0):
    return replace(results, floors={"raw_pixels": {METRIC: pixels}, "untrained_network": {METRIC: untrained}})


def report_rows(monkeypatch, *values):
    """Let every trial have reported these values, 100 steps apart."""
    rows = [{"step": 100.0 * (i + 1), METRIC: value} for i, value in enumerate(values)]
    monkeypatch.setattr(Results, "history", lambda self, key: rows)


def steps_of(results):
    """Return the steps that a report advises after `tune-dml sweep sec_rho`."""
    typed = replace(results, provenance={"argv": ["tune-dml", "sweep", "sec_rho"]})
    return [step for section in answers(analyse(typed), traces=False) for step in section.steps]


def with_metric(results, value_of):
    return with_metrics(results, lambda trial: {**trial.metrics, METRIC: value_of(trial)})


def test_cells_below_raw_pixels_begin_the_answer_and_are_advised_to_train_longer(results):
    steps = steps_of(with_floors(results, 99.0))
    assert "whether longer training beats raw pixels" in [step.settles for step in steps]
    assert "confirm" not in " ".join(step.command for step in steps)
    steps = steps_of(with_floors(results, 100.0))  # nothing can beat that
    assert "whether longer training beats raw pixels" not in [step.settles for step in steps]
    best = max(analyse(results).cells, key=lambda cell: cell.mean)
    found = with_floors(results, best.mean + 5)
    number = f"{best.mean + 5:.2f}"
    first = summary(found).answer.sentences[0]
    assert first.startswith(f"No configuration beats raw pixels without training ({number}): ")
    assert first_sentence(analyse(found)).startswith("rho matters")  # a line of `list` is the verdict
    assert "No configuration beats" not in summary(with_floors(results, best.mean - 0.5)).answer.sentences[0]
    first = summary(with_floors(results, 0.0, untrained=best.mean + 5)).answer.sentences[0]
    assert first.startswith(f"No configuration beats the untrained network ({number}): ")


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_floor_within_the_noise_of_the_best_configuration_is_not_called_unbeaten(tmp_path, seeds):
    """The true mean of the best configuration may be above the floor."""
    noisy = bare_sweep(tmp_path / "toy", space=rho_space(published=()), sd=2.0, seeds=range(seeds))
    analysis = analyse(noisy)
    floors = [max(cell.mean for cell in analysis.cells) + 0.1]
    if seeds > 1:  # the test is one-sided at half the level
        rows = range(len(analysis.table.labels))
        floors += [max(cell_interval(analysis.table, row, 1.2 * analysis.looks.level).high for row in rows)]
    for floor in floors:
        first = summary(with_floors(noisy, floor)).answer.sentences[0]
        assert first.startswith("No configuration is shown to beat raw pixels without training (")


def test_a_floor_is_compared_on_the_seeds_that_measured_it(tmp_path):
    """Later seeds validate on other classes, which may be harder."""
    wide = bare_sweep(tmp_path / "toy", space=rho_space(published=()), sd=0.2, seeds=range(10))

    def first(hard, floor):
        """Return the first sentence if the classes of the seeds 3 to 9 are harder by `hard`."""
        moved = with_metric(wide, lambda trial: 60.0 + trial.seed / 10 - hard * (trial.seed > 2))
        return summary(with_floors(moved, floor)).answer.sentences[0]

    assert first(0.0, 70.0).startswith("No configuration beats raw pixels")
    assert first(20.0, 61.0).startswith("No configuration is shown to beat raw pixels")
    first_seed_lost = replace(wide, trials=tuple(t for t in wide.trials if t.seed > 0))
    assert summary(with_floors(first_seed_lost, 99.0)).answer.sentences[0].startswith("No configuration is shown to")


def test_a_metric_at_its_limit_distinguishes_no_configurations(results):
    assert summary(with_metric(results, lambda trial: 100.0)).answer.sentences[0] == (
        "Every trial has the same R@1, 100.00: it cannot tell the configurations apart. A finer metric or harder data may."
    )
    assert not any("Every trial" in sentence for sentence in summary(results).answer.sentences)


def test_a_program_whose_seeds_change_nothing_may_ignore_its_seed(results):
    numbers = {cell.label: float(i) for i, cell in enumerate(analyse(results).cells)}
    constant = with_metric(results, lambda trial: numbers[trial.cell.label])
    said = "Seeds changed nothing: every configuration has the same R@1 under all of its seeds. "
    assert any(sentence.startswith(said) for sentence in summary(by_program(constant)).answer.sentences)
    assert not any("Seeds changed" in sentence for sentence in summary(constant).answer.sentences)


def by_program(results):
    """Return the sweep as if the user's own program had trained it."""
    return replace(results, plan=replace(results.plan, space=replace(results.plan.space, program=Program(("t",), "."))))


@pytest.mark.parametrize(("factor", "axis"), [(0.01, "validation R@1"), (1.0, "validation R@1 [%]")])
def test_a_program_may_report_a_percentage_as_a_fraction(results, factor, axis):
    """An R@1 of 0.612 read as 0.61 points, and 0.002 less as 0.00; pytorch-metric-learning reports fractions."""
    scaled = with_metric(results, lambda trial: factor * trial.metrics[METRIC])
    found = analyse(by_program(scaled))
    sections = {section.anchor: section for section in answers(found)}
    doubts = [text for text in sections["left-out"].data["left_out"] if "report 61.2, not 0.612" in text]
    assert len(doubts) == (factor < 1)
    assert found.metric.axis == sections["numbers"].body[0].columns[2] == axis
    assert analyse(scaled).metric.axis == "validation R@1 [%]"
    first, *others = by_program(scaled).trials
    lost = replace(first, metrics={METRIC: float("nan")})
    assert metric_of(replace(by_program(scaled), trials=(lost, *others))).axis == axis


def test_floors_are_facts_of_the_answer_and_lines_of_the_first_figure(results):
    facts = summary(with_floors(results, 30.0)).answer.facts
    assert ("Without training", "raw pixels: 30.00, the untrained network: 10.00") in facts
    assert "Without training" not in dict(summary(results).answer.facts)

    def curve(analysis):
        sections = answers(analysis)
        (found,) = [figure for one in sections for figure in one.figures if figure.name.startswith("curve")]
        return found

    analysis = analyse(with_floors(results, 30.0))
    figure = curve(analysis)
    assert "three seeds of the sweep's start (raw pixels 30.00, the untrained network 10.00)" in figure.caption
    assert "raw pixels: 30.00" in figure.views[1].draw(False).svg()
    within = analysis.baseline.mean + 0.5
    assert f"raw pixels: {within:.2f}" in curve(analyse(with_floors(results, within))).draw(False).svg()


def test_the_floor_is_not_that_of_every_network_if_these_differ(results):
    one = results.cells[0]
    cell = replace(one, settings={**one.settings, "model.embedding_dim": 7}, digest="0" * 16)
    trials = (replace(trial, cell=cell) if trial.cell == one else trial for trial in results.trials)
    grown = replace(with_floors(results, 30.0), trials=tuple(trials))
    assert ("Without training", "raw pixels: 30.00, an untrained network: 10.00") in summary(grown).answer.facts


def test_the_answer_starts_with_undertrained_cells(results, monkeypatch):
    report_rows(monkeypatch, 40.0, 45.0, 50.0, 52.5)
    assert summary(results).answer.sentences[0].startswith("Training had not converged: ")
    assert "gained another 2.5 points between steps 300 and 400." in summary(results).answer.sentences[0]
    assert sum("had not converged" in sentence for sentence in summary(results).answer.sentences) == 1
    report_rows(monkeypatch, 40.0, 45.0, 52.0, 52.5)
    assert not summary(results).answer.sentences[0].startswith("Training had not converged")


def test_a_gain_since_the_middle_of_training_leaves_convergence_undecided(results, monkeypatch):
    """The learning rate was high in the middle, so half of the steps might reach the same result."""
    rows = [{"step": 200.0, METRIC: 40.0}, {"step": 400.0, METRIC: 52.5}]
    monkeypatch.setattr(Results, "history", lambda self, key: rows)
    why = "but the last quarter of training has no evaluation before its end"
    assert summary(results).answer.sentences[0].endswith(f"gained another 12 points between steps 200 and 400, {why}.")
    section = next(section for section in answers(analyse(results)) if section.contents == "Training")
    assert section.figures[0].sentence.endswith(f"changed by +12.50 points, {why}; convergence is undecided.")
    rows[0][METRIC] = 52.4
    section = next(section for section in answers(analyse(results)) if section.contents == "Training")
    assert section.figures[0].sentence.endswith("longer training would hardly change the answer.")


def report_late_gains(monkeypatch, gain_of):
    """Let the trial of each key have gained this much in the last quarter."""

    def history(self, key):
        return [{"step": step, METRIC: 50.0 + gain_of(key) * (step == 400.0)} for step in (100.0, 200.0, 300.0, 400.0)]

    monkeypatch.setattr(Results, "history", history)


def test_gains_by_chance_leave_convergence_undecided(results, monkeypatch):
    """Six converged cells whose evaluations differ by 2 points: the largest mean gain is above the margin."""
    random = np.random.default_rng(0)
    noise = {trial.key: 2 * random.standard_normal() for trial in results.trials}
    report_late_gains(monkeypatch, noise.__getitem__)
    found = summary(results).answer
    assert found.sentences[0].startswith("It is undecided whether training had converged: ")
    assert found.sentences[0].endswith(" between steps 300 and 400, which may be chance.")
    assert not any("training.steps" in command for command in summary(results).commands)
    section = next(section for section in answers(analyse(results)) if section.contents == "Training")
    assert section.data["still_gaining"] == []
    assert "which may be chance; convergence is undecided." in section.figures[0].sentence


def test_small_mean_gains_do_not_rule_out_larger_ones(results, monkeypatch):
    noise = {trial.key: 3.0 * (-1) ** trial.seed * (trial.seed > 0) for trial in results.trials}  # 0, -3 and 3
    report_late_gains(monkeypatch, noise.__getitem__)
    section = next(section for section in answers(analyse(results)) if section.contents == "Training")
    assert section.figures[0].sentence.endswith("but a true gain of that size cannot be ruled out.")


def test_one_seed_may_not_have_converged(tmp_path, monkeypatch):
    results = bare_sweep(tmp_path / "toy", space=rho_space(published=()), seeds=[0])
    report_rows(monkeypatch, 40.0, 45.0, 50.0, 52.5)
    assert summary(results).answer.sentences[0].startswith("Training may not have converged: ")
    assert "whether the answer is the same once training has converged" in [step.settles for step in steps_of(results)]


def test_the_answer_starts_with_a_short_protocol(results):
    plan = results.plan
    arms = [
        replace(arm, protocol=replace(GLYPHS_TRIPLET, still_gains={"triplet": 3.0}), base_settings=settings)
        for arm in plan.arms
        for settings in [{**arm.base_settings, "loss.name": "triplet", "training.steps": 400}]
    ]

    def said(changed):
        return unconverged.section(analyse(replace(results, plan=replace(plan, arms=tuple(changed)))), None).headline

    def first(**changes):
        return said(replace(arm, base_settings={**arm.base_settings, **changes}) for arm in arms)

    assert first().startswith(
        "Training had not converged: twice the steps of glyphs/triplet add about 3 points of R@1."
    )
    assert not first(**{"training.steps": 1600}).startswith("Training had not converged")
    assert not first(**{"loss.name": "semihard_triplet"}).startswith("Training had not converged")
    steps = Knob("training.steps", Grid((400, 1600)))  # such a sweep measures what more steps add
    assert not said(replace(arm, knobs=(steps,)) for arm in arms).startswith("Training had not converged")
    one = [replace(arms[0], name="A"), replace(arms[1], base_settings={**arms[1].base_settings, "loss.name": "npair"})]
    assert said(one).startswith("Training of A had not converged: twice the steps")


def test_curves_of_a_short_protocol_claim_nothing_about_longer_training(tmp_path, monkeypatch):
    means = {(a, b): STEEP[a] + b for a, b in GRID}
    found = write_sweep(tmp_path / "two", space=TWO_KNOBS, means=means, evidence=False)
    report_rows(monkeypatch, 40.0, 50.0, 52.0, 52.5)

    def training(gain):
        protocol = replace(GLYPHS_TRIPLET, still_gains={"triplet": gain})
        settings = {"loss.name": "triplet", "training.steps": 400}
        arms = (replace(a, protocol=protocol, base_settings={**a.base_settings, **settings}) for a in found.plan.arms)
        analysis = analyse(replace(found, plan=replace(found.plan, arms=tuple(arms))))
        return [section for section in answers(analysis) if section.name == "training"]

    most, second = training(gain=3.0)
    assert most.figures[0].sentence.endswith(
        "matters, but twice the steps of glyphs/triplet add about 3 points of R@1."
    )
    assert training(gain=0.0)[0].figures[0].sentence.endswith("longer training would hardly change the answer.")
    report_rows(monkeypatch, 40.0, 50.0, 52.0, 49.5)
    assert training(gain=0.0)[0].figures[0].sentence.endswith(" lost 2.50 points.")
    assert not any(isinstance(block, Fold) for block in most.body)
    assert [type(block) for block in second.body] == [Fold]  # the curves of the knob that moves the metric less


def test_few_histories_are_read_for_the_answer_of_a_large_sweep(results, monkeypatch):
    read = []
    monkeypatch.setattr(Results, "history", lambda self, key: read.append(key) or [])
    many = replace(results, trials=tuple(replace(t, key=f"{t.key}-{n}") for n in range(40) for t in results.trials))
    summary(many).answer.sentences[0]
    assert len(read) <= max(24, 40 * len({t.seed for t in results.trials}))


def collapsed(folder, labels):
    """Return a sweep in which two of three trials of each of these cells collapsed."""
    lost = {(label, seed): ("diverged", "the embeddings collapsed by the end") for label in labels for seed in range(2)}
    return bare_sweep(folder / "toy", space=rho_space(published=()), failures=lost)


LABELS = [f"rho={rho:g}" for rho in STEEP]


def test_collapsed_trials_are_in_the_answer_and_most_exclude_advice_of_longer_training(tmp_path):
    results = collapsed(tmp_path / "some", LABELS[:2])
    sentence = next(s for s in summary(results).answer.sentences if "collapsed" in s)
    assert sentence.startswith(
        f"4 of {len(results.trials)} trials collapsed to a single embedding and have no result ({LABELS[0]}: 2 of "
    )
    found = with_floors(collapsed(tmp_path / "all", LABELS), 99.0)
    assert "whether longer training beats raw pixels" not in [step.settles for step in steps_of(found)]
    (sentence,) = [s for s in summary(found).answer.sentences if "collapsed" in s]
    assert sentence.endswith(" A smaller optim.lr may help.")


def test_a_report_on_stored_features_states_the_frozen_backbone_and_formats_its_command(results, tmp_path):
    heads = replace(results, plan=replace(results.plan, dataset="features"))
    said = [section.headline for section in answers(analyse(heads)) if "backbone was frozen" in section.headline]
    assert len(said) == 1
    assert "--rank" in said[0]
    assert summary(heads).answer.sentences[-1] == said[0]  # the page starts with its answer
    assert not any("backbone was frozen" in section.headline for section in answers(analyse(results)))
    heads = replace(results, plan=replace(results.plan, dataset="features"))
    page = write_report(heads, tmp_path / "report").html.read_text()
    answer = page.partition('<section id="answer"')[2].partition("</section>")[0]
    assert f"<code>tune-dml compare {results.name} FULL --rank</code>" in answer
    assert "`" not in answer


def test_a_leading_baseline_is_the_best_configuration(tmp_path):
    def best(baseline):
        sweep = write_sweep(tmp_path / f"toy-{baseline:g}", baseline=baseline, sd=0.01)
        return dict(summary(sweep).answer.facts)["Best configuration"]

    assert best(60.0).startswith("rho=0.01: ")
    assert best(90.0).startswith("the baseline; of the others rho=0.01: ")


def test_trials_with_one_evaluation_have_a_sentence_and_no_curve(tmp_path, monkeypatch):
    results, history = write_sweep(tmp_path / "toy", evidence=False), Results.history
    monkeypatch.setattr(Results, "history", lambda self, key: history(self, key)[-1:])
    (training,) = [section for section in answers(analyse(results)) if section.contents == "Training"]
    assert [type(block) for block in training.body] == [Text]
    assert training.body[0].text == "Evaluations were too rare to tell whether training had converged."
