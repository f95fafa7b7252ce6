"""A sweep file equals a request; flags override it; all its problems are named."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.published_formats import cub
from helpers.toys import space_of

from trainables.errors import ConfigError
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.continuation import with_arms_of_files
from tune_dml.planning.files import keys
from tune_dml.planning.files.sweep_file import read_sweep_file, read_with_problems
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import Search, study_of
from tune_dml.space import Baseline, Grid, Knob, Range, Tie

ROOT = Path(__file__).parents[3]
WHOLE = """
name: my_margin
description: Does it matter?
method: bayes
metric: {name: val/map_at_r, goal: maximize}
parameters:
  loss.margin: {values: [0.1, 0.2, 0.5]}
  optim.lr: {min: 1.0e-4, max: 1.0e-2, distribution: log_uniform}
  loss.name: {value: semihard_triplet}
run_cap: 20
dataset: digits
seeds: [0, 4]
fixed: {training.steps: 30}
baseline: {label: no margin, settings: {loss.margin: 0.0}}
margin: 2.0
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write


def test_every_key_of_a_sweep_file_is_read(file):
    request = read_sweep_file(file(WHOLE))
    space = request.space
    assert (request.search, request.num_samples, request.seeds, request.dataset) == ("gp", 20, (0, 4), "digits")
    assert (request.data_root, request.settings, request.name) == (None, None, None)
    assert (space.name, space.title) == ("my_margin", "Does it matter?")
    assert (space.metric, space.goal) == ("val/map_at_r", "maximize")
    assert [(knob.path, knob.symbol, knob.domain, knob.origin) for knob in space.knobs] == [
        ("loss.margin", "margin", Grid((0.1, 0.2, 0.5)), "user"),
        ("optim.lr", "lr", Range(1e-4, 1e-2, scale="log"), "user"),
    ]
    assert space.fixed == {"training.steps": 30, "loss.name": "semihard_triplet"}
    assert space.baseline == Baseline("no margin", {"loss.margin": 0.0})
    assert (space.margin, space.default_dataset) == (2.0, "digits")


def test_a_short_file_leaves_the_rest_to_defaults(file, cache_dir):
    path = file("method: grid\nparameters: {loss.margin: {values: [0.1, 0.2]}}\ndataset: digits\n")
    request = read_sweep_file(path)
    assert (request.search, request.num_samples, request.seeds) == ("grid", 0, None)
    assert (request.space.name, request.space.margin) == ("mine", 1.0)
    assert study_of(request).search == Search("grid", num_samples=0, window=4, seed=0, stopping=None)
    plan = prepare(Request(path), cache_dir=cache_dir, decode=False).plan
    assert (plan.name, plan.dataset, plan.seeds, len(plan.cells)) == ("mine", "digits", (0, 1, 2), 2)


def test_flags_override_a_sweep_file(file, cache_dir):
    path = file(WHOLE)
    asked = Request(path, seeds=2, num_samples=5, search="random", name="own", settings={"training.steps": 20})
    plan = prepare(asked, cache_dir=cache_dir, decode=False).plan
    assert (plan.name, plan.seeds, plan.search.method, plan.search.num_samples) == ("own", (0, 1), "random", 5)
    assert plan.base_settings["training.steps"] == 20
    assert plan.dataset == "digits"


@pytest.mark.parametrize(
    ("knob", "form", "domain"),
    [
        ("optim.lr", "{values: [1, 2, 5]}", Grid((1, 2, 5))),
        ("optim.lr", "{values: [1, 10]}", Grid((1, 10), "log")),
        ("optim.lr", "{values: [0, 10]}", Grid((0, 10))),
        ("optim.lr", "{values: [a, b]}", Grid(("a", "b"), "category")),
        ("optim.lr", "{min: 1, max: 9}", Range(1, 9, integer=True)),
        ("optim.lr", "{min: 1, max: 9, distribution: uniform}", Range(1, 9)),
        ("optim.lr", "{min: 0.5, max: 9}", Range(0.5, 9)),
        ("optim.lr", "{min: 1.0, max: 9.0}", Range(1, 9)),
        ("optim.lr", "{min: 1, max: 2.5}", Range(1, 2.5)),
        ("optim.lr", "{min: 1.0e-4, max: 0.1, log: true}", Range(1e-4, 0.1, scale="log")),  # as Optuna writes it
        ("loss.margin", "{min: 0.1, max: 1}", Range(0.1, 1)),
        # A knob of whole numbers is searched in whole numbers, however its range is written.
        ("batch.batch_size", "{min: 9, max: 90, log: true}", Range(9, 90, integer=True, scale="log")),
        ("model.width", "{min: 8, max: 64, distribution: log_uniform}", Range(8, 64, integer=True, scale="log")),
        ("loss.k", "{min: 2.0, max: 9.5}", Range(2, 9.5, integer=True)),
    ],
)
def test_the_form_of_a_parameter_sets_its_domain(file, knob, form, domain):
    request = read_sweep_file(file(f"method: tpe\nrun_cap: 2\nparameters: {{{knob}: {form}}}\n"))
    assert request.space.scientific[0].domain == domain


