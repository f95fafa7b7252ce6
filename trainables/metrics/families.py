"""Define retrieval metrics: one function per metric, declared with its key and its label for readers.

Declaring a metric is enough: `retrieval_metrics` computes it, a retrieval task reports it under its key, and the report
finds its label. The module imports no torch.

    @family("recall_at_{k}", "R@{k}", positives="best")
    def recall(ranking: Ranking, k: int) -> Tensor: ...
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from trainables.errors import ConfigError, Problem
from trainables.methods import import_packages

if TYPE_CHECKING:
    from torch import Tensor

Positives = Literal["best", "first", "first_r", "all"]
ABSENT = 2**63 - 1
"""Entry of `Ranking.positions` for a positive that is absent or not located: later than any k."""
_CHECKED_QUERIES = 8  # queries with which a metric's handling of absent positives is checked, once


@dataclass(frozen=True)
class Ranking:
    """Positions of the positives of B queries, each of which has at least one."""

    positions: Tensor
    """(B, P), int64: 1-based positions of each query's best P positives, ascending. Entries that no metric asked for,
    and those beyond R_q, are `ABSENT`."""
    relevant: Tensor
    """(B,), int64: R_q, the number of positives in the whole gallery, at least 1."""
    tied: Tensor
    """(B,), bool: whether a negative ties with the query's best positive."""
    queries: Tensor
    """(B,), int64: rows of the queries in the caller's order."""

    def __len__(self) -> int:
        return len(self.relevant)

    @property
    def exists(self) -> Tensor:
        """(B, P), bool: which entries of `positions` are positions."""
        return self.positions < ABSENT

    def first(self, k: int) -> Tensor:
        """Return (B, min(k, P)), all positions that can be at most k: the j-th positive is at position j or later."""
        return self.positions[:, :k]


@dataclass(frozen=True)
class Family:
    """A retrieval metric for result lists of any length k, or of length R_q, each query's number of positives."""

    key: str
    """Key in logs: `recall_at_{k}`, or without {k} if the list has length R_q."""
    label: str
    """Label for readers: `R@{k}`."""
    value: Callable[..., Tensor]
    """Maps a Ranking, and k if the key has one, to a number for each query, (B,) float64."""
    positives: Positives
    """Positives whose positions the metric reads; others are not located.

    "best": the best one, at any position. "first": those among the first k. "first_r": those among the first R_q.
    "all": every positive, at any position (the slowest).
    """
    percent: bool

    @property
    def name(self) -> str:
        """Name in the argument `metrics`."""
        return self.key.removesuffix("_at_{k}")

    @property
    def takes_k(self) -> bool:
        """Whether the result list has a fixed length k instead of R_q."""
        return "{k}" in self.key

    def keys(self, ks: Sequence[int]) -> list[str]:
        """Return the keys for result lists of lengths `ks`."""
        return [self.key.format(k=k) for k in ks] if self.takes_k else [self.key]

    def of(self, ranking: Ranking, ks: Sequence[int]) -> dict[str, Tensor]:
        """Return key -> a number for each query, (B,) float64; a fraction if the metric is logged in percent.

        Raises ConfigError if the metric returns something else, changes the ranking or reads absent positives.
        """
        import torch

        from trainables.method_checks import check_untouched, versions

        place, before = f"metric {self.name}", versions(ranking.positions, ranking.relevant)
        values = self._values(ranking, ks)
        check_untouched(place, before, ranking.positions, ranking.relevant)
        for value in values:
            if not isinstance(value, torch.Tensor) or value.shape != (len(ranking),):
                rule = f"must return a tensor of one number for each of the {len(ranking)} queries"
                got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
                raise ConfigError(Problem(place, rule, got, "Take no mean over queries."))
        if self.value not in _ignore_absent:
            self._check_absent(ranking, ks)
            _ignore_absent.add(self.value)
        return dict(zip(self.keys(ks), values, strict=True))

    def _values(self, ranking: Ranking, ks: Sequence[int]) -> list[Tensor]:
        return [self.value(ranking, k) for k in ks] if self.takes_k else [self.value(ranking)]

    def _check_absent(self, ranking: Ranking, ks: Sequence[int]) -> None:
        """Raise ConfigError if the values change with the number of absent positives."""
        import torch

        tensors = (ranking.positions, ranking.relevant, ranking.tied, ranking.queries)
        few = Ranking(*(tensor[:_CHECKED_QUERIES] for tensor in tensors))
        absent = torch.full_like(few.positions[:, :1], ABSENT)
        padded = replace(few, positions=torch.cat([few.positions, absent], dim=1))
        for value, expected in zip(self._values(padded, ks), self._values(few, ks), strict=True):
            if not torch.allclose(value, expected, equal_nan=True):
                rule = "must not read positions beyond a query's last positive, which are absent"
                remedy = "Leave out the entries where ranking.exists is false; ranking.relevant counts the others."
                raise ConfigError(Problem(f"metric {self.name}", rule, None, remedy))


_COUNTS = ("queries", "queries_without_match", "tie_fraction")
"""Keys that `retrieval_metrics` adds."""
FAMILIES: dict[str, Family] = {}
"""All declared metrics by name, in order of declaration."""
_ignore_absent: set[Callable[..., Tensor]] = set()  # metrics that were checked


