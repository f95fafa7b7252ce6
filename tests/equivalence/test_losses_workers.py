"""Contract 2 for every loss and regularizer that is found: W processes give the numbers of one.

One spawn per world size runs all of them: a small network's gradient after averaging, the gradient of the loss's own
parameters, values and regularizer state on the concatenated batch, in float64, over several steps of which the last has an
uneven batch and, with three ranks, a rank without samples.
"""

import copy

import pytest
import torch
from processes import run_ranks

from trainables import distributed
from trainables.losses import LOSSES, build_loss
from trainables.losses.parts.memory import CrossBatchMemory
from trainables.regularizers import REGULARIZERS, build_regularizer

CLASSES, INPUT, DIMENSION = 5, 7, 6
# Global batches, and how many of their samples each rank holds: (first, second, ... step).
LABELS = ([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 1], [4, 1, 4, 1, 2, 2, 0, 3, 3, 0, 2, 4], [3, 0, 0, 3, 1, 1, 2])
SIZES = {1: ([12], [12], [7]), 2: ([6, 6], [6, 6], [5, 2]), 3: ([4, 4, 4], [5, 3, 4], [4, 3, 0])}
REGULARIZER_KNOBS = {
    "sec": {"rho": 0.3},
    "sec, no memory": {"rho": 1.0},
    "sec_fixed": {"mu": "first_batch"},
    "l2": {},
    "none": {},
}
ETA = 0.5
MEMORY = " with a memory"


def cases():
    """Every loss with a stateful regularizer, then every regularizer with one loss; losses of pairs that remember."""
    remembering = [f"{name}{MEMORY}" for name in ("multi_similarity", "margin_dws")]
    losses = [(name, "sec") for name in [*sorted(LOSSES), *remembering]]
    return losses + [("triplet", label) for label in REGULARIZER_KNOBS]


def parts(loss_name, regularizer_label):
    torch.manual_seed(7)
    network = torch.nn.Sequential(torch.nn.Linear(INPUT, 9), torch.nn.Tanh(), torch.nn.Linear(9, DIMENSION)).double()
    name = loss_name.removesuffix(MEMORY)
    loss = build_loss(name, num_classes=CLASSES, embedding_dim=DIMENSION, **LOSSES[name].example)
    if name != loss_name:
        loss = CrossBatchMemory(loss, DIMENSION, size=16, start=0, weight=1.0)
    loss = loss.double()
    knobs = REGULARIZER_KNOBS[regularizer_label]
    return network, loss, build_regularizer(regularizer_label.split(",")[0], **knobs)


def test_every_regularizer_takes_part():
    assert {label.split(",")[0] for label in REGULARIZER_KNOBS} == set(REGULARIZERS)


def inputs(step):
    generator = torch.Generator().manual_seed(step)
    labels = torch.tensor(LABELS[step])
    return torch.randn(len(labels), INPUT, generator=generator, dtype=torch.float64), labels


def run(loss_name, regularizer_label, *, wrapped):
    """Three optimiser steps; every number that must not depend on the number of processes."""
    network, loss, regularizer = parts(loss_name, regularizer_label)
    called = distributed.data_parallel(network) if wrapped else network
    parameters = [*network.parameters(), *loss.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    seen = {}
    for step in range(len(LABELS)):
        x, labels = inputs(step)
        sizes = SIZES[distributed.world_size()][step]
        start = sum(sizes[: distributed.rank()])
        mine = slice(start, start + sizes[distributed.rank()])
        given = sizes if step else None  # once with an exchange of sizes, then without
        everyone, all_labels = distributed.gather_batch(called(x[mine]), labels[mine], given)
        value = loss(everyone, all_labels) + ETA * regularizer(everyone)
        optimizer.zero_grad()
        value.backward()
        distributed.average_gradients(loss.parameters() if wrapped else parameters)
        seen[f"value {step}"] = value.detach().clone()
        for number, parameter in enumerate(parameters):
            if parameter.grad is not None:
                seen[f"gradient {step} {number}"] = parameter.grad.clone()
        optimizer.step()
    seen |= {f"state {key}": tensor.clone() for key, tensor in regularizer.state_dict().items()}
    seen |= {f"loss state {key}": t.clone() for key, t in loss.state_dict().items() if isinstance(t, torch.Tensor)}
    seen |= {f"diagnostics {key}": tensor for key, tensor in regularizer.diagnostics().items()}
    return copy.deepcopy(seen)


def work(rank, world_size, folder):
    torch.set_num_threads(1)
    with distributed.process_group(
        rank=rank, world_size=world_size, init_method=f"file://{folder}/meet", backend="gloo", timeout_s=120
    ):
        # DistributedDataParallel on two ranks, plain averaging on three: both are offered.
        seen = {case: run(*case, wrapped=world_size == 2) for case in cases()}
        torch.save({"|".join(case): numbers for case, numbers in seen.items()}, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def alone():
    return {case: run(*case, wrapped=False) for case in cases()}


@pytest.fixture(scope="module", params=[2, 3])
def together(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"world{request.param}")
    run_ranks(work, request.param, request.param, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(request.param)]


@pytest.mark.parametrize("case", cases(), ids="|".join)
def test_identity_61_many_processes_equal_one(case, alone, together):
    truth = alone[case]
    assert len([key for key in truth if key.startswith("gradient")]) >= 3 * 4  # the network's four parameters
    assert max(t.abs().max() for key, t in truth.items() if key.startswith("gradient 0")) > 1e-6
    for rank, ranks in enumerate(together):
        found = ranks["|".join(case)]
        assert found.keys() == truth.keys()
        for key, expected in truth.items():
            torch.testing.assert_close(
                found[key], expected, rtol=1e-10, atol=1e-10, msg=lambda text, k=key, r=rank: f"rank {r}, {k}: {text}"
            )


def test_every_rank_computes_the_same_numbers(together):
    first, *others = together
    for name, numbers in first.items():
        for other in others:
            assert all(torch.equal(other[name][key], tensor) for key, tensor in numbers.items()), name
