import base64
import hashlib
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.toys import ETA, FLAT, METRIC, STEEP, Driver, bare_sweep, opened, rho_space, write_sweep
from judging import FAILURES, judged, report_of, with_metrics
from pages import by_id, read

from tune_dml.planning.study import Search
from tune_dml.record.results import results_of
from tune_dml.report import page, summary, write_report
from tune_dml.report.analysis import analyse
from tune_dml.report.drawing import curve
from tune_dml.report.questions import answers
from tune_dml.report.section import Table, tables_of, text_cell
from tune_dml.space import Grid, Knob, LogRange, Range, Space


def test_a_report_has_the_same_bytes_each_time(steep, tmp_path):
    again = write_report(steep.results, tmp_path / "again")
    for first, second in zip(steep.files.paths, again.paths, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_page_is_well_formed_and_ids_are_unique(steep, broken):
    for written in (steep, broken):
        page = read(written.html)
        ids = [item.attributes["id"] for item in page.every() if "id" in item.attributes]
        assert len(ids) == len(set(ids))
        targets = {item.attributes["href"] for item in page.all("a")}
        assert all(target.startswith("#") and target[1:] in ids for target in targets)


def test_a_long_name_breaks_and_leaves_its_numbers_on_the_page():
    rows = [(text_cell(name), text_cell("1")) for name in ("short", "a long name " * 9)]
    lines = page._rows(Table("names", "Names.", ("name", "number"), rows)).splitlines()
    assert [' class="long">a long' in line for line in lines] == [False, True]


def test_page_is_self_contained(steep):
    page = read(steep.html)
    (script,) = page.all("script")
    assert script.attributes == {}
    digest = base64.b64encode(hashlib.sha256(script.pieces[0].encode()).digest()).decode()
    (policy,) = [item.attributes["content"] for item in page.all("meta") if "http-equiv" in item.attributes]
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    for item in page.every():
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            assert item.attributes.get(name, "#")[:1] in {"#", "d"}, (item.tag, name)
            assert not item.attributes.get(name, "").startswith(("http", "//"))
    assert not re.search(r"url\(\s*['\"]?(?!#)", steep.html)
    assert "@import" not in steep.html


def test_sections_follow_the_order_of_the_questions(steep):
    titles = [item.text for item in read(steep.html).all("h2")]
    expected = [
        "How sensitive is the outcome to rho?",
        "Where is the best rho?",
        "Does it agree with the published curve?",
        "Is it better than the baseline?",
        "Can I trust it?",
        "How did training go, for each rho?",
        "Why? The mechanism behind rho",
        "How long are the embeddings?",
        "What do the networks find?",
        "Opened test metrics",
        "Appendix",
        "What was run, and what failed",
        "What did it cost?",
        "Where every number comes from",
    ]
    # Questions of other packages may stand between ours.
    assert [title for title in titles if title in expected] == expected


def test_the_verdict_sentence_is_plain_and_complete_and_an_edge_has_a_command(steep):
    sentence = steep.files.summary.verdicts[0]
    pattern = (
        r"rho matters: validation R@1 is (\d\.\d\d) points higher at rho=0\.01 than at rho=(1|0\.9) "
        r"\(96% simultaneous interval (\d\.\d\d) to (\d\.\d\d); 5 values x 3 paired seeds\), "
        r"more than 1\.00 points, the smallest difference that matters\."
    )
    assert re.fullmatch(pattern, sentence)
    assert sentence in read(steep.html).text
    command = "tune-dml extend sec_rho --add regularizer.rho=0.001,0.0001"
    assert steep.files.summary.commands[:2] == (
        "tune-dml sweep sec_rho --set training.steps=800 --name sec_rho-800",
        command,
    )
    assert steep.files.summary.answer.step.command == steep.files.summary.commands[0]  # it had not converged
    assert any("at the edge" in finding for finding in steep.files.findings)


def test_every_number_of_a_table_is_in_the_json_or_a_trial(steep):
    """The page's numbers carry their full value; each is a number of verdicts.json."""
    known: set[float] = set()

    def collect(value):
        if isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)
        elif isinstance(value, int | float):
            known.add(float(value))

    collect(steep.data)
    cost = {row["seconds"] for row in steep.data["cells"]} | {3 * row["seconds"] for row in steep.data["cells"]}
    shown = [float(item.attributes["data-value"]) for item in steep.page.every() if "data-value" in item.attributes]
    assert len(shown) > 300
    assert [value for value in shown if value not in known | cost] == []


