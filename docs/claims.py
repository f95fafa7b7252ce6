"""Claims of the three papers, and the rules by which a committed result judges them.

A claim is judged only by the intervals of one study's verdicts.json. An improvement `does not hold` if its interval
excludes a gain of the study's margin, `holds` if it lies above zero otherwise, and is `undecided` if neither is so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Verdict = Literal["holds", "does not hold", "undecided", "not tested"]
Verdicts = Mapping[str, Any]
"""The content of a verdicts.json; docs/verdicts.schema.json describes it."""


@dataclass(frozen=True)
class Interval:
    """Difference of two arms or cells with its simultaneous interval, in points."""

    estimate: float
    low: float
    high: float

    def verdict(self, margin: float) -> Verdict:
        """Judge whether the first arm is better than the second by a difference that can matter."""
        if self.high < margin:
            return "does not hold"
        return "holds" if self.low > 0 else "undecided"

    def __str__(self) -> str:
        return f"{self.estimate:+.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class Finding:
    """Verdict on a claim, with its numbers."""

    verdict: Verdict
    evidence: str
    differences: Mapping[str, Interval] = field(default_factory=dict)
    """Compared pair, as `Triplet+SEC - Triplet` -> its difference."""


class Test(Protocol):
    """A rule that judges a claim."""

    def judge(self, verdicts: Verdicts) -> Finding:
        """Judge the claim by the verdicts of its study."""


def difference(verdicts: Verdicts, first: str, second: str) -> Interval | None:
    """Return first minus second: a declared contrast, two arms, a cell and the baseline, or two values of a knob."""
    gains = verdicts.get("gains") or {"rows": (), "differences": ()}
    for row in (*gains["rows"], *gains["differences"]):
        if (row["arm"], row["against"]) == (first, second):
            return _interval(row["estimate"], row)
    if found := _of_pair((verdicts.get("arms") or {"pairs": ()})["pairs"], first, second):
        return found
    baseline = verdicts.get("baseline") or {"baseline": "", "rows": ()}
    for row in baseline["rows"]:
        if (row["label"], baseline["baseline"]) == (first, second):
            return _interval(row["difference"], row)
    values = (row for knob in verdicts["knobs"] for row in (knob.get("sensitivity") or {}).get("differences", ()))
    return _of_pair(values, first, second)


def _of_pair(rows: Iterable[Mapping[str, Any]], first: str, second: str) -> Interval | None:
    """Return first minus second from rows that have each pair in one order."""
    for row in rows:
        if {row["first"], row["second"]} == {first, second}:
            found = _interval(row["estimate"], row)
            return found if row["first"] == first else found and Interval(-found.estimate, -found.high, -found.low)
    return None


def _interval(estimate: float | None, row: Mapping[str, Any]) -> Interval | None:
    numbers = [float(number) for number in (estimate, row["low"], row["high"]) if number is not None]
    return Interval(*numbers) if len(numbers) == 3 else None


@dataclass(frozen=True)
class Better:
    """The first of each pair is better than the second; with `need="one"`, of at least one pair."""

    pairs: tuple[tuple[str, str], ...]
    need: Literal["each", "one"] = "each"

    def judge(self, verdicts: Verdicts) -> Finding:
        """Judge each pair by its interval, then combine the verdicts."""
        found = {pair: difference(verdicts, *pair) for pair in self.pairs}
        known = {pair: interval for pair, interval in found.items() if interval is not None}
        if not known:
            return Finding("not tested", "no interval: an arm did not train")
        margin = verdicts["margin"]
        each = [interval.verdict(margin) for interval in known.values()]
        missing = len(known) < len(found)
        differences = {f"{first} - {second}": interval for (first, second), interval in known.items()}
        evidence = "; ".join(f"{pair}: {interval}" for pair, interval in differences.items())
        verdict = _all_hold(each, missing) if self.need == "each" else _one_holds(each, missing)
        return Finding(verdict, evidence, differences)


def _all_hold(each: Sequence[Verdict], missing: bool) -> Verdict:
    if "does not hold" in each:
        return "does not hold"
    return "holds" if not missing and set(each) == {"holds"} else "undecided"


def _one_holds(each: Sequence[Verdict], missing: bool) -> Verdict:
    if "holds" in each:
        return "holds"
    return "does not hold" if not missing and set(each) == {"does not hold"} else "undecided"


@dataclass(frozen=True)
class BestAmong:
    """The best value of a knob is one of these cells."""

    path: str
    labels: tuple[str, ...]

    def judge(self, verdicts: Verdicts) -> Finding:
        """Compare with the candidates for the best value."""
        knob = _knob(verdicts, self.path)
        optimum = knob and knob["optimum"]
        if not optimum or not optimum["candidates"]:
            return Finding("undecided", "no value is ruled out as the best")
        candidates = set(optimum["candidates"])
        evidence = f"not ruled out as the best: {', '.join(optimum['candidates'])}"
        if candidates <= set(self.labels):
            return Finding("holds", evidence)
        return Finding("undecided" if candidates & set(self.labels) else "does not hold", evidence)


@dataclass(frozen=True)
class Matters:
    """The metric depends on the knob by at least the margin."""

    path: str

    def judge(self, verdicts: Verdicts) -> Finding:
        """Use the study's sensitivity verdict."""
        knob = _knob(verdicts, self.path)
        if knob is None:
            return Finding("not tested", "the knob has too few values with results")
        verdicts_of: dict[str, Verdict] = {"sensitive": "holds", "insensitive": "does not hold"}
        largest = knob["sensitivity"]["largest"]
        verdict = verdicts_of.get(knob["sensitivity"]["verdict"], "undecided")
        if not largest or not (found := _interval(largest["estimate"], largest)):
            return Finding(verdict, "")
        pair = f"{largest['first']} - {largest['second']}"
        return Finding(verdict, f"{pair}: {found}", {pair: found})


