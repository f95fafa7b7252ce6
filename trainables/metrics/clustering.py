"""Measure the agreement of k-means clusters with the classes: NMI and pairwise F1.

The result depends on the clustering program too, and therefore names its backend. Do not compare values from different
backends.
"""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.metrics.inputs import Array, checked_labels, checked_vectors, labelled_vectors, unit_rows

KMeansBackend = Literal["sklearn", "faiss", "auto"]
_Sizes = NDArray[np.int64]

CLUSTERING_METRICS = ("nmi", "f1")
"""Names under which a trial reports them."""
_ITERATIONS = 20  # of a single start, as in pytorch-metric-learning
_SEEDS = 2**31  # faiss takes seeds below it, scikit-learn twice as many


@dataclass(frozen=True)
class ClusteringMetrics:
    """Agreement of clusters and classes, in percent."""

    nmi: float
    f1: float
    backend: str  # the program, its version and its settings

    def figures(self) -> dict[str, float]:
        """Return the values under their names in trials."""
        return dict(zip(CLUSTERING_METRICS, (self.nmi, self.f1), strict=True))


@dataclass(frozen=True)
class Clustering:
    """A partition of N points."""

    assignment: NDArray[np.int64]  # (N,): cluster of each point, 0..clusters-1; a cluster may be empty
    backend: str  # the program, its version and its settings


def clustering_metrics(
    embeddings: Array, labels: Array, *, backend: KMeansBackend = "sklearn", seed: int = 0
) -> ClusteringMetrics:
    """Compute NMI and pairwise F1 of k-means on normalised embeddings (N, D) with labels (N,).

    There are as many clusters as classes. See `kmeans` for the backends and their cost. Raises ConfigError for bad
    embeddings, labels or backend.
    """
    points = labelled_vectors(embeddings, labels)
    clusters = kmeans(points.vectors, len(torch.unique(points.labels)), backend=backend, seed=seed)
    partitions = clusters.assignment, points.labels
    return ClusteringMetrics(nmi(*partitions), pairwise_f1(*partitions), clusters.backend)


