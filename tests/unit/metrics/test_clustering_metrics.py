"""NMI against scikit-learn and pairwise F1 against a loop, and k-means through both backends."""

import builtins
import importlib.util
import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from helpers.together import drawn
from sklearn.metrics import normalized_mutual_info_score

from trainables.config import SEED_LIMIT
from trainables.errors import ConfigError
from trainables.metrics.clustering import clustering_metrics, kmeans, nmi, pairwise_f1

BACKENDS = [
    "sklearn",
    pytest.param("faiss", marks=pytest.mark.skipif(not importlib.util.find_spec("faiss"), reason="no faiss")),
]


def two_partitions(random):
    """Return two partitions of few points into up to nine parts; some of them have one part."""
    return random.integers(-2, random.integers(-1, 8), (2, random.integers(1, random.choice([5, 31, 31]))))


def naive_f1(assignment, labels) -> float:
    together = alike = both = 0
    for i, j in combinations(range(len(labels)), 2):
        same_cluster, same_class = assignment[i] == assignment[j], labels[i] == labels[j]
        together += same_cluster
        alike += same_class
        both += same_cluster and same_class
    if not both:
        return 0.0
    precision, recall = both / together, both / alike
    return 2 * precision * recall / (precision + recall)


@drawn(50)
def test_nmi_is_that_of_scikit_learn(random):
    a, b = two_partitions(random)
    assert nmi(a, b) / 100 == pytest.approx(normalized_mutual_info_score(a, b), abs=1e-12)
    assert nmi(a, b) == pytest.approx(nmi(b, a), abs=1e-10)


@drawn(100)
def test_identity_56_f1_equals_pair_counting_loop(random):
    assignment, labels = two_partitions(random)
    assert pairwise_f1(assignment, labels) / 100 == pytest.approx(naive_f1(assignment, labels), abs=1e-12)


@drawn(30)
def test_identity_56_names_of_clusters_do_not_matter(random):
    assignment, labels = two_partitions(random)
    renamed = random.permutation(9)[assignment + 2]
    assert nmi(renamed, labels) == pytest.approx(nmi(assignment, labels), abs=1e-10)
    assert pairwise_f1(renamed, labels) == pairwise_f1(assignment, labels)


def separate_classes(classes: int = 6, each: int = 9):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(each)
    centres = torch.nn.functional.one_hot(labels, 8).float()
    return centres + 0.02 * torch.randn(len(labels), 8, generator=generator), labels


def test_identity_56_perfect_clustering():
    vectors, labels = separate_classes()
    found = clustering_metrics(3 * vectors, labels)
    assert found.nmi == pytest.approx(100, abs=1e-10)
    assert found.f1 == pytest.approx(100, abs=1e-10)
    assert pairwise_f1(torch.arange(4), torch.arange(4)) == 0  # no pairs, none found


@pytest.mark.parametrize("backend", BACKENDS)
def test_clusters_use_directions_repeat_and_name_their_backend(backend):
    vectors, labels = separate_classes()
    lengths = torch.rand(len(labels), 1, generator=torch.Generator().manual_seed(1)) * 100 + 0.1
    one, two = (kmeans(v, 6, backend=backend) for v in (vectors, vectors * lengths))
    assert pairwise_f1(one.assignment, two.assignment) == 100
    assert (one.assignment == kmeans(vectors, 6, backend=backend).assignment).all()
    assert one.assignment.shape == (54,)
    assert one.assignment.dtype == np.int64
    assert "seed 0" in one.backend
    assert ("scikit-learn" if backend == "sklearn" else "faiss") in one.backend


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_seed_of_a_trial_clusters(backend):
    vectors, labels = separate_classes()
    for seed in (2**31, SEED_LIMIT - 1):
        assert pairwise_f1(kmeans(vectors, 6, backend=backend, seed=seed).assignment, labels) > 50


def test_scikit_learn_backend_is_the_published_setting():
    from sklearn.cluster import KMeans

    vectors = np.random.default_rng(0).standard_normal((60, 5))
    labels = np.arange(60) % 7
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    theirs = KMeans(7, n_init=10, random_state=0).fit(unit).labels_
    found = clustering_metrics(vectors, labels)
    assert found.nmi == pytest.approx(100 * normalized_mutual_info_score(labels, theirs))
    assert found.f1 == pytest.approx(100 * naive_f1(theirs, labels))


def test_faiss_trains_on_every_point_and_is_what_auto_chooses():
    """Two distant groups of very different size: sampling would lose the small one."""
    pytest.importorskip("faiss")
    labels = torch.tensor([0] * 20_000 + [1] * 3)
    found = kmeans(torch.eye(4)[labels], 2, backend="faiss")
    assert pairwise_f1(found.assignment, labels) == 100
    vectors = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    found = kmeans(vectors, 20, backend="auto", seed=4)
    assert found.backend.startswith("faiss")
    assert (found.assignment == kmeans(vectors, 20, backend="faiss", seed=4).assignment).all()
    assert (found.assignment != kmeans(vectors, 20, backend="faiss", seed=5).assignment).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clusters": 0}, "clusters: must be between 1 and the 4 points"),
        ({"clusters": 5}, "clusters: must be between 1 and the 4 points"),
        ({"clusters": 2, "backend": "other"}, "backend: must be one of sklearn, faiss, auto"),
        ({"embeddings": torch.full((4, 2), torch.nan), "clusters": 2}, "must be finite"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        kmeans(**({"embeddings": torch.rand(4, 2)} | arguments))


def without_faiss(monkeypatch, error):
    found = builtins.__import__

    def refuse(name, *rest, **named):
        if name == "faiss":
            raise error
        return found(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize("error", [ImportError("no faiss"), RuntimeError("libcudart.so.12 is missing")])
def test_without_faiss_scikit_learn_is_used_and_named(monkeypatch, error):
    vectors, labels = separate_classes()
    without_faiss(monkeypatch, error)
    with pytest.raises(ConfigError, match=r"faiss is not installed.*tune-dml\[cpu\]"):
        kmeans(torch.rand(4, 2), 2, backend="faiss")
    found = kmeans(vectors, 6, backend="auto", seed=3)
    assert found.backend.startswith("scikit-learn")
    assert "random start, at most 20 iterations, seed 3" in found.backend
    assert nmi(found.assignment, labels) > 80


@pytest.mark.parametrize("metric", [nmi, pairwise_f1])
def test_partitions_must_match(metric):
    with pytest.raises(ConfigError, match=r"labels: there must be one label per .* \(3\), but got 2"):
        metric(torch.arange(3), torch.arange(2))
    with pytest.raises(ConfigError, match="assignment: must be an integer"):
        metric(torch.rand(3), torch.arange(3))
