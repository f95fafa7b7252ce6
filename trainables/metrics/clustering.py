"""How well clusters of the embeddings are the classes: k-means, NMI and pairwise F1.

The result depends on the program that clusters as much as on the embeddings, so it carries a line that says which one,
and metrics from different lines must not be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.metrics.inputs import Array, checked_labels, checked_vectors, labelled_vectors, unit_rows

KMeansBackend = Literal["sklearn", "faiss", "auto"]
Sizes = NDArray[np.int64]

CLUSTERING_METRICS = ("nmi", "f1")
"""The names under which a trial reports them."""
ITERATIONS = 20  # of one random start; pytorch-metric-learning's


@dataclass(frozen=True)
class ClusteringMetrics:
    """Agreement of clusters and classes, in percent."""

    nmi: float
    f1: float
    backend: str
    """What clustered; values from different backends must not be compared."""

    def figures(self) -> dict[str, float]:
        """As a trial reports them."""
        return dict(zip(CLUSTERING_METRICS, (self.nmi, self.f1), strict=True))


@dataclass(frozen=True)
class Clustering:
    """A partition of N points."""

    assignment: NDArray[np.int64]
    """(N,), the cluster of each point, 0..clusters-1; a cluster may be empty."""
    backend: str
    """The program, its version and its settings."""


def clustering_metrics(
    embeddings: Array, labels: Array, *, backend: KMeansBackend = "sklearn", seed: int = 0
) -> ClusteringMetrics:
    """NMI and pairwise F1 of k-means, with as many clusters as classes, on normalised embeddings (N, D), labels (N,).

    See `kmeans` for the backends and their cost. Raises ConfigError for bad embeddings, labels or backend.
    """
    points = labelled_vectors(embeddings, labels)
    clusters = kmeans(points.vectors, len(torch.unique(points.labels)), backend=backend, seed=seed)
    partitions = clusters.assignment, points.labels
    return ClusteringMetrics(nmi(*partitions), pairwise_f1(*partitions), clusters.backend)


def nmi(assignment: Array, labels: Array) -> float:
    """NMI = 2 I(A; B) / (H(A) + H(B)), in percent, for cluster and class numbers (N,).

    The arithmetic mean of the entropies normalises (older papers' programs took the geometric one). 100 when both
    partitions have a single part. Raises ConfigError for wrong types or lengths.
    """
    table = _overlap(assignment, labels)
    total = max(int(table.clusters.sum()), 1)
    entropies = _entropy(table.clusters / total) + _entropy(table.classes / total)
    if entropies == 0:
        return 100.0
    joint = table.shared / total
    independent = (table.clusters[table.cluster] / total) * (table.classes[table.label] / total)
    information = float((joint * np.log(joint / independent)).sum())
    return min(100.0, max(0.0, 200 * information / entropies))


def _entropy(shares: NDArray[np.float64]) -> float:
    return float(-(shares * np.log(shares)).sum())


def pairwise_f1(assignment: Array, labels: Array) -> float:
    """F1 = 2 P R / (P + R) over unordered pairs in one cluster, in percent; 0 when no such pair is of one class.

    TP = Σ_kj C(n_kj, 2), P = TP / Σ_k C(|k|, 2) over clusters k, R = TP / Σ_j C(|j|, 2) over classes j
    (docs/specification.md, section 7). Raises ConfigError for wrong types or lengths.
    """
    table = _overlap(assignment, labels)
    together, in_clusters, in_classes = (_pairs(sizes) for sizes in (table.shared, table.clusters, table.classes))
    return 100 * 2 * together / (in_clusters + in_classes) if together else 0.0


def _pairs(sizes: Sizes) -> int:
    """Σ C(n, 2)."""
    return int((sizes * (sizes - 1) // 2).sum())


class _Overlap(NamedTuple):
    """How many points clusters, classes and their non-empty intersections have, whose cluster and class follow."""

    clusters: Sizes
    classes: Sizes
    shared: Sizes
    cluster: Sizes
    label: Sizes


def _overlap(assignment: Array, labels: Array) -> _Overlap:
    """Of two labellings (N,) of the same points, counted by numpy: several times as fast as by scikit-learn."""
    first, problems = checked_labels(assignment, 0, "assignment")
    second, more = checked_labels(labels, 0 if problems else len(first), "labels")
    raise_if_any(problems + more)
    clusters, classes = (np.unique(part.cpu().numpy(), return_inverse=True)[1] for part in (first, second))
    width = classes.max(initial=0) + 1
    pairs, shared = np.unique(clusters * width + classes, return_counts=True)
    return _Overlap(np.bincount(clusters), np.bincount(classes), shared, *np.divmod(pairs, width))


def kmeans(embeddings: Array, clusters: int, *, backend: KMeansBackend = "sklearn", seed: int = 0) -> Clustering:
    """Clusters of the L2-normalised embeddings (N, D); deterministic for a given backend, seed and number of threads.

    "sklearn": the best of ten k-means++ starts, up to 300 iterations each, the setting of the SEC authors' code.
    "faiss": one random start and 20 iterations on all points, as pytorch-metric-learning does; many times faster.
    "auto": the latter, by the GPU for embeddings on one where faiss-gpu is installed, else on the CPU, and by
    scikit-learn where faiss is not there: what the trials of a sweep are measured with.
    Stanford Online Products (60,502 points, 11,316 clusters) takes hours with the first and minutes with the others.

    Raises ConfigError for bad embeddings, a number of clusters outside 1..N, or a backend that is absent.
    """
    vectors, problems = checked_vectors(embeddings, "embeddings")
    if not problems and not 1 <= clusters <= len(vectors):
        problems.append(Problem("clusters", f"must be between 1 and the {len(vectors)} points", clusters))
    if backend not in get_args(KMeansBackend):
        problems.append(Problem("backend", f"must be one of {', '.join(get_args(KMeansBackend))}", backend))
    raise_if_any(problems)
    points = unit_rows(vectors).cpu().numpy()
    if backend == "sklearn":
        return _sklearn(points, clusters, seed)
    faiss = _loaded_faiss()
    if faiss is not None:
        return _faiss(faiss, points, clusters, seed, gpu=vectors.is_cuda and faiss.get_num_gpus() > 0)
    if backend == "faiss":
        remedy = "Install tune-dml[cpu] or tune-dml[gpu], or choose 'sklearn'."
        raise ConfigError(Problem("backend", "faiss is not installed", "faiss", remedy))
    return _sklearn_once(points, clusters, seed)


def _sklearn(points: NDArray[np.floating], clusters: int, seed: int) -> Clustering:
    from sklearn.cluster import KMeans

    fitted = KMeans(clusters, init="k-means++", n_init=10, max_iter=300, random_state=seed).fit(points)
    settings = f"k-means++, best of 10 starts, at most 300 iterations, seed {seed}"
    return Clustering(fitted.labels_.astype(np.int64), f"scikit-learn {version('scikit-learn')}: {settings}")


def _sklearn_once(points: NDArray[np.floating], clusters: int, seed: int) -> Clustering:
    """As much work as faiss is given."""
    from sklearn.cluster import KMeans

    fitted = KMeans(clusters, init="random", n_init=1, max_iter=ITERATIONS, random_state=seed).fit(points)
    settings = f"random start, at most {ITERATIONS} iterations, seed {seed}"
    return Clustering(fitted.labels_.astype(np.int64), f"scikit-learn {version('scikit-learn')}: {settings}")


def _loaded_faiss() -> Any:
    """The module; None where it is not installed, or cannot be loaded (faiss-gpu without its CUDA libraries)."""
    try:
        import faiss
    except (ImportError, RuntimeError):
        return None
    return faiss


def _faiss(faiss: Any, points: NDArray[np.floating], clusters: int, seed: int, *, gpu: bool) -> Clustering:
    data = np.ascontiguousarray(points, dtype=np.float32)
    faiss.omp_set_num_threads(torch.get_num_threads())  # its own would take every core from the other trials
    # Left to itself faiss trains on at most 256 points a centroid.
    fitted = faiss.Kmeans(
        data.shape[1], clusters, niter=ITERATIONS, nredo=1, seed=seed, max_points_per_centroid=len(data), gpu=int(gpu)
    )
    fitted.cp.min_points_per_centroid = 1  # its warning is about indexing, not about clustering
    fitted.train(data)
    nearest = fitted.index.search(data, 1)[1][:, 0].astype(np.int64)
    program = f"faiss {faiss.__version__}{' on the GPU' if gpu else ''}"
    return Clustering(nearest, f"{program}: random start, {ITERATIONS} iterations, seed {seed}")
