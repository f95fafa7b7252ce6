"""Suggested commands can be run: they parse, and the plan accepts them."""

import re
import shlex
from dataclasses import replace

import pytest
from helpers.commands import whole_command
from helpers.toys import FLAT, STEEP, Driver, bare_sweep, space_of, write_sweep
from judging import GRID, TWO_KNOBS, report_of

from tune_dml.cli.options import seeds_of, values_of
from tune_dml.planning.plan import Search
from tune_dml.record.results import results_of
from tune_dml.report import summary
from tune_dml.report.analysis import analyse
from tune_dml.report.questions import answers
from tune_dml.report.section import Section
from tune_dml.report.steps import Step, extend, train_longer
from tune_dml.report.summary import _steps
from tune_dml.space import Grid, Knob, LogRange, Range
from tune_dml.stats.forecast import EVEN, _possible_continuations, sensitivity_is_decided

LR = Knob("optim.lr", LogRange(1e-5, 1e-1), symbol="lr")
LISTED = Knob("optim.lr", Grid((1e-3, 3e-3, 1e-2), scale="log"), symbol="lr")
EVERY = [(label, seed) for label in ("no SEC", *(f"rho={rho:g}" for rho in STEEP)) for seed in range(3)]
SWEEPS = {
    "an edge": {},
    "flat": {"means": FLAT, "sd": 0.3},
    "flat and hopeless": {"means": FLAT, "sd": 1.6, "baseline": 68.0},
    "hopeless with a winner": {"means": FLAT, "sd": 1.6},
    "flat and decided": {"means": FLAT, "sd": 0.05},
    "one seed": {"seeds": (0,)},
    "partial": {"missing": [("rho=0.1", 2)]},
    "all failed": {"failures": dict.fromkeys(EVERY, ("failed", "no disk"))},
    "diverged": {"failures": {("rho=1", seed): ("diverged", "nan") for seed in range(3)}},
    "two knobs": {"space": TWO_KNOBS, "means": {(a, b): STEEP[a] + 3 * b for a, b in GRID}},
    "a search": {
        "space": space_of(LR),
        "means": {10.0**-k: 70 - (k - 3) ** 2 for k in range(1, 6)},
        "baseline": None,
        "search": Search("tpe", 5),
    },
    "a search over listed values": {
        "space": space_of(LISTED),
        "means": {1e-3: 60.0, 3e-3: 65.0, 1e-2: 70.0},
        "baseline": None,
        "search": Search("tpe", 3),
    },
    "a range at its edge": {
        "space": space_of(Knob("model.embedding_dim", Range(8, 512, integer=True, scale="log"))),
        "means": {8: 60.0, 64: 66.0, 512: 70.0},
        "baseline": None,
    },
}


def written(folder, name, **more):
    return bare_sweep(folder / "my_sweep", **SWEEPS[name], **more)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_command_is_accepted(tmp_path, name):
    results = written(tmp_path, name)
    found = summary(results)
    assert (found.answer.step is None) == (not found.commands)
    for command in found.commands:
        program, verb, sweep, *rest = shlex.split(command)
        assert (program, sweep) == ("tune-dml", "my_sweep")
        parsed = whole_command().commands[verb].make_context(verb, [sweep, *rest]).params
        if verb == "extend":
            seeds = seeds_of(parsed["seeds"]) or ()
            added = {"values": values_of(parsed["add"]), "num_samples": parsed["num_samples"]}
            assert results.plan.extend(seeds=seeds, **added).identity() != results.plan.identity()


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("an edge", "tune-dml extend my_sweep --add regularizer.rho=0.001,0.0001"),
        ("flat", "tune-dml extend my_sweep --seeds "),
        ("hopeless with a winner", "tune-dml confirm my_sweep --top 1 --seeds 5"),
        ("one seed", "tune-dml extend my_sweep --seeds 3"),
        ("partial", "tune-dml resume my_sweep"),
        ("all failed", "tune-dml resume my_sweep --retry-failed"),
        ("flat and decided", "tune-dml confirm my_sweep --top 1 --seeds 5"),
    ],
)
def test_the_most_urgent_step_is_advised(tmp_path, name, begins):
    assert summary(written(tmp_path, name)).answer.step.command.startswith(begins)