def nmi(assignment: Array, labels: Array) -> float:
    """Return NMI = 2 I(A; B) / (H(A) + H(B)), in percent, for cluster and class numbers (N,).

    Normalised by the arithmetic mean of the entropies (older papers' programs took the geometric mean); 100 when both
    partitions have a single part. Raises ConfigError for wrong types or lengths.

    >>> nmi(np.array([0, 0, 1, 1]), np.array([5, 5, 7, 7])), nmi(np.array([0, 1, 0, 1]), np.array([5, 5, 7, 7]))
    (100.0, 0.0)
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
    """Return F1 = 2 P R / (P + R) over unordered pairs in one cluster, in percent; 0 when no such pair is of one class.

    TP = Σ_kj C(n_kj, 2), P = TP / Σ_k C(|k|, 2) over clusters k, R = TP / Σ_j C(|j|, 2) over classes j
    (docs/specification.md, section 7). Raises ConfigError for wrong types or lengths.
    """
    table = _overlap(assignment, labels)
    together, in_clusters, in_classes = (_count_pairs(sizes) for sizes in (table.shared, table.clusters, table.classes))
    return 100 * 2 * together / (in_clusters + in_classes) if together else 0.0


def _count_pairs(sizes: _Sizes) -> int:
    """Return Σ C(n, 2)."""
    return int((sizes * (sizes - 1) // 2).sum())


class _Overlap(NamedTuple):
    """Sizes of clusters, classes and their non-empty intersections, and cluster and class of each intersection."""

    clusters: _Sizes
    classes: _Sizes
    shared: _Sizes
    cluster: _Sizes
    label: _Sizes


def _overlap(assignment: Array, labels: Array) -> _Overlap:
    """Count the overlap of two labellings (N,) with numpy, several times faster than scikit-learn."""
    first, problems = checked_labels(assignment, 0, "assignment")
    second, more = checked_labels(labels, 0 if problems else len(first), "labels")
    raise_if_any(problems + more)
    clusters, classes = (np.unique(part.cpu().numpy(), return_inverse=True)[1] for part in (first, second))
    width = classes.max(initial=0) + 1
    pairs, shared = np.unique(clusters * width + classes, return_counts=True)
    return _Overlap(np.bincount(clusters), np.bincount(classes), shared, *np.divmod(pairs, width))


def kmeans(embeddings: Array, clusters: int, *, backend: KMeansBackend = "sklearn", seed: int = 0) -> Clustering:
    """Cluster the L2-normalised embeddings (N, D); deterministic for a given backend, seed and number of threads.

    Backends: "sklearn" takes the best of ten k-means++ starts, up to 300 iterations each, as the SEC authors' code
    does. "faiss" takes one random start and 20 iterations on all points, as pytorch-metric-learning does: minutes
    instead of hours for Stanford Online Products (60,502 points, 11,316 clusters). "auto", which trials use, is "faiss"
    where it is installed (on the GPU that holds the embeddings if possible), else scikit-learn with one random start
    and 20 iterations.

    Raises ConfigError for bad embeddings, a number of clusters outside 1..N, or a missing backend.
    """
    vectors, problems = checked_vectors(embeddings, "embeddings")
    if not problems and not 1 <= clusters <= len(vectors):
        problems.append(Problem("clusters", f"must be between 1 and the {len(vectors)} points", clusters))
    if backend not in get_args(KMeansBackend):
        problems.append(Problem("backend", f"must be one of {', '.join(get_args(KMeansBackend))}", backend))
    raise_if_any(problems)
    points = unit_rows(vectors).cpu().numpy()
    seed %= _SEEDS
    if backend == "sklearn":
        return _cluster_with_sklearn(points, clusters, seed)
    faiss = _import_faiss()
    if faiss is not None:
        return _cluster_with_faiss(faiss, points, clusters, seed, gpu=vectors.is_cuda and faiss.get_num_gpus() > 0)
    if backend == "faiss":
        remedy = "Install tune-dml[cpu] or tune-dml[gpu], or choose 'sklearn'."
        raise ConfigError(Problem("backend", "faiss is not installed", "faiss", remedy))
    return _cluster_with_sklearn(points, clusters, seed, single_start=True)


def _cluster_with_sklearn(
    points: NDArray[np.floating], clusters: int, seed: int, *, single_start: bool = False
) -> Clustering:
    from sklearn.cluster import KMeans

    init, starts, iterations = ("random", 1, _ITERATIONS) if single_start else ("k-means++", 10, 300)
    fitted = KMeans(clusters, init=init, n_init=starts, max_iter=iterations, random_state=seed).fit(points)
    start = "random start" if single_start else "k-means++, best of 10 starts"
    settings = f"{start}, at most {iterations} iterations, seed {seed}"
    return Clustering(fitted.labels_.astype(np.int64), f"scikit-learn {version('scikit-learn')}: {settings}")


def _import_faiss() -> Any:
    """Return the module; None if it is not installed or cannot be loaded (faiss-gpu without its CUDA libraries)."""
    try:
        import faiss
    except (ImportError, RuntimeError):
        return None
    return faiss


def _cluster_with_faiss(faiss: Any, points: NDArray[np.floating], clusters: int, seed: int, *, gpu: bool) -> Clustering:
    data = np.ascontiguousarray(points, dtype=np.float32)
    faiss.omp_set_num_threads(torch.get_num_threads())  # the default would use every core, also those of other trials
    # By default faiss trains on at most 256 points a centroid.
    fitted = faiss.Kmeans(
        data.shape[1], clusters, niter=_ITERATIONS, nredo=1, seed=seed, max_points_per_centroid=len(data), gpu=int(gpu)
    )
    fitted.cp.min_points_per_centroid = 1  # turns off a warning that concerns indexing
    fitted.train(data)
    nearest = fitted.index.search(data, 1)[1][:, 0].astype(np.int64)
    program = f"faiss {faiss.__version__}{' on the GPU' if gpu else ''}"
    return Clustering(nearest, f"{program}: random start, {_ITERATIONS} iterations, seed {seed}")
