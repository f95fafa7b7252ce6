"""Check a study without its data: space, options, search, and whether its arms can be compared fairly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trainables.errors import Problem
from trainables.option_names import option_names, option_place, option_problem, spelled
from trainables.registries import methods_of
from tune_dml.planning.cells import PlannedArm, StudyArm, is_searched
from tune_dml.planning.files.program_space import reserved_problems
from tune_dml.planning.study import Search, Study
from tune_dml.space import Range, Space, Value
from tune_dml.text import joined

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def study_problems(study: Study) -> list[Problem]:
    """Return the problems of the space and the request that prevent resolving the study."""
    space, seeds = study.space, study.seeds
    problems = [*space.problems(), *_override_problems(space, study.arms, study.settings)]
    problems += search_problems(study.arms, study.search)
    if study.settings.get("data.root") and not _reads_a_folder(study.dataset):
        rule = f"the data set {study.dataset!r} is made from installed packages and reads no folder"
        remedy = f"Leave it out, or use {spelled('dataset', 'image_folder')} for a folder of your own."
        problems.append(option_problem("data_root", rule, None, remedy))
    if not seeds:
        problems.append(option_problem("seeds", "at least one seed is needed", None, f"Use {spelled('seeds', 3)}."))
    if len(set(seeds)) < len(seeds):
        problems.append(option_problem("seeds", "seeds must differ", list(seeds), "Remove the repeats."))
    known = {problem.place for problem in study.problems}  # consequences of a wrong key are not repeated
    return [*study.problems, *(problem for problem in problems if problem.place not in known)]


def _reads_a_folder(dataset: str) -> bool:
    """Whether a data set is read from files. True for an unknown one, which is reported elsewhere."""
    return bool(getattr(methods_of("data").get(dataset), "needs_root", True))


def name_rule_problems(place: str, name: str, remedy: str) -> list[Problem]:
    """Return a problem if a name is invalid for a sweep, whose folder in the storage has the same name."""
    if _NAME.fullmatch(name):
        return []
    rule = "a sweep's name must have 1 to 100 letters, digits, '.', '_' or '-', and start with a letter or digit"
    return [Problem(place, rule, name, remedy)]


def search_problems(arms: Sequence[StudyArm | PlannedArm], search: Search) -> list[Problem]:
    """Return the problems of the search method and its options."""
    problems = []
    listed = [arm for arm in arms if search.method == "grid" or arm.baseline]
    ranges = dict.fromkeys(knob.path for arm in listed for knob in arm.knobs if isinstance(knob.domain, Range))
    if ranges:
        are = "is a range" if len(ranges) == 1 else "are ranges"
        rule = f"a grid needs listed values, but {joined(list(ranges))} {are}"
        remedy = f"Use {spelled('search', 'tpe')} and {spelled('num_samples', 20)}, or list values."
        problems.append(option_problem("search", rule, None, remedy))
    if search.method == "grid" and search.num_samples:
        rule = "the values of a grid decide its number of cells"
        problems.append(option_problem("num_samples", rule, None, f"Leave it out, or use {spelled('search', 'tpe')}."))
    if search.method != "grid" and search.num_samples < 1:
        rule = f"search {search.method} needs the number of cells to propose"
        problems.append(
            option_problem("num_samples", rule, search.num_samples or None, f"Use {spelled('num_samples', 20)}.")
        )
    if search.method != "grid" and arms and not any(map(is_searched, arms)):
        rule = "a search needs an arm with knobs; these arms have none"
        problems.append(option_problem("search", rule, None, "Leave it out: without knobs each arm is one cell."))
    return problems


def arm_problems(space: Space, arms: Sequence[PlannedArm]) -> list[Problem]:
    """Return a problem for each setting that the arms must share but do not; programs are not checked."""
    problems: list[Problem] = []
    if space.program is not None:
        return problems
    paths = dict.fromkeys(path for arm in arms for path in arm.base_settings)
    same = [path for path in paths if path.startswith("data.") or path == "task.name"]
    for path in same:
        values = {arm.name: arm.base_settings[path] for arm in arms if path in arm.base_settings}
        if len({repr(value) for value in values.values()}) > 1:
            rule = f"arms are compared on the same data and task: {path} must be the same for all"
            remedy = f"Set it in `fixed`, or with {spelled('settings')}."
            problems.append(Problem(space.location("arms"), rule, _listed(values), remedy))
    if space.differs:
        return problems
    protocols = {}
    if space.protocols or any(arm.protocols for arm in space.every_arm):  # else protocols follow losses, with a note
        protocols = {arm.name: arm.protocol.name if arm.protocol else "none" for arm in arms}
    terms = {arm.name: term for arm in arms if (term := _pair_term(arm.base_settings))}
    reductions = {
        arm.name: str(arm.base_settings["loss.reduction"]) for arm in arms if "loss.reduction" in arm.base_settings
    }
    share = "Make them share it{}, or say in the space's `differs` why they need not."
    judged = (
        ("protocol", protocols, f" with {spelled('protocol')}"),
        ("pair term", terms, ""),
        ("reduction", reductions, ""),
    )
    for what, values, hint in judged:
        if len(set(values.values())) > 1:
            rule, remedy = f"arms that are compared must share their {what}", share.format(hint)
            problems.append(Problem(space.location("arms"), rule, _listed(values), remedy))
    return problems


def unused_settings(arms: Sequence[PlannedArm], overrides: Mapping[str, Value]) -> list[Problem]:
    """Return a problem for each override without effect: no arm uses the method that the setting belongs to."""
    kept = dict.fromkeys(path for arm in arms for path in (*arm.base_settings, *(knob.path for knob in arm.knobs)))
    rule = "no arm has this setting: each chooses a method without it"
    remedy = f"Leave it out, or choose other {spelled('arms')}."
    return [
        Problem(option_names().setting(path, "--set"), rule, overrides[path], remedy)
        for path in overrides
        if not any(_same_setting(path, own) for own in kept)
    ]


def _pair_term(settings: Mapping[str, Value]) -> str:
    """Return the pair term of an arm's loss: its `base`, or what its class declares."""
    base = settings.get("loss.base")
    if isinstance(base, str):
        return base
    method = methods_of("loss").get(str(settings.get("loss.name")))
    return str(getattr(method, "pair_term", ""))


