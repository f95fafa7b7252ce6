"""Sources of randomness, fixed or varied: their effect on a trial, and reports of sweeps that vary one."""

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from helpers.toys import METRIC, STEEP, bare_sweep, rho_space, write_sweep
from helpers.trials import TASKS, config_of, learner_of, run, without_time

from trainables.config import _LATER_SETTINGS, _NOT_IDENTITY, FREE_SEEDS, canonical
from trainables.context import SEALED
from trainables.errors import ConfigError
from trainables.evidence.stored import Hits, hits_file
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import Request
from tune_dml.record.held_out.sealed import record_opening
from tune_dml.record.ledger import trial_folder
from tune_dml.record.results import results_of
from tune_dml.record.state import read_state
from tune_dml.report import summary, write_report

SHORT = {**TASKS["retrieval"], "training.steps": 4, "training.eval_every": 2}


def parts(tmp_path, **seeds):
    """Initial weights, first batch and validation pictures of a trial under seed 3."""
    config = config_of(SHORT, seed=3, **{f"seeds__{name}": value for name, value in seeds.items()})
    learner = learner_of(config, tmp_path)
    weights = torch.cat([p.detach().flatten() for p in learner.network.parameters()])
    return weights, learner.sampler.batch(0), learner.split.validation


@pytest.mark.parametrize("source", ["init", "order", "split"])
def test_a_fixed_source_uses_its_seed_and_others_that_of_the_trial(source, tmp_path):
    plain, held = parts(tmp_path), parts(tmp_path, **{source: 5})
    equal = [np.array_equal(a, b) for a, b in zip(plain, held, strict=True)]
    if source == "split":  # batches are drawn from what is left
        assert not np.array_equal(plain[2], held[2])
        assert torch.equal(plain[0], held[0])
    else:
        assert equal == [source != "init", source != "order", True]


def test_a_source_fixed_at_the_trials_seed_changes_no_figure(tmp_path, cache_dir):
    rows = [
        [without_time(row) for row in run(config_of(SHORT, seed=2, **held), tmp_path / str(n), cache_dir=cache_dir)[1]]
        for n, held in enumerate(({}, {f"seeds__{name}": 2 for name in ("init", "order", "split")}))
    ]
    assert rows[0] == rows[1]


def test_only_fixed_sources_are_part_of_the_identity():
    config = config_of(SHORT)
    older = {k: v for k, v in config.settings().items() if k not in _NOT_IDENTITY | _LATER_SETTINGS.keys()}
    assert config.digest() == hashlib.sha256(canonical(older).encode()).hexdigest()[:16]
    assert config_of(SHORT, seeds__init=0).digest() != config.digest()


def planned(cache_dir, **request):
    return prepare(Request("sec_rho", dataset="digits", **request), cache_dir=cache_dir, decode=False)


def test_vary_holds_the_others_at_the_first_seed(cache_dir):
    checked = planned(cache_dir, seeds=(4, 7), vary="order")
    held = {path: checked.plan.base_settings[path] for path in FREE_SEEDS}
    assert held == {"seeds.init": 4, "seeds.order": None, "seeds.split": 4}
    assert checked.plan.name == "sec_rho-digits-order"
    assert any("seeds.init=4, seeds.split=4" in note for note in checked.notes)
    trial = checked.plan.trials()[-1]
    assert [trial.config.seed_of(source) for source in ("init", "order", "split")] == [4, 7, 4]


def test_seeds_that_change_nothing_are_refused_but_one(cache_dir):
    held = dict.fromkeys(FREE_SEEDS, 0)
    rule = r"seeds: if seeds.init, seeds.order, seeds.split are all fixed, every .* got \[4, 7\]"
    with pytest.raises(ConfigError, match=rule):
        planned(cache_dir, seeds=(4, 7), settings=held)
    assert planned(cache_dir, seeds=(4,), settings=held).plan.seeds == (4,)


def test_vary_all_gives_the_usual_plan(cache_dir):
    assert planned(cache_dir, vary="all").plan == planned(cache_dir).plan


def test_a_plan_stored_before_sources_could_be_fixed_keeps_its_identity(cache_dir, tmp_path):
    plan = planned(cache_dir).plan
    plan.save(tmp_path / "plan.json")
    body = json.loads((tmp_path / "plan.json").read_text())
    for arm in body["arms"]:
        for name in (*FREE_SEEDS, "evaluation.keep"):
            del arm["base_settings"][name]
    (tmp_path / "plan.json").write_text(json.dumps(body))
    assert Plan.load(tmp_path / "plan.json").identity() == plan.identity()


