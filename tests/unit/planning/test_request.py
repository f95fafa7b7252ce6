"""Options are declared once: Python's keywords, signatures and descriptions follow from the declaration."""

import inspect
import math
import re
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import get_type_hints

import numpy as np
import pytest
import torch
from helpers.published_formats import image_folder
from helpers.toys import plan_of, space_of

import tune_dml
from trainables.errors import ConfigError, Problem
from tune_dml import operations
from tune_dml.planning.checks.data import floors_of
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.plan import Plan, make_plan
from tune_dml.planning.request import Racing, Request, Resources, Session
from tune_dml.planning.study import study_of
from tune_dml.space import Grid, Knob

OPERATIONS = {
    tune_dml.run_sweep: (Request, Racing, Session),
    tune_dml.resume_sweep: (Session,),
    tune_dml.extend_sweep: (Session,),
    tune_dml.confirm_sweep: (Session,),
}


@pytest.mark.parametrize(("function", "groups"), OPERATIONS.items(), ids=lambda item: getattr(item, "__name__", ""))
def test_public_functions_take_the_declared_options(function, groups):
    taken = inspect.signature(function).parameters
    declared = {field.name: field for group in groups for field in fields(group)}
    assert declared.keys() <= taken.keys()
    hints = get_type_hints(function)
    declared_types = {name: hint for group in groups for name, hint in get_type_hints(group).items()}
    for name in declared.keys() & taken.keys():
        assert hints[name] == declared_types[name], name
        default = MISSING if name == "space" else declared[name].default  # `--command` stands for a space
        assert taken[name].default == (taken[name].empty if default is MISSING else default), name
    positional = [name for name, parameter in taken.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert len(positional) == 1


def test_every_argument_of_run_sweep_is_described():
    described = re.findall(r"^    (\w+): [A-Z]", inspect.getdoc(tune_dml.run_sweep), re.MULTILINE)
    assert described == [*inspect.signature(tune_dml.run_sweep).parameters, "ConfigError"]


def test_an_unknown_keyword_names_the_nearest():
    with pytest.raises(TypeError, match=r"run_sweep\(\) got an unexpected keyword argument 'sedes'.*'seeds'"):
        tune_dml.run_sweep("sec_rho", sedes=3)
    with pytest.raises(TypeError, match=r"resume_sweep\(\): missing a required argument: 'name'"):
        tune_dml.resume_sweep()
    with pytest.raises(TypeError, match=r"load_sweep\(\): too many positional arguments.* Write storage=\.\.\."):
        tune_dml.load_sweep("rho1", "sweeps")


WRONG = {
    "search": ("tp", "must be 'grid', 'tpe', 'gp', 'bayes', 'cmaes', 'nsga2', 'random' or 'qmc'"),
    "vary": ("all of it", "must be 'init', 'order', 'split' or 'all'"),
    "margin": ("1", "must be a number"),
    "seeds": (2.0, "must be a whole number or a list"),
    "arms": ("triplet", "must be a list"),
    "settings": (["loss.margin=1"], "must be a mapping"),
    "storage": (3, "must be text or a path"),
    "resources": ({"workers": 2}, "must be tune_dml.planning.request.Resources"),
    "console": (True, "must be rich.console.Console"),
    "data_progress": (3, "must be callable"),
}


def test_keywords_of_another_type_are_all_named_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError) as error:
        tune_dml.run_sweep("sec_rho", **{name: value for name, (value, _) in WRONG.items()})
    assert {problem.place: problem.rule for problem in error.value.problems} == {n: r for n, (_, r) in WRONG.items()}
    assert not list(tmp_path.iterdir())


def test_nested_settings_name_their_key_and_the_dotted_name():
    settings, values = (
        {"training.steps": 5, "model": {"head": "linear"}, 3: 1},
        {"loss": {"margin": [1]}, "optim.lr": 3},
    )
    with pytest.raises(ConfigError) as error:
        tune_dml.run_sweep("sec_rho", settings=settings, tune=values)
    model, keys, loss, rate = map(str, error.value.problems)
    assert re.match(
        r"settings\['model'\]: must be a number, .* dotted names: settings={'model.head': 'linear'}\.$", model
    )
    assert keys == "settings, keys: must be text, but got 3."
    assert loss.endswith("Write dotted names: tune={'loss.margin': [1]}.")
    assert rate == "tune['optim.lr']: must be a list, but got 3."