def test_a_fixed_setting_may_be_a_list(file):
    text = "parameters: {loss.margin: {values: [0.1, 0.2]}}\nfixed: {evaluation.ks: [1, 10]}\n"
    assert read_sweep_file(file(text)).space.fixed["evaluation.ks"] == [1, 10]


def test_values_of_null_are_no_list(file):
    with pytest.raises(ConfigError, match=r"mine\.yaml.*`values` must be a list"):
        read_sweep_file(file("parameters: {loss.margin: {values: null}}"))


def test_a_wrong_setting_does_not_hide_right_ones(file, cache_dir, tmp_path):
    """Otherwise data that `data.strict: false` allows would be reported as wrong too."""
    birds = cub(tmp_path / "birds")
    text = "parameters: {loss.margin: {values: [0.1, 0.2]}}\ndataset: cub200\ndata_root: birds\n"
    for wrong in ("model.bacbone: small_conv", "training.steps: {a: 1}"):
        path = file(f"{text}fixed: {{data.strict: false, {wrong}}}\n")
        request, problems = read_with_problems(path)
        with pytest.raises(ConfigError) as error:
            prepare(replace(request, data_root=birds), cache_dir=cache_dir)
        assert not [problem for problem in (*problems, *error.value.problems) if "11788" in str(problem)]


