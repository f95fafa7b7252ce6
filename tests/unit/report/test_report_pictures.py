"""Pictures of the report: their numbers, and the text if there are none."""

import base64
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.toys import FLAT, STEEP, bare_sweep, rho_space, write_sweep
from judging import report_of, section_of
from pages import by_id, read
from PIL import Image

from trainables.evidence.record import Evidence
from tune_dml.record.ledger import trial_folder
from tune_dml.report.analysis import analyse
from tune_dml.report.analysis.traces import Histories
from tune_dml.report.drawing.frame import AxisRange
from tune_dml.report.section import Photographs, Text


def keys_of(results, label, seed):
    return [trial.key for trial in results.trials if trial.cell.label == label and trial.seed == seed]


def section(analysis, name):
    return section_of(analysis, name, traces=True)


def stored_evidence(results, label, seed=0):
    """Return the folder of the evidence of a trial, and the content of its file."""
    (key,) = keys_of(results, label, seed)
    folder = trial_folder(results.folder, key) / "evidence"
    return folder, json.loads((folder / "evidence.json").read_text())


def store_evidence(results, label, seed=0, **changes):
    folder, body = stored_evidence(results, label, seed)
    (folder / "evidence.json").write_text(json.dumps({**body, **changes}))
    return folder


def said(analysis, name):
    """Return the text of the first item of a section."""
    first = section(analysis, name).body[0]
    return first.text if isinstance(first, Text) else first.sentence


def histories(analysis):
    (logged,) = analysis.histories.values()
    return logged


def test_lines_are_means_and_ranges_over_seeds(steep):
    for label, key in (("rho=0.1", "train/loss"), ("no SEC", "val/recall_at_1")):
        line = histories(analyse(steep.results)).lines(key)[label]
        trials = [trial for trial in steep.results.trials if trial.cell.label == label]
        rows = [{row["step"]: row[key] for row in steep.results.history(trial.key)} for trial in trials]
        assert len(rows) == 3
        assert line.xs == (100, 200, 300, 400)
        for step, mean, low, high in zip(line.xs, line.mean, line.low, line.high, strict=True):
            values = [row[step] for row in rows]
            assert mean == pytest.approx(np.mean(values))
            assert (low, high) == (min(values), max(values))


def test_training_shows_metric_and_loss_of_every_value_and_names_rising_curves(steep):
    analysis = analyse(steep.results)
    metric, _loss = histories(analysis).shown_lines(("val/recall_at_1", "train/loss")).values()
    assert [line.label for line in metric] == ["rho=0.01", "rho=0.1", "rho=0.5", "rho=0.9", "rho=1", "no SEC"]
    (figure,) = section(analysis, "training").figures
    assert [view.title for view in figure.views] == ["R@1", "loss"]
    assert figure.description.startswith("Training had not converged: over the last quarter")
    assert figure.views[1].sentence.startswith("At the end, training loss is 0 at every value.")
    changes = {line.label: line.mean[3] - line.mean[2] for line in metric}  # the last quarter
    most = max(changes, key=changes.get)
    assert f"of {most} changed by +{changes[most]:.2f} points" in said(analysis, "training")
    assert said(analyse(steep.results, margin=50.0), "training").startswith(
        "Over the last quarter of training, no value gained more than 50.00 points"
    )


def test_the_last_gain_of_training_uses_finished_trials(tmp_path):
    """A diverged trial would change the mean at the end."""
    rows = [[{"step": step, "m": float(step)} for step in (100, 200, 300, 400)] for _ in range(2)]
    rows.append([{"step": 100, "m": -900.0}, {"step": 200, "m": -900.0}, {"step": 300, "m": -900.0}])
    rows.append([{"step": 50, "m": 1.0}])  # has just started
    trials = dict(zip("pqrs", rows, strict=True))
    (change,) = Histories({"a": trials, "b": {}, "c": {"s": rows[3]}}, (), ()).changes("m")
    assert (change.label, change.first, change.last, change.size) == ("a", 300, 400, 100.0)


