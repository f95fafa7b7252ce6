"""Check and identify the data of a sweep: its training data and its task's further data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trainables.config import canonical
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home
from trainables.option_names import option_problem, spell
from trainables.resolve import Layer, read_settings, resolve
from tune_dml.catalogue import RETRIEVAL
from tune_dml.planning.plan import Plan
from tune_dml.space import Value

if TYPE_CHECKING:
    from trainables.data.base import DataSet


FLOOR_SEEDS = 3  # number of seeds under which floors are measured: the first ones of the plan
_DATA = ("data.", "task.")
"""Settings that decide which data sets a trial reads."""


@dataclass(frozen=True)
class SweepData:
    """The training data set, and further data sets that the task reads, such as benchmarks and distractors."""

    training: DataSet
    further: Sequence[DataSet] = ()

    @classmethod
    def of(cls, plan: Plan, cache_dir: Path | None) -> Self:
        """Return the data of a plan without reading it. Raise ConfigError for wrong knobs."""
        from trainables.tasks import task_of  # imports torch

        training = training_data(plan.base_settings, cache_dir)
        return cls(training, task_of(plan.main_arms[0].config).further_datasets(cache_dir))

    def digest(self) -> str:
        """Return the digest of all data sets together. Raise ConfigError if files are missing or wrong."""
        from trainables.data.base import digest_of

        raise_if_any(problem for item in (self.training, *self.further) for problem in item.check())
        own = self.training.digest()
        return digest_of(own, *(item.digest() for item in self.further)) if self.further else own


def known_digests(plan: Plan, cache_dir: Path | None) -> dict[str, dict[str, str]]:
    """Return `data_key` of trials -> data set -> digest, apart from data sets that only a search can propose."""
    if plan.space.program is not None:
        return {}
    from trainables.tasks import task_of

    configs = {}
    if not any(knob.path.startswith(_DATA) for arm in plan.arms for knob in arm.knobs):
        configs = {data_key(arm.base_settings): arm.config for arm in plan.arms}  # a search has proposed no cell yet
    by_key = {data_key(cell.settings): cell.settings for cell in plan.cells}
    configs |= {key: read_settings(settings) for key, settings in by_key.items()}
    tasks = {key: task_of(config) for key, config in configs.items()}
    return {
        key: {item.name: item.digest() for item in (task.dataset(cache_dir), *task.further_datasets(cache_dir))}
        for key, task in tasks.items()
    }


def data_folders(plan: Plan, cache_dir: Path | None, digests: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return (folder of pictures, folder of its decoded pictures) of the data sets in `digests` (`known_digests`)."""
    if plan.space.program is not None:
        return []
    by_root = {cell.settings["data.root"]: cell.settings for cell in plan.cells}
    by_root |= {arm.base_settings["data.root"]: arm.base_settings for arm in plan.arms}
    folders = []
    for root, settings in by_root.items():
        if root:
            item = training_data(settings, cache_dir)
            digest = digests.get(data_key(settings), {}).get(item.name)
            folders.append((str(expand_home(str(root))), str(item.cache_path(digest)) if digest else ""))
    return folders


def data_key(settings: Mapping[str, Value]) -> str:
    """Return the settings that select a trial's data, as canonical text."""
    return canonical({path: value for path, value in settings.items() if path.startswith(_DATA)})


def data_problems(settings: Mapping[str, Value], cache_dir: Path | None) -> list[Problem]:
    """Return the missing and wrong files of the training data; none if the settings name no valid data set."""
    try:
        return training_data(settings, cache_dir).check()
    except ConfigError:
        return []  # reported with the settings


def training_data(settings: Mapping[str, Value], cache_dir: Path | None) -> DataSet:
    """Return the training data set without reading it. Raise ConfigError for wrong knobs."""
    from trainables.data import DATASETS, build_dataset

    # The split is checked with the task.
    own = {path: value for path, value in settings.items() if path.startswith("data.") and path != "data.split"}
    data = resolve(Layer("--set", own)).config.data
    if not data.root and DATASETS[data.name].needs_root:
        rule = f"the data set {data.name!r} needs the folder of its pictures"
        raise ConfigError(option_problem("data_root", rule, None, f"Pass {spell('data_root', 'DIR')}."))
    root = expand_home(str(data.root)) if data.root else None
    return build_dataset(data.name, root=root, cache_dir=cache_dir, **data.knobs())


def floors_of(plan: Plan, cache_dir: Path | None) -> Mapping[str, Mapping[str, float]]:
    """Return each floor's validation metrics, with the first arm's network; empty if measuring fails or is slow."""
    from trainables.tasks.floors import measure_floors  # imports torch

    if plan.space.program is not None:
        return {}
    config = plan.main_arms[0].config
    if config.task.name != RETRIEVAL:
        return {}
    try:
        return measure_floors(config, plan.seeds[:FLOOR_SEEDS], cache_dir=cache_dir)
    except (Exception, SystemExit):  # a network of another package may raise anything
        return {}  # the trials report the error
