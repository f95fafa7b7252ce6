"""Check a study without its data: space, options, search, and whether its arms are comparable."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from trainables.errors import ConfigError, Problem
from trainables.option_names import option_names, option_place, option_problem, spell
from trainables.registries import methods_of
from trainables.resolve import Layer, resolve
from tune_dml.planning.cells import PlannedArm, StudyArm, is_searched
from tune_dml.planning.request import Stopping
from tune_dml.planning.stopping import ETA
from tune_dml.planning.study import Search, Study
from tune_dml.space import Range, Space, Value
from tune_dml.text import joined

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def study_problems(study: Study) -> list[Problem]:
    """Return the problems of a study's space and request."""
    own = [*study.space.problems(), *_override_problems(study.space, study.arms, study.settings)]
    reported = {problem.place for problem in study.problems}  # a wrong key is reported once
    every = (*own, *search_problems(study.arms, study.search), *_option_problems(study))
    return [*study.problems, *(problem for problem in every if problem.place not in reported)]


def _option_problems(study: Study) -> Iterator[Problem]:
    """Yield the problems of a study's folder and seeds."""
    reads_a_folder = getattr(methods_of("data").get(study.dataset), "needs_root", True)  # unknown ones: another check
    if study.settings.get("data.root") and not reads_a_folder:
        rule = f"the data set {study.dataset!r} is made from installed packages and reads no folder"
        remedy = f"Leave it out, or use {spell('dataset', 'image_folder')} for a folder of your own."
        yield option_problem("data_root", rule, None, remedy)
    if not study.seeds:
        yield option_problem("seeds", "at least one seed is needed", None, f"Use {spell('seeds', 3)}.")
    if len(set(study.seeds)) < len(study.seeds):
        yield option_problem("seeds", "seeds must differ", list(study.seeds), "Remove the repeats.")


def metric_problems(study: Study) -> list[Problem]:
    """Return a problem if an arm does not measure the metric. Settings that are wrong are reported with the plan."""
    from trainables.tasks import task_of  # imports torch

    space, tasks = study.space, {}
    if space.program is not None:
        return _metric_problems_of_program(space)
    for arm in study.arms:
        settings = {path: value for layer in arm.layers for path, value in layer.settings.items()}
        measuring = {path: value for path, value in settings.items() if path.startswith(("task.", "evaluation."))}
        with contextlib.suppress(ConfigError):  # if other settings are wrong, the task's own settings have to do
            tasks[arm.name] = task_of(resolve(Layer("task", measuring)).config)
            tasks[arm.name] = task_of(arm.resolved.config)
    if study.search.stopping is not None and any(space.metric in task.final_metrics() for task in tasks.values()):
        rule = "cells are compared while they train, and this metric is measured only at the end"
        return [option_problem("stopping", rule, space.metric, "Leave it out, or search by val/recall_at_1.")]
    metrics_of = {name: task.metrics() for name, task in tasks.items()}
    lacking = {name: metrics for name, metrics in metrics_of.items() if space.metric not in metrics}
    if not lacking:
        return []
    is_partial = len(lacking) < len(metrics_of)
    place = space.location("metric")
    place += f" of {', '.join(filter(None, lacking))}" if is_partial else ""
    names = ", ".join(sorted({tasks[name].name for name in lacking}))
    rule = (
        "arms that are compared share the metric" if is_partial else f"must be a validation metric of the task {names}"
    )
    return [Problem(place, rule, space.metric, known=next(iter(lacking.values())), kind="metric")]


def _metric_problems_of_program(space: Space) -> list[Problem]:
    place = space.location("metric") if space.origin else option_place("metric")
    if not space.metric and space.origin:
        return []  # a sweep file without one: reported when it was read
    if not space.metric.strip():
        return [Problem(place, "must name the metric that the program reports", space.metric, "Example: val/accuracy.")]
    if not space.metric.startswith("test/"):
        return []
    rule = "cells are chosen by validation: test/... stays sealed until `tune-dml open`"
    return [Problem(place, rule, space.metric, "Report a validation metric as val/..., and name that.")]


def name_rule_problems(place: str, name: str, remedy: str) -> list[Problem]:
    """Return a problem if a name is invalid for a sweep, whose folder in the storage has the same name."""
    if _NAME.fullmatch(name):
        return []
    rule = "a sweep's name must have 1 to 100 letters, digits, '.', '_' or '-', and start with a letter or digit"
    return [Problem(place, rule, name, remedy)]


