"""Find cells that would train the same trial, and values without an effect."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainables.config import Settings, canonical
from trainables.errors import ConfigError, Problem
from trainables.option_names import option_problem, spell
from tune_dml.catalogue import recipes
from tune_dml.planning.arms.fitting import positive_pairs
from tune_dml.planning.cells import Cell, PlannedArm
from tune_dml.planning.grouping import grouped
from tune_dml.planning.plan import Plan
from tune_dml.space import Grid
from tune_dml.text import joined

if TYPE_CHECKING:
    from trainables.data.base import Pictures

_Digests = Mapping[int, str]
_UNKNOWN: _Digests = MappingProxyType({})
_IDLE: Sequence[tuple[str, object, tuple[str, ...]]] = (
    ("regularizer.name", "none", ("regularizer.",)),
    ("regularizer.eta", 0, ("regularizer.",)),
    ("memory.size", 0, ("memory.",)),
    ("batch.sampler", "random", ("batch.instances_per_class",)),
    ("loss.proxies_per_class", 1, ("loss.tau", "loss.gamma")),
    ("loss.base", "binomial", ("loss.margin",)),
    ("loss.base", "margin", ("loss.beta_",)),
    ("loss.ipv_weight", 0, ("loss.ipv_epsilon",)),
    ("loss.samples", None, ("loss.sampling_seed",)),
    ("data.split", "paper_test_selection", ("data.validation_fraction", "data.fold")),
    ("data.folds", None, ("data.fold",)),
    ("model.backbone", "identity", ("optim.backbone_lr_multiplier", "optim.freeze_backbone_")),
)
"""Setting, value, and the beginnings of the settings that have no effect at this value."""
_SAME: Mapping[tuple[str, str, object], Mapping[str, object]] = {
    ("sec", "regularizer.rho", 0): {"regularizer.name": "sec_fixed", "regularizer.mu": "first_batch"},
    ("sec_fixed", "regularizer.mu", 0): {"regularizer.name": "l2"},
}
"""Regularizer, knob and value -> the settings that it equals (docs/specification.md, 1.2 and identity 3)."""
_DRAWN = ("data.pictures_per_class", "data.long_tail", "data.label_noise")
_FAR = 3.0  # ratio to the recipe's rate beyond which a note follows


def effective_settings(settings: Settings) -> dict[str, object]:
    """Return the settings that affect a trial; cells with equal effective settings train equal trials."""
    effective = dict(settings)
    if (capacity := _used_memory(effective)) is not None:
        effective["memory.size"] = capacity
    for path, value, idle in _IDLE:
        if path in effective and effective[path] == value:
            effective = _drop(effective, *idle)
    if effective.get("data.folds") is not None:
        effective = _drop(effective, "data.validation_fraction")
    if (pairs := _max_pairs(effective)) is not None and "loss.k" in effective:
        effective["loss.k"] = min(effective["loss.k"], pairs)
    return effective


def training_digests(plan: Plan, pictures: Pictures | None) -> dict[int, str]:
    """Return cell -> digest of its training pictures and labels if cells thin or relabel them; else empty."""
    if pictures is None or not any(cell.settings.get(path) for cell in plan.cells for path in _DRAWN):
        return {}
    known: dict[str, str] = {}
    digests = {}
    for cell in plan.cells:
        shape = canonical([cell.config.data.flat, cell.config.seeds.flat])
        if shape not in known:
            known[shape] = _training_digest(cell, plan.seeds, pictures)
        if known[shape]:
            digests[cell.index] = known[shape]
    return digests


def _training_digest(cell: Cell, seeds: Sequence[int], pictures: Pictures) -> str:
    """Return a digest of what a cell trains on under all seeds; empty if its split cannot be drawn, which is refused."""
    from trainables.tasks import task_of  # brings torch along

    digest = hashlib.sha256()
    for seed in seeds:
        task = task_of(cell.config.model_copy(update={"seed": seed}))
        try:
            split = task.split(pictures)
        except ConfigError:
            return ""
        digest.update(split.train.tobytes() + task.training_labels(pictures, split).tobytes())
    return digest.hexdigest()


def equal_trial_problems(plan: Plan, digests: _Digests = _UNKNOWN) -> list[Problem]:
    """Return problems of arms whose cells all equal cells of another arm, and of knobs without effect.

    `digests` holds the digest of each cell's training data, where known (`training_digests`).
    """
    groups = _group_equal(plan.cells, digests)
    keys = {cell.index: key for key, cells in groups.items() for cell in cells}
    names, problems = [arm.name for arm in plan.arms], []
    for arm in plan.arms:
        own = [cell for cell in plan.cells if cell.arm == arm.name]
        if not own and plan.search.method == "grid":
            rule = f"every cell of {arm.name} trains the same trial as a cell of the arms before it"
            problems.append(_redundant_arm(plan, rule, "it"))
        equal_cells = [next((c for c in groups[keys[cell.index]] if c.arm != arm.name), None) for cell in own]
        equal = equal_cells[0] if own and all(equal_cells) else None
        if equal is not None and names.index(arm.name) > names.index(equal.arm):
            problems.append(_redundant_arm(plan, _equality(equal, own[0]), "one"))
        for knob in arm.knobs:
            values = knob.domain.values if isinstance(knob.domain, Grid) else ()
            if len(values) > 1 and len(own) > 1 and _is_idle(own, knob.path, keys):
                rule = f"{knob.path} changes nothing{_reason(own[0].settings, knob.path)}: its values train one trial"
                remedy = "Leave it out, or give it values that have an effect."
                problems.append(Problem(plan.space.location(arm=arm.name), rule, list(values), remedy))
    return problems


def added_cell_problems(begun: Plan, extended: Plan) -> list[Problem]:
    """Refuse added cells that train the trial of another cell."""
    if len(extended.cells) == len(begun.cells):
        return []
    problems = []
    old_arms = {arm.name for arm in begun.arms}
    for first, *others in _group_equal(extended.cells, _UNKNOWN).values():
        for cell in [cell for cell in others if cell.index >= len(begun.cells)]:
            option = "values" if cell.arm in old_arms else "arms"
            problems.append(option_problem(option, _equality(first, cell), None, "Leave it out."))
    return problems


def idle_value_notes(plan: Plan, digests: _Digests = _UNKNOWN) -> list[str]:
    """Note cells that train equal trials, and settings far from the ones that the method's source uses."""
    equal = [
        f"{joined([cell.label for cell in cells])} train one trial: {_difference(cells[0], cells[1])}"
        for cells in _group_equal(plan.cells, digests).values()
        if len(cells) > 1
    ]
    return equal + _recipe_notes(plan)