def test_folders_are_relative_to_the_file_and_home_is_expanded(file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = "method: grid\nparameters: {loss.margin: {values: [0.1, 0.2]}}\ndataset: image_folder\n"
    assert read_sweep_file(file(text + "data_root: ~/birds\n")).data_root == tmp_path / "home" / "birds"
    assert read_sweep_file(file(text + "data_root: birds\n")).data_root == tmp_path / "birds"


ARMS = """
arms: {triplet: {loss.name: triplet}, ms: {loss.name: multi_similarity}}
dataset: digits
"""


def test_arms_can_be_as_short_as_names_with_settings(file, cache_dir):
    plan = prepare(Request(file(ARMS)), cache_dir=cache_dir).plan
    found = {cell.label: cell.settings["loss.name"] for cell in plan.cells}
    assert found == {"triplet": "triplet", "ms": "multi_similarity"}
    assert {arm.protocol.name for arm in plan.arms} == {"digits/quick"}


def test_words_that_old_yaml_reads_as_true_or_false_are_text_and_settings_still_read_them(file):
    arms = "arms: {on: {regularizer.name: sec}, off: {regularizer.name: none}}\nname: 2026-11-28\nbaseline: off\n"
    request = read_sweep_file(file(f"{arms}fixed: {{loss.name: triplet, model.freeze_bn: yes, optim.lr: 1e-3}}\n"))
    assert ([arm.name for arm in request.space.arms], request.space.name) == (["on", "off"], "2026-11-28")
    cell = make_plan(study_of(replace(request, dataset="glyphs"))).cells[0]
    assert (cell.settings["model.freeze_bn"], cell.settings["optim.lr"]) == (True, 1e-3)


def test_an_arm_can_have_every_key(file):
    request = read_sweep_file(
        file(
            """
parameters: {batch.batch_size: {values: [80, 160]}}
arms:
  topk:
    settings: {loss.base: margin}
    parameters: {loss.name: {value: dro_topk}, batch.instances_per_class: {values: [2, 5]}}
    ties: {loss.k: {knob: batch.batch_size, factor: 2.0}}
    protocol: glyphs/dro
  plain: {settings: {loss.name: margin_all}, knobs: []}
baseline: plain
tune: [optim.lr]
protocol: glyphs/dro
differs: M is what they differ in
"""
        )
    )
    topk, plain = request.space.arms
    assert topk.settings == {"loss.base": "margin", "loss.name": "dro_topk"}
    assert (topk.knobs, plain.knobs) == (None, ())
    assert [(knob.path, knob.domain.values) for knob in topk.own_knobs] == [("batch.instances_per_class", (2, 5))]
    assert topk.ties == (Tie("loss.k", "batch.batch_size", 2),)
    assert [protocol.name for protocol in topk.protocols] == ["glyphs/dro"]
    assert (request.tune, request.protocol) == ({"optim.lr": ()}, "glyphs/dro")
    assert (request.space.baseline, request.space.differs) == ("plain", "M is what they differ in")
    assert not request.space.problems()


def test_a_tie_must_follow_a_knob_of_numbers(file):
    text = "arms: {a: {settings: {loss.name: dro_topk}, ties: {loss.k: {knob: a.b, factor: 2}}}}\ndataset: digits\n"
    with pytest.raises(ConfigError, match=r"loss\.k of a: follows a\.b, whose values must be numbers"):
        prepare(Request(file(f"{text}parameters: {{a.b: {{values: [x, y]}}}}")))


def test_a_file_trains_by_the_default_protocol_of_its_data_set_and_loss(file):
    def protocol(dataset, loss):
        text = f"parameters: {{loss.name: {{value: {loss}}}, optim.lr: {{values: [0.1, 0.2]}}}}\ndataset: {dataset}"
        return study_of(Request(file(text))).arms[0].protocol.name

    assert protocol("glyphs", "triplet") == "glyphs/triplet"
    assert protocol("glyphs", "mpa") == "glyphs/proxy"
    assert protocol("cub200", "triplet") == "sec/cub200"
    assert protocol("cub200", "multi_similarity") == "sec/cub200-ms"
    assert protocol("cub200", "dro_kl") == "dro/cub200"


def test_a_file_adds_arms_to_a_sweep_that_has_none(file, cache_dir):
    begun = prepare(Request(space_of(Knob("optim.lr", Grid((0.1, 0.2)))), "digits"), cache_dir=cache_dir).plan
    plan, names = with_arms_of_files(begun, [str(file(ARMS))])
    assert names == ["triplet", "ms"]
    grown = plan.extend(arms=["ms"])
    labels = ["optim.lr=0.1", "optim.lr=0.2", "ms: optim.lr=0.1", "ms: optim.lr=0.2"]
    assert [cell.label for cell in grown.cells] == labels
    with pytest.raises(ConfigError, match="must declare an arm that the sweep's space does not have"):
        with_arms_of_files(grown, [str(file(ARMS))])
    with pytest.raises(ConfigError, match="The file has no `arms`"):
        with_arms_of_files(begun, [str(file("parameters: {optim.lr: {values: [0.1, 0.3]}}"))])
    steps = begun.base_settings["training.steps"]
    assert with_arms_of_files(begun, [str(file(f"{ARMS}fixed: {{training.steps: {steps}}}\n"))])[1] == names
    with pytest.raises(ConfigError, match=r"fixed\.training\.steps: must be as in the sweep, but got 7"):
        with_arms_of_files(begun, [str(file(f"{ARMS}fixed: {{training.steps: 7}}\n"))])


def test_documented_sweep_files_can_be_planned(file, cache_dir):
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "sweep-files.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        request = read_sweep_file(file(block))
        on_glyphs = replace(request, dataset="glyphs", data_root=None)
        assert len(make_plan(study_of(on_glyphs)).cells) + request.num_samples > 1


def test_the_docs_name_every_key():
    text = (ROOT / "docs" / "sweep-files.md").read_text()
    words = {*re.findall(r"`(\w+)`", text), *re.findall(r"\b(\w+): ", text)}
    assert {*keys.SweepFile.model_fields, *keys.ArmKeys.model_fields} <= words


def test_a_knob_is_labelled_by_its_last_word_if_unique(file):
    ones = ", ".join(f"{path}: {{values: [1, 2]}}" for path in ("loss.scale", "data.fold", "model.fold"))
    request = read_sweep_file(file(f"parameters: {{loss.name: {{values: [ms, npair]}}, {ones}}}\n"))
    assert [knob.symbol for knob in request.space.knobs] == ["loss.name", "scale", "data.fold", "model.fold"]
