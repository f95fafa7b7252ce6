"""Small rules of planning at their limits: a table of calls and results each."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.published_formats import image_folder
from helpers.toys import plan_of, space_of

from trainables.errors import Problem
from trainables.models import BACKBONES
from trainables.resolve import Layer, resolve
from trainables.tasks import task_of
from tune_dml.planning import continuation
from tune_dml.planning.arms.fitting import TrainingPart, _values_around, positive_pairs, training_part, untuned_notes
from tune_dml.planning.cells import PlannedArm
from tune_dml.planning.checks.data_findings import _copy_findings, _label_shift
from tune_dml.planning.checks.dry_run import _with_micro_batch, start_notes
from tune_dml.planning.checks.effects import _rate_notes, _used_memory, effective_settings
from tune_dml.planning.checks.prepare import _cautions, _stopping_notes
from tune_dml.planning.files.keys import _listed_seeds
from tune_dml.planning.request import Racing, Resources, Session
from tune_dml.planning.rules import _length_problems, _same_setting, name_rule_problems
from tune_dml.planning.stopping import rungs_of
from tune_dml.planning.study import Search, listed_seeds
from tune_dml.space import Arm, Grid, Knob, Protocol

MARGIN = Knob("loss.margin", Grid((0.1, 0.2)))
STEPS = {"training.steps": 90, "training.eval_every": 10}
TASK = task_of(resolve().config)


def lengths(steps, every, **more):
    return PlannedArm("", {"training.steps": steps, "training.eval_every": every, **more}, {}, knobs=(MARGIN,))


def drawn(sampler="m_per_class", **settings):
    return {"batch.sampler": sampler, "batch.batch_size": 6, "batch.instances_per_class": 3, **settings}


def memory(steps, size=100, start=2, **more):
    return {"training.steps": steps, "memory.size": size, "memory.start": start, "batch.batch_size": 6, **more}


@pytest.mark.parametrize(
    ("function", "cases"),
    [
        (_same_setting, {("a.b", "a.b"): True, ("a.x.b", "a.b"): True, ("a.b", "a.x.b"): True, ("c.x.b", "a.b"): False,
                         ("a.x.b", "a.c"): False, ("a.x.b", "a.y.b"): False, ("a.b", "a.c"): False}),
        (lambda *lengths: rungs_of(dict(zip(("training.steps", "training.eval_every"), lengths, strict=True))),
         {(400, 1): (44, 133), (400, 20): (40, 140), (400, 44): (44, 132), (90, 10): (10, 30), (9, 1): (1, 3),
          (100, 7): (14, 35)}),
        (lambda steps, every: [p.place for p in _length_problems(lengths(steps, every))],
         {(9, 1): [], (8, 1): ["stopping"], (90, 10): [], (90, 11): ["training.eval_every"], (None, 1): ["stopping"]}),
        (_values_around, {(0.1,): (0.033, 0.1, 0.3), (1,): (1, 3), (2,): (1, 2, 6), (10,): (3, 10, 30)}),
        (lambda seeds: len(listed_seeds(seeds)), {(10_000,): 10_000}),
        (listed_seeds, {(3,): (0, 1, 2), (range(3),): (0, 1, 2), ((7, 0),): (7, 0), ((0, 2**32 - 1),): (0, 2**32 - 1)}),
        (lambda name: len(name_rule_problems("name", name, "")), {("x" * 100,): 0, ("x" * 101,): 1, ("1.a-_",): 0, (".a",): 1}),
        (lambda pairs: effective_settings(drawn(**{"loss.name": "dro_topk", "loss.k": pairs}))["loss.k"],
         {(14,): 14, (15,): 15, (16,): 15}),
        (lambda pairs: effective_settings(drawn(**{"loss.name": "dro_topk_pn", "loss.k": pairs}))["loss.k"],
         {(11,): 11, (12,): 12, (13,): 12}),
        (lambda sampler: positive_pairs(drawn(sampler)), {("m_per_class",): 6, ("random",): None}),
        (lambda steps: _used_memory(memory(steps)), {(3,): 0, (4,): 6, (20,): 100, (2,): 0, (None,): None}),
        (lambda size, epochs: _used_memory(memory(4, size, **{"training.epochs": epochs})),
         {(0, None): None, (3, None): 3, (9, 1.0): None}),
        (lambda max_seeds, budget: len(Racing(True, max_seeds, budget).problems()), {(3, 0.1): 0, (2, 0): 2}),
        (lambda share, workers: len(Resources(workers, 1, share, "train").problems()),
         {(1, 1): 0, (2, 2): 0, (0.5, 1): 0, (0.5, 2): 1, (1.5, 1): 1, (0, 2): 0}),
        (lambda limit: len(Session(stall_limit=limit, start_limit=limit).problems()), {(10,): 0, (9.9,): 2}),
        (lambda count: len(Session(max_concurrent=count, gpu_hours=count).problems()), {(1,): 0, (0,): 2}),
        (lambda *seeds: _listed_seeds({"values": list(seeds)}), {(0, 1): [0, 1], (-1, 1): [], (0, 0.5): []}),
        (lambda seeds: len(_cautions(plan_of(MARGIN, seeds=seeds))), {(1,): 1, (2,): 0}),
        (lambda size: _with_micro_batch(TASK, size).config.training.micro_batch, {(None,): None, (0,): None, (1,): 1}),
        (lambda rule: [text in _stopping_notes(plan_of(space=space_of(MARGIN), overrides=STEPS, search=Search(stopping=rule)))[0]
                       for text in ("of the cells, compared at", "of each bracket's cells, compared at")],
         {("asha",): [True, False], ("hyperband",): [False, True]}),
        (lambda own: [knob.path for knob in plan_of(space=space_of(MARGIN, arms=(Arm("a", knobs=own),))).knobs],
         {(None,): ["loss.margin"], ((),): []}),
        (lambda folders, *labels: _label_shift(list(folders), np.array(labels), "abcd"),
         {("abb", 0, 1, 1): [], ("xyy", 0, 1, 1): [],
          ("bba", 0, 1, 1): ["2 of 3 pictures are labelled as another class than that of their folder"],
          ("abcd", 1, 2, 2, 3): ["2 of 4 pictures are labelled as another class than that of their folder"],
          ("abcd", 1, 2, 3, 3): ["labels are shifted by +1: 3 of 4 pictures are labelled as a neighbouring class"]}),
    ],
)  # fmt: skip
def test_rules_at_their_limits(function, cases):
    assert {arguments: function(*arguments) for arguments in cases} == cases


@pytest.mark.parametrize(
    ("dataset", "settings", "fixed", "words"),
    [
        ("image_folder", {"data.root": "p"}, {}, "optim.lr and training.steps have general values"),
        ("image_folder", {"data.root": "p", "optim.lr": 1}, {}, "training.steps has a general value"),
        ("image_folder", {"data.root": "p"}, {"optim.lr": 1, "training.steps": 2}, ""),
        ("image_folder", {"data.root": "my p's"}, {}, """`tune-dml init 'my p'"'"'s'` trains"""),
        ("image_folder", {}, {}, ""),
        ("digits", {"data.root": "p"}, {}, ""),
        ("image_folder", {"data.root": "p"}, {"task.name": "contrastive"}, "Compare a few values with"),
    ],
)
def test_general_values_for_a_users_pictures_are_noted(dataset, settings, fixed, words):
    notes = untuned_notes(space_of(MARGIN, fixed=fixed), dataset, settings)
    assert len(notes) == bool(words)
    assert words in "".join(notes)


def test_copies_are_counted_by_half_and_label():
    images = np.array([0, 0, 1, 1, 2, 2, 2, 3, 4, 4], dtype=np.uint8)[:, None, None, None]
    labels, test = np.array([0, 0, 0, 1, 2, 2, 2, 2, 1, 2]), (2,)
    ten = type("Ten", (SimpleNamespace,), {"__len__": lambda self: len(self.labels)})
    assert _copy_findings(ten(images=images, labels=labels, test_classes=test)) == [
        "2 of 5 test pictures are copies of others, which find each other first",
        "1 picture of the test half also trains",
        "2 pictures with copies under other labels",
    ]


@pytest.mark.parametrize(("rate", "noted"), [(2.9, False), (3.0, True), (1 / 2.9, False), (0.3, True)])
def test_a_rate_three_times_that_of_the_recipe_is_noted(rate, noted):
    arm = PlannedArm("a", {"optim.lr": 1.0, "optim.loss_lr_multiplier": rate}, {})
    assert bool(_rate_notes(plan_of(MARGIN), arm, 1.0, "paper")) == noted


@pytest.mark.parametrize(
    ("settings", "task", "expected"),
    [
        ({}, "retrieval", TrainingPart(2, 2, 3)),
        ({"data.pictures_per_class": 1}, "retrieval", TrainingPart(2, 2, 2)),
        ({"data.validation_fraction": 0.2}, "contrastive", TrainingPart(8, 3, 11, "contrastive")),
        ({"data.root": ""}, "retrieval", None),
        ({"data.split_file": "none.txt"}, "retrieval", None),
        ({"data.pictures_per_class": "two"}, "retrieval", None),
    ],
)
def test_the_training_part_of_a_folder_is_known_before_decoding(tmp_path, settings, task, expected):
    root = image_folder(tmp_path / "pictures")
    for number in range(8):  # classes of one to five pictures
        for picture in sorted((root / f"class{number}").iterdir())[number % 5 + 1 :]:
            picture.unlink()
    assert training_part("image_folder", {"data.root": str(root), **settings}, task) == expected


@pytest.mark.parametrize(("root", "problems"), [("", 0), (".", 0), ("none", 1)])
def test_a_moved_folder_is_named(root, problems):
    plan = SimpleNamespace(base_settings={"data.root": root}, name="toy")
    assert len(continuation._moved_problems(plan)) == problems


@pytest.mark.parametrize(
    ("weights", "printed", "differs"),
    [(None, "a.pth", 1), ("a.pth", "a.pth", 0), ("x/a.pth", "a.pth", 0), ("b.pth", "a.pth", 1), (None, None, 0)],
)
def test_a_start_other_than_the_protocols_is_noted(monkeypatch, weights, printed, differs):
    monkeypatch.setattr(BACKBONES["resnet18"], "start", lambda **_: "Begins.")
    config = resolve(Layer("own", {"model.backbone": "resnet18", "model.weights": weights})).config
    protocol = Protocol("p", "digits", {} if printed is None else {"model.weights": printed})
    (note,) = start_notes([config, config], protocol)
    assert note.startswith("Begins.")
    assert ("Protocol p starts from a.pth" in note) == differs


@pytest.mark.parametrize(("task", "added"), [("contrastive", 1), ("retrieval", 0)])
def test_sweeps_whose_views_were_drawn_with_replacement_do_not_continue(task, added):
    plan = plan_of(MARGIN)
    settings = {"task.name": task, "data.name": "features"}
    older = replace(plan, arms=[replace(arm, base_settings={**arm.base_settings, **settings}) for arm in plan.arms])
    assert older.current_version - older.protocol_version == added


def test_a_problem_with_the_allowed_names_says_the_nearest_and_keeps_it_elsewhere():
    known = {"loss.margin": 0, "optim.lr": 0}
    problem = Problem("tune", "must name a setting", "margin", "Or none.", known=known, kind="setting", dotted=True)
    assert problem.remedy == "Did you mean 'loss.margin'? Or none."
    assert replace(problem, place="--tune").remedy == problem.remedy == pickle.loads(pickle.dumps(problem)).remedy  # noqa: S301
    assert Problem("--loss", "unknown loss", None, known=["triplet"], kind="loss").remedy == "Known losses: triplet."
