"""The fidelity sheets against what protocols resolve to: equal is equal, different differs and says why."""

import importlib.util
from pathlib import Path

import pytest

from search_spaces.fidelity import SHEETS
from trainables.losses import LOSSES
from trainables.losses.parts.proxies import ProxyLoss
from tune_dml.catalogue import protocols
from tune_dml.space import Decision

ROOT = Path(__file__).parents[2]
SHEET_OF = {name: sheet for sheet in SHEETS for name in sheet.protocols}
EVERYWHERE = {
    "start of the backbone",
    "start of the head",
    "weight decay",
    "learning rates",
    "schedule",
    "batch normalisation",
    "training pictures",
    "test pictures",
    "channels",
    "batches",
    "steps",
    "published number",
}


def _generator():
    spec = importlib.util.spec_from_file_location("generate_fidelity", ROOT / "docs" / "generate_fidelity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIDELITY = _generator()
RESOLVED = {name: FIDELITY.settings_of(name) for name in SHEET_OF}


def holds(decision: Decision, settings) -> bool:
    return all(
        path in settings and FIDELITY.is_same(value, settings[path]) for path, value in decision.settings.items()
    )


def decisions_about(name):
    return [decision for decision in SHEET_OF[name].decisions if decision.is_about(name)]


def wrong(decision: Decision, settings) -> bool:
    if decision.verdict == "equal":
        return not holds(decision, settings)
    return decision.verdict == "differs" and decision.settings != {} and holds(decision, settings)


@pytest.mark.parametrize("name", SHEET_OF)
def test_ours_is_what_the_sheet_says_of_it(name):
    assert [item for item in decisions_about(name) if wrong(item, RESOLVED[name])] == []


def test_every_decision_says_enough_to_be_checked_by_a_reader():
    for sheet in SHEETS:
        for decision in sheet.decisions:
            assert decision.settings or decision.ours, decision
            assert (decision.verdict == "equal") == (decision.why == ""), decision
            for pattern in decision.of:
                narrowed = Decision("steps", "", "", of=(pattern,))
                assert any(map(narrowed.is_about, sheet.protocols)), (sheet.title, pattern)


def test_every_protocol_of_a_paper_has_a_sheet_with_every_part():
    assert set(SHEET_OF) == {name for name, own in protocols().items() if own.origin == "paper" and "+" not in name}
    for name in SHEET_OF:
        parts = {decision.part for decision in decisions_about(name)}
        has_proxies = issubclass(LOSSES[str(RESOLVED[name]["loss.name"])], ProxyLoss)
        expected = EVERYWHERE | ({"start of proxies"} if has_proxies else set())
        assert expected <= parts, (name, expected - parts)


def test_a_wrong_sheet_is_found():
    settings = RESOLVED["sec/cars196"]
    assert not wrong(Decision("start of the head", "", "", {"model.head_init": "torch"}), settings)
    assert wrong(Decision("start of the head", "", "", {"model.head_init": "he_fan_out"}), settings)
    assert wrong(Decision("start of the head", "", "", {"model.head_init": "torch"}, verdict="differs"), settings)
    assert wrong(Decision("schedule", "", "", {"optim.lr_milestones": [4000]}), settings)
    assert wrong(Decision("steps", "", "", {"training.no_such_setting": 1}), settings)


def test_the_page_of_fidelity_is_up_to_date():
    assert FIDELITY.PAGE.read_text() == FIDELITY.page(), "run `make docs`"