def test_a_lower_metric_gains_by_falling(tmp_path):
    analysis = analyse(write_sweep(tmp_path / "s", space=rho_space(goal="minimize"), means=FLAT))
    (metric,) = histories(analysis).shown_lines(("val/recall_at_1",)).values()
    falls = [line.label for line in metric if line.mean[3] - line.mean[2] < -1]
    assert said(analysis, "training").startswith("Training had not converged") == bool(falls)


def test_directions_equal_the_logged_ones(steep):
    analysis = analyse(steep.results)
    variance, mean = histories(analysis).shown_lines(("train/direction_variance", "train/direction_mean")).values()
    by_label = {line.label: line for line in variance}
    assert by_label["no SEC"].mean == pytest.approx((0.08 * 0.7, 0.08 * 0.2))
    assert by_label["rho=1"].mean == pytest.approx((0.03 * 0.7, 0.03 * 0.2))
    assert mean[0].mean == pytest.approx((0.75, 0.5))
    (figure,) = section(analysis, "mechanism").figures
    assert (
        "At step 400, the turns over the last 200 steps had the smallest variance for rho=0.01 "
        "(0.004, mean turn 0.5) and the largest for no SEC (0.016, mean turn 0.5)."
    ) in next(view.sentence for view in figure.views if view.title == "variance of turns")


def test_pictures_compare_the_baseline_with_the_best_other_cell(steep, tmp_path):
    pair = analyse(steep.results).pair
    assert [(side.label, side.role) for side in pair.sides] == [("no SEC", "baseline"), ("rho=0.01", "best")]
    assert pair.seed == 0
    assert pair.missing == ()
    keys = [keys_of(steep.results, label, 0) for label in ("no SEC", "rho=0.01")]
    assert [[side.key] for side in pair.sides] == keys
    winning = analyse(write_sweep(tmp_path / "s", baseline=90.0)).pair
    assert [(side.label, side.role) for side in winning.sides] == [
        ("no SEC", "baseline"),
        ("rho=0.01", "best of the others"),
    ]


@pytest.mark.parametrize(
    ("goal", "best", "worst"), [("maximize", "rho=0.01", "rho=1"), ("minimize", "rho=1", "rho=0.01")]
)
def test_without_a_baseline_worst_and_best_are_shown(tmp_path, goal, best, worst):
    results = write_sweep(tmp_path / "s", space=rho_space(goal=goal), means=STEEP, baseline=None, sd=0.01)
    pair = analyse(results).pair
    assert [(side.label, side.role) for side in pair.sides] == [(worst, "worst"), (best, "best")]


def test_a_seed_that_only_one_cell_finished_is_skipped(tmp_path):
    failures = {("no SEC", 0): ("diverged", "loss is nan")}
    pair = analyse(write_sweep(tmp_path / "s", failures=failures)).pair
    assert pair.seed == 1
    assert len(pair.sides) == 2


def test_norms_are_described_by_mean_and_variance(steep):
    analysis = analyse(steep.results)
    sentence = said(analysis, "norms")
    for side in analysis.pair.sides:
        raw = stored_evidence(steep.results, side.label)[1]["norms"]
        assert side.evidence.norms.counts == tuple(raw["counts"])
        assert f"{side.title} has mean {raw['mean']:.3g}, variance 0.25" in sentence
        assert f"standard deviation {100 * 0.5 / raw['mean']:.2g}% of the mean" in sentence
    assert sentence.startswith("Norms of the raw embeddings of validation pictures, seed 0: no SEC (baseline) has")


def test_both_sheets_are_copied_to_the_page(steep):
    page = read(steep.html)
    section = by_id(page, "sheets")
    images = section.all("img")
    prefix = "data:image/jpeg;base64,"
    for image, label in zip(images, ("no SEC", "rho=0.01"), strict=True):
        folder, _ = stored_evidence(steep.results, label)
        assert image.attributes["src"].startswith(prefix)
        assert base64.b64decode(image.attributes["src"].removeprefix(prefix)) == (folder / "sheet.jpg").read_bytes()
        assert "bird <0>: bird <0> (right), bird <1> (wrong)" in image.attributes["alt"]
        assert image.attributes["alt"].startswith(label)
    assert section.text.count("1 of the 4 nearest images of 2 queries are of the query's class") == 2
    assert "<0>" not in steep.html.replace("&lt;0&gt;", "")


