"""Sweep files of programs, in the shapes that W&B's files have, and `--command`."""

from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from trainables.errors import ConfigError
from tune_dml.cli.train import _load_trial
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.files.program import command_request
from tune_dml.planning.request import OwnCommand, Request

WANDB = {
    "program": "train.py",
    "project": "p",
    "method": "grid",
    "metric": {"name": "val_acc", "goal": "maximize"},
    "parameters": {"lr": {"values": [0.1, 0.01]}, "epochs": {"value": 3}},
}


@pytest.fixture
def planned():
    """Plan a file in a folder that has train.py; further keys replace those of `WANDB`, None removes one."""

    def plan(request=None, **changes):
        Path("train.py").touch()
        body = {key: value for key, value in {**WANDB, "margin": 0.5, **changes}.items() if value is not None}
        Path("own.yaml").write_text(yaml.safe_dump(body))
        return prepare(request or Request("own.yaml"))

    return plan


def refusal(planned, **changes):
    with pytest.raises(ConfigError) as raised:
        planned(**changes)
    return str(raised.value)


class TestShapesOfWandb:
    def test_a_grid_of_listed_and_single_values(self, planned):
        checked = planned()
        plan = checked.plan
        assert [cell.label for cell in plan.cells] == ["lr=0.1", "lr=0.01"]
        words = plan.space.program.words(_values(plan.cells[0]), 4, "")
        assert words[2:] == ["train.py", "--epochs=3", "--lr=0.1", "--seed=4"]
        assert (plan.metric, plan.space.goal, plan.dataset, plan.data_digest) == ("val_acc", "maximize", "train.py", "")
        assert any("project is not used" in note for note in checked.notes)
        assert any("unknown" in note for note in checked.notes)

    def test_cells_differ_by_parameters_and_command(self, planned):
        first, second = planned(), planned(command=["python", "${program}", "--lr", "{lr}"])
        digests = {cell.digest for checked in (first, second) for cell in checked.plan.cells}
        assert len(digests) == 4
        assert planned().plan.identity() == first.plan.identity()

    def test_a_parameter_called_seed_is_the_sweeps_seeds(self, planned):
        plan = planned(parameters={**WANDB["parameters"], "seed": {"values": [3, 5]}}).plan
        assert plan.seeds == (3, 5)
        assert "seed" not in plan.cells[0].knobs

    def test_a_random_search_over_ranges(self, planned):
        parameters = {
            "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
            "layers": {"min": 1, "max": 4},
            "dropout": {"distribution": "uniform", "min": 0, "max": 0.5},
            "optimizer": {"values": ["adam", "sgd"]},
        }
        plan = planned(method="random", run_cap=6, parameters=parameters).plan
        assert plan.search.num_samples == 6
        domains = {knob.path: knob.domain for knob in plan.space.knobs}
        assert (domains["layers"].integer, domains["dropout"].integer, domains["lr"].scale) == (True, False, "log")

    def test_nested_parameters_and_lists(self, planned):
        nested = {"model": {"parameters": {"widths": {"values": [[64, 64], [128]]}}}, "lr": {"value": 0.1}}
        plan = planned(parameters=nested).plan
        assert [cell.knobs for cell in plan.cells] == [{"model.widths": "[64, 64]"}, {"model.widths": "[128]"}]

    def test_a_command_with_interpreter_flags(self, planned):
        command = ["${env}", "python", "-m", "train", "${args_no_boolean_flags}"]
        words = planned(command=command, program=None).plan.space.program.words({"amp": True}, 0, "")
        assert words == ["/usr/bin/env", "python", "-m", "train", "--amp", "--seed=0"]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"margin": None}, "margin: name the largest difference of val_acc that does not matter"),
            ({"metric": None}, "own.yaml, metric: must be given: what the program reports"),
            ({"metric": None, "margin": None}, "the largest difference of the metric that does not matter"),
            ({"metric": {"name": "loss"}}, "metric.goal: must be given for a program (W&B's own default is minimize)"),
            ({"metric": {"name": "test/acc", "goal": "maximize"}}, "test/... stays sealed until `tune-dml open`"),
            ({"method": "bayes"}, "search gp needs the number of cells to propose. Use `run_cap: 20`"),
            ({"parameters": {"lr": {"distribution": "log_uniform", "min": -9, "max": -2}}, "method": "random", "run_cap": 3},
             "Write `log_uniform_values`, and min and max as they are"),
            ({"early_terminate": {"type": "hyperband"}}, "early_terminate: a program runs to its end: it cannot be paused"),
            ({"metric": {"name": "loss", "goal": "least"}, "margin": None}, "the largest difference of loss that does not"),
            ({"program": "trian.py"}, "Did you mean 'train.py'?"),
            ({"command": ["python", "${program}", "{lrr}"]}, "unknown parameter '{lrr}'. Did you mean 'lr'?"),
            ({"parameters": {**WANDB["parameters"], "seed": {"min": 1, "max": 5}}}, "Write `seeds: 3` beside `parameters`"),
            ({"parameters": {**WANDB["parameters"], "seed": {"values": [0, 0.5]}}}, "Write `seeds: 3` beside `parameters`"),
            ({"parameters": {**WANDB["parameters"], "seed": {"values": [5, 6]}}, "seeds": 3}, "Leave it out: `seeds` is given."),
            ({"arms": {"a": {"settings": {"lr": 1}}}}, "arms: a program can only have parameters"),
            ({"parameters": {"program": {"values": [1, 2]}}}, "a parameter cannot have the name of the setting"),
            ({"parameters": {"C": {"values": [1, 2]}, "c": {"value": 1}}}, "one environment variable, TUNE_DML_KNOB_C, but got"),
            ({"fixed": {"program": 3}}, "the setting that holds the command, but got 'program'. Rename it."),
            ({"fixed": {"seed": 3}}, "own.yaml: the seed is not a parameter: it pairs the trials of all"),
            ({"stopping": "asha"}, "a program runs to its end: it cannot be paused at a step, but got 'asha'. Leave it out; "),
        ],
    )  # fmt: skip
    def test_necessary_changes_are_named(self, planned, changes, message):
        assert message in refusal(planned, **changes)

    def test_a_wrong_margin_is_one_problem(self, planned):
        assert refusal(planned, margin=-1).endswith("own.yaml, margin: must be greater than 0, but got -1. "
                                                    "Example: margin: 1.0, for one percentage point.")  # fmt: skip
        assert len(refusal(planned, margin=-1).splitlines()) == 1

    def test_each_problem_comes_in_one_error(self, planned):
        text = refusal(planned, margin=None, metric={"name": "loss"}, program="no.py")
        assert len(text.splitlines()) == 3