@pytest.mark.parametrize("name", ["an edge", "one seed", "two knobs"])
def test_the_cost_of_an_extension_is_that_of_its_new_trials(tmp_path, name):
    results = written(tmp_path, name)
    step = summary(results).answer.step
    _, _, _, *rest = shlex.split(step.command)
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    seeds = int(options.get("--seeds", 0))
    longer = results.plan.extend(seeds=seeds, values=values_of([options["--add"]] if "--add" in options else None))
    assert step.trials == len(longer.trials()) - len(results.plan.trials())


def test_of_equally_urgent_steps_the_one_with_the_fewest_trials_for_an_answer_comes_first():
    cheap, sure, unknown = (Step("", "", trials, 40, chance) for trials, chance in ((30, 0.5), (40, 0.9), (40, None)))
    urgent = Step("", "", 900, 41, 0.5)
    section = Section("a", "A", "A", steps=(unknown, cheap, sure, urgent))
    assert _steps([section]) == [urgent, sure, cheap, unknown]


def test_an_answer_that_no_extension_is_likely_to_decide_suggests_none(tmp_path):
    results = written(tmp_path, "flat and hopeless")
    found, needed = summary(results), report_of(results, tmp_path).knob["sensitivity"]
    assert found.answer.step is None
    assert not [command for command in found.commands if "extend" in command]
    assert (needed["seeds_needed"], needed["seeds_chance"] < 0.5) == (None, True)
    assert found.answer.sentences[-1] == (
        "Even with 10 seeds, the chance of showing whether rho matters would be below 50%. Fewer values, a wider range, or "
        "a larger `--margin` may help."
    )
    likely = summary(written(tmp_path / "likely", "flat"))
    assert not [sentence for sentence in likely.answer.sentences if "below 50%" in sentence]


def test_the_sentence_names_the_event_of_its_probability(tmp_path):
    """Diverged values exclude "does not matter", and a winner is expected to beat the baseline."""
    step = summary(written(tmp_path / "a", "flat")).answer.step
    assert re.fullmatch(r"It would show whether rho matters with a chance of about \d\d%\.", step.sentence)
    means = {**FLAT, 0.01: 71.0}
    failures = {("rho=1", seed): ("diverged", "nan") for seed in range(3)}
    lost = bare_sweep(tmp_path / "b", means=means, sd=0.8, failures=failures)
    sections = answers(analyse(lost), traces=False)
    (step,) = [step for section in sections for step in section.steps if "matters" in step.settles]
    assert step.settles == "that rho matters"
    winner = summary(bare_sweep(tmp_path / "c", means=FLAT, sd=1.6, seeds=range(5))).answer.step
    assert re.fullmatch("that rho=.* beats no SEC on fresh seeds", winner.settles)
    assert winner.chance > EVEN


def test_few_seeds_promise_no_chance_of_a_confirmation(tmp_path):
    """At 3 seeds 63 % would be promised, and 41 % come true, for higher promises no more."""
    winner = summary(written(tmp_path, "hopeless with a winner")).answer.step
    assert re.fullmatch("It would show whether rho=.* holds up on fresh seeds.", winner.sentence)


def test_the_stated_chance_is_that_at_the_level_of_the_next_look(tmp_path):
    results = written(tmp_path, "flat")
    analysis = analyse(results)
    step = summary(results).answer.step
    seeds = int(step.command.split()[-1])
    values = analysis.knobs[0].isolated.table.values
    futures = _possible_continuations(values, seeds - 3, 1.0, analysis.resolution)
    decided = sensitivity_is_decided(1.0, resolution=analysis.resolution)
    share = min(decided(tables, analysis.looks.level_at(seeds)).mean() for tables in futures)
    assert step.chance == pytest.approx(share, abs=0.08)


def test_fresh_seeds_unlikely_to_show_a_gain_are_not_suggested(tmp_path):
    results = bare_sweep(tmp_path / "toy", means=dict.fromkeys(FLAT, 60.0), baseline=74.0, seeds=tuple(range(5)))
    (hint,) = [section.hint for section in answers(analyse(results), traces=False) if "fresh" in section.hint]
    assert re.fullmatch(r"Even with 12 .* showing that rho=[\d.]+ beats no SEC would be below 50%\.", hint)
    assert "confirm" not in " ".join(step.command for step in _steps(answers(analyse(results), traces=False)))