def sweeps(folder, *sources, seeds=(0, 1, 2, 3), **options):
    """Sweeps of the same cells, one for each source: its results by source."""
    found = {}
    for source in sources:
        held = {f"seeds.{name}": 0 for name in ("init", "order", "split") if source not in {name, "all"}}
        spread = {"init": 0.5, "order": 1.0, "split": 4.0, "all": 4.5}[source]
        options |= {"seeds": seeds, "sd": spread / 4, "seed_sd": spread, "cell_settings": held, "evidence": False}
        found[source] = write_sweep(folder / source, **options)
    return found


def verdicts_in(results, folder):
    return json.loads(write_report(results, folder).verdicts.read_text())


def page_in(folder):
    return (folder / "report.html").read_text()


def test_the_report_of_one_source_states_the_scope_of_its_verdicts(tmp_path):
    results = sweeps(tmp_path, "init")["init"]
    sentence = "A seed of this sweep changes only the initial weights, so its verdicts hold for the batch order and"
    assert any(sentence in verdict for verdict in summary(results).verdicts)
    data = verdicts_in(results, tmp_path / "report")["variance"]
    assert data["varied"] == "init"
    assert data["sum"] is None
    assert "Unknown: the effect of batch order and class split" in page_in(tmp_path / "report")


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        ({"init": 3, "order": 5, "split": 3}, "nothing, so its verdicts hold for the initial weights and the class "),
        ({"init": 3, "order": 5}, "only the class split, so its verdicts hold for the initial weights of seed 3 and "),
    ],
)
def test_fixed_seeds_are_named(tmp_path, held, sentence):
    """In a sweep planned by an earlier version, nothing else can fix all three."""
    settings = {f"seeds.{name}": seed for name, seed in held.items()}
    results = write_sweep(tmp_path / "held", seeds=(0, 1, 2), cell_settings=settings, evidence=False)
    damaged = json.loads((results.folder / "plan.json").read_text())
    damaged["cells"][0]["settings"]["loss.margin"] = math.nan
    for name, text in (("beside", json.dumps(damaged)), ("torn", '{"arms": [')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text(text)
    (said,) = [verdict for verdict in summary(results).verdicts if "A seed of this sweep" in verdict]
    assert said.startswith(f"A seed of this sweep changes {sentence}")
    assert said.endswith("the batch order of seed 5.")


def test_sources_are_compared_over_the_cells_that_all_sweeps_have(tmp_path):
    found = sweeps(tmp_path, "init", "order", "split")
    found |= sweeps(tmp_path, "all", means={0.01: 74.6, 0.1: 72.0}, baseline=None)
    data = verdicts_in(found["all"], tmp_path / "report")["variance"]
    components = {item["source"]: item for item in data["components"]}
    assert list(components) == ["init", "order", "split", "all"]
    assert {item["cells"] for item in components.values()} == {2}
    spreads = {source: item["trial"]["sd"] for source, item in components.items()}
    assert spreads["init"] < spreads["order"] < spreads["split"]
    assert "wide enough for moderately heavy tails" in (tmp_path / "report" / "report.html").read_text()
    for item in components.values():
        assert item["trial"]["low"] < item["trial"]["sd"] < item["trial"]["high"]
    total = np.sqrt(sum(spreads[source] ** 2 for source in ("init", "order", "split")))
    assert data["sum"]["trial"]["sd"] == pytest.approx(total)
    trials = found["init"].trials
    values = [[t.metrics[METRIC] for t in trials if t.cell.label == label] for label in ("rho=0.01", "rho=0.1")]
    assert spreads["init"] == pytest.approx(np.sqrt(np.var(values, axis=1, ddof=1).mean()))


def test_the_largest_sweep_of_a_source_is_used(tmp_path):
    split = sweeps(tmp_path, "split")["split"]
    two = {0.1: 72.0, 0.5: 68.5}
    for name, means, seeds in (("a", {0.1: 72.0}, 6), ("b", two, 3), ("c", two, 5)):
        write_sweep(tmp_path / name, seeds=range(seeds), means=means, baseline=None, evidence=False)
    components = verdicts_in(split, tmp_path / "report")["variance"]["components"]
    assert [(item["sweep"], item["cells"], item["seeds"]) for item in components] == [("split", 2, 4), ("c", 2, 5)]


def test_a_single_seed_of_a_source_gives_no_estimate(tmp_path):
    results = sweeps(tmp_path, "init", seeds=(0,))["init"]
    data = verdicts_in(results, tmp_path / "report")["variance"]
    assert data["components"][0]["trial"]["sd"] is None
    assert "Unknown: the effect of initial weights and batch order and class split" in page_in(tmp_path / "report")


def test_equal_seeds_measure_no_noise_and_unfinished_ones_do_not_count(tmp_path):
    held = {"seeds.order": 0, "seeds.split": 0}
    options = {"seeds": range(4), "cell_settings": held, "sd": 0.0, "evidence": False}
    results = write_sweep(tmp_path / "init", seed_sd=0.0, missing=[("rho=0.1", 3)], **options)
    assert verdicts_in(results, tmp_path / "report")["variance"]["components"][0]["seeds"] == 3
    page = page_in(tmp_path / "report")
    assert "Initial weights: not measurable, equal over 3 seeds." in page
    assert "a trial spreads by" not in page


def test_a_sweep_whose_seeds_change_everything_has_no_such_section(tmp_path):
    results = bare_sweep(tmp_path / "plain")
    assert verdicts_in(results, tmp_path / "report")["variance"] is None


def leave_hits(results, half, gain=0.05):
    """Hits of 40 queries in each of 12 classes: every cell is `gain` better than the baseline."""
    rng = np.random.default_rng(5)
    pictures = np.arange(480)
    for trial in results.trials:
        chance = 0.5 + (0 if trial.cell.baseline else gain)
        hits = Hits.of(rng.random(480) < chance, pictures % 12, pictures)
        (trial_folder(results.folder, trial.key) / hits_file(half)).write_bytes(hits.data())


@pytest.mark.slow
def test_the_report_estimates_other_classes_and_keeps_test_sealed(tmp_path):
    results = write_sweep(tmp_path / "toy", space=rho_space(), histories=False)
    assert verdicts_in(results, tmp_path / "before")["reach"] is None
    leave_hits(results, "val", gain=0.2)
    leave_hits(results, "test", gain=0.2)
    found = verdicts_in(results, tmp_path / "sealed")["reach"]
    assert {row["half"] for row in found["rows"]} == {"val"}
    assert len(found["rows"]) == len(STEEP)
    for row in found["rows"]:
        reach = row["reach"]
        assert (reach["classes"], reach["seeds"]) == (12, 3)
        assert reach["low"] < reach["estimate"] < reach["high"]
        assert reach["per_query"] < 1e-6
        assert reach["trained_anew"] < 0.05
    record_opening(read_state(results.folder), "rho=0.01")
    again = verdicts_in(results_of(results.folder), tmp_path / "opened")["reach"]
    assert [row["half"] for row in again["rows"]] == ["val"] * 5 + ["test"] * 5
    assert (trial_folder(results.folder, results.trials[0].key) / SEALED).exists()


def test_differences_certain_only_per_query_are_labelled(tmp_path):
    results = write_sweep(tmp_path / "toy", seeds=(0, 1), histories=False)
    leave_hits(results, "val", gain=0.1)
    reach = verdicts_in(results, tmp_path / "report")["reach"]
    assert all(row["reach"]["low"] < 0 for row in reach["rows"])
    assert "treats queries of one class as independent and ignores seeds" in page_in(tmp_path / "report")


def test_different_queries_are_not_paired(tmp_path):
    results = write_sweep(tmp_path / "toy", histories=False)
    leave_hits(results, "val")
    pictures = np.arange(480) + 1
    for trial in results.trials:
        if trial.cell.baseline and trial.seed < 2:
            hits = Hits.of(np.ones(480, dtype=bool), pictures % 12, pictures)
            (trial_folder(results.folder, trial.key) / hits_file("val")).write_bytes(hits.data())
    reach = verdicts_in(results, tmp_path / "report")["reach"]
    assert {row["reach"]["seeds"] for row in reach["rows"]} == {1}
    assert "One seed" in page_in(tmp_path / "report")
