"""Find cells that would train the same trial, and values without an effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainables.config import Settings, canonical
from trainables.errors import Problem
from trainables.option_names import spell
from tune_dml.catalogue import recipes
from tune_dml.planning.arms.pair_counts import positive_pairs
from tune_dml.planning.cells import Cell, PlannedArm
from tune_dml.planning.plan import Plan
from tune_dml.space import Grid
from tune_dml.text import joined

_SINGLE_PROXY = ("loss.tau", "loss.gamma")
_FAR = 3.0  # ratio to the recipe's rate beyond which a note follows


def effective_settings(settings: Settings) -> dict[str, object]:
    """Return the settings that affect a trial; cells with equal effective settings train equal trials."""
    effective = dict(settings)
    if effective.get("regularizer.name") == "none" or effective.get("regularizer.eta") == 0:
        effective = _drop(effective, "regularizer.")
    if effective.get("memory.size") == 0:
        effective = _drop(effective, "memory.")
    if effective.get("batch.sampler") == "random":
        effective = _drop(effective, "batch.instances_per_class")
    if effective.get("loss.proxies_per_class") == 1:
        effective = _drop(effective, *_SINGLE_PROXY)
    if (pairs := _max_pairs(effective)) is not None and "loss.k" in effective:
        effective["loss.k"] = min(effective["loss.k"], pairs)
    return effective


def equal_trial_problems(plan: Plan) -> list[Problem]:
    """Return problems of arms whose cells all equal cells of another arm, and of knobs without effect."""
    groups = _group_equal(plan.cells)
    problems = []
    for arm in plan.arms:
        own = [cell for cell in plan.cells if cell.arm == arm.name]
        if not own and plan.search.method == "grid":
            rule = f"every cell of {arm.name} trains the same trial as a cell of the arms before it"
            problems.append(_redundant_arm(plan, rule, "it"))
        equal_cells = [next((c for c in groups[_effective_key(cell)] if c.arm != arm.name), None) for cell in own]
        names = [arm.name for arm in plan.arms]
        equal = equal_cells[0] if own and all(equal_cells) else None
        if equal is not None and names.index(arm.name) > names.index(equal.arm):
            cell = own[0]
            changed = f"{_difference(equal, cell)} changes nothing there"
            rule = f"{cell.label} trains the same trial as {equal.label}: {changed}"
            problems.append(_redundant_arm(plan, rule, "one"))
        for knob in arm.knobs:
            values = knob.domain.values if isinstance(knob.domain, Grid) else ()
            if len(values) > 1 and len(own) > 1 and _is_idle(own, knob.path):
                rule = f"{knob.path} changes nothing{_reason(own[0].settings, knob.path)}: its values train one trial"
                remedy = "Leave it out, or give it values that have an effect."
                problems.append(Problem(plan.space.location(arm=arm.name), rule, list(values), remedy))
    return problems


def idle_value_notes(plan: Plan) -> list[str]:
    """Note cells that train equal trials, and settings far from the ones that the method's source uses."""
    notes = []
    for cells in _group_equal(plan.cells).values():
        if len(cells) > 1:
            names = joined([cell.label for cell in cells])
            notes.append(f"{names} train one trial: {_difference(cells[0], cells[1])} changes nothing there")
    return notes + _rate_notes(plan) + _warm_up_notes(plan) + _pair_notes(plan)


def _rate_notes(plan: Plan) -> list[str]:
    """Note arms of our protocols whose proxies learn at a rate far from their recipe's."""
    notes = []
    for arm, usual, source in _arms_with_proxies(plan):
        settings = arm.base_settings
        if not {"optim.lr", "optim.loss_lr_multiplier"} <= settings.keys():
            continue
        rate = settings["optim.lr"] * settings["optim.loss_lr_multiplier"]
        if not usual / _FAR < rate < usual * _FAR:
            ratio = spell("settings", {"optim.loss_lr_multiplier": f"{usual / settings['optim.lr']:g}"})
            notes.append(
                f"{arm.name or plan.space.name}: proxies learn at {rate:.2g}, but at {usual:g} in {source}; "
                f"use {ratio} for that rate"
            )
    return notes


def _warm_up_notes(plan: Plan) -> list[str]:
    """Note arms of our protocols whose proxies move a pretrained network from the first step on."""
    fix = spell("settings", {"optim.freeze_backbone_epochs": 1})
    names = []
    for arm, *_ in _arms_with_proxies(plan):
        settings = arm.base_settings
        is_frozen = any(settings.get(f"optim.freeze_backbone_{unit}") for unit in ("epochs", "steps"))
        if settings.get("model.weights") is not None and not is_frozen:
            names.append(arm.name or plan.space.name)
    if not names:
        return []
    return [
        f"{joined(names)}: the first steps of untrained proxies may collapse a pretrained network; Proxy-Anchor's code "
        f"trains head and proxies alone for an epoch, as {fix} does"
    ]


def _arms_with_proxies(plan: Plan) -> Iterator[tuple[PlannedArm, float, str]]:
    """Yield the arms of our protocols whose loss has proxies, with the proxies' usual rate and its source."""
    for arm in plan.arms:
        recipe = recipes().get(str(arm.base_settings.get("loss.name")))
        if recipe and recipe.loss_lr is not None and not (arm.protocol and arm.protocol.origin == "paper"):
            yield arm, recipe.loss_lr, recipe.stated.source


def _pair_notes(plan: Plan) -> list[str]:
    """Note arms whose loss needs positive pairs, if their batches may have none."""
    notes = []
    for arm in plan.arms:
        loss = str(arm.base_settings.get("loss.name"))
        recipe = recipes().get(loss)
        by_class = recipe is not None and recipe.stated.settings.get("batch.sampler") == "m_per_class"
        drawn, per_class = (arm.base_settings.get(f"batch.{name}") for name in ("sampler", "instances_per_class"))
        if by_class and (drawn == "random" or per_class == 1):
            fix = spell("settings", {"batch.sampler": "m_per_class", "batch.instances_per_class": 2})
            notes.append(
                f"{arm.name or plan.space.name}: {loss} compares pictures of one class, but a batch may not hold two of "
                f"them; use {fix} or more"
            )
    return notes


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


def _effective_key(cell: Cell) -> str:
    return canonical(effective_settings(cell.settings))


def _group_equal(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_effective_key(cell), []).append(cell)
    return groups


def _redundant_arm(plan: Plan, rule: str, pronoun: str) -> Problem:
    remedy = f"Give it the setting that it lacks, or leave {pronoun} out with {spell('arms')}."
    return Problem(plan.space.location("arms"), rule, None, remedy)


def _is_idle(cells: Sequence[Cell], path: str) -> bool:
    """Return whether cells that differ only in this knob train equal trials."""
    alike: dict[str, list[str]] = {}
    for cell in cells:
        other_knobs = canonical({name: value for name, value in cell.knobs.items() if name != path})
        alike.setdefault(other_knobs, []).append(_effective_key(cell))
    return all(len(keys) > 1 and len(set(keys)) == 1 for keys in alike.values())


def _reason(settings: Settings, path: str) -> str:
    if path == "loss.k" and (pairs := _max_pairs(settings)) is not None:
        return f" above {pairs}, in batches with {positive_pairs(settings)} positive pairs"
    return ""


def _difference(first: Cell, second: Cell) -> str:
    """Return the second cell's settings that differ from the first's."""
    paths = [path for path in second.settings if second.settings[path] != first.settings.get(path)]
    return joined([f"{path}={second.settings[path]}" for path in paths]) or "what differs"