def test_a_sheet_of_pairs_is_described_as_one(tmp_path):
    results = write_sweep(tmp_path / "s")
    ask, wrong = ({"picture": 0, "name": name, "right": right} for name, right in (("Ann", None), ("Bea", False)))
    rows = [[ask, wrong, None, None, None], [ask, wrong, None, ask, wrong]]
    for label in ("no SEC", "rho=0.01"):
        store_evidence(results, label, sheet={**stored_evidence(results, label)[1]["sheet"], "rows": rows})
    text, photographs = section(analyse(results), "sheets").body
    assert isinstance(text, Text)
    assert text.text.startswith("The most confident wrong pairs of validation pictures, seed 0.")
    assert isinstance(photographs, Photographs)
    assert all(item.title.endswith(": 3 pairs judged wrong with most confidence") for item in photographs.items)
    assert "Ann and Bea; Ann and Bea; Ann and Bea." in photographs.items[0].description


def test_evidence_that_no_trial_stored_has_no_section(tmp_path):
    page = report_of(bare_sweep(tmp_path / "s"), tmp_path).page
    assert not {"norms", "sheets"} & {item.attributes.get("id") for item in page.every()}
    said = by_id(page, "training-regularizer-rho").text
    assert "No trial logged validation R@1 during training" in said


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"norms": null}', "not json"])
def test_damaged_evidence_counts_as_missing(tmp_path, damage):
    results = write_sweep(tmp_path / "s", seeds=(0,))
    folder, _ = stored_evidence(results, "no SEC")
    assert Evidence.read(folder) is not None
    (folder / "evidence.json").write_text(damage)
    assert Evidence.read(folder) is None


def test_the_page_names_damaged_evidence(tmp_path):
    results = write_sweep(tmp_path / "s", seeds=(0, 1), histories=False)
    for seed in (0, 1):
        (stored_evidence(results, "no SEC", seed)[0] / "evidence.json").write_text("{}")
    page = report_of(results, tmp_path).page
    assert len(page.all("img")) == 1
    assert "no SEC, seed 0, has no evidence" in by_id(page, "norms").text


def test_the_page_states_that_sheets_were_switched_off(tmp_path):
    results = write_sweep(tmp_path / "s", histories=False)
    store_evidence(results, "rho=0.01", sheet=None)
    page = report_of(results, tmp_path).page
    assert len(page.all("img")) == 1
    assert "rho=0.01 (best), seed 0, has no sheet: it was switched off" in by_id(page, "sheets").text


def test_failed_and_missing_trials_do_not_break_the_pictures(broken, tmp_path):
    assert len(read(broken.html).all("img")) == 2
    assert broken.results.evidence("unknown") is None
    lost = {(cell.label, seed): ("failed", "no disk") for cell in broken.results.cells for seed in range(3)}
    assert not report_of(bare_sweep(tmp_path / "s", failures=lost), tmp_path).page.all("img")


def watched(norms, turned):
    """Return the stored norms of two pictures at three snapshots."""
    turns = {"low": 0.0, "high": 1.0, "counts": [2, 2], "mean": turned, "variance": 0.01}
    looks = [
        {"step": step, "norms": [norm, norm + spread], "turns": turns if step else None}
        for step, norm, spread in zip((0, 200, 400), norms, (2.0, 1.0, 0.5), strict=True)
    ]
    return {"pictures": [3, 4], "looks": looks}


