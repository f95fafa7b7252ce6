"""The settings in which a run differs from a protocol, and the sweeps that screen them."""

from pathlib import Path

import pytest
from helpers.cuda import write_pictures

from trainables.errors import ConfigError
from trainables.resolve import Layer, resolve
from tune_dml.campaigns.audit import plan_audit
from tune_dml.catalogue import protocols
from tune_dml.planning.audit import Audit, _settings_text
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.differences import differences, reference_config
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.stats.screening import Suspects

TRIPLET = protocols()["glyphs/triplet"]


def audit_of(text, against="glyphs/triplet", **options):
    Path("run.yaml").write_text(text)
    return plan_audit(Request("run.yaml", **options), against, Path())


def names(text, against="glyphs/triplet"):
    audit = audit_of(text, against)
    return {factor.name: (dict(factor.yours), dict(factor.protocol)) for factor in audit.factors}


def test_a_method_is_one_difference_and_unset_settings_follow_the_protocol():
    found = names("{loss: {name: triplet, margin: 0.3}, optim.name: sgd, seed: 3}")
    assert found == {
        "loss.margin": ({"loss.margin": 0.3}, {"loss.margin": 1.0}),
        "optim.name": (
            {"optim.name": "sgd", "optim.momentum": 0.9, "optim.nesterov": False},
            {"optim.name": "adamw", "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-8},
        ),
    }


def test_dependent_settings_are_one_difference():
    text = "{batch: {batch_size: 64, instances_per_class: 4}, regularizer: {name: sec, eta: 0.5}, optim.lr: 0.01}"
    found = [set(yours) for yours, _ in names(text).values()]
    assert {"batch.batch_size", "batch.instances_per_class"} in found
    assert {"regularizer.name", "regularizer.eta", "regularizer.rho"} in found
    assert {"optim.lr"} in found


def test_settings_without_effect_are_listed_and_not_screened():
    random = {**reference_config(TRIPLET, "triplet").settings(), "batch.sampler": "random"}
    other = {**random, "batch.instances_per_class": 4, "optim.lr": 0.01}
    found = differences(*(resolve(Layer("run", settings)).config for settings in (other, random)))
    assert found.ineffective == ("batch.instances_per_class",)
    assert [factor.name for factor in found.factors] == ["optim.lr"]


def test_batches_of_our_protocol_fit_a_small_folder_of_pictures(tmp_path):
    """As in a sweep; otherwise the audit's runs would need more classes than the folder has."""
    (tmp_path / "pictures").mkdir()
    write_pictures(tmp_path / "pictures")
    text = f"{{data: {{name: image_folder, root: {tmp_path / 'pictures'}}}, optim.lr: 0.1}}"
    assert [*names(text, "image_folder/small")] == ["optim.lr"]
    audit = audit_of(text, "image_folder/small")
    assert audit.differences.reference.batch.batch_size < protocols()["image_folder/small"].settings["batch.batch_size"]


@pytest.mark.parametrize(
    ("text", "against", "words"),
    [
        ("{loss.name: triplet}", "glyphs/triplet", "no setting differs"),
        ("{loss.name: triplet, optim.lr: 0.1}", "glyphs/tripelt", "Did you mean 'glyphs/triplet'"),
        ("{data.name: digits, optim.lr: 0.1}", "glyphs/triplet", "data.name=digits, the protocol glyphs"),
        ("{optim.lr: fast}", "glyphs/triplet", "optim.lr"),
        ("{optim.lrr: 0.1}", "glyphs/triplet", "optim.lr"),
        ("{optim.lr: 0.02}", "nan", "unknown protocol"),
    ],
)
def test_runs_that_cannot_be_audited_are_refused(text, against, words):
    with pytest.raises(ConfigError, match=words):
        names(text, against)


def test_the_reference_keeps_the_loss_that_its_protocol_names():
    assert reference_config(protocols()["mpa/cub200"], "npair").loss.name == "mpa"


def test_unused_flags_of_a_run_are_refused(tmp_path):
    Path("run.yaml").write_text("optim.lr: 0.02")
    request = Request("run.yaml", "objects", settings={"optim.lr": 1})
    with pytest.raises(ConfigError, match=r"settings: has no effect[\s\S]*dataset: has[\s\S]*cell: has"):
        plan_audit(request, "glyphs/triplet", tmp_path, cell="x")


def test_an_audit_uses_the_pictures_of_the_run(tmp_path):
    text = "{data.name: features, data.root: there, loss.name: triplet, optim.lr: 0.5}"
    assert audit_of(text, "features/triplet").data_root == Path("there")
    assert audit_of(text, "features/triplet", data_root=tmp_path).data_root == tmp_path


def test_trials_of_a_program_are_not_audited(tmp_path):
    Path("own.yaml").write_text("""
command: [python, t.py, "${args}"]
margin: 1
parameters: {a: {values: [1, 2]}}
metric: {name: m, goal: minimize}
""")
    Path("t.py").touch()
    make_plan(study_of(Request("own.yaml", name="own"))).save(tmp_path / "own" / "plan.json")
    for name in ("own.yaml", "own"):
        with pytest.raises(ConfigError, match="these trials run your program"):
            plan_audit(Request(name), "0.5", tmp_path)


def test_a_space_and_a_number_are_compared_with_the_protocol_of_its_loss(tmp_path):
    audit = plan_audit(Request("sec_rho", settings={"optim.lr": 0.02}), "68.4", tmp_path)
    assert (audit.number, audit.protocol.name) == (68.4, "glyphs/triplet")
    assert any("optim.lr" in factor.yours for factor in audit.factors)


@pytest.fixture(scope="module")
def audit(tmp_path_factory) -> Audit:
    file: Path = tmp_path_factory.mktemp("run") / "run.yaml"
    run = "data: {name: digits, label_noise: 0.1}\nloss.name: npair\noptim.lr: 0.01\nmodel.embedding_dim: 2"
    file.write_text(run)
    return plan_audit(Request(str(file)), "digits/quick", file.parent)


def test_each_run_of_the_design_is_a_cell_with_its_settings(audit, cache_dir):
    plan = prepare(Request(audit.screening_space(), "digits", seeds=(0,), name="a"), cache_dir=cache_dir).plan
    assert len(plan.cells) == len(audit.design.levels) == 24
    for cell, levels, seed in zip(plan.cells, audit.design.levels, audit.design.blocks, strict=True):
        assert {cell.settings[f"seeds.{source}"] for source in ("init", "order", "split")} == {seed}
        for factor, level in zip(audit.factors, levels, strict=True):
            expected = factor.yours if level > 0 else factor.protocol
            assert {path: cell.settings.get(path) for path in expected} == dict(expected)
    assert len({cell.digest for cell in plan.cells}) == 24


def test_a_difference_is_described_by_both_sides(audit):
    described = {name: sides for name, *sides in map(audit.describe, range(len(audit.factors)))}
    assert described["model.embedding_dim"] == ["embedding_dim=2", "embedding_dim=16"]
    assert _settings_text({}) == "-"
    assert _settings_text({"optim.name": "sgd", "optim.nesterov": False}) == "name=sgd, nesterov=no"


def test_runs_of_the_suspects_are_cells_with_fresh_seeds(audit, cache_dir):
    runs = ((True, True, False), (True, False, False), (False, True, True), (False, False, False)) * 3
    chosen = Suspects((0, 1, 2), runs)
    request = Request(audit.confirmation_space(chosen), "digits", seeds=(0,), name="b")
    plan = prepare(request, cache_dir=cache_dir).plan
    assert [cell.arm for cell in plan.cells] == list(audit.confirmation_names(chosen))
    assert [cell.settings["seeds.init"] for cell in plan.cells] == [1000] * 4 + [1001] * 4 + [1002] * 4
    for cell, run in zip(plan.cells, runs, strict=True):
        for factor, yours in zip(audit.factors, run, strict=False):
            expected = factor.yours if yours else factor.protocol
            assert {path: cell.settings.get(path) for path in expected} == dict(expected)
    assert len({cell.digest for cell in plan.cells}) == 12


def test_twelve_settings_take_36_trials():
    """Twice 12 in the first stage, and 12 runs of the suspects in the second."""
    audit = audit_of("{loss: {name: triplet, margin: 0.3}, optim.lr: 0.01, model.embedding_dim: 32}")
    assert len(audit.factors) == 3
    assert audit.trials == 24 + 12
