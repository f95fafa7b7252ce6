"""What `plan` says where so few seeds detect nothing that a percentage can have."""

from pathlib import Path

from helpers.toys import write_sweep

from tune_dml.cli.plan import _power


def test_a_difference_beyond_a_hundred_points_is_said_to_be_none(tmp_path: Path) -> None:
    stored = write_sweep(tmp_path / "s", seeds=range(2), sd=2.0, histories=False, evidence=False)
    power = _power(stored.plan, [stored])
    assert power.detectable > 100
    assert power.beyond_percent
    assert power.seeds_for_margin is not None
    assert 10 < power.seeds_for_margin < 1000