def test_norms_and_rotations_of_the_same_pictures_are_views_beside_the_histograms(tmp_path):
    results = write_sweep(tmp_path / "s", histories=False)
    for label, norms, turned in (("no SEC", (5.0, 6.0, 7.0), 0.4), ("rho=0.01", (5.0, 5.0, 5.0), 0.2)):
        store_evidence(results, label, watched=watched(norms, turned))
    (figure,) = section(analyse(results), "norms").figures
    assert [view.title for view in figure.views] == ["at the end", "over training", "turns of directions"]
    assert "norms of 2 training images, from step 0 to 400, seed 0: no SEC (baseline) from 1 to 0.25" in (
        figure.views[1].sentence
    )
    assert "up to step 400, seed 0: no SEC (baseline) mean 0.4, variance 0.01" in (figure.views[2].sentence)
    lines = [mark for mark in figure.views[1].draw(False).marks if mark.kind == "line" and mark.text]
    assert len(lines) == 4
    assert len(lines[0].points) == 3


def test_of_a_long_sheet_only_queries_with_different_answers_are_shown(tmp_path):
    results = write_sweep(tmp_path / "s", histories=False)
    found = {"no SEC": [1, 0, 1, 0, 1, 1], "rho=0.01": [1, 1, 0, 0, 0, 0]}
    for label, right in found.items():
        rows = [
            [
                {"picture": n, "name": f"q{n}", "right": None, "similarity": None},
                {"picture": 9 + n, "name": "a", "right": bool(hit), "similarity": 0.5},
            ]
            for n, hit in enumerate(right)
        ]
        folder = store_evidence(results, label, sheet={**stored_evidence(results, label)[1]["sheet"], "rows": rows})
        Image.new("RGB", (168, 648), (200, 200, 200)).save(folder / "sheet.jpg")
        (folder / "maps.jpg").write_bytes((folder / "sheet.jpg").read_bytes())
    text, photographs, maps = section(analyse(results), "sheets").body
    assert text.text.startswith("3 of 6 queries of validation pictures, seed 0, those on which the two differ most")
    first, second = photographs.items
    assert all(f"q{n}: a" in first.description for n in (1, 2, 4))
    assert "q0" not in first.description
    assert second.title == "rho=0.01 (best): 1 of the 3 nearest images of 3 queries are of the query's class"
    shown = Image.open(io.BytesIO(base64.b64decode(first.source.partition(",")[2])))
    assert shown.size == (168, 24 + 3 * 104)
    assert [item.title for block in maps.blocks for item in block.items] == ["no SEC (baseline)", "rho=0.01 (best)"]


def test_axes_of_a_single_step_or_count_have_whole_numbers():
    assert [text for _, text in AxisRange.of([5.0, 5.0], pad=0.02).whole_ticks(5)] == ["5"]
    assert [text for _, text in AxisRange.of([0.0, 3.0]).whole_ticks(8)] == ["0", "1", "2", "3"]


def test_a_page_without_printed_curves_mentions_none(tmp_path):
    failures = dict.fromkeys([(f"rho={rho:g}", seed) for rho in (0.1, 0.9) for seed in range(3)], ("diverged", "nan"))
    space = rho_space(published=(), baseline=None)
    options = {"baseline": None, "failures": failures, "histories": False}
    results = write_sweep(tmp_path / "lost", space=space, means={0.1: 70.0, 0.9: 71.0}, **options)
    page = report_of(results, tmp_path).html
    assert "<figure" not in page
    assert "rinted curve" not in page
    assert "their own baseline" not in page


@pytest.mark.parametrize(("baseline", "own"), [("Triplet", "baseline"), (None, "mean")])
def test_a_printed_curve_without_a_baseline_says_that_its_zero_is_its_mean(tmp_path, baseline, own):
    (published,) = rho_space().published
    space = rho_space(published=(replace(published, baseline_method=baseline),))
    results = write_sweep(tmp_path / "s", space=space, means={0.01: 70.0, 0.1: 71.0}, histories=False)
    page = report_of(results, tmp_path).html
    assert f"to its own {own}" in page
    assert ("without one (Cars196, Table 4) to its mean" in page) == (baseline is None)