def family(
    key: str, label: str, *, positives: Positives, percent: bool = True
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Declare the decorated function as the metric logged as `key`.

    Raises ConfigError for a key that another metric has, wrong arguments, and `positives` that are unknown or need a k.
    """
    if positives not in get_args(Positives):
        raise ConfigError(Problem(f"metric {key}", f"positives must be {', '.join(get_args(Positives))}", positives))
    if positives == "first" and "{k}" not in key:
        remedy = 'Add {k} to the key, or declare positives="first_r" or "all".'
        raise ConfigError(Problem(f"metric {key}", 'positives="first" needs a key with {k}', key, remedy))

    def declare(value: Callable[..., Tensor]) -> Callable[..., Tensor]:
        metric = Family(key, label, value, positives, percent)
        arguments = ("ranking", "k") if metric.takes_k else ("ranking",)
        try:
            inspect.signature(value).bind(*arguments)
        except TypeError as error:
            raise ConfigError(Problem(f"metric {key}", f"must take {' and '.join(arguments)}", str(error))) from error
        existing = FAMILIES.get(metric.name)
        if metric.key in _COUNTS or (existing and _origin(existing.value) != _origin(value)):
            raise ConfigError(Problem(f"metric {key}", "the key is taken by another metric", None, "Rename it."))
        FAMILIES[metric.name] = metric
        return value

    return declare


def _origin(function: Callable[..., object]) -> tuple[str, str]:
    """Return module and name of a function, which stay the same when its module is imported again."""
    return function.__module__, function.__qualname__


def describe_key(key: str) -> tuple[str, bool] | None:
    """Return the label of a logged key and whether its values are percentages; None if it is no retrieval metric.

    >>> describe_key("recall_at_10"), describe_key("loss")
    (('R@10', True), None)
    """
    family = family_of(key)
    return None if family is None else (family[0].label.format(k=family[1]), family[0].percent)


def family_of(key: str) -> tuple[Family, int] | None:
    """Return the metric of a logged key and its k (1 if it has none): `recall_at_10` -> (recall, 10).

    An unknown key may be a metric of another package, whose modules are then imported.
    """
    return _declared(key) or (_declared(key) if import_packages() else None)


def _declared(key: str) -> tuple[Family, int] | None:
    for metric in FAMILIES.values():
        if match := re.fullmatch(metric.key.replace("{k}", r"(?P<k>[1-9]\d*)"), key):
            return metric, int(match.groupdict().get("k", 1))
    return None


@family("recall_at_{k}", "R@{k}", positives="best")
def recall(ranking: Ranking, k: int) -> Tensor:
    """Return 1 where a query has a positive among its first k, else 0 (docs/specification.md, section 7)."""
    return (ranking.positions[:, 0] <= k).double()


@family("precision_at_{k}", "P@{k}", positives="first")
def precision(ranking: Ranking, k: int) -> Tensor:
    """Return #{positives among the first k} / k: below 1 for every query with R_q < k."""
    return (ranking.first(k) <= k).sum(dim=1).double() / k


@family("map_at_{k}", "MAP@{k}", positives="first")
def average_precision(ranking: Ranking, k: int) -> Tensor:
    """Return AP@k = (1 / k) Σ_{i <= k} P(i) rel(i), with P(i) the precision among the first i.

    The divisor is k, not min(k, R_q), to agree with the multi-proxy anchor paper's table 3.
    """
    return _precision_sum(ranking.first(k), k) / k


@family("ndcg_at_{k}", "nDCG@{k}", positives="first")
def ndcg(ranking: Ranking, k: int) -> Tensor:
    """Return DCG / IDCG with binary gains (multi-proxy anchor paper, equations 19 and 20).

    DCG = Σ_{i <= k} rel_i / log2(i + 1);  IDCG = Σ_{i <= min(k, R_q)} 1 / log2(i + 1).
    """
    positions = ranking.first(k)
    gains = (positions.double() + 1).log2_().reciprocal_()
    dcg = gains.masked_fill_(positions > k, 0).sum(dim=1)
    limit = ranking.relevant.clamp_max(k)
    ideal = (_counting_numbers(int(limit.max()), limit).double() + 1).log2_().reciprocal_().cumsum(dim=0)
    return dcg / ideal[limit - 1]


@family("map_at_r", "MAP@R", positives="first_r")
def average_precision_at_r(ranking: Ranking) -> Tensor:
    """Return AP@R = (1 / R_q) Σ_{i <= R_q} P(i) rel(i).

    Musgrave et al., A Metric Learning Reality Check, ECCV 2020, section 3.2.
    """
    return _precision_sum(ranking.positions, ranking.relevant[:, None]) / ranking.relevant


@family("r_precision", "R-precision", positives="first_r")
def r_precision(ranking: Ranking) -> Tensor:
    """Return #{positives among the first R_q} / R_q."""
    return (ranking.positions <= ranking.relevant[:, None]).sum(dim=1).double() / ranking.relevant


def _precision_sum(positions: Tensor, limit: Tensor | int) -> Tensor:
    """Return Σ P(i) rel(i) over positions i <= limit: the j-th positive, at position p_j, contributes j / p_j."""
    hits = _counting_numbers(positions.shape[1], positions)
    return (hits / positions.double()).masked_fill_(positions > limit, 0).sum(dim=1)


def _counting_numbers(length: int, like: Tensor) -> Tensor:
    """Return 1 .. length, int64, on the device of `like`."""
    return like.new_ones(length).cumsum(dim=0)
