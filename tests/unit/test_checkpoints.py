"""Two checkpoints, the last and the one before; what cannot be read is skipped aloud."""

import pytest
import torch

from trainables.context import CHECKPOINT, PREVIOUS, FolderContext


@pytest.fixture
def context(tmp_path):
    said = []
    context = FolderContext(tmp_path / "trial", torch.device("cpu"), say=said.append)
    context.said = said
    for step in (1, 2, 3):
        context.report({"step": step}, {"step": step, "weights": torch.full((100,), float(step))})
    return context


def test_two_are_kept_and_the_last_counts(context):
    assert sorted(path.name for path in context.folder.glob("*.pt")) == sorted([CHECKPOINT, PREVIOUS])
    assert context.latest_checkpoint()["step"] == 3
    assert context.said == []


@pytest.mark.parametrize(
    "spoil", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"\0" * len(data)]
)
def test_a_spoilt_one_is_skipped_for_the_one_before(context, spoil):
    last = context.folder / CHECKPOINT
    last.write_bytes(spoil(last.read_bytes()))
    assert context.latest_checkpoint()["step"] == 2
    assert len(context.said) == 1
    assert "skipped" in context.said[0]
    (context.folder / PREVIOUS).write_bytes(b"nothing")
    assert context.latest_checkpoint() is None


def test_one_that_is_missing_between_two_writes_is_the_one_before(context):
    (context.folder / CHECKPOINT).unlink()
    assert context.latest_checkpoint()["step"] == 2
    assert context.said == []


def test_none_yet_is_none(tmp_path):
    assert FolderContext(tmp_path, torch.device("cpu")).latest_checkpoint() is None
