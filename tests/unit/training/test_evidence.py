"""Evidence of a trial: the numbers against naive loops, the picture against its own pixels, and never sealed data."""

import io
import json

import numpy as np
import pytest
import torch
from helpers.trials import TASKS, Killed, config_of, learner_of, run
from PIL import Image

from trainables.data.base import Pictures
from trainables.evidence import sheet as drawing
from trainables.evidence.from_embeddings import hardest_pairs, histogram_of, neighbour_rows, queries_of
from trainables.evidence.record import Evidence, Sheet, Tile
from trainables.resolve import Layer, resolve

SHORT = {"training__steps": 2, "training__eval_every": 2}


def pictures_of(labels, side=16, channels=1, noise=False):
    draw = np.random.default_rng(3)
    shape = (len(labels), side, side, channels)
    pixels = draw.integers(0, 256, shape) if noise else np.full(shape, 90)
    names = tuple(f"class {label}" for label in range(max(labels) + 1))
    return Pictures("made", "0", pixels.astype(np.uint8), np.asarray(labels), names, ())


def read(folder):
    return json.loads((folder / "evidence" / "evidence.json").read_text())


@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_the_histogram_equals_a_naive_loop(count):
    values = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    found = histogram_of(values, bins=9)
    edges = np.linspace(found.low, found.high, 10)
    counts = [0] * 9
    for value in values.tolist():
        counts[next((i for i in range(9) if value < edges[i + 1]), 8)] += 1
    assert list(found.counts) == counts
    assert found.low <= float(values.min()) <= float(values.max()) <= found.high
    assert found.mean == pytest.approx(float(values.mean()))
    assert found.variance == pytest.approx(float(((values - values.mean()) ** 2).mean()))


def test_equal_norms_are_one_bin_and_no_norms_are_none():
    found = histogram_of(torch.full((5,), 2.0))
    assert sum(found.counts) == max(found.counts) == 5
    assert found.low < 2.0 < found.high
    assert found.variance == 0
    nearly = histogram_of(torch.tensor([1.0, 1.0 + 2e-16, 1.0 - 2e-16], dtype=torch.float64))
    assert sum(nearly.counts) == 3
    assert histogram_of(torch.tensor([1.0, float("nan")])) is None
    assert histogram_of(torch.tensor([1.0, float("inf")])) is None
    assert histogram_of(torch.zeros(0)) is None


@pytest.mark.parametrize(("apart", "top"), [(False, 6), (True, 6), (False, 50)], ids=["one set", "a gallery", "all"])
def test_neighbours_equal_those_of_a_naive_ranking(apart, top):
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 4, 40)
    embeddings = torch.from_numpy(draw.normal(size=(40, 3)))
    pictures = pictures_of(labels)
    asked = np.array([3, 17, 25])
    searched = np.arange(26, 40) if apart else np.arange(40)
    rows = neighbour_rows((embeddings[asked], asked), (embeddings[searched], searched), pictures, top=top)
    for query, row in zip(asked, rows, strict=True):
        cosines = {
            other: float(embeddings[query] @ embeddings[other] / embeddings[query].norm() / embeddings[other].norm())
            for other in searched.tolist()
            if other != query
        }
        ranking = sorted(cosines, key=cosines.get, reverse=True)[:top]
        assert row[0] == Tile(query, f"class {labels[query]}")
        assert [tile.picture for tile in row[1:]] == ranking
        assert [tile.right for tile in row[1:]] == [labels[n] == labels[query] for n in ranking]
        assert [tile.similarity for tile in row[1:]] == pytest.approx([cosines[n] for n in ranking])