def test_a_report_checks_its_arguments_before_it_opens_test_metrics(monkeypatch):
    monkeypatch.setattr(operations, "open_results", lambda state: pytest.fail("opened"))
    sweep = object.__new__(tune_dml.Sweep)
    with pytest.raises(ConfigError) as error:
        tune_dml.write_report(sweep, "report", unseal_test="no", forms=["jpg"], margin="1")
    assert [problem.place for problem in error.value.problems] == ["margin", "unseal_test", "forms"]
    with pytest.raises(ConfigError, match=r"sweep: must be tune_dml.sweep.Sweep, but got 'rho1'"):
        tune_dml.write_report("rho1", "report")
    with pytest.raises(ConfigError, match="name: must be text, but got 3"):
        tune_dml.load_sweep(3)


def test_every_kind_of_list_and_mapping_is_accepted(monkeypatch):
    arrived = []
    monkeypatch.setattr(operations, "run", lambda request, *rest, **named: arrived.append(request))
    given = {
        "seeds": range(3),
        "arms": ("a",),
        "settings": MappingProxyType({"a": 1, "b": None}),
        "data_root": Path("x"),
        "tune": {"optim.lr": (0.1, 1)},
        "margin": 1,
    }
    tune_dml.run_sweep("sec_rho", **given)
    assert arrived == [Request("sec_rho", **given)]
    numpy_given = {"seeds": np.arange(2), "margin": np.float32(0.5), "tune": {"optim.lr": np.array([1.0, 2.0])}}
    tune_dml.run_sweep("sec_rho", num_samples=np.int64(4), **numpy_given)
    tune_dml.run_sweep("sec_rho", seeds=[np.int64(0), 1])
    assert (arrived[1].seeds, arrived[1].margin, arrived[1].num_samples) == ([0, 1], 0.5, 4)
    assert arrived[1].tune == {"optim.lr": [1.0, 2.0]}
    assert arrived[2].seeds == [0, 1]


@pytest.mark.parametrize(
    ("resources", "place"),
    [
        (Resources(workers=0), "workers"),
        (Resources(cpus_per_worker=0), "cpus_per_worker"),
        (Resources(gpus_per_worker=1.5), "gpus_per_worker"),
        (Resources(gpus_per_worker=-1.0), "gpus_per_worker"),
        (Resources(workers=2, gpus_per_worker=0.5, engine="train"), "gpus_per_worker"),
        (Resources(workers=2), "engine"),
        (Resources(placement="spread"), "placement"),
        (Resources(placement="anywhere"), "placement"),
        (Resources(engine="remote"), "engine"),
    ],
)
def test_impossible_resources_are_refused(resources, place):
    assert [problem.place for problem in resources.problems()] == [place]


def test_resources_of_a_trial_are_summed_over_workers():
    four = Resources(workers=4, cpus_per_worker=2, gpus_per_worker=1.0, engine="train")
    assert (four.cpus, four.gpus, four.problems()) == (8, 4.0, [])


@pytest.mark.parametrize(
    ("options", "places"),
    [
        *(({"experiment": name}, ["experiment"]) for name in ("", "  ", "a\0b", "a\nb")),
        *(({"storage": Path(name)}, ["storage"]) for name in ("x" * 300, "a\0b", "/proc/tune_dml")),
        ({"max_concurrent": 0, "time_budget": -1.0}, ["max_concurrent", "time_budget"]),
        ({"time_budget": math.nan}, ["time_budget"]),
        *((options, []) for options in ({"experiment": "Größe 1/α"}, {"storage": Path("a/b")})),
    ],
)
def test_a_session_that_cannot_run_is_refused_and_nothing_is_created(tmp_path, options, places):
    assert [problem.place for problem in Session(**options).problems()] == places
    assert not list(tmp_path.iterdir())


