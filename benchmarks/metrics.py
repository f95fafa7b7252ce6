"""Compare exact retrieval metrics with a nearest-neighbour search and with pytorch-metric-learning.

Two claims, each a ratio on the same data, threads and machine (medians of interleaved repeats):

1. Recall and nDCG at 1, 10, 100, 1000 with MAP@R take at most 1.3 times a bare search for 1001 neighbours, which a
   search-based program needs first. The search is the faster of faiss IndexFlatIP and torch products with topk.
2. Precision@1, R-precision and MAP@R are at least twice as fast as pytorch-metric-learning's AccuracyCalculator, which
   searches for as few neighbours as they need (k="max_bin_count").

    python benchmarks/metrics.py                      Stanford Online Products: 60,502 x 512, 11,316 classes; about 15
                                                      minutes on one core, 8 on two
    python benchmarks/metrics.py --size 12000         40 seconds
    python benchmarks/metrics.py --size 6000          also against AccuracyCalculator's default, k=None
    python benchmarks/metrics.py --ours-only          only our time and peak memory

docs/log.md has the measurements. Four fifths of our time go into half of the similarity matrix, the floor of any exact
program. On a shared machine use `--threads 1 --clock cpu`, which compares processor time.
"""

import os
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import torch
import typer
from program import run_program
from torch import Tensor

from trainables.metrics import retrieval_metrics

SIZE, CLASSES, DIM = 60_502, 11_316, 512
KS = (1, 10, 100, 1000)
LARGEST_FOR_DEFAULT = 8_000
"""AccuracyCalculator's default, k=None, keeps all N x N neighbours and their distances: 44 GB at full size."""


def sample(
    size: int, classes: int | None = None, *, spread: float = 2.2, shuffled: bool = True
) -> tuple[Tensor, Tensor]:
    """Return unit vectors and labels of overlapping classes, with at least two vectors each and SOP's mean of 5.35."""
    generator = torch.Generator().manual_seed(0)
    classes = classes or max(2, size * CLASSES // SIZE)
    further = torch.randint(classes, (size - 2 * classes,), generator=generator)
    labels = torch.cat([torch.arange(classes), torch.arange(classes), further])
    if shuffled:
        labels = labels[torch.randperm(size, generator=generator)]
    centres = torch.randn(classes, DIM, generator=generator)
    embeddings = centres[labels] + spread * torch.randn(size, DIM, generator=generator)
    return torch.nn.functional.normalize(embeddings), labels


def search_faiss(embeddings: Tensor, k: int) -> None:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(DIM)
    index.add(embeddings.numpy())
    index.search(embeddings.numpy(), k)


def search_torch(embeddings: Tensor, k: int) -> None:
    for block in torch.split(embeddings, 512):
        (block @ embeddings.T).topk(k, dim=1)


def half_matrix(embeddings: Tensor, tile: int = 1024) -> None:
    """Compute the similarities that every exact program needs."""
    parts = torch.split(embeddings, tile)
    out = torch.empty(tile * tile, device=embeddings.device)
    for i, rows in enumerate(parts):
        for columns in parts[i:]:
            torch.mm(rows, columns.T, out=out[: len(rows) * len(columns)].view(len(rows), -1))


def pytorch_metric_learning(embeddings: Tensor, labels: Tensor, k: str | None = "max_bin_count") -> dict[str, float]:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k=k, device=torch.device("cpu"))
    found = calculator.get_accuracy(embeddings, labels)
    return {"recall_at_1": found[names[0]], "r_precision": found[names[1]], "map_at_r": found[names[2]]}


def medians(
    repeats: int, clock: Callable[[], float], programs: dict[str, Callable[[], object]]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return median seconds and last result of each program. They take turns, so other load affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, program in programs.items():
            start = clock()
            results[name] = program()
            times[name].append(clock() - start)
            print(f"  {name:<58}{times[name][-1]:9.2f} s", flush=True)
    return {name: statistics.median(values) for name, values in times.items()}, results


def main(
    size: int = SIZE,
    repeats: int = 3,
    threads: int = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
    clock_name: Annotated[Literal["wall", "cpu"], typer.Option("--clock")] = "wall",
    ours_only: bool = False,
) -> int:
    clock = time.perf_counter if clock_name == "wall" else time.process_time
    torch.set_num_threads(threads)
    embeddings, labels = sample(size)
    print(f"{size} x {DIM}, {int(labels.max()) + 1} classes, float32, {threads} threads, {clock_name} clock")

    run_all = partial(retrieval_metrics, embeddings, labels, KS, metrics=("recall", "ndcg", "map_at_r"))
    run_shared = partial(retrieval_metrics, embeddings, labels, (1,), metrics=("recall", "r_precision", "map_at_r"))
    start = clock()
    run_shared()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  ours once: {clock() - start:.2f} s; peak memory of the process {peak:.2f} GiB", flush=True)
    if ours_only:
        return 0

    neighbours = min(max(KS) + 1, size)
    pytorch_metric_learning(embeddings[:500], labels[:500])  # imports are not timed
    programs: dict[str, Callable[[], object]] = {
        "ours: recall@1, R-precision, MAP@R": run_shared,
        'pytorch-metric-learning: the same, k="max_bin_count"': lambda: pytorch_metric_learning(embeddings, labels),
        "half the similarity matrix alone": lambda: half_matrix(embeddings),
        "ours: recall, nDCG, MAP@R": run_all,
        f"search for {neighbours}: faiss IndexFlatIP": lambda: search_faiss(embeddings, neighbours),
        f"search for {neighbours}: torch topk": lambda: search_torch(embeddings, neighbours),
    }
    if size <= LARGEST_FOR_DEFAULT:
        programs["pytorch-metric-learning: the same, k=None (its default)"] = lambda: pytorch_metric_learning(
            embeddings, labels, None
        )
    seconds_of, results = medians(repeats, clock, programs)
    ours_shared, theirs, floor, ours, faiss, topk, *default = seconds_of.values()
    found, expected, *_ = results.values()
    differences = [abs(found[name] - 100 * value) for name, value in expected.items()]
    print(f"ours / bare search             {ours / min(faiss, topk):5.2f}   (at most 1.3)")
    print(f"pytorch-metric-learning / ours {theirs / ours_shared:5.2f}   (at least 2)")
    for seconds in default:
        print(f"  in its default configuration {seconds / ours_shared:5.2f}")
    print(f"ours / half the matrix         {ours_shared / floor:5.2f}   (the floor of any exact program is 1)")
    print(f"largest difference of a metric from pytorch-metric-learning's: {max(differences):.1e} percentage points")
    return 0 if ours <= 1.3 * min(faiss, topk) and theirs >= 2 * ours_shared else 1


if __name__ == "__main__":
    run_program(main, __doc__)
