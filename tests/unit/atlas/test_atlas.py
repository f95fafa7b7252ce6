"""Atlas: its space, its verdicts with their error rate, its table and the replay of searches."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers.toys import write_sweep

from trainables.errors import ConfigError
from trainables.losses import LOSSES
from trainables.methods import KnobDomain, check_knobs
from tune_dml import replay
from tune_dml.campaigns.atlas import atlas_requests
from tune_dml.planning.atlas import _NUMBER_OF_VALUES, _atlas_knobs, _knob_values, atlas_space
from tune_dml.record.atlas import build_table, judge_knobs, write_table
from tune_dml.report.several.atlas_page import atlas_sentences, write_atlas
from tune_dml.stats.atlas import effects_of_values, judge_knob

SEEDS = 5


def table(effects, noise=0.7, seed=0, dataset="glyphs", default=0.2):
    """A loss `triplet` with knobs; effects: knob -> {value: effect}, inf for divergence."""
    random = np.random.default_rng(seed)
    shared = 70 + 2.4 * random.standard_normal(SEEDS)
    points = [("", math.nan, 0.0), *((knob, *pair) for knob, values in effects.items() for pair in values.items())]
    rows = []
    for at in range(SEEDS):
        for knob, value, effect in points:
            point = {"dataset": dataset, "loss": "triplet", "knob": knob, "value": value}
            status = "diverged" if math.isinf(effect) else "finished"
            result = math.nan if math.isinf(effect) else shared[at] + effect + noise * random.standard_normal()
            row = {**point, "default": default if knob else math.nan, "seed": at, "status": status}
            rows.append({**row, "recall_at_1": result, "seconds": 1.0})
    return pd.DataFrame(rows)


FLAT = dict.fromkeys((0.0125, 0.025, 0.05, 0.1, 0.4, 0.8, 1.6), 0.0)


def test_every_numeric_knob_of_every_loss_is_varied_around_its_default():
    space = atlas_space("glyphs")
    losses = [arm.name for arm in space.arms if " / " not in arm.name]
    assert losses == sorted(LOSSES)
    assert len(losses) >= 30
    for loss in losses:
        centres = {name: default for name, (_, default) in _atlas_knobs(loss).items()}
        for name, (parameter, default) in _atlas_knobs(loss).items():
            values = _knob_values(parameter, default)
            assert default in values, (loss, name)
            assert len(values) == _NUMBER_OF_VALUES == len(set(values)), (loss, name, values)
            for value in values:
                assert check_knobs(LOSSES[loss], {**centres, name: value}, "loss")[1] == []
    assert not space.problems()
    protocols = {arm.name: arm.protocols[0].name for arm in space.arms}
    assert (protocols["triplet"], protocols["mpa"], protocols["dro_kl"]) == (
        "glyphs/triplet",
        "glyphs/proxy",
        "glyphs/dro",
    )


@pytest.mark.parametrize(
    ("loss", "knob", "values"),
    [
        ("triplet", "margin", (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
        ("dro_topk", "k", (10, 20, 40, 80, 160, 320, 640, 1280)),
        ("dro_topk_pn", "k", (10, 20, 40, 80, 160, 320, 640, 1280)),
        ("lifted_structure", "margin", (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)),
        ("binomial", "threshold", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)),
        ("mpa", "proxies_per_class", (1, 2, 3, 5, 7, 10, 15, 20)),
        ("dro_kl", "gamma", (0.0312, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)),
        ("dro_kl_grouped", "gamma", (0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)),
        ("dro_chi2", "radius", (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
        ("sphereface", "margin", (1, 2, 3, 4, 5, 6, 7, 8)),
    ],
)
def test_values_of_a_knob_halve_and_double_its_default_or_are_declared(loss, knob, values):
    assert _knob_values(*_atlas_knobs(loss)[knob]) == values
    at_its_end = SimpleNamespace(name="share", numbers=KnobDomain(0, 1))
    assert _knob_values(at_its_end, 1.0) == (0.0312, 0.0625, 0.125, 0.25, 0.5, 0.75, 1.0)
    assert not {"beta_pos", "beta_neg", "sampling_seed", "samples"} & set(_atlas_knobs("dro_kl"))
    assert _atlas_knobs("binomial").keys() >= {"beta_pos", "beta_neg"}


def test_wrong_requests_are_refused():
    with pytest.raises(ConfigError, match="unknown loss"):
        atlas_space("glyphs", ["tripelt"])
    with pytest.raises(ConfigError, match="must be named once"):
        atlas_requests(["glyphs", "glyphs"])
    assert list(atlas_requests(["glyphs", "features=a/x.features"], ["triplet"])) == ["glyphs", "x-features"]


def test_verdicts_find_the_planted_effects():
    steep = {0.0125: -9.0, 0.025: -8.0, 0.05: -6.0, 0.1: -0.1, 0.4: 0.0, 0.8: 5.0, 1.6: math.inf}
    found = {one.knob: one.verdict for one in judge_knobs(table({"margin": steep, "flat": FLAT}, noise=0.2), 1.0)}
    margin, flat = found["margin"], found["flat"]
    assert margin.word == "tunable, sensitive"
    assert margin.values[margin.best] == 0.8
    assert margin.tolerated == (0.1, 0.8)
    assert margin.effects[-1].high == -math.inf
    assert flat.word == "insensitive"
    assert flat.tolerated == (0.0125, 1.6)


def test_verdicts_hold_simultaneously_over_the_whole_page():
    """Of 60 atlases of two flat knobs, at most a few call one tunable or exclude 0 from an interval."""
    wrong = 0
    for number in range(60):
        for one in judge_knobs(table({"margin": FLAT, "other": FLAT}, seed=number), 1.0):
            if any(effect.low > 0 or effect.high < 0 for effect in one.verdict.effects):
                wrong += 1
                break
    assert wrong <= 8  # 5 % of 60, and three Monte Carlo standard errors


def test_noisy_values_of_many_losses_are_recognised():
    """Judged loss by loss, such atlases make a false claim in 15 % of 400."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(50):
        losses = rng.standard_normal((10, 15, 5))
        losses[:, 7] *= 5
        effects = effects_of_values(list(losses), 140)
        wrong += any(effect.low > 0 or effect.high < 0 for of_loss in effects for effect in of_loss)
    assert wrong <= 5