def test_every_cell_is_the_mean_of_its_linked_trials_and_every_trial_names_its_run(steep):
    page = read(steep.html)
    trials = {row.attributes["id"]: row for row in by_id(page, "table-trials").all("tr") if "id" in row.attributes}
    assert len(trials) == len(steep.results.trials)
    rows = by_id(page, "table-cells").all("tr")[1:]
    assert len(rows) == 6
    for row in rows:
        links = [link.attributes["href"][1:] for link in row.all("a")]
        assert len(links) == 3
        assert set(links) <= set(trials)
        keys = [link.removeprefix("trial-") for link in links]
        metrics = [t.metrics["val/recall_at_1"] for t in steep.results.trials if t.key in keys]
        shown = [float(c.attributes["data-value"]) for c in row.children if "data-value" in c.attributes]
        assert shown[1] == pytest.approx(np.mean(metrics))
    listed = by_id(page, "table-trials").text
    for trial in steep.results.trials:
        assert trial.run_id
        assert trial.run_id in listed
        assert trial.key in listed


def test_failed_and_diverged_trials_are_listed_and_drawn_with_their_reasons_as_text(broken):
    page = read(broken.html)
    table = by_id(page, "table-failures")
    assert len(table.all("tr")) == 1 + len(FAILURES)
    assert "loss is not finite at step 180" in table.text
    figure = by_id(page, "figure-curve-regularizer-rho")
    assert "diverged" in figure.text
    assert "failed" in figure.text
    assert "Without a result: rho=0.9 (seed 1 diverged: loss is not finite at step 180)" in page.text
    assert "1 diverged and 2 failed" in page.text
    assert "If their settings caused the failures, the remaining results of these cells are optimistic." in page.text
    assert "1 trial has not finished" in page.text
    assert len([f for f in broken.files.findings if "diverged" in f or "failed" in f]) == 3
    assert "<b>CUDA</b>" not in broken.html
    assert "&lt;b&gt;CUDA&lt;/b&gt;" in broken.html


def test_figures_of_opened_test_metrics_are_labelled(steep):
    assert "Opened test metrics" in steep.html
    opening = steep.results.opening
    told = steep.data["opened_test"]
    assert (told["chosen"], told["late"], told["opening"]) == ("rho=0.01", 0, {"time": opening.time, **opening.body()})
    assert f"until they were {opening}" in steep.html
    for table in ("opened-test", "trials"):
        assert f"were {opening}" in captions(steep)[table] or f"metrics, {opening}" in captions(steep)[table]
    assert "test/recall_at_1" in steep.data["trials"][0]["metrics"]


def captions(written):
    """Table -> caption, of those that hold test metrics."""
    return {
        table.name: table.caption
        for table in tables_of(answers(analyse(written.results)))
        if any("test" in column for column in table.columns)
    }


def test_trials_that_end_after_the_opening_are_counted(tmp_path):
    results = opened(bare_sweep(tmp_path / "sec_rho", missing=[("rho=0.5", 2)]))
    trial = next(trial for trial in results.trials if trial.status == "missing")
    Driver(results.folder, results.plan).event("ended", trial.key, status="finished", metrics={METRIC: 60.0}, step=400)
    reported = report_of(results_of(results.folder), tmp_path)
    assert reported.data["opened_test"]["late"] == 1
    assert "1 trial ended after the opening" in reported.html


def test_the_page_shows_the_claim_of_selection_on_test(tmp_path):
    results = write_sweep(tmp_path / "flat", means=FLAT, sd=0.3, baseline=None, histories=False)
    claims = report_of(opened(results), tmp_path).data["opened_test"]
    means = {row["label"]: row["mean"] for row in claims["rows"]}
    validation = {row["label"]: row["validation"] for row in claims["rows"]}
    assert claims["claimed"] == max(means, key=means.get)
    assert claims["chosen"] == max(validation, key=validation.get)
    assert claims["optimism"]["estimate"] == pytest.approx(means[claims["claimed"]] - means[claims["chosen"]])
    assert claims["optimism"]["estimate"] >= 0
    assert f" better than that of {claims['chosen']} (simultaneous interval " in " ".join(claims["sentences"])