def _recipe_notes(plan: Plan) -> list[str]:
    """Note arms that learn proxies unlike their recipe, or may draw batches without the pairs that their loss needs."""
    rates, untrained, pairs = [], [], []
    for arm in plan.arms:
        own, name = arm.base_settings, arm.name or plan.space.name
        recipe = recipes().get(str(own.get("loss.name")))
        if recipe is None:
            continue
        if recipe.loss_lr is not None and not (arm.protocol and arm.protocol.origin == "paper"):
            rates += _rate_notes(plan, arm, recipe.loss_lr, recipe.stated.source)
            is_frozen = any(own.get(f"optim.freeze_backbone_{unit}") for unit in ("epochs", "steps"))
            untrained += [name] if own.get("model.weights") is not None and not is_frozen else []
        drawn, per_class = own.get("batch.sampler"), own.get("batch.instances_per_class") or 1
        by_class = recipe.stated.settings.get("batch.sampler") == "m_per_class"
        needs, fix = "", dict[str, object]()
        if by_class and (drawn == "random" or per_class == 1):
            needs = "one class, but a batch may not hold two of them"
            fix = {"batch.sampler": "m_per_class", "batch.instances_per_class": 2}
        elif by_class and drawn == "m_per_class" and own.get("batch.batch_size") == per_class:
            needs, fix = "different classes, but a batch holds one class", {"batch.batch_size": 2 * per_class}
        if needs:
            use = f"use {spell('settings', fix)} or more"
            pairs.append(f"{name}: {own['loss.name']} compares pictures of {needs}; {use}")
    warm_up = (
        f"{joined(untrained)}: the first steps of untrained proxies may collapse a pretrained network; Proxy-Anchor's code "
        f"trains head and proxies alone for an epoch, as {spell('settings', {'optim.freeze_backbone_epochs': 1})} does"
    )
    return [*rates, *([warm_up] if untrained else []), *pairs]


