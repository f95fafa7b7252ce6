"""Cross-batch memory: identities 67 to 70 of docs/specification.md, and its state."""

import copy

import pytest
import torch
from helpers.losses import evaluate

from trainables.errors import ConfigError
from trainables.losses import LOSSES, build_loss
from trainables.losses.parts.memory import CrossBatchMemory
from trainables.losses.parts.pairs import PairLoss
from trainables.resolve import Layer, resolve
from trainables.testing import DIMENSION, batch

PAIR_LOSSES = sorted(name for name, cls in LOSSES.items() if issubclass(cls, PairLoss))
LABELS = (0, 0, 0, 1, 1, 1, 2, 2, 2)
SECOND = (0, 0, 1, 1, 2, 2, 3, 3, 3, 1)


def loss_named(name):
    return build_loss(name, num_classes=5, embedding_dim=DIMENSION, **LOSSES[name].example).double()


def remembering(name="multi_similarity", *, size=20, start=0, weight=1.0):
    return CrossBatchMemory(loss_named(name), DIMENSION, size=size, start=start, weight=weight).double()


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_identity_67_an_empty_memory_is_the_base_loss(name):
    embeddings, labels = batch(LABELS)
    first, expected = (evaluate(loss, embeddings, labels) for loss in (remembering(name), loss_named(name)))
    assert all(torch.equal(a, b) for a, b in zip(first, expected, strict=True))
    waiting, plain = remembering(name, start=3), loss_named(name)
    for seed in range(4):
        embeddings, labels = batch(LABELS, seed=seed)
        assert torch.equal(waiting(embeddings, labels), plain(embeddings, labels))
    assert waiting.stored_count == len(LABELS)


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_identity_68_losses_between_batch_and_memory_are_valid(name):
    """The gradient is that of the value and tangential, and the order of stored embeddings does not matter."""
    torch.manual_seed(0)
    loss = loss_named(name)
    embeddings, labels = batch(LABELS)
    others, other_labels = batch(SECOND, seed=1)
    unit = torch.nn.functional.normalize(others.detach())
    value = loss.against(embeddings, labels, unit, other_labels)
    slope = torch.autograd.grad(value, embeddings)[0]
    assert value.isfinite()
    along = (slope * embeddings).sum(dim=1).abs().max()
    assert along < 1e-12 * max(1, slope.abs().max())
    order = torch.randperm(len(unit), generator=torch.Generator().manual_seed(2))
    if not loss.depends_on_order:
        torch.testing.assert_close(
            loss_named(name).against(embeddings, labels, unit[order], other_labels[order]), value
        )
    if not (loss.surrogate_gradient or loss.depends_on_order):
        fresh = loss_named(name)
        assert torch.autograd.gradcheck(
            lambda f: fresh.against(f, labels, unit, other_labels), embeddings, fast_mode=True
        )


def naive_triplet(embeddings, labels, unit, other_labels, margin):
    similarity = torch.nn.functional.normalize(embeddings) @ unit.T
    terms = []
    for a, label in enumerate(labels.tolist()):
        for p in range(len(unit)):
            for n in range(len(unit)):
                if other_labels[p] == label != other_labels[n]:
                    terms.append((2 * similarity[a, n] - 2 * similarity[a, p] + margin).clamp_min(0))
    return torch.stack(terms).mean()


def naive_margin(embeddings, labels, unit, other_labels, margin, threshold):
    similarity = torch.nn.functional.normalize(embeddings) @ unit.T
    sign = torch.where(labels[:, None] == other_labels, 1.0, -1.0)
    return (margin + sign * (threshold - similarity)).clamp_min(0).mean()


def test_identity_68_naive_loops_of_pairs_with_a_memory():
    embeddings, labels = batch(LABELS)
    others, other_labels = batch(SECOND, seed=1)
    unit = torch.nn.functional.normalize(others.detach())
    for found, expected in (
        (build_loss("triplet"), naive_triplet(embeddings, labels, unit, other_labels, 1.0)),
        (build_loss("margin_all"), naive_margin(embeddings, labels, unit, other_labels, 0.2, 0.5)),
    ):
        value = found.against(embeddings, labels, unit, other_labels)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(
            torch.autograd.grad(value, embeddings)[0], torch.autograd.grad(expected, embeddings)[0]
        )


def test_identity_69_the_second_step_adds_the_pairs_with_the_first():
    loss, plain = remembering(weight=0.5), loss_named("multi_similarity")
    first, labels = batch(LABELS)
    second, more = batch(SECOND, seed=1)
    loss(first, labels)
    expected = plain(second, more) + 0.5 * plain.against(
        second, more, torch.nn.functional.normalize(first.detach()), labels
    )
    torch.testing.assert_close(loss(second, more), expected, rtol=1e-12, atol=0)


def test_memory_overwrites_the_oldest_and_keeps_the_last_of_a_large_batch():
    loss = remembering(size=12)
    seen = [batch(LABELS, seed=seed) for seed in range(3)]
    for embeddings, labels in seen:
        loss(embeddings, labels)
    units = torch.cat([torch.nn.functional.normalize(f.detach()) for f, _ in seen])[-12:]
    kept = loss.embeddings[torch.argsort(loss.embeddings[:, 0])]
    torch.testing.assert_close(kept, units[torch.argsort(units[:, 0])])
    small = remembering(size=4)
    small(*seen[0])
    torch.testing.assert_close(
        small.embeddings, units.new_tensor(torch.nn.functional.normalize(seen[0][0].detach())[-4:].numpy())
    )
    assert small.stored_count == 4


def test_identity_70_a_restored_memory_continues_exactly():
    loss = remembering(size=12, start=1)
    for seed in range(3):
        loss(*batch(LABELS, seed=seed))
    restored = remembering(size=12, start=1)
    restored.load_state_dict(copy.deepcopy(loss.state_dict()))
    for seed in range(3, 6):
        embeddings, labels = batch(LABELS, seed=seed)
        assert torch.equal(loss(embeddings, labels), restored(embeddings, labels))
    assert torch.equal(loss.embeddings, restored.embeddings)


def test_evaluation_leaves_the_memory_alone():
    loss = remembering().eval()
    embeddings, labels = batch(LABELS)
    assert torch.equal(loss(embeddings, labels), loss_named("multi_similarity")(embeddings, labels))
    assert loss.stored_count == 0
    loss.train()
    loss(embeddings, labels)
    assert loss.diagnostics()["memory_filled"] == len(LABELS)


def test_losses_that_cannot_use_a_memory_are_refused():
    with pytest.raises(ConfigError, match=r"only a pair loss.*proxy_anchor is not one"):
        resolve(Layer("test", {"loss.name": "proxy_anchor", "memory.size": 64}))
    with pytest.raises(ConfigError, match="an empty memory"):
        resolve(Layer("test", {"memory.start": 64}))
    assert resolve(Layer("test", {"memory.size": 64})).config.digest() != resolve(Layer("test", {})).config.digest()
