"""Retrieval metrics against sorted lists and loops, and their identities."""

import numpy as np
import pytest
import retrieval_oracles as oracles
import torch
from helpers.together import drawn

from trainables.errors import ConfigError
from trainables.metrics import families, retrieval, retrieval_metrics, search

KS = (1, 2, 4, 8)


def assert_same(got, want, tolerance=1e-09):
    assert {key: got[key] for key in want} == pytest.approx(want, rel=tolerance, abs=tolerance)


def blobs(sizes, dim=8, noise=1.2, dtype=np.float64):
    """Overlapping Gaussian classes of the given sizes, shuffled."""
    rng = np.random.default_rng(7)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = rng.standard_normal((len(sizes), dim))
    return (centres[labels] + noise * rng.standard_normal((len(labels), dim))).astype(dtype), labels


VARIED = [1, 1, 2, 2, 3, 3, 4, 5, 9, 30, 60]
TIES = ["pessimistic", "optimistic"]
FLOATS = [np.float32, np.float64]


def labelled(random, classes=None, dim=None):
    """Vectors of -1, 0, 1: many duplicates, exact ties and zeros; a third of the batches is small."""
    count, dim = random.integers(1, random.choice([6, 41, 41])), dim or random.integers(1, 6)
    highest = random.integers(0, count + 1) if classes is None else classes
    return random.integers(-1, 2, (count, dim)).astype(np.float64), random.integers(0, highest + 1, count)


def paired(random):
    """The same, and some class has two."""
    while True:
        vectors, labels = labelled(random)
        if np.bincount(labels).max() > 1:
            return vectors, labels


@drawn(60)
def test_equals_sorted_loops_under_ties_and_duplicates(random):
    (vectors, labels), ties, dtype = labelled(random), random.choice(TIES), random.choice(FLOATS)
    lists = oracles.relevance_lists(vectors, labels, ties=ties)
    if not lists:
        with pytest.raises(ConfigError, match="at least one query"):
            retrieval_metrics(vectors.astype(dtype), labels)
        return
    got = retrieval_metrics(vectors.astype(dtype), labels, KS, ties=ties)
    assert_same(got, oracles.metrics(lists, KS))
    assert got["queries"] == len(lists)
    assert got["queries"] + got["queries_without_match"] == len(labels)


@drawn(50)
def test_query_gallery_equals_sorted_loops(random):
    query, gallery = labelled(random, classes=4, dim=3), labelled(random, classes=6, dim=3)
    ties, dtype = random.choice(TIES), random.choice(FLOATS)
    lists = oracles.relevance_lists(*query, gallery, ties)
    if not lists:
        return
    references = (gallery[0].astype(dtype), gallery[1])
    got = retrieval_metrics(query[0].astype(dtype), query[1], KS, gallery=references, ties=ties)
    assert_same(got, oracles.metrics(lists, KS))
    assert got["queries_without_match"] == len(query[1]) - len(lists)


@pytest.mark.parametrize("count", [1, search.STEP, 9 * search.STEP + 1])
def test_any_number_of_queries_whose_classes_the_gallery_lacks_is_dropped(count):
    vectors, labels = blobs([4, 5, 6])
    strangers, numbers = blobs([count])
    queries = np.concatenate([strangers, vectors]), np.concatenate([numbers + 10**9, labels])
    want = retrieval_metrics(vectors, labels, KS, gallery=(vectors[::-1], labels[::-1]))
    got = retrieval_metrics(*queries, KS, gallery=(vectors[::-1], labels[::-1]))
    assert_same(got, {**want, "queries_without_match": count})


