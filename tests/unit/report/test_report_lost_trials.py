"""What a report may claim where seeds were lost and values diverged."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.toys import FLAT, STEEP, crossed, space_of
from judging import diverged, judged

from tune_dml.space import Grid, Knob


def test_a_lost_seed_widens_its_value_and_erases_nothing(tmp_path: Path) -> None:
    whole = judged(tmp_path / "whole", seeds=range(5))
    lost = judged(tmp_path / "lost", seeds=range(5), failures={("rho=0.01", 1): ("failed", "no disk")})
    assert lost.knob["sensitivity"]["verdict"] == "sensitive"
    assert lost.knob["sensitivity"]["cells"] == 5
    width = {
        name: next(d["high"] - d["low"] for d in one.knob["sensitivity"]["differences"] if d["first"] == "rho=0.01")
        for name, one in (("whole", whole), ("lost", lost))
    }
    assert width["lost"] > width["whole"]
    cell = next(cell for cell in lost.data["cells"] if cell["label"] == "rho=0.01")
    assert (cell["n"], cell["planned"], cell["lost"]) == (4, 5, "seed 1 failed: no disk")
    assert cell["against_baseline"]["verdict"] == "better"
    assert "Without a result: rho=0.01 (seed 1 failed: no disk). Each value keeps its other seeds" in lost.text


def test_a_lost_seed_of_a_grid_leaves_its_main_effects(tmp_path: Path) -> None:
    grid = {(a, b): a + b for a, b in crossed([10.0, 25.0, 40.0], [0.0, 1.0, 2.0])}
    first = Knob("optim.lr", Grid((10.0, 25.0, 40.0)), symbol="lr")
    second = Knob("loss.margin", Grid((0.0, 1.0, 2.0)), symbol="m")
    failures = {("lr=10, m=1", 1): ("failed", "no disk")}
    found = judged(tmp_path, space=space_of(first, second), means=grid, baseline=None, failures=failures)
    labels = {cell["label"] for cell in found.data["cells"]}
    assert labels >= {label for label, _ in failures}
    verdict = found.knob["sensitivity"]
    assert verdict["verdict"] == "sensitive"
    assert verdict["largest"]["estimate"] == pytest.approx(30, abs=2)
    points = {point["label"]: point["mean"] for point in found.knob["points"]}
    assert verdict["largest"]["estimate"] == pytest.approx(points["lr=40"] - points["lr=10"])


def test_what_is_seen_where_no_two_values_share_two_seeds_is_seen_within_a_seed(tmp_path: Path) -> None:
    """Means of other seeds differ by the seeds: 62 under an easy seed is no better than 60 under a hard one."""
    elsewhere = [(f"rho={rho}", seed) for rho in ("0.5", "0.9", "1") for seed in range(3)]

    def said(name: str, *lost: tuple[str, int]) -> str:
        failures = dict.fromkeys([*lost, *elsewhere], ("diverged", "loss is nan"))
        found = judged(tmp_path / name, means=FLAT, sd=0.0, seed_sd=9.0, failures=failures)
        return str(found.data["answer"]["sentences"][0])

    none = said("none", ("rho=0.01", 1), ("rho=0.01", 2), ("rho=0.1", 0))
    assert none == "It is undecided whether rho matters on glyphs: no two values share two seeds."
    assert "R@1 falls 0.1 points from rho = 0.1 to 0.01, but no two" in said("one", ("rho=0.01", 2), ("rho=0.1", 0))


def test_what_is_open_is_said_of_a_pair_that_is(tmp_path: Path) -> None:
    """Values that are equally far apart under both seeds are sure; the one that has but one of them is not."""
    means = dict.fromkeys(FLAT, 50.0) | {0.1: 50.01}
    options = {"means": means, "sd": 0.0, "seed_sd": 0.0, "seeds": range(2)}
    found = judged(tmp_path, failures={("rho=0.5", 1): ("diverged", "loss is nan")}, **options)
    (said,) = (
        text for text in found.data["answer"]["sentences"] if text.startswith("It is undecided whether rho matters")
    )
    assert said.endswith("with 2 seeds the true difference may be much larger (smallest that matters: 1 point).")


def test_a_value_that_diverged_does_not_beat_the_baseline(tmp_path: Path) -> None:
    means = {0.1: 70.0, 0.5: 71.0, 1.0: 72.0}
    found = judged(tmp_path, means=means, sd=0.1, failures=diverged("rho=1"))
    said = found.data["answer"]["sentences"]
    assert "rho = 1 always diverges." in said
    assert "Every value of rho that finished training is significantly better than training without SEC." in said


def test_no_difference_is_claimed_of_a_value_that_has_no_number(tmp_path: Path) -> None:
    failures = {("rho=1", seed): ("failed", "no disk") for seed in range(8)}
    found = judged(tmp_path, means=FLAT, seeds=range(8), sd=0.3, margin=1.5, failures=failures)
    assert found.knob["sensitivity"]["verdict"] == "insensitive"
    assert "; rho=1 gave no result." in found.files.summary.verdicts[0]
    assert found.data["answer"]["sentences"][0].endswith("differ by 1.5 points or more; rho=1 gave no result.")


def test_values_that_diverged_never_do_not_matter(tmp_path: Path) -> None:
    found = judged(tmp_path, means=FLAT, seeds=range(8), sd=0.3, margin=1.5, failures=diverged("rho=1", seeds=8))
    assert found.knob["sensitivity"]["verdict"] == "undecided"
    sentence = found.files.summary.verdicts[0]
    assert sentence.startswith(
        "Among the values that trained, rho does not matter: every difference is significantly below 1.50 points, the "
        "smallest that matters. But rho=1 diverged."
    )
    assert found.knob["sensitivity"]["diverged"] == ["rho=1"]
    assert found.knob["sensitivity"]["seeds_needed"] is None
    assert found.knob["optimum"]["verdict"] == "undecided"
    assert "extend" not in " ".join(found.files.summary.commands)


def test_one_diverged_seed_is_a_result_too(tmp_path: Path) -> None:
    failures = {("rho=1", 3): ("diverged", "loss is nan")}
    found = judged(tmp_path, means=FLAT, seeds=range(8), sd=0.3, margin=1.5, failures=failures)
    assert found.knob["sensitivity"]["verdict"] == "undecided"
    lost = judged(tmp_path / "failed", means=FLAT, seeds=range(8), sd=0.3, margin=1.5,
                  failures={("rho=1", 3): ("failed", "no disk")})  # fmt: skip
    assert lost.knob["sensitivity"]["verdict"] == "insensitive"


def test_a_range_that_ends_in_divergence_is_not_extended(tmp_path: Path) -> None:
    rising = dict(zip(STEEP, [60.0, 62.0, 64.0, 70.0, 0.0], strict=True))
    found = judged(tmp_path, means=rising, failures=diverged("rho=1"), seeds=range(3))
    optimum = found.knob["optimum"]
    assert (optimum["verdict"], optimum["side"], optimum["best"]) == ("edge", "high", "rho=0.9")
    assert optimum["extend"] == []
    assert optimum["ends_in_divergence"]
    assert "Training diverges there or beyond, so the range cannot be extended." in optimum["sentence"]
    assert "extend" not in " ".join(found.files.summary.commands)
    assert not [finding for finding in found.files.findings if "optimum" in finding]