def _knob(verdicts: Verdicts, path: str) -> Mapping[str, Any] | None:
    return next((knob for knob in verdicts["knobs"] if knob["path"] == path), None)


@dataclass(frozen=True)
class Claim:
    """Claim of a paper, its source, and the study that tests it."""

    paper: str
    text: str
    source: str
    study: str
    test: Test


_SEC_LOSSES = ("Triplet", "SemihardTriplet", "NormalizedNPair", "MultiSimilarity")


def _with_and_without(regularizer: str, losses: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((f"{loss}+{regularizer}", loss) for loss in losses)


CLAIMS = (
    Claim(
        "SEC",
        "SEC improves every loss.",
        "supplement, Table 5; rebuttal, Table 4",
        "sec_losses",
        Better(_with_and_without("SEC", (*_SEC_LOSSES, "TML"))),
    ),
    Claim(
        "SEC",
        "SEC-EMA improves every loss.",
        "supplement, Table 5 (14 of 16 numbers)",
        "sec_losses",
        Better(_with_and_without("SEC-EMA", _SEC_LOSSES)),
    ),
    Claim(
        "SEC",
        "SEC does more than penalising the norms (L2-reg).",
        "supplement, Table 5; rebuttal, Table 2",
        "sec_losses",
        Better(tuple((f"{loss}+SEC", f"{loss}+L2-reg") for loss in _SEC_LOSSES)),
    ),
    Claim(
        "SEC",
        "With the semihard triplet loss SEC helps at some weight of the grid.",
        "supplement, section B.1 and Table 5",
        "sec_eta",
        Better(tuple((f"eta={eta}", "no SEC") for eta in ("0.25", "0.5", "1")), "one"),
    ),
    Claim(
        "SEC",
        "A slow mean norm (rho = 0.01) is best, as on Cars196.",
        "supplement, Table 4",
        "sec_rho",
        BestAmong("regularizer.rho", ("rho=0.01",)),
    ),
    Claim(
        "SEC",
        "Plain SEC (rho = 1) is best, as on CUB, SOP and In-Shop.",
        "supplement, Table 5 (only 0.01 and 1 printed)",
        "sec_rho",
        BestAmong("regularizer.rho", ("rho=1",)),
    ),
    Claim(
        "SEC",
        "Pulling norms to their mean beats pulling them to zero.",
        "rebuttal, Table 2",
        "sec_mu",
        Better((("batch mean", "zero"),)),
    ),
    Claim(
        "SEC",
        "Pulling norms to their mean beats pulling them to zero, with the triplet loss.",
        "supplement, section C.1",
        "sec_mu_triplet",
        Better((("batch mean", "zero"),)),
    ),
    Claim("SEC", "SEC improves the tuplet margin loss.", "rebuttal, Table 4", "sec_tml", Better((("TML+SEC", "TML"),))),
    Claim(
        "SEC",
        "Batch norm of the embedding harms SEC.",
        "rebuttal, Table 5",
        "sec_head",
        Better((("SemihardTriplet+SEC", "SemihardTriplet+BN+SEC"),)),
    ),
    Claim(
        "SEC",
        "The weight of L2-reg matters.",
        "supplement, section C.1 and Table 3",
        "sec_l2",
        Matters("regularizer.eta"),
    ),
    Claim(
        "SEC",
        "A scale of 25 is better for normalised N-pair than 64.",
        "supplement, section B.1",
        "npair_scale",
        Better((("s=25", "s=64"),)),
    ),
    Claim(
        "SEC",
        "SEC gains more under SGD than under Adam (suspected by the authors).",
        "rebuttal (reviewer 5, R2)",
        "sec_optimizer",
        Better((("SGD+SEC", "Adam+SEC"),)),
    ),
    Claim(
        "SEC",
        "SEC improves contrastive learning (two-layer head).",
        "supplement, Table 7",
        "sec_simclr",
        Better((("NT-Xent+SEC", "NT-Xent"),)),
    ),
    Claim(
        "SEC",
        "SEC improves contrastive learning with a linear head.",
        "rebuttal, Table 1",
        "sec_linear_head",
        Better((("NT-Xent+SEC", "NT-Xent"),)),
    ),
    Claim(
        "SEC",
        "SEC improves face recognition with every loss.",
        "supplement, Table 6 (19 of 21 numbers)",
        "sec_face",
        Better(_with_and_without("SEC", ("Sphereface", "Cosface", "Arcface"))),
    ),
    Claim(
        "DRO",
        "The hardest K pairs beat the mean of all pairs.",
        "section 3 (argued, not measured)",
        "dro_k",
        Better((("DRO-TopK_M", "mean of all pairs"), ("DRO-TopK-PN_M", "mean of all pairs"))),
    ),
    Claim(
        "DRO",
        "The hardest K pairs beat the mean of all pairs in batches of 640.",
        "section 4.2.3 (argued, not measured)",
        "dro_k_inshop",
        Better((("DRO-TopK_M", "mean of all pairs"), ("DRO-TopK-PN_M", "mean of all pairs"))),
    ),
    Claim(
        "DRO",
        "Soft weights (KL) beat the mean of all pairs at some temperature.",
        "section 3 (argued, not measured)",
        "dro_gamma",
        Better(tuple((f"gamma={gamma}", "mean of all pairs") for gamma in ("0.1", "0.3", "0.5", "0.7", "0.9")), "one"),
    ),
    Claim("DRO", "The temperature gamma matters.", "section 4.1 (tuned, no claim)", "dro_gamma", Matters("loss.gamma")),
    Claim(
        "DRO",
        "Grouped KL beats lifted structure and multi-similarity, which it generalises.",
        "Tables 2 and 4",
        "dro_grouped_gamma",
        Better((("DRO-KL-G", "LS"), ("DRO-KL-G", "MS"))),
    ),
    Claim(
        "DRO",
        "The best temperature of grouped KL is 0.001 or 0.01.",
        "Tables 2 and 4",
        "dro_grouped_gamma",
        BestAmong("loss.gamma", tuple(f"{arm}gamma={g}" for arm in ("", "DRO-KL-G: ") for g in ("0.001", "0.01"))),
    ),
    Claim(
        "DRO",
        "TopK-PN stands imbalance better than top K, KL, semihard and distance-weighted sampling.",
        "section 4.2.2, Figure 1",
        "dro_imbalance",
        Better(tuple(("DRO-TopK-PN_M", name) for name in ("DRO-TopK_M", "DRO-KL_M", "SH", "DWS"))),
    ),
    Claim(
        "MPA",
        "Several proxies per class beat Proxy-Anchor's one.",
        "Tables 7 and 8",
        "mpa_proxies",
        Better((("MPA", "ProxyAnchor"),)),
    ),
    Claim(
        "MPA",
        "The number of proxies matters.",
        "Figures 2 and 3",
        "mpa_proxies",
        Matters("loss.proxies_per_class"),
    ),
    Claim(
        "MPA",
        "8 or 12 proxies are best.",
        "Tables 7 and 8",
        "mpa_proxies",
        BestAmong("loss.proxies_per_class", tuple(f"{arm}K={k}" for arm in ("", "MPA: ") for k in (8, 12))),
    ),
    Claim(
        "MPA",
        "MPA, MPA-DW and MPA-AP beat Proxy-Anchor.",
        "Tables 4 to 6 (8 of 9 numbers)",
        "mpa_family",
        Better(tuple((name, "ProxyAnchor (our)") for name in ("MPA", "MPA-DW", "MPA-AP"))),
    ),
    Claim(
        "MPA",
        "Pulling a class's proxies together (tau) matters.",
        "section 4.2 (one value, no claim)",
        "mpa_tau",
        Matters("loss.tau"),
    ),
    Claim(
        "MPA", "The sharpness gamma matters.", "section 4.2 (one value, no claim)", "mpa_gamma", Matters("loss.gamma")
    ),
)