def search_problems(arms: Sequence[StudyArm | PlannedArm], search: Search) -> Iterator[Problem]:
    """Yield the problems of the search method and its options."""
    listed = [arm for arm in arms if search.method == "grid" or arm.baseline]
    ranges = dict.fromkeys(knob.path for arm in listed for knob in arm.knobs if isinstance(knob.domain, Range))
    tpe, samples = spell("search", "tpe"), spell("num_samples", 20)
    if ranges:
        are = "is a range" if len(ranges) == 1 else "are ranges"
        rule = f"a grid needs listed values, but {joined(list(ranges))} {are}"
        yield option_problem("search", rule, None, f"Use {tpe} and {samples}, or list values.")
    if search.method == "grid":
        if search.num_samples:
            rule = "the values of a grid decide its number of cells"
            yield option_problem("num_samples", rule, None, f"Leave it out, or use {tpe}.")
        return
    if search.num_samples < 1:
        rule = f"search {search.method} needs the number of cells to propose"
        yield option_problem("num_samples", rule, search.num_samples or None, f"Use {samples}.")
    if arms and not any(map(is_searched, arms)):
        rule = "a search needs an arm with knobs; these arms have none"
        yield option_problem("search", rule, None, "Leave it out: without knobs each arm is one cell.")


def arm_problems(space: Space, arms: Sequence[PlannedArm]) -> list[Problem]:
    """Return a problem for each setting that the arms must share but do not. Do not check programs."""
    if space.program is not None:
        return []
    place = space.location("arms")
    shared: dict[str, tuple[Mapping[str, Value], str, str]] = {}
    paths = dict.fromkeys(path for arm in arms for path in arm.base_settings)
    for path in [path for path in paths if path.startswith("data.") or path == "task.name"]:
        values = {arm.name: arm.base_settings[path] for arm in arms if path in arm.base_settings}
        rule = f"arms are compared on the same data and task: {path} must be the same for all"
        shared[path] = values, rule, f"Set it in `fixed`, or with {spell('settings')}."
    if not space.differs:
        # Without listed protocols each loss has its own protocol, and a note says so.
        listed = space.protocols or any(arm.protocols for arm in space.every_arm)
        protocols = {arm.name: arm.protocol.name if arm.protocol else "none" for arm in arms if listed}
        terms = {arm.name: term for arm in arms if (term := _pair_term(arm.base_settings))}
        reductions = {arm.name: found for arm in arms if (found := arm.base_settings.get("loss.reduction")) is not None}
        for trait, values in (("protocol", protocols), ("pair term", terms), ("reduction", reductions)):
            hint = f" with {spell('protocol')}" if trait == "protocol" else ""
            remedy = f"Make them share it{hint}, or say in the space's `differs` why they need not."
            shared[trait] = values, f"arms that are compared must share their {trait}", remedy
    return [
        Problem(place, rule, "; ".join(f"{name or 'the others'}: {value}" for name, value in values.items()), remedy)
        for values, rule, remedy in shared.values()
        if len(set(map(repr, values.values()))) > 1
    ]


def stopping_problems(stopping: Stopping | None, arms: Sequence[PlannedArm]) -> list[Problem]:
    """Return why the cells of these arms cannot be stopped early; no problem if `stopping` is None."""
    if stopping is None:
        return []
    methods = [arm for arm in arms if not arm.baseline]
    if len(methods) != 1 or not methods[0].knobs:
        names = ", ".join(arm.name for arm in methods) or None
        rule = "stops cells of one method that has knobs; several methods are compared on seeds that did not choose"
        return [option_problem("stopping", rule, names, f"Choose one with {spell('arms')}, or leave it out.")]
    return _length_problems(methods[0])