def test_problems_of_a_request_and_of_its_caller_are_reported_together(tmp_path):
    wrong = Request("sec_rho", dataset="digits", name="../x", settings={"loss.margni": 1})
    with pytest.raises(ConfigError) as error:
        prepare(wrong, cache_dir=tmp_path, other_checks=[lambda: [Problem("cluster", "must answer")]])
    assert [problem.place for problem in error.value.problems] == ["loss.margni (settings)", "name", "cluster"]


def test_settings_without_meaning_for_a_choice_are_named(cache_dir):
    settings = {"loss.name": "semihard_triplet"}
    checked = prepare(Request("sec_rho", dataset="digits", settings=settings), cache_dir=cache_dir)
    assert checked.plan.base_settings["loss.name"] == "semihard_triplet"
    dropped = {note.partition("=")[0]: note for note in checked.notes if "is not kept for 'semihard_triplet'" in note}
    assert dropped["loss.margin"].endswith("its own default 0.2 is used")
    assert checked.plan.name == "sec_rho-digits"
    assert checked.plan.seeds == (0, 1, 2)


@pytest.mark.parametrize("asked", [10**9, 10**20, range(20_000), True, [0, -1], [2**32], [0.5], ["1"], [True]])
def test_too_many_seeds_are_refused_before_they_are_listed(asked):
    with pytest.raises(ConfigError) as error:
        prepare(Request("sec_rho", dataset="digits", seeds=asked))
    assert error.value.problems[0].place == "seeds"


@pytest.fixture
def small(tmp_path):
    """Return a request of batches of two classes, for a folder of 8 classes."""
    settings = {"data.size": 32, "batch.batch_size": 4, "batch.instances_per_class": 2, "loss.name": "triplet"}
    return Request("sec_rho", "image_folder", image_folder(tmp_path / "pictures"), settings=settings)


def test_too_few_queries_for_the_margin_are_noted(small, tmp_path):
    notes = prepare(small, cache_dir=tmp_path / "cache").notes
    (coarse,) = [note for note in notes if "in steps of" in note]
    assert coarse.startswith("10 validation pictures: val/recall_at_1 of a trial moves in steps of 10 points")
    assert coarse.endswith("that no difference matters takes 156 seeds or more.")  # at 4 %, a look at all of them
    wide = replace(small, margin=10.0)
    assert not any("in steps of" in note for note in prepare(wide, cache_dir=tmp_path / "cache").notes)


def test_notes_on_classes_of_unequal_sizes_hold_for_every_seed(small, tmp_path):
    for number in (0, 1, 3):
        (tmp_path / "pictures" / f"class{number}" / "0.jpg").unlink()
    notes = prepare(replace(small, seeds=5), cache_dir=tmp_path / "cache").notes
    (coarse,) = [note for note in notes if "in steps of" in note]
    assert coarse.startswith("8 validation pictures under the seed with the fewest: ")
    assert any(note.startswith("Classes: ") and "for test, under seed 0. A search" in note for note in notes)


@pytest.mark.parametrize(
    ("settings", "classes", "said"),
    [
        ({"batch.batch_size": 60, "batch.instances_per_class": 3}, 8, "batch.batch_size"),
        ({}, 4, "training needs at least 2 classes"),
        ({"data.folds": 9}, 8, "validation half needs at least 2"),
        ({"data.split_file": "split.txt"}, 8, "every class must be"),
    ],
)
def test_splits_and_batches_are_checked_before_a_picture_is_decoded(small, tmp_path, settings, classes, said):
    (tmp_path / "split.txt").write_text("class0 train\n")
    pictures = image_folder(tmp_path / str(classes), classes=classes)
    asked = replace(small, data_root=pictures, settings={**small.settings, **settings})
    cache = tmp_path / "cache"
    with pytest.raises(ConfigError, match=said) as before:
        prepare(asked, cache_dir=cache, decode=False)
    assert not list(cache.glob("image_folder-*"))
    with pytest.raises(ConfigError) as after:
        prepare(asked, cache_dir=cache)
    assert before.value.problems == after.value.problems


