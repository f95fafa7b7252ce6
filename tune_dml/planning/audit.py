"""Plan the two sweeps of an audit: a screening of all differing settings, then its suspects on fresh seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainables.config import SOURCES
from trainables.errors import ConfigError, Problem
from tune_dml.planning.differences import Differences, Factor
from tune_dml.space import Arm, Grid, Knob, Protocol, Space
from tune_dml.stats import screening
from tune_dml.stats.screening import Design, Suspects
from tune_dml.text import joined, value_text

_FRESH_SEED = 1000
"""First seed of the confirmation."""
_YOURS, _PROTOCOL = "yours", "protocol"


@dataclass(frozen=True)
class Audit:
    """An audit: the runs that it compares, and their trials."""

    run: str
    protocol: Protocol
    differences: Differences
    metric: str
    margin: float
    number: float | None = None  # the result that the run does not reach; None if the user named none
    data: tuple[str, ...] = ()  # unusual properties of the data
    data_root: Path | None = None  # folder of the data; None means the run's folder

    def __post_init__(self) -> None:
        flag, factors = "--against", self.factors
        if not factors:
            rule = f"{self.run} trains as {self.protocol.name} does: no setting differs"
            raise ConfigError(Problem(flag, rule, None, "Check the data: `tune-dml datasets verify`."))
        if len(factors) > screening.MAX_FACTORS:
            rule = f"at most {screening.MAX_FACTORS} settings can be screened, and {len(factors)} differ"
            raise ConfigError(Problem(flag, rule, None, "Name a protocol that is nearer to the run."))

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The settings to screen."""
        return self.differences.factors

    @cached_property
    def design(self) -> Design:
        """The design of the first stage."""
        return screening.screening_design(len(self.factors))

    @property
    def trials(self) -> int:
        """Trials of both stages."""
        return len(self.design.levels) + screening.SECOND_RUNS

    def confirmation(self, suspects: Suspects) -> Design:
        """Return the design of the second stage for these suspects."""
        return screening.confirmation_design(len(self.factors), suspects)

    def screening_space(self) -> Space:
        """Return the first stage as a space: an arm for each run, in the order of the design."""
        return self._space(self.design, self.run_names)

    @cached_property
    def run_names(self) -> tuple[str, ...]:
        """Names of the first stage's runs."""
        names = {len(self.factors): _YOURS, 0: _PROTOCOL}
        return tuple(
            f"{names.get(int((levels > 0).sum()), 'mixed')} {number + 1}"
            for number, levels in enumerate(self.design.levels)
        )

    def confirmation_space(self, suspects: Suspects) -> Space:
        """Return the second stage as a space: an arm for each run, in the order of the design."""
        return self._space(self.confirmation(suspects), self.confirmation_names(suspects), _FRESH_SEED)

    def confirmation_names(self, suspects: Suspects) -> tuple[str, ...]:
        """Return the names of the second stage's runs."""
        levels = self.confirmation(suspects).levels
        return tuple(f"{self._changed(row)} ({number})" for number, row in enumerate(levels, start=1))

    def describe(self, index: int) -> tuple[str, str, str]:
        """Return a factor's name, the user's values and the protocol's values."""
        factor = self.factors[index]
        return factor.name, _settings_text(factor.yours), _settings_text(factor.protocol)

    def _changed(self, levels: Any) -> str:
        changed = [factor.name for factor, level in zip(self.factors, levels, strict=True) if level > 0]
        return f"{_PROTOCOL} with your {joined(changed)}" if changed else _PROTOCOL

    def _arm(self, name: str, active: Sequence[bool], seeds: dict[str, int]) -> Arm:
        """Return an arm. Its data settings are knobs of one value, because fixed ones must be equal in all arms."""
        reference = self.differences.reference.settings()
        chosen = [factor for factor, on in zip(self.factors, active, strict=True) if on]
        settings = self.differences.settings(chosen)
        changed = {path: value for path, value in settings.items() if reference.get(path, ...) != value}
        data = {
            path for factor in self.factors for path in (*factor.yours, *factor.protocol) if path.startswith("data.")
        }
        knobs = tuple(Knob(path, Grid((settings[path],)), origin="user") for path in sorted(data))
        own = {path: value for path, value in changed.items() if path not in data}
        return Arm(name, {**own, **seeds}, own_knobs=knobs)

    def _space(self, design: Design, names: Sequence[str], first_seed: int = 0) -> Space:
        """Return a stage as a space: an arm for each run, with the seed of its block."""
        arms = []
        for name, levels, block in zip(names, design.levels, design.blocks, strict=True):
            seeds = {f"seeds.{source}": first_seed + int(block) for source in SOURCES}
            arms.append(self._arm(name, levels > 0, seeds))
        fixed = {
            path: value
            for path, value in self.differences.reference.settings().items()
            if path not in {"seed", "data.name", "data.root"} and not path.startswith("seeds.")
        }
        data = {path for arm in arms for path in (knob.path for knob in arm.own_knobs)}
        protocol = Protocol(self.protocol.name, self.protocol.dataset, {}, self.protocol.origin, default=True)
        return Space(
            name="audit",
            title=f"Audit of {self.run} against {self.protocol.name}",
            question="Which of the settings that differ changes the result?",
            citation=None,
            scientific=(),
            fixed={path: value for path, value in fixed.items() if path not in data},
            protocols=(protocol,),
            default_dataset=self.protocol.dataset,
            metric=self.metric,
            margin=self.margin,
            arms=tuple(arms),
            differs="an audit mixes the settings of a run and of a protocol",
        )


def _settings_text(settings: Any) -> str:
    return ", ".join(f"{path.partition('.')[2]}={value_text(value)}" for path, value in settings.items()) or "-"
