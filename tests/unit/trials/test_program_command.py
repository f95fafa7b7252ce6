"""The command of a program: its parsing, and commands refused before anything runs."""

import shlex

import pytest
from helpers.programs import ProgramRun

from tune_dml.planning.files.program import command_request
from tune_dml.planning.request import OwnCommand, Request
from tune_dml.planning.study import study_of
from tune_dml.programs.command import Program, read_command


class TestTheCommand:
    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ("python t.py --lr {optim.lr} --seed {seed}", "python t.py --lr 0.001 --seed 3"),
            ("bash -c 't ${args_no_hyphens} > o'", "bash -c 't optim.lr=0.001 on=True off=False seed=3 > o'"),
            ("t --config=${args_json_file}", "t --config=knobs.json"),
            ("t ${args}", "t --optim.lr=0.001 --on=True --off=False --seed=3"),
            ("t ${args_no_hyphens}", "t optim.lr=0.001 on=True off=False seed=3"),
            ("t ${args_no_boolean_flags}", "t --optim.lr=0.001 --on --seed=3"),
            ("t ${args_json_file}", "t knobs.json"),
            ("t ${args_json}", """t '{"optim.lr": 0.001, "on": true, "off": false, "seed": 3}'"""),
            ("t ${envvar:THERE}", "t yes"),
            ("t '{\"a\": 1}'", "t '{\"a\": 1}'"),
        ],
    )
    def test_placeholders_and_macros_are_expanded(self, command, words, monkeypatch):
        monkeypatch.setenv("THERE", "yes")
        trained = Program(read_command(command), ".")
        found = trained.words({"optim.lr": 0.001, "on": True, "off": False}, 3, "knobs.json")
        assert found == shlex.split(words)

    @pytest.mark.parametrize(
        ("command", "missing"),
        [
            ("t", "lr and seed"),
            ("t {lr}", "seed"),
            ("t {seed}", "lr"),
            ("t {lr} {seed}", ""),
            ("sh -c 't ${args}'", ""),
        ],
    )
    def test_a_note_names_parameters_that_the_command_does_not_pass(self, command, missing):
        notes = Program(read_command(command), ".").notes(["lr"])
        assert [note.partition(":")[0] for note in notes] == [f"The command does not pass {missing}"] * bool(missing)

    @pytest.mark.parametrize(
        ("command", "label"),
        [
            ("${env} ${interpreter} runs/train ${args}", "train"),
            ("${interpreter} -m pkg.train ${args}", "pkg.train"),
            ("python -m pkg.train", "pkg.train"),
            ("nice python sub/train.py", "train.py"),
            ("bin/train {lr}", "train"),
        ],
    )
    def test_a_command_is_named_after_its_program(self, command, label):
        assert Program(read_command(command), ".").label == label

    def test_a_program_without_a_suffix_must_exist_too(self, tmp_path):
        lacking = Program(read_command("${env} ${interpreter} nothere ${args}"), str(tmp_path))
        assert "the script must be in" in str(lacking.missing_problems("mine.yaml, program")[0])
        (tmp_path / "nothere").write_text("")
        assert not lacking.missing_problems("mine.yaml, program")

    @pytest.mark.parametrize(
        ("name", "first", "refused"),
        [
            ("t.sh", "C=1", True),
            ("t", "#!/bin/bash", True),
            ("t", "#!/usr/bin/env python3", False),
            ("t", "#!/usr/bin/env -S uv run --script", False),
            ("t.py", "import os", False),
        ],
    )
    def test_python_is_not_to_run_a_script_of_another_language(self, name, first, refused, tmp_path):
        (tmp_path / name).write_text(f"{first}\n")
        program = Program(read_command(f"${{env}} ${{interpreter}} {name} ${{args}}"), str(tmp_path))
        said = [str(problem) for problem in program.problems(["C"], "mine.yaml, program")]
        assert any(f"[bash, {name}" in text for text in said) == refused

    def test_a_note_names_settings_beside_the_command_that_it_does_not_pass(self):
        own = OwnCommand("true {lr} {seed}", {"lr": [1, 2]}, "acc", "maximize")
        (note,) = study_of(command_request(Request("", settings={"wd": 3}, margin=1.0), own)).space.notes
        assert note.startswith("The command does not pass wd: the script must read it from")

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ("nosuchprogram {lr}", "must begin with an executable program, but got 'nosuchprogram'"),
            ("python trian.py", "Did you mean 'train.py'?"),
            ("python train.py {lrr}", "unknown parameter '{lrr}'. Did you mean 'lr'?"),
            ("python train.py ${arg}", "unknown macro '${arg}'. Did you mean 'args'?"),
            ("python train.py ${args} | tee log", "without a shell, but got '|'. Write it as bash -c COMMAND, with"),
            ("OMP_NUM_THREADS=1 python train.py", "got 'OMP_NUM_THREADS=1'. Write env OMP_NUM_THREADS=1 PROGRAM."),
            ("run.sh {lr}", "must begin with an executable program, but got 'run.sh'. Write ./run.sh."),
            ("./train.py {lr}", "an executable program, but got './train.py'. Write python ./train.py."),
        ],
    )
    def test_problems_are_reported_before_anything_runs(self, command, message, tmp_path):
        (tmp_path / "train.py").touch()
        (tmp_path / "run.sh").touch(0o755)
        problems = Program(read_command(command), str(tmp_path)).problems(["lr"], "--command")
        assert message in "\n".join(map(str, problems))

    def test_a_program_is_searched_in_its_working_directory(self, tmp_path):
        """`./run.sh` is a path from the folder of the trial, not from that of the command line."""
        (tmp_path / "run.sh").write_text("#!/bin/sh\necho '{\"val/accuracy\": 0.5}' > $TUNE_DML_RESULTS\n")
        (tmp_path / "run.sh").chmod(0o755)
        assert Program(("./run.sh", "{lr}"), str(tmp_path)).problems(["lr"], "--command") == []
        assert ProgramRun(tmp_path, "", command=("./run.sh",)).end.metrics == {"val/accuracy": 0.5}
