import pytest

from trainables.methods import KnobDomain
from tune_dml.stats.verdicts.best import extension


@pytest.mark.parametrize(
    ("values", "side", "scale", "domain", "expected"),
    [
        ([0.001, 0.01, 0.1, 1], "high", "log", KnobDomain(), (10.0, 100.0)),
        ([0.25, 0.5, 1], "low", "log", KnobDomain(0), (0.12, 0.058)),
        ([4, 8, 12, 16], "high", "linear", KnobDomain(1, integer=True), (20.0, 24.0)),
        ([1, 4, 8], "low", "linear", KnobDomain(1, integer=True), ()),
        ([0.01, 0.1, 0.5], "low", "linear", KnobDomain(0, 1, low_open=True), (0.005, 0.0025)),
        ([0.1, 0.3, 0.5], "low", "linear", KnobDomain(0), (0.0,)),
        ([0.5, 0.9], "high", "linear", KnobDomain(0, 1), (1.0,)),
        ([0.5, 0.9, 1.0], "high", "linear", KnobDomain(0, 1), ()),
    ],
)
def test_extension(values: list[float], side: str, scale: str, domain: KnobDomain, expected: tuple[float, ...]) -> None:
    assert extension(values, side, scale=scale, domain=domain) == expected