def test_training_that_had_not_converged_is_advised_to_be_longer(tmp_path):
    results = write_sweep(tmp_path / "my_sweep", evidence=False)
    typed = shlex.split("tune-dml sweep sec_rho --set training.steps=400 --name=my_sweep --seeds 3 -o x")
    results = replace(results, provenance={"argv": typed})
    (step,) = train_longer(results, "whether it is the same", 5)
    assert step.command == "tune-dml sweep sec_rho --seeds 3 --set training.steps=800 --name my_sweep-800"
    parsed = whole_command().commands["sweep"].make_context("sweep", shlex.split(step.command)[2:]).params
    assert parsed["name"] == "my_sweep-800"
    assert step.trials == len(results.trials)
    grown = replace(results, plan=replace(results.plan, seeds=range(5)))
    (step,) = train_longer(grown, "whether it is the same", 5)
    assert " --seeds 5 " in step.command
    assert step.trials == 5 * len(results.cells)
    for seeds, grown_seeds in (("--seeds=3", "5"), ("--seeds=0,1,2", "0,1,2,3,4")):
        again = replace(grown, provenance={"argv": ["tune-dml", "sweep", "sec_rho", seeds]})
        assert f" --seeds {grown_seeds} " in train_longer(again, "", 5)[0].command
    proposed = replace(results, plan=replace(results.plan, cells=(), search=Search("tpe", 4)))
    assert [step.trials for step in train_longer(proposed, "", 5)] == [12]
    moved = replace(results, folder=tmp_path / "new" / "my_sweep", provenance={"argv": [*typed, "--storage", "old"]})
    (step,) = train_longer(moved, "", 5)
    assert step.command.endswith(f" --name my_sweep-800 --storage {tmp_path / 'new'}")
    for argv in (["train.py"], ["tune-dml", "sweep", "sec_rho", "--tracking-uri", "http://***@here"]):
        assert train_longer(replace(results, provenance={"argv": argv}), "", 5) == ()


@pytest.mark.parametrize(("seeds", "total"), [((0, 1), 3), ((1, 2), 3), ((5, 6), 4), ((0, 7), 3)])
def test_an_extension_adds_as_many_seeds_as_it_says(tmp_path, seeds, total):
    results = bare_sweep(tmp_path / "toy", seeds=seeds)
    (step,) = extend(results, "", 1, seeds=total)
    assert step.command == f"tune-dml extend toy --seeds {total}"
    assert step.trials == (total - 2) * len(results.cells)
    assert len(results.plan.extend(seeds=total).seeds) == total


def test_refused_commands_and_values_without_an_effect_are_not_suggested(tmp_path):
    results = written(tmp_path / "search", "a search over listed values")
    assert extend(results, "whatever", 1, values={"optim.lr": (0.1,)}) == ()
    assert extend(results, "whatever", 1, seeds=2) == ()  # it has three
    batch = {"loss.name": "dro_topk", "batch.batch_size": 6, "batch.instances_per_class": 3}  # of 15 pairs
    space = replace(space_of(Knob("loss.k", Grid((4, 15)))), fixed=batch)
    pairs = bare_sweep(tmp_path / "my_sweep", space=space, means={4: 60.0, 15: 70.0}, baseline=None)
    assert extend(pairs, "whatever", 1, values={"loss.k": (30,)}) == ()
    assert len(extend(pairs, "whatever", 1, values={"loss.k": (8,)})) == 1


def test_an_unknown_chance_is_not_printed_and_a_race_is_not_extended(tmp_path):
    results = written(tmp_path, "flat")
    (step,) = extend(results, "whether rho matters", 40, seeds=9, chance=float("nan"))
    assert step.chance is None
    assert step.sentence == "It would show whether rho matters."
    Driver(results.folder, results.plan).event("race", margin=1.0, max_seeds=10, budget=None)
    raced = results_of(results.folder)
    assert raced.race is not None
    assert not [command for command in summary(raced).commands if "extend" in command]