def _rate_notes(plan: Plan, arm: PlannedArm, usual: float, source: str) -> list[str]:
    """Note that an arm's proxies learn at a rate far from the `usual` one of their recipe."""
    found = [cell.settings for cell in plan.cells if cell.arm == arm.name] or [arm.base_settings]
    rates = {
        each["optim.lr"] * each["optim.loss_lr_multiplier"]: each["optim.lr"]
        for each in found
        if {"optim.lr", "optim.loss_lr_multiplier"} <= each.keys()
    }
    far = {rate: lr for rate, lr in rates.items() if not usual / _FAR < rate < usual * _FAR}
    if not far:
        return []
    fix = f"use {spell('settings', {'optim.loss_lr_multiplier': f'{usual / min(far.values()):g}'})} for that rate"
    if len(rates) > 1:
        fix = f"their rate moves with optim.lr={' and '.join(f'{lr:g}' for lr in far.values())}"
    learnt = " and ".join(f"{rate:.2g}" for rate in far)
    return [f"{arm.name or plan.space.name}: proxies learn at {learnt}, but at {usual:g} in {source}; {fix}"]


def _max_pairs(settings: Settings) -> int | None:
    """Return the largest number of pairs that K can select; None if the loss has no K."""
    loss = settings.get("loss.name")
    if loss not in {"dro_topk", "dro_topk_pn"} or settings.get("memory.size", 0):
        return None
    batch, positive = int(settings["batch.batch_size"]), positive_pairs(settings)
    if loss == "dro_topk":
        return batch * (batch - 1) // 2
    return None if positive is None else 2 * positive


def _drop(settings: Settings, *beginnings: str) -> dict[str, object]:
    return {path: value for path, value in settings.items() if not path.startswith(beginnings)}


def _used_memory(settings: Settings) -> int | None:
    """Return how many pictures a memory holds at the last step; None if there is none, or epochs set the length."""
    steps = settings.get("training.steps")
    if not settings.get("memory.size") or not steps or settings.get("training.epochs") is not None:
        return None
    batches = max(0, int(steps) - 1 - int(settings["memory.start"]))
    return min(int(settings["memory.size"]), batches * int(settings["batch.batch_size"]))


def _effective_key(cell: Cell, digests: _Digests) -> str:
    settings = effective_settings(cell.settings)
    if not _loss_trains(str(settings.get("loss.name"))):
        settings = _drop(settings, "optim.loss_")
    for (name, path, value), same in _SAME.items():
        if settings.get("regularizer.name") == name and settings[path] == value:
            settings = {**_drop(settings, path), **same}
    if cell.index in digests:
        settings = {**_drop(settings, *_DRAWN), "data": digests[cell.index]}
    return canonical(settings)


def _loss_trains(name: str) -> bool:
    """Return whether a loss may have parameters: proxies, class weights, or those of another package."""
    from trainables.losses import LOSSES  # imports torch

    loss = LOSSES.get(name)
    return loss is None or loss.counts_classes or not loss.__module__.startswith("trainables.")


def _group_equal(cells: Sequence[Cell], digests: _Digests) -> dict[str, list[Cell]]:
    return grouped(cells, lambda cell: _effective_key(cell, digests))


def _redundant_arm(plan: Plan, rule: str, pronoun: str) -> Problem:
    remedy = f"Give it the setting that it lacks, or leave {pronoun} out with {spell('arms')}."
    return Problem(plan.space.location("arms"), rule, None, remedy)


def _is_idle(cells: Sequence[Cell], path: str, effective_keys: Mapping[int, str]) -> bool:
    """Return whether cells that differ only in this knob train equal trials."""
    alike = grouped(cells, lambda cell: canonical({**cell.knobs, path: None}))
    return all(len(own) > 1 and len({effective_keys[cell.index] for cell in own}) == 1 for own in alike.values())


def _reason(settings: Settings, path: str) -> str:
    if path == "loss.k" and (pairs := _max_pairs(settings)) is not None:
        return f" above {pairs}, in batches with {positive_pairs(settings)} positive pairs"
    return " in these training classes" if path in _DRAWN else ""


def _equality(first: Cell, second: Cell) -> str:
    return f"{second.label} trains the same trial as {first.label}: {_difference(first, second)}"


def _difference(first: Cell, second: Cell) -> str:
    """Return that the second cell's settings that differ from the first's change nothing."""
    paths = [path for path in second.settings if second.settings[path] != first.settings.get(path)]
    return f"{joined([f'{path}={second.settings[path]}' for path in paths]) or 'what differs'} changes nothing there"