def _length_problems(arm: PlannedArm) -> list[Problem]:
    lengths = {path: arm.base_settings.get(path) for path in ("training.steps", "training.eval_every")}
    searched = {knob.path for knob in arm.knobs} | {tie.path for tie in arm.ties}
    if None in lengths.values() or lengths.keys() & searched or arm.base_settings.get("training.epochs") is not None:
        rule = "compares cells at the same steps: training.steps and training.eval_every must be set, and be no knob"
        remedy = f"Use {spell('settings', {'training.steps': 400})}, or leave it out."
        return [option_problem("stopping", rule, None, remedy)]
    steps, every = (int(length) for length in lengths.values() if length is not None)
    if steps < ETA**2:
        rule = f"compares trials at a ninth of their training, which needs {ETA**2} steps; they have {steps}"
        return [option_problem("stopping", rule, None, "Train longer, or leave it out.")]
    if every <= (ninth := steps // ETA**2):
        return []
    rule = f"must be at most {ninth}: trials are first compared at a ninth of their {steps} steps"
    remedy = f"Use {spell('settings', {'training.eval_every': ninth})}, or leave {spell('stopping')} out."
    return [Problem("training.eval_every", rule, every, remedy)]


def unused_settings(arms: Sequence[PlannedArm], overrides: Mapping[str, Value]) -> list[Problem]:
    """Return a problem for each override without effect, such as a setting of a method that no arm uses."""
    known = dict.fromkeys(path for arm in arms for path in (*arm.base_settings, *(knob.path for knob in arm.knobs)))
    unused = [path for path in overrides if not any(_same_setting(path, own) for own in known)]
    rule = "no arm has this setting: each chooses a method without it"
    remedy = f"Leave it out, or choose other {spell('arms')}."
    problems = [Problem(option_names().setting(path, "--set"), rule, overrides[path], remedy) for path in unused]
    maps, queries = "evaluation.feature_maps", "evaluation.sheet_queries"
    if overrides.get(maps) is True and not any(arm.base_settings.get(queries) for arm in arms):
        rule, remedy = f"has no effect: maps are drawn for the queries of {queries}, which is 0", f"Set {queries}=6."
        problems.append(Problem(option_names().setting(maps, "--set"), rule, True, remedy))
    return problems


def _pair_term(settings: Mapping[str, Value]) -> str:
    """Return the pair term of an arm's loss: its knob `base`, or the one that its class declares."""
    base = settings.get("loss.base")
    if isinstance(base, str):
        return base
    method = methods_of("loss").get(str(settings.get("loss.name")))
    return str(getattr(method, "pair_term", ""))


def _one_trial_remedy(arm: StudyArm, knob: str) -> str:
    """Return how to train one trial with a value of a knob; the method is named, because others lack the knob."""
    given = {path: value for layer in arm.layers for path, value in layer.settings.items()}
    method = f"{knob.partition('.')[0]}.name"
    named = f"--set {method}={given[method]} " if method in given and method != knob else ""
    return f"Leave it out, or use `tune-dml train {named}--set {knob}=...` for one trial."


def _override_problems(space: Space, arms: Sequence[StudyArm], overrides: Mapping[str, Value]) -> list[Problem]:
    """Return problems for overrides of searched settings, of tied settings, and of settings of single arms."""
    compared = {arm.name for arm in arms}  # other arms count too: `extend --arm` may add them later
    arm_of_setting = {
        path: arm.name for arm in sorted(space.arms, key=lambda arm: arm.name in compared) for path in arm.settings
    }
    leave_out = "Leave it out."
    own_arms = "Leave it out, or write arms of your own into a sweep file."
    searched = f"is the knob that {space.name} searches and cannot be set"
    differs = f"differs between the arms of {space.name}"
    claims = {(knob.path, searched): _one_trial_remedy(arm, knob.path) for arm in arms for knob in arm.knobs}
    claims |= {
        (tie.path, f"follows {tie.knob} in {space.name} and cannot be set"): leave_out
        for arm in arms
        for tie in arm.ties
    }
    claims |= {
        (path, f"{differs} ({arm} sets it) and cannot be set for all"): own_arms for path, arm in arm_of_setting.items()
    }
    problems = [
        option_problem("settings", f"{own} {rule}", None, leave_out if space.program else remedy)
        for path in overrides
        for (own, rule), remedy in claims.items()
        if _same_setting(path, own)
    ]
    for path, option, value in (("data.name", "dataset", overrides.get("data.name")), ("seed", "seeds", 3)):
        if path in overrides:
            rule = f"{path} is not a setting but an option"
            problems.append(option_problem("settings", rule, None, f"Use {spell(option, value)}."))
    return problems


def _same_setting(first: str, second: str) -> bool:
    """Return whether two paths name one setting. A path may include the method's field: `model.pooling.p`."""
    parts = first.split("."), second.split(".")
    lengths = {len(path) for path in parts}
    return first == second or (lengths == {2, 3} and parts[0][0] == parts[1][0] and parts[0][-1] == parts[1][-1])