def test_queries_follow_the_seed_have_positives_and_cover_many_classes():
    labels = np.repeat(np.arange(10), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    everything = np.arange(len(labels))
    seen = [queries_of(everything, None, labels, 6, seed=seed) for seed in range(5)]
    for found in seen:
        assert len(set(labels[found])) == 6
        assert 0 not in labels[found]  # its only picture has no other to find
    assert len({tuple(found) for found in seen}) == 5
    assert (queries_of(everything, None, labels, 6, seed=2) == seen[2]).all()
    assert len(queries_of(everything, None, labels, 30, seed=0)) == 30
    gallery = everything[labels >= 8]
    alone = queries_of(everything[:-19], gallery, labels, 6, seed=0)
    assert len(alone) == 0  # no query's class is in the gallery
    half = queries_of(everything[::2], everything[1::2], labels, 12, seed=0)
    assert set(labels[everything[::2][half]]) <= set(labels[1::2])


def test_the_hardest_pairs_are_those_furthest_beyond_their_fold_threshold():
    similarity = np.array([0.9, 0.2, 0.7, 0.95, 0.1, 0.6])
    same = np.array([True, False, False, False, True, True])
    couples = np.arange(12).reshape(6, 2)
    limits = [2 - 2 * 0.5, 2 - 2 * 0.65]  # accepted from cosine 0.5, in the second fold from 0.65
    rows = hardest_pairs(similarity, same, limits, couples, pictures_of([0] * 12), count=3)
    accepted = [(row[0].picture, row[1].picture) for row in rows if row[0]]
    rejected = [(row[3].picture, row[4].picture) for row in rows if len(row) > 3 and row[3]]
    assert accepted == [(6, 7), (4, 5)]  # 0.95 - 0.65 before 0.7 - 0.5
    assert rejected == [(8, 9), (10, 11)]
    assert rows[0][2] is None
    assert rows[0][1].right is False
    assert hardest_pairs(similarity, same, limits, couples, pictures_of([0] * 12), count=0) == ()
    assert hardest_pairs(np.array([1.0, -1.0]), np.array([True, False]), [1.0], couples[:2], None, count=3) == ()


def near(pixel, colour, tolerance=45):
    return all(abs(a - b) <= tolerance for a, b in zip(pixel, colour, strict=True))


def test_frames_mark_right_and_wrong_with_and_without_colour():
    verdicts = [None, True, False, True, False]
    tiles = tuple(Tile(n, f"class {n}", is_so, None if is_so is None else 0.5) for n, is_so in enumerate(verdicts))
    data = drawing.draw_sheet(Sheet(((0, "query"),), (tiles, tiles[::-1]), pictures_of(range(5))))
    found = Image.open(io.BytesIO(data))
    for row, shown in enumerate((tiles, tiles[::-1])):
        for column, tile in enumerate(shown):
            left, top = drawing._tile_corner(row, column)
            middle = top + drawing.CELL // 2
            edge = [found.getpixel((left + 1, y)) for y in range(top + 2, top + drawing.CELL - 2)]
            painted = [not near(pixel, drawing.PAPER, 90) for pixel in edge]
            if tile.right is None:
                assert not any(painted)
                continue
            colour = drawing._GREEN if tile.right else drawing._RED
            assert near(found.getpixel((left + 1, top + 1)), colour)
            assert all(painted) is tile.right, "wrong answers are dashed"
            assert tile.right or 0.3 < np.mean(painted) < 0.7
            assert near(found.getpixel((left + drawing.CELL // 2, middle)), (90, 90, 90), 20)


@pytest.mark.parametrize(("rows", "side", "channels"), [(12, 300, 3), (6, 8, 1), (1, 64, 3)])
def test_a_sheet_is_bounded_whatever_it_shows(rows, side, channels):
    pictures = pictures_of(range(6), side=side, channels=channels, noise=True)
    tiles = tuple(Tile(n, "日本語" if n else "x" * 40, n > 2, 0.1) for n in range(6))
    data = drawing.draw_sheet(Sheet((), (tiles,) * rows, pictures))
    assert len(data) <= drawing._LIMIT
    Image.open(io.BytesIO(data)).load()


def test_pictures_keep_their_shape():
    wide = np.zeros((1, 20, 60, 3), dtype=np.uint8)
    pictures = Pictures("made", "0", wide, np.zeros(1, dtype=np.int64), ("a",), ())
    found = Image.open(io.BytesIO(drawing.draw_sheet(Sheet((), ((Tile(0, "a", True),),), pictures))))
    left, top = drawing._tile_corner(0, 0)
    middle = left + drawing.CELL // 2
    assert near(found.getpixel((middle, top + drawing.CELL // 2)), (0, 0, 0))
    assert near(found.getpixel((middle, top + drawing.CELL // 2 - 20)), drawing.PAPER)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_stores_norms_and_a_sheet_of_validation_pictures(tmp_path, name):
    config = config_of(TASKS[name], training__steps=4, training__eval_every=2)
    outcome, _ = run(config, tmp_path)
    found = read(tmp_path)
    assert found["step"] == outcome.step
    assert found["part"] == "validation pictures"
    assert found["norms"]["mean"] == pytest.approx(outcome.metrics["val/norm_mean"], rel=1e-5)
    assert found["norms"]["variance"] == pytest.approx(outcome.metrics["val/norm_variance"], rel=1e-4)
    Image.open(tmp_path / "evidence" / "sheet.jpg").load()
    learner = learner_of(config, tmp_path / "again")
    shown = {tile["picture"] for row in found["sheet"]["rows"] for tile in row if tile}
    assert shown
    assert shown <= set(learner.split.validation.tolist())
    assert sum((tmp_path / "evidence" / file).stat().st_size for file in ("sheet.jpg", "evidence.json")) < 65_000
    if name != "face_recognition":
        rows = found["sheet"]["rows"]
        assert len(rows) == 6
        for query, *others in rows:
            mine = learner.pictures.labels[query["picture"]]
            for tile in others:
                assert tile["right"] == bool(learner.pictures.labels[tile["picture"]] == mine)


def test_queries_are_the_same_for_every_cell_of_a_seed(tmp_path):
    def queries(folder, **settings):
        run(config_of(TASKS["retrieval"], **SHORT, **settings), folder)
        return [row[0]["picture"] for row in read(folder)["sheet"]["rows"]]

    one = queries(tmp_path / "a")
    assert queries(tmp_path / "b", regularizer__name="sec", regularizer__eta=1.0) == one
    assert queries(tmp_path / "c", seed=1) != one


def test_selection_on_test_is_labelled(tmp_path):
    config = config_of(TASKS["retrieval"], **SHORT, data__split="paper_test_selection")
    run(config, tmp_path)
    assert read(tmp_path)["part"] == "test pictures, which validate under paper_test_selection"


def test_the_number_of_queries_is_a_knob_that_changes_no_trial(tmp_path):
    config = config_of(TASKS["retrieval"], **SHORT)
    none = config_of(TASKS["retrieval"], **SHORT, evaluation__sheet_queries=0)
    assert none.digest() == config.digest()
    again = resolve(Layer("again", none.settings())).config
    assert again == none
    some, _ = run(config, tmp_path / "some")
    without, _ = run(none, tmp_path / "none")
    assert some.metrics == without.metrics
    assert read(tmp_path / "none")["sheet"] is None
    assert [file.name for file in (tmp_path / "none" / "evidence").iterdir()] == ["evidence.json"]


def test_evidence_is_from_the_scored_evaluation_and_survives_a_kill(tmp_path):
    settings = {"evaluation__epoch": "best_validation", "training__steps": 30, "training__eval_every": 10}
    config = config_of(TASKS["retrieval"], **settings)
    outcome, _ = run(config, tmp_path / "whole")
    with pytest.raises(Killed):
        run(config, tmp_path / "cut", stop_after=20)
    assert read(tmp_path / "cut")["step"] <= 20
    run(config, tmp_path / "cut")
    assert read(tmp_path / "whole")["step"] == outcome.step
    for file in ("evidence.json", "sheet.jpg"):
        first, second = (tmp_path / name / "evidence" / file for name in ("whole", "cut"))
        assert first.read_bytes() == second.read_bytes()


def test_stored_evidence_reads_back(tmp_path):
    tiles = (Tile(3, "a"), Tile(5, "b", False, 0.25), None)
    evidence = Evidence("validation pictures", histogram_of(torch.arange(9.0)), Sheet(((0, "query"),), (tiles,)), 40)
    (tmp_path / "evidence.json").write_text(evidence.text())
    assert Evidence.read(tmp_path).sheet is None  # its picture is missing
    (tmp_path / "sheet.jpg").touch()
    again = Evidence.read(tmp_path)
    assert again == evidence
    assert again.drawn == tmp_path / "sheet.jpg"
    with pytest.raises(ValueError, match="without its pictures"):
        drawing.draw_sheet(again.sheet)