@drawn(30)
def test_blocked_equals_unblocked(random):
    (vectors, labels), dtype = paired(random), random.choice(FLOATS)
    tile, run, entries, step = random.integers(1, [13, 6, 81, 13]).tolist()
    compared, sparse, picked = random.integers(0, [5, 9, 101]).tolist()
    sizes = {"_RUN": run, "_COMPARED": compared, "_SPARSE": sparse, "_PICKED": picked, "ENTRIES": entries, "STEP": step}
    whole = retrieval_metrics(vectors.astype(dtype), labels, KS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_tile_length", lambda *_: tile)
        for name, size in sizes.items():
            patch.setattr(search, name, size)
        assert_same(retrieval_metrics(vectors.astype(dtype), labels, KS), whole, 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [VARIED, [150, 2, 1], [2] * 40, [50]])
def test_equals_sorted_loops_on_classes_of_all_sizes(sizes, dtype):
    vectors, labels = blobs(sizes, dtype=dtype)
    assert_same(retrieval_metrics(vectors, labels, KS), oracles.metrics(oracles.relevance_lists(vectors, labels), KS))


def test_many_tiles_equal_sorted_loops():
    vectors, labels = blobs([5] * 300 + [1] * 100, dim=4, noise=0.4)
    lists = oracles.relevance_lists_fast(vectors, labels)
    assert_same(retrieval_metrics(vectors, labels, (1, 10, 100, 1000)), oracles.metrics(lists, (1, 10, 100, 1000)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype):
    vectors, labels = blobs(VARIED)
    half = torch.from_numpy(vectors).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert retrieval_metrics(half, labels) == retrieval_metrics(half.float(), labels)


def test_inputs_may_be_tensors_arrays_views_or_read_only_and_one_metric_needs_no_tuple():
    vectors, labels = blobs(VARIED)
    want = retrieval_metrics(vectors, labels)
    frozen = vectors.copy()
    frozen.setflags(write=False)
    strided = torch.from_numpy(np.repeat(vectors, 2, axis=1))[:, ::2].requires_grad_()
    assert retrieval_metrics(frozen, labels.astype(np.uint16)) == want
    assert retrieval_metrics(strided, torch.from_numpy(labels).int()) == want
    assert retrieval_metrics(vectors, list(labels - 1000)) == want
    assert retrieval_metrics(vectors[::-1].copy()[::-1], labels.astype(">i8")) == want
    single = retrieval_metrics(vectors, labels, 3, metrics="recall")
    assert single == retrieval_metrics(vectors, labels, np.array([3, 3]), metrics=["recall"])


@pytest.mark.parametrize("chosen", [("recall",), ("ndcg",), ("recall", "precision"), ("map",), ("map_at_r",)])
@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
def test_a_subset_of_metrics_equals_that_of_all_metrics(chosen, ties):
    vectors, labels = blobs(VARIED)
    some, every = (retrieval_metrics(vectors, labels, metrics=m, ties=ties) for m in (chosen, None))
    assert len(some) == 3 + sum(1 if name in ("map_at_r", "r_precision") else len(KS) for name in chosen)
    assert_same(some, {key: every[key] for key in some}, 1e-12)


def test_ties_count_against_the_positive_or_for_it():
    vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8], [-1.0, 0.0]], dtype=np.float32)
    labels = np.array([0, 0, 1, 2])
    pessimistic = retrieval_metrics(vectors, labels, (1,))
    optimistic = retrieval_metrics(vectors, labels, (1,), ties="optimistic")
    # The first query is as near to its positive as to a negative; the second is not in doubt.
    assert (pessimistic["recall_at_1"], optimistic["recall_at_1"]) == (50, 100)
    assert pessimistic["tie_fraction"] == optimistic["tie_fraction"] == 0.5


TABLE_3 = {  # ranking: Recall@10, Precision@10, MAP@R (R = 4), MAP@10, nDCG@10, as printed
    "1000000000": (100, 10, 25.0, 10.0, 39.0),
    "1000000001": (100, 20, 25.0, 12.0, 50.3),
    "1010000000": (100, 20, 41.7, 16.7, 58.6),
    "1010001001": (100, 40, 41.7, 25.0, 82.9),
    "1111000000": (100, 40, 100.0, 40.0, 100.0),
}