LR = {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1}
HYPERBAND = {"type": "hyperband", "min_iter": 3, "eta": 3}
WILD = {
    "bayes": {"method": "bayes", "parameters": {"lr": LR, "size": {"values": [16, 32]}}, "early_terminate": HYPERBAND},
    "plain ranges": {"method": "random", "parameters": {"learning-rate": {"min": 0.001, "max": 0.1}}},
    "exponents": {"method": "random", "parameters": {"lr": {"distribution": "log_uniform", "min": -9.2, "max": -2.3}}},
    "nested": {"method": "bayes", "parameters": {"model": {"parameters": {"depth": {"min": 1, "max": 9}, "lr": LR}}}},
    "without metric": {"metric": None, "parameters": {"views": {"values": [1, 2, 3]}, "path": {"values": ["a", "b"]}}},
    "without goal": {"metric": {"name": "val_loss"}, "entity": "me", "description": "a study"},
    "hydra": {
        "command": ["${env}", "python", "-m", "train", "+a=b", "${args_no_hyphens}", "run.dir=${run_name}/${now:%Y}"],
        "parameters": {"trainer.lr": LR, "trainer.size": {"values": [256, 512]}}, "method": "bayes",
    },
    "flags": {
        "command": ["${interpreter}", "${program}", "--iterations", 3000, "--amp", "${args_no_boolean_flags}"],
        "parameters": {"amp": {"values": [True, False]}, "angle": {"values": [0.2, 0.5]}},
    },
    "seed": {"parameters": {"seed": {"values": [1, 2, 3]}, "layers": {"values": [[64, 64], [128]]}}},
    "steps": {"method": "random", "parameters": {"width": {"distribution": "q_uniform", "q": 64, "min": 64, "max": 192}}},
    "integers": {
        "controller": {"type": "local"}, "method": "random",
        "parameters": {"depth": {"distribution": "int_uniform", "min": 3, "max": 20}},
    },
}  # fmt: skip
"""Shapes of W&B's files as public repositories have them."""
EDITS = {
    "margin": lambda body: body | {"margin": 0.01},
    "run_cap": lambda body: body | {"run_cap": 5},
    "early_terminate": lambda body: {key: value for key, value in body.items() if key != "early_terminate"},
    "q_uniform is not supported": lambda body: body | {"parameters": {"width": {"values": [64, 128, 192]}}},
    "must be given": lambda body: body | {"metric": {"name": "val_loss", "goal": "minimize"}},
    "log_uniform_values": lambda body: body | {"parameters": {"lr": LR}},
}
"""What a message says -> the change that it asks for."""