def test_a_plan_notes_the_split_before_pictures_are_decoded(small, tmp_path):
    planned, decoded = (prepare(small, cache_dir=tmp_path / "cache", decode=decode) for decode in (False, True))
    assert planned.notes == decoded.notes
    assert any(note.startswith("Classes: 2 (10 pictures) for training") for note in planned.notes)


def test_floors_are_those_of_retrieval(monkeypatch):
    monkeypatch.setattr("trainables.tasks.floors.measure_floors", lambda config, *_, **__: {config.task.name: {}})
    retrieval = plan_of(Knob("optim.lr", Grid((0.1,))))
    assert floors_of(retrieval, None) == {"retrieval": {}}
    other = {"task.name": "contrastive", "loss.name": "nt_xent"}
    other |= {"augment.name": "simclr", "data.split": "shared_classes"}
    assert floors_of(plan_of(space=space_of(Knob("optim.lr", Grid((0.1,))), fixed=other)), None) == {}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seeds": 0}, "seeds: at least one seed is needed. Use seeds=3."),
        (
            {"num_samples": 5},
            'num_samples: the values of a grid decide its number of cells. Leave it out, or use search="tpe".',
        ),
        ({"settings": {"loss.margn": 1}}, "loss.margn (settings): unknown setting. Did you mean 'loss.margin'?"),
        ({"dataset": "image_folder"}, "data_root: the data set 'image_folder' needs the folder of its pictures."),
        ({"tune": {"loss.name": []}}, 'tune={"loss.name": [A, B, C]}'),
        ({"arms": ["x"]}, "arms: unknown arm of sec_rho: 'x'"),
    ],
)
def test_errors_from_python_name_arguments_instead_of_flags(asked, said):
    with pytest.raises(ConfigError) as error:
        prepare(Request("sec_rho", **asked))
    assert said in str(error.value)
    assert "--" not in str(error.value)


def test_an_argument_beside_a_sweep_file_keeps_its_own_name():
    Path("mine.yaml").write_text("parameters: {loss.margin: {values: [0.1, 0.2]}}\nmargin: 2\ndataset: glyfs")
    with pytest.raises(ConfigError) as error:
        prepare(Request("mine.yaml", seeds=[1, 1]))
    assert [problem.place for problem in error.value.problems] == ["seeds", "mine.yaml, dataset"]


def test_the_split_file_of_a_folder_is_found_from_every_working_folder(tmp_path):
    study = study_of(Request("sec_eta", "image_folder", settings={"data.root": "p", "data.split_file": "split.txt"}))
    assert study.settings["data.split_file"] == str(tmp_path / "split.txt")


def test_a_space_of_a_package_may_have_values_of_numpy(tmp_path, monkeypatch):
    steps = Knob("training.steps", Grid(tuple(np.arange(10, 30, 10))))
    space = space_of(steps, fixed={"batch.batch_size": np.int64(9)})
    monkeypatch.setattr("tune_dml.catalogue.spaces", lambda: {"theirs": space})
    plan = make_plan(study_of(Request("theirs", "digits")))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_scalars_of_numpy_and_torch_are_stored_as_numbers(tmp_path):
    def planned(number, seeds, steps):
        space = space_of(Knob("training.steps", Grid(steps)), fixed={"batch.batch_size": number(9)})
        settings = {"training.eval_every": number(5), "optim.lr": number(0.5)}
        plan = make_plan(study_of(Request(space, "digits", seeds=seeds, settings=settings)))
        return plan.extend(seeds=[number(7)], values={"training.steps": [number(40)]})

    expected = planned(lambda number: number, [0, 1], (10, 20))
    for number in (np.array, torch.tensor):
        steps = tuple(np.arange(10, 30, 10))
        plan = planned(lambda value, number=number: number(value)[()], [np.int64(0), np.uint8(1)], steps)
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan == expected
        assert plan.identity() == expected.identity()
        assert [cell.label for cell in plan.cells] == [cell.label for cell in expected.cells]