@pytest.mark.parametrize("shown", TABLE_3)
def test_identity_52_worked_example_of_the_multi_proxy_anchor_paper(shown):
    """Four positives, of which the first ten results show some; the others come after the negatives."""
    hits = np.array([int(hit) for hit in shown] + [0] * 10 + [1] * (4 - shown.count("1")))
    angles = np.linspace(0.1, 3, len(hits))
    gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    got = retrieval_metrics(np.array([[1.0, 0.0]]), np.array([1]), (10,), gallery=(gallery, hits))
    keys = ("recall_at_10", "precision_at_10", "map_at_r", "map_at_10", "ndcg_at_10")
    assert tuple(round(got[key], 1) for key in keys) == TABLE_3[shown]


@drawn(60)
def test_identities_53_to_55_order_among_metrics(random):
    got = retrieval_metrics(*paired(random), range(1, 12), ties=random.choice(TIES))
    assert got["ndcg_at_1"] == got["recall_at_1"] == got["precision_at_1"] == got["map_at_1"]
    recalls = [got[f"recall_at_{k}"] for k in range(1, 12)]
    assert recalls == sorted(recalls)
    assert got["map_at_r"] <= got["r_precision"] + 1e-9 <= 100 + 2e-9


@pytest.mark.parametrize("dim", [1, 3, 64, 512])
@pytest.mark.parametrize("count", [40, 1500])
def test_identity_57_collapsed_embedding_has_recall_0(count, dim):
    """Also when the copies differ in length, and with a few other vectors around to shift the tiles."""
    generator = torch.Generator().manual_seed(count + dim)
    copies = torch.randn(1, dim, generator=generator) * (torch.rand(count, 1, generator=generator) + 0.01)
    labels = torch.arange(count) // 4
    got = retrieval_metrics(copies, labels, KS)
    assert got["recall_at_1"] == got["recall_at_8"] == got["map_at_r"] == got["ndcg_at_8"] == 0
    assert got["tie_fraction"] == 1
    assert retrieval_metrics(copies, labels, KS, ties="optimistic")["map_at_r"] == 100
    other = torch.randn(3, dim, generator=generator) - 50 * copies[:1]
    mixed = retrieval_metrics(torch.cat([copies, other]), torch.cat([labels, -1 - torch.arange(3)]), (1,))
    assert (mixed["recall_at_1"], mixed["queries_without_match"]) == (0, 3)


def test_duplicates_with_few_distinct_entries_tie():
    """Their rounding errors have one sign, and differ between tiles."""
    for count, dim in ((40, 96), (129, 384), (40, 384), (129, 160), (200, 96)):
        got = retrieval_metrics(np.full((count, dim), 0.3), np.arange(count) // 4, (1,), metrics="recall")
        assert (got["recall_at_1"], got["tie_fraction"]) == (0, 1)


def test_one_class_finds_nothing_but_itself():
    got = retrieval_metrics(torch.ones(6, 4), torch.zeros(6, dtype=torch.int64), KS)
    assert got["map_at_r"] == got["recall_at_1"] == got["ndcg_at_8"] == 100
    assert got["tie_fraction"] == 0


def test_identity_58_map_at_r_equals_pytorch_metric_learning():
    calculators = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    inference = pytest.importorskip("pytorch_metric_learning.utils.inference")
    from pytorch_metric_learning.distances import CosineSimilarity

    vectors, labels = blobs(VARIED, dim=16)
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors))
    calculator = calculators.AccuracyCalculator(
        include=("mean_average_precision_at_r", "r_precision", "precision_at_1"),
        k=None,
        device=torch.device("cpu"),
        knn_func=inference.CustomKNN(CosineSimilarity()),
    )
    theirs = calculator.get_accuracy(unit, torch.from_numpy(labels))
    got = retrieval_metrics(vectors, labels)
    ours = {"mean_average_precision_at_r": "map_at_r", "r_precision": "r_precision", "precision_at_1": "recall_at_1"}
    assert {name: got[ours[name]] / 100 for name in theirs} == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_identity_59_rotation_and_row_scaling_change_nothing(scale):
    vectors, labels = blobs(VARIED)
    vectors = np.concatenate([vectors, vectors[:20]])  # with duplicates
    labels = np.concatenate([labels, labels[5:25]])
    rng = np.random.default_rng(1)
    rotation = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    changed = (vectors @ rotation) * rng.uniform(0.1, 10, (len(vectors), 1)) * scale
    assert_same(retrieval_metrics(changed, labels, KS), retrieval_metrics(vectors, labels, KS), 1e-12)
    single = retrieval_metrics(changed.astype(np.float32), labels, KS)
    assert_same(single, retrieval_metrics(vectors, labels, KS), 1e-12)