def test_equal_noise_of_many_losses_costs_no_power():
    """Loss by loss, the gain is found in 19 of these 20."""
    rng, found = np.random.default_rng(1), 0
    for _ in range(20):
        losses = rng.standard_normal((10, 15, 5))
        losses[3, 7] += 4
        found += effects_of_values(list(losses), 140)[3][7].low > 0
    assert found >= 17


def test_a_difference_of_one_query_on_every_seed_is_no_certain_effect():
    step = 100 / 1460
    centre = step * np.array([1000.0, 1031.0, 987.0])
    steps = np.array([[1, 1, 1], [0, 0, 0], [-1, -1, -1], [0, 1, 0], [1, 1, 1], [0, 0, -1], [0, 0, 0]])
    effects = effects_of_values([np.vstack([centre, centre + step * steps])], 70)[0]
    assert all(one.low <= 0 <= one.high for one in effects)


def test_an_interval_is_wider_with_more_comparisons_and_unknown_without_seeds():
    values = 70 + np.random.default_rng(0).standard_normal((4, SEEDS))
    few, many = (effects_of_values([values], comparisons)[0] for comparisons in (3, 300))
    assert all(b.low < a.low < a.high < b.high for a, b in zip(few[1:], many[1:], strict=True))
    values[2, 1:] = np.nan
    assert effects_of_values([values], 3)[0][2].high == math.inf
    unknown = effects_of_values([values], 3)[0][2]
    verdict = judge_knob([1.0, 2.0, 0.5], 1.0, [few[0], few[1], unknown], 1.0)
    assert verdict.tunability.value == max(0.0, few[1].value) == verdict.effects[verdict.best].value


def test_the_page_starts_with_the_answer(tmp_path):
    two = pd.concat(
        [
            table({"margin": {0.1: 4.0, 0.4: 0.0}}, noise=0.1),
            table({"margin": {0.1: 0.0, 0.4: 3.0}}, noise=0.1, dataset="objects"),
        ]
    )
    knobs = judge_knobs(two, 1.0)
    page, data = write_atlas(knobs, 1.0, tmp_path)
    first = atlas_sentences(knobs, 1.0)[0]
    assert first.startswith("Of 2 knobs of 1 loss on glyphs and objects, 2 gain significantly by tuning")
    assert first in page.read_text()
    rows = json.loads(data.read_text())["transfer"]
    assert [(row["from"], row["to"], row["value"]) for row in rows] == [
        ("glyphs", "objects", 0.1),
        ("objects", "glyphs", 0.4),
    ]
    assert abs(rows[0]["effect"]) < 0.5


def test_a_gain_of_recall_is_at_most_100_points(tmp_path):
    rows = table({"margin": {0.1: 4.0, 0.4: 0.0}}, noise=40.0)
    knobs = judge_knobs(rows[rows["seed"] < 2], 1.0)
    assert knobs[0].verdict.tunability.high > 100
    assert atlas_sentences(knobs, 1.0)[0].endswith("0 do not matter within the tested range, 1 is undecided.")
    assert "0.00 to 100.00" in write_atlas(knobs, 1.0, tmp_path)[0].read_text()