@pytest.mark.parametrize("kind", WILD)
def test_a_file_of_another_program_runs_after_the_named_changes(kind, planned):
    body = {"margin": None, **WILD[kind]}
    for _ in range(3):
        try:
            checked = planned(**body)
            break
        except ConfigError as error:
            said = [str(problem) for problem in error.problems]
            edits = [edit for line in said for words, edit in EDITS.items() if words in line]
            assert len(edits) >= len(said), said
            for edit in edits:
                body = edit(body)
    plan = checked.plan
    assert len(plan.cells) + plan.search.num_samples > 1
    tried = plan.cells[0].settings if plan.cells else {}
    words = plan.space.program.words({k: v for k, v in tried.items() if k != "program"}, 1, "knobs.json")
    assert not [word for word in words if word.startswith("${arg")]


class TestACommand:
    COMMAND = "python train.py --lr {lr} --seed {seed}"
    WHOLE: ClassVar = {"params": {"lr": [0.1, 1]}, "metric": "acc", "goal": "minimize"}

    @pytest.fixture
    def planned_command(self, planned):
        def plan(own, **options):
            command = OwnCommand(**{"command": self.COMMAND, **own})
            return planned(command_request(Request(**{"space": "", **options}), command)).plan

        return plan

    def test_parameters_and_metric_come_from_flags(self, planned_command):
        plan = planned_command(self.WHOLE, margin=0.1, seeds=2)
        assert (plan.name, plan.metric, plan.space.goal, plan.margin) == ("train", "acc", "minimize", 0.1)
        assert plan.space.program.words(_values(plan.cells[1]), 1, "")[3:] == ["1", "--seed", "1"]
        assert plan.space.knobs[0].domain.scale == "log"

    def test_a_trial_of_a_program_is_not_trained_here(self, planned_command, tmp_path):
        plan = planned_command(self.WHOLE, margin=0.1)
        plan.save(tmp_path / "sweeps" / "train" / "plan.json")
        with pytest.raises(ConfigError, match=r"a program trained this trial.* with lr=0\.1 and seed 0"):
            _load_trial(plan.trials()[0].key, tmp_path / "sweeps")

    def test_fixed_parameters_are_set(self, planned_command):
        command = f"{self.COMMAND} --epochs {{epochs}}"
        plan = planned_command({**self.WHOLE, "command": command}, margin=0.1, settings={"epochs": 7})
        assert plan.cells[0].settings["epochs"] == 7

    @pytest.mark.parametrize(
        ("own", "options", "message"),
        [
            ({}, {}, "params: a command needs parameters to compare"),
            ({"params": {"lr": [1, 2]}}, {}, "metric: a command needs the metric that it reports, and its direction"),
            (WHOLE, {}, "margin: name the largest difference of acc"),
            ({"command": None, "metric": "acc"}, {"space": "sec_rho"}, "metric: goes with a command"),
            ({}, {"space": "sec_rho"}, "a sweep runs a space, a sweep file or a command, but not two of them"),
            (WHOLE, {"dataset": "digits", "margin": 1}, "dataset: a program reads its own data, but got 'digits'"),
            ({**WHOLE, "params": {"seed": [1, 2]}}, {}, "params: the seed is not a parameter: it pairs the trials of"),
            ({**WHOLE, "params": {"program": [1, 2]}}, {}, "params: a parameter cannot have the name of the setting"),
            (WHOLE, {"settings": {"program": 3}}, "settings: a parameter cannot have the name of the setting that"),
            ({"params": {"lr": [1]}, "command": "python tain.py {lr}"}, {}, "but got 'tain.py'"),
            ({"command": "python 'x"}, {}, "must be a valid shell command (No closing quotation)"),
        ],
    )
    def test_missing_options_are_named(self, planned_command, own, options, message):
        with pytest.raises(ConfigError) as raised:
            planned_command(own, **options)
        assert message in str(raised.value)


def _values(cell):
    return {name: value for name, value in cell.settings.items() if name != "program"}