@drawn(40)
def test_order_of_rows_and_names_of_classes_do_not_matter(random):
    vectors, labels = paired(random)
    order = random.permutation(len(labels))
    renamed = (7 - 3 * labels)[order]
    assert_same(retrieval_metrics(vectors[order], renamed), retrieval_metrics(vectors, labels), 1e-12)


GOOD, LABELS = np.eye(4), np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((GOOD[0], LABELS), {}, "embeddings: must be a float tensor or array of shape"),
        ((np.eye(4, dtype=int), LABELS), {}, "embeddings: must be a float"),
        ((GOOD, LABELS.astype(float)), {}, "labels: must be an integer"),
        ((GOOD, LABELS > 0), {}, "labels: must be an integer"),
        ((GOOD, ["a", "b", "a", "b"]), {}, "labels: must be an integer"),
        ((GOOD, LABELS[:3]), {}, r"one label per embedding \(4\), but got 3"),
        ((GOOD[:0], LABELS[:0]), {}, "embeddings: must not be empty"),
        ((GOOD + np.array([0, 0, np.nan, np.inf]), LABELS), {}, "4 of 4 rows have NaN or infinity, row 0 first"),
        ((GOOD, np.arange(4)), {}, "at least one query must share its label"),
        ((GOOD, LABELS), {"ks": (1, 0)}, "ks: every k must be an integer of at least 1, but got 0"),
        ((GOOD, LABELS), {"ks": (1.5,)}, "ks: every k"),
        ((GOOD, LABELS), {"ks": (True,)}, "ks: every k"),
        ((GOOD, LABELS), {"ks": ()}, "ks: must name at least one k"),
        ((GOOD, LABELS), {"metrics": ("recal",)}, "Did you mean 'recall'"),
        ((GOOD, LABELS), {"metrics": ()}, "must name at least one metric"),
        ((GOOD, LABELS), {"ties": "random"}, "ties: must be one of pessimistic, optimistic"),
        ((GOOD, LABELS), {"gallery": (np.eye(3), np.arange(3))}, "queries' dimension 4, but got 3"),
        ((GOOD, LABELS), {"gallery": (GOOD[:2] * np.nan, LABELS[:2])}, "gallery embeddings: must be finite"),
        ((GOOD, LABELS), {"gallery": (GOOD.astype(np.float32), LABELS)}, "queries' type torch.float64"),
    ],
)
def test_bad_input_is_named(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        retrieval_metrics(*arguments, **options)


def test_all_problems_are_collected():
    with pytest.raises(ConfigError) as caught:
        retrieval_metrics(GOOD, LABELS, (0, -1), metrics=("nope",), ties="none")
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigError) as caught:
        retrieval_metrics(np.eye(4, dtype=int), LABELS.astype(float))
    assert len(caught.value.problems) == 2


@pytest.fixture
def _own_families(monkeypatch):
    """Remove metrics declared in a test at its end."""
    monkeypatch.setattr(families, "FAMILIES", known := dict(families.FAMILIES))
    monkeypatch.setattr(retrieval, "FAMILIES", known)