def test_a_replay_interpolates_linearly_between_measured_points():
    rows = table({"margin": {0.1: 2.0, 0.4: -3.0, 0.8: math.inf}})
    surface = replay.surfaces(rows)["glyphs", "triplet"]
    by_point = rows.set_index(["knob", "value", "seed"])["recall_at_1"]
    for value in (0.1, 0.4):
        for seed in range(SEEDS):
            assert surface.value({"margin": value}, seed) == pytest.approx(by_point["margin", value, seed])
    default = rows[rows["knob"] == ""].set_index("seed")["recall_at_1"]
    middle = math.sqrt(0.2 * 0.4)
    assert surface.value({"loss.margin": middle}, 7) == pytest.approx((default[2] + by_point["margin", 0.4, 2]) / 2)
    assert surface.value({"margin": 0.8}, 0) == pytest.approx(0, abs=1e-9)
    assert surface.best == {"margin": 0.1}
    assert surface.regret({"margin": 0.1}) == pytest.approx(0)
    assert surface.regret({}) == pytest.approx(surface.mean({"margin": 0.1}) - default.mean())
    with pytest.raises(KeyError):
        surface.value({"alpha": 1.0}, 0)
    with pytest.warns(UserWarning, match="3 is outside the measured range 0.1 to 0.8") as warned:
        assert surface.value({"margin": 3.0}, 0) == surface.value({"margin": 0.8}, 0)
    assert warned[0].filename == __file__


def test_a_replay_of_early_stopping_has_the_results_at_the_rungs():
    rows = table({"margin": {0.1: 2.0, 0.4: -3.0, 0.8: math.inf}})
    third = rows["recall_at_1"] - 5.0
    diverged = rows["value"] == 0.8
    third[diverged & (rows["seed"] > 0)] = 40.0  # these diverged only later
    rows = rows.assign(recall_at_1_third=third, recall_at_1_ninth=math.nan)
    end, rung = (replay.surfaces(rows, at=at)["glyphs", "triplet"] for at in ("end", "third"))
    assert rung.value({"margin": 0.1}, 3) == pytest.approx(end.value({"margin": 0.1}, 3) - 5.0)
    assert [rung.value({"margin": 0.8}, seed) for seed in (0, 1)] == pytest.approx([0.0, 40.0])
    assert replay.surfaces(rows, at="ninth") == replay.surfaces(table({"margin": {0.1: 2.0}}), at="third") == {}


@pytest.mark.parametrize(("every", "rungs"), [(100, (100, 300)), (300, (None, 300)), (900, (None, None))])
def test_the_table_has_the_results_at_the_rungs_of_early_stopping(tmp_path, every, rungs):
    settings = {"training.steps": 900, "training.eval_every": every}
    results = write_sweep(tmp_path / "toy", evidence=False, cell_settings=settings)
    trials = tuple(replace(trial, cell=replace(trial.cell, arm="triplet")) for trial in results.trials)
    rows = build_table(replace(results, trials=trials), "glyphs")
    assert len(rows) == len(trials)
    for row, trial in zip(rows.itertuples(), trials, strict=True):
        history = {step["step"]: step["val/recall_at_1"] for step in results.history(trial.key)}
        expected = [history[rung] if rung else math.nan for rung in rungs]
        np.testing.assert_equal([row.recall_at_1_ninth, row.recall_at_1_third], expected)


def test_an_atlas_that_is_interrupted_before_its_first_result_has_an_empty_table(tmp_path, command_line):
    results = write_sweep(tmp_path / "toy", evidence=False)
    rows = build_table(replace(results, trials=()), "glyphs")
    assert judge_knobs(rows, 1.0) == ()
    write_table(rows, tmp_path / "atlas.parquet")
    assert command_line("atlas", "--table", tmp_path / "atlas.parquet", "-o", tmp_path / "out")[0] == 0
    assert replay.surfaces(tmp_path / "atlas.parquet") == {}


def test_a_stored_table_is_judged_and_other_files_are_refused(tmp_path, command_line):
    file = tmp_path / "atlas.parquet"
    table({"margin": {0.1: 4.0, 0.4: 0.0}}, noise=0.1).to_parquet(file)
    code, out, _ = command_line("atlas", "--table", file, "-o", tmp_path / "out", "--json")
    (found,) = json.loads(out)["knobs"]
    assert (code, found["knob"], found["best"], found["word"]) == (0, "margin", 0.1, "tunable")
    assert replay.surfaces(file)["glyphs", "triplet"].seeds == SEEDS
    file.write_text("no parquet")
    with pytest.raises(ConfigError, match="cannot be read"):
        replay.surfaces(file)
    pd.DataFrame({"loss": ["triplet"]}).to_parquet(file)
    with pytest.raises(ConfigError, match="lacks columns"):
        replay.surfaces(file)
    table({"margin": {0.1: 4.0}}).astype({"recall_at_1": str}).to_parquet(file)
    with pytest.raises(ConfigError, match="must hold numbers"):
        replay.surfaces(file)
    code, _, err = command_line("atlas")
    assert (code, "pass --table" in err) == (1, True)


@pytest.mark.parametrize("shipped", ["atlas.parquet", "atlas-glyphs.parquet"])
def test_the_page_of_the_atlas_agrees_with_the_shipped_table(shipped):
    docs = Path(__file__).parents[3] / "docs"
    knobs = judge_knobs(replay.read_table(docs / shipped), margin=1.0)
    page = " ".join((docs / "atlas.md").read_text().split())
    for sentence in atlas_sentences(knobs, 1.0):
        assert sentence in page