def _listed(values: Mapping[str, Value]) -> str:
    return "; ".join(f"{name or 'the others'}: {value}" for name, value in values.items())


def _override_problems(space: Space, arms: Sequence[StudyArm], overrides: Mapping[str, Value]) -> list[Problem]:
    """Refuse settings that the study searches, that follow a knob, or in which its arms differ."""
    problems = []
    knobs = dict.fromkeys(knob.path for arm in arms for knob in arm.knobs)
    ties = dict.fromkeys(tie for arm in arms for tie in arm.ties)
    chosen = {arm.name for arm in arms}  # the others count too: `extend --arm` may add them later
    decided = {
        path: arm.name for arm in sorted(space.arms, key=lambda arm: arm.name in chosen) for path in arm.settings
    }
    differ = f"differs between the arms of {space.name}"
    for path in overrides:
        alone = "Leave it out."
        if space.program is None:
            alone = f"Leave it out, or use `tune-dml train --set {path}=...` for one trial."
        claims = [
            *((knob, f"is the knob that {space.name} searches and cannot be set", alone) for knob in knobs),
            *((tie.path, f"follows {tie.knob} in {space.name} and cannot be set", "Leave it out.") for tie in ties),
            *(
                (
                    own,
                    f"{differ} ({name} sets it) and cannot be set for all",
                    "Leave it out, or write arms of your own into a sweep file.",
                )
                for own, name in decided.items()
            ),
        ]
        for own, rule, remedy in claims:
            if _same_setting(path, own):
                problems.append(option_problem("settings", f"{own} {rule}", None, remedy))
    if space.program is not None:
        problems += reserved_problems(set(overrides) - {"seed"}, option_place("settings"))
    for path in sorted({"seed", "data.name"} & set(overrides)):
        option, value = ("seeds", 3) if path == "seed" else ("dataset", overrides[path])
        problems.append(
            option_problem("settings", f"{path} is not a setting but an option", None, f"Use {spelled(option, value)}.")
        )
    return problems


def _same_setting(one: str, other: str) -> bool:
    """Return whether two paths name one setting; a knob's path may include the method's field: `model.pooling.p`."""
    parts = one.split("."), other.split(".")
    lengths = {len(path) for path in parts}
    return one == other or (lengths == {2, 3} and parts[0][0] == parts[1][0] and parts[0][-1] == parts[1][-1])