def test_the_page_is_accessible_by_screen_reader_and_keyboard(steep):
    page = read(steep.html)
    (html,) = page.all("html")
    assert html.attributes["lang"] == "en"
    links = page.all("a")
    assert links[0].attributes == {"class": "skip", "href": "#main"}
    pictures = [item for item in page.every() if item.attributes.get("role") == "img"]
    views = 2 + 1 + 1 + 2 + 5 + 1  # curve, best, seeds, training, mechanism, norms
    assert len(pictures) == 2 * views
    assert all(len(item.attributes["aria-label"]) > 40 for item in pictures)
    photographs = page.all("img")
    assert len(photographs) == 2
    assert all(len(item.attributes["alt"]) > 40 for item in photographs)
    assert "0.01: 74.57" in pictures[0].attributes["aria-label"]
    for item in page.every():
        if item.attributes.get("class") == "scroll":
            assert item.attributes["tabindex"] == "0"
            assert "aria-labelledby" in item.attributes or "aria-label" in item.attributes
    levels = [int(item.tag[1]) for item in page.every() if re.fullmatch(r"h[1-6]", item.tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_the_papers_curve_and_norms_stand_beside_ours(steep):
    page = read(steep.html)
    figure = by_id(page, "figure-curve-regularizer-rho").text
    assert "SEC-supplement, Table 4" in figure
    assert "(Cars196)" in figure
    section = by_id(page, "agreement-regularizer-rho").text
    for reason in ("other data set: glyphs, not Cars196", "other backbone", "other embedding size", "other selection"):
        assert reason in section
    rows = by_id(page, "table-mechanism-regularizer-rho").all("tr")
    for cell, norm in (("rho=0.01", 6.03), ("no SEC", 8.03)):
        (row,) = (row for row in rows if row.text.startswith(f"{cell} training norm mean"))
        assert float(row.children[-1].attributes["data-value"]) == norm


def test_every_printed_metric_that_was_measured_has_a_curve_beside_the_papers(tmp_path):
    results = bare_sweep(tmp_path / "s")
    results = with_metrics(results, lambda trial: {**trial.metrics, "val/nmi": 0.5 * trial.metrics[METRIC]})
    files = write_report(results, tmp_path / "report")
    knob = analyse(results).knobs[0]
    assert {"NMI", "F1"} <= {name for curve in knob.published for name in curve.others}
    pictures = {path.name: path.read_text() for path in (files.html.parent / "figures").glob("curve-regularizer-rho*")}
    assert set(pictures) == {f"curve-regularizer-rho{of}.svg" for of in ("", "-NMI", "-values")}
    assert "validation NMI minus no SEC" in pictures["curve-regularizer-rho-NMI.svg"]
    printed = {curve.source: curve.values("NMI") for curve in knob.published if "NMI" in curve.others}
    zero = {curve.source: curve.baseline_others["NMI"] for curve in knob.published if "NMI" in curve.others}
    for source, values in printed.items():
        for x, y in values.items():
            tip = f"{x:g}: {y - zero[source]:+.2f} to its own baseline"
            assert tip in pictures["curve-regularizer-rho-NMI.svg"], (source, tip)


@pytest.mark.parametrize(("weights", "said"), [(None, True), ("bn_inception-52deb4733.pth", False)])
def test_starting_from_random_weights_is_a_reason(tmp_path, weights, said):
    settings = {"model.backbone": "bn_inception", "model.embedding_dim": 512, "model.weights": weights}
    section = by_id(judged(tmp_path, cell_settings=settings).page, "agreement-regularizer-rho").text
    assert ("other initial weights: none, not bn_inception-52deb4733.pth" in section) is said
    assert "other backbone" not in section


LR = Knob("optim.lr", LogRange(1e-5, 1e-1), symbol="lr", origin="user")
DIM = Knob("model.embedding_dim", Range(8, 512, integer=True, scale="log"), origin="user")
SIZES = Knob("model.embedding_dim", Grid((8, 64, 512), scale="log"), origin="user")
SCHEDULE = Knob("regularizer.schedule", Grid(("constant", "epoch_ramp", "linear"), scale="category"))
FLAG = Knob("optim.nesterov", Grid((True, False)))


def mine(*knobs, **changes):
    return Space("mine", "My own", "", None, knobs, {}, **changes)


@pytest.mark.parametrize(
    ("space", "means", "options", "said"),
    [
        (mine(SCHEDULE), {"constant": 65.0, "epoch_ramp": 66.0, "linear": 70.0}, {}, "Dots: one seed each."),
        (mine(FLAG), {True: 65.0, False: 70.0}, {}, "nesterov matters"),
        (mine(ETA), {0.0: 60.0, 0.5: 66.0, 1.0: 61.0}, {}, "interior"),
        (mine(LR), {1e-3: 70.0}, {}, "only one value has results"),
        (mine(LR), {1e-3: 70.0, 1e-2: 71.0}, {"seeds": (0,)}, "one seed gives no noise estimate"),
        (mine(LR), {10.0**-k: 70 - (k - 3) ** 2 for k in range(1, 6)}, {"search": Search("tpe", 5)}, "interior"),
        (mine(LR, DIM), {(1e-3, 8): 70.0, (1e-2, 64): 71.0}, {"search": Search("tpe", 2)}, "not tried with the same"),
        (mine(DIM), {8: 60.0, 64: 66.0, 512: 70.0}, {}, "the next are 4096 and 32768"),
        (mine(SIZES), {8: 60.0, 64: 66.0, 512: 70.0}, {}, "--add model.embedding_dim=4096,32768"),
        (mine(LR), {1e-3: 0.20, 1e-2: 0.30}, {"sd": 0.001, "seed_sd": 0.0}, "higher at lr=0.01"),
    ],
)  # fmt: skip
def test_every_kind_of_sweep_renders(tmp_path, space, means, options, said):
    text = judged(tmp_path, space=space, means=means, baseline=None, evidence=True, **options).text
    assert said in text
    assert "borrows 0 degrees" not in text
    assert "nan" not in re.sub(r"[a-z]*nan[a-z]+", "", text.lower())


def test_a_search_of_many_configurations_draws_a_bounded_number(steep, monkeypatch):
    """A page with three marks for each of thousands of configurations had megabytes."""

    def drawn():
        sections = answers(analyse(steep.results))
        (figure,) = [one for section in sections for one in section.figures if one.name.startswith("curve")]
        return figure.caption, figure.views[0].draw(False).svg().count("<title>mean at ")

    before, count = drawn()
    assert "values are drawn" not in before
    monkeypatch.setattr(curve, "_MAX_LEVELS", 2)
    caption, fewer = drawn()
    assert "2 of 5 values are drawn, evenly chosen." in caption
    assert fewer / count == 2 / 5


def test_the_page_of_a_sweep_without_results_states_it(tmp_path):
    labels = ["no SEC", *(f"rho={rho:g}" for rho in STEEP)]
    every = [(label, seed) for label in labels for seed in range(3)]
    failures = dict.fromkeys(every, ("failed", "data: no such folder"))
    failed = write_sweep(tmp_path / "failed", failures=failures, histories=False)
    reported = report_of(failed, tmp_path / "a")
    assert "no value has results" in reported.files.summary.verdicts[0]
    for said in ("18 failed", "no trial has a result"):
        assert said in reported.html
    for said in ("settings of the other knobs", "No trial logged"):
        assert said not in reported.html
    own = replace(failed, plan=replace(failed.plan, space=rho_space(published=())))
    assert "<figure" not in write_report(own, tmp_path / "c").html.read_text()
    waiting = write_sweep(tmp_path / "waiting", missing=every)
    files = write_report(waiting, tmp_path / "b")
    assert "0 of 18 trials finished" in files.html.read_text()
    assert files.findings == ()


def test_flat_curve_has_no_optimum(tmp_path):
    results = write_sweep(tmp_path / "flat", means=FLAT, seeds=range(8), sd=0.3, histories=False)
    found = summary(results, margin=1.5)
    assert found.verdicts[0].startswith("rho does not matter: every difference is significantly below 1.50 points")
    assert "rho has no optimum to locate" in found.verdicts[1]
    assert found.margin == 1.5
    assert found.findings == ()


def test_an_undecided_verdict_has_the_seeds_needed_and_their_cost(tmp_path):
    reported = judged(tmp_path, means=FLAT, sd=0.3)
    knob = reported.knob
    assert 0.5 <= knob["sensitivity"]["seeds_chance"] <= 1
    needed = knob["sensitivity"]["seeds_needed"]
    assert knob["sensitivity"]["verdict"] == "undecided"
    assert needed > 3
    assert f"{needed - 3} more seed" in knob["sentences"][1]
    assert f"{(needed - 3) * 6} trials" in knob["sentences"][1]
    assert f"tune-dml extend s --seeds {needed}" in reported.html


def test_an_edge_at_the_legal_bound_is_not_extended(tmp_path):
    rising = dict(zip(STEEP, [60.0, 62.0, 64.0, 66.0, 70.0], strict=True))
    found = summary(write_sweep(tmp_path / "s", means=rising, histories=False))
    assert "the bound of the knob" in found.verdicts[1]
    assert not [command for command in found.commands if "--add" in command]
    assert found.findings == ()