@pytest.mark.usefixtures("_own_families")
def test_a_metric_is_its_declaration():
    """Once declared, a metric is computed, logged under its key and labelled."""

    @families.family("first_at_{k}", "first@{k}", positives="best", percent=False)
    def first(ranking, k):
        return ranking.positions[:, 0].clamp_max(k).double()

    found = retrieval_metrics(np.eye(4)[[0, 1, 0, 1]], [0, 0, 1, 1], (2, 5), metrics=["first", "recall"])
    assert (found["first_at_2"], found["first_at_5"]) == (2, 3)  # all tie, or stand behind the other class
    assert families.describe_key("first_at_5") == ("first@5", False)
    assert "first_at_2" in retrieval_metrics(np.eye(4)[[0, 1, 0, 1]], [0, 0, 1, 1], 2)  # as a trial asks for it


@pytest.mark.parametrize(
    ("key", "label"), [("recall_at_10", "R@10"), ("ndcg_at_4", "nDCG@4"), ("map_at_1", "MAP@1"), ("map_at_r", "MAP@R")]
)
def test_keys_are_read_as_labels(key, label):
    assert families.describe_key(key) == (label, True)
    assert families.describe_key(f"{key}_x") is None


def naive_median_rank(vectors, labels):
    """The mean over queries of the median position of a query's positives, by one full sort a query."""
    return np.mean([np.median(1 + np.flatnonzero(row)) for row in oracles.relevance_lists_fast(vectors, labels)])


@pytest.fixture
def _median_rank(_own_families):
    """A metric that reads every position."""

    @families.family("median_rank", "median rank", positives="all", percent=False)
    def median_rank(ranking):
        return ranking.positions.double().masked_fill(~ranking.exists, torch.nan).nanquantile(0.5, dim=1)


@pytest.mark.usefixtures("_median_rank")
@pytest.mark.parametrize(("sizes", "entries"), [([4] * 300, 2**23), ([4] * 300, 500), ([2, 7, 40, 90, 1], 2**23)])
def test_positives_all_gives_exact_positions(monkeypatch, sizes, entries):
    """Also in many bands of queries of few similarities each, and beside metrics that need fewer positions."""
    monkeypatch.setattr(search, "ENTRIES", entries)
    vectors, labels = blobs(sizes, dim=4, noise=3)
    for metrics in ("median_rank", None):
        got = retrieval_metrics(vectors, labels, metrics=metrics)
        assert got["median_rank"] == pytest.approx(naive_median_rank(vectors, labels))


@pytest.mark.usefixtures("_own_families")
@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 1, 1]])
def test_a_metric_that_reads_positions_of_absent_positives_is_refused(labels):
    """Also if all queries have equally many positives, because those of other data have not."""

    @families.family("worst_rank", "worst rank", positives="all", percent=False)
    def worst_rank(ranking):
        return ranking.positions[:, -1].double()

    @families.family("mean_reciprocal", "mean reciprocal", positives="all")
    def mean_reciprocal(ranking):
        return ranking.positions.double().reciprocal().mean(dim=1)

    for name in ("worst_rank", "mean_reciprocal"):
        with pytest.raises(ConfigError, match=f"metric {name}: must not read positions beyond a query's last positive"):
            retrieval_metrics(np.eye(5)[: len(labels)], labels, metrics=name)


def test_only_the_positives_and_positions_that_some_metric_reads_are_computed():
    relevant, scope = torch.tensor([0, 1, 9]), retrieval._Scope
    for needed, positives, last in (
        *(({"best"}, [0, 1, 1], [4, 4, 4]), ({"first"}, [0, 1, 4], [4, 4, 4])),
        *(({"best", "first"}, [0, 1, 4], [4, 4, 4]), ({"first_r"}, [0, 1, 9], [4, 4, 9])),
        ({"first", "all"}, [0, 1, 9], [families.ABSENT] * 3),
    ):
        assert scope(frozenset(needed), 4).positives(relevant).tolist() == positives
        assert scope(frozenset(needed), 4).last_position(relevant).tolist() == last


@pytest.mark.parametrize("entries", [8, 12])
def test_a_band_of_queries_grows_by_tiles_while_its_positives_and_one_more_fit(monkeypatch, entries):
    monkeypatch.setattr(search, "ENTRIES", entries)
    assert list(search.bands(torch.tensor([1, 1, 1, 1, 1, 4]), 2)) == [(0, 4), (4, 6)]
