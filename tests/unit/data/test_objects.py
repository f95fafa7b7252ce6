"""The data set of rendered objects with a replacement renderer: views by counter, several processes, refusals."""

import math
import platform
import sys

import numpy as np
import pytest
from helpers import drawn_views
from helpers.processes import printed_by

from trainables.data import build_dataset, objects
from trainables.data.formats.mesh_views import mesh_file, view
from trainables.data.formats.rendering import RendererProcess
from trainables.errors import DataError

SMALL = {"size": 32, "views": 20, "classes": 30}


@pytest.fixture
def meshes(monkeypatch, tmp_path):
    return drawn_views.use(monkeypatch, tmp_path / "meshes")


@pytest.fixture
def prepare(meshes, tmp_path):
    def make(cache="cache", progress=None, **knobs):
        return build_dataset("objects", cache_dir=tmp_path / cache, **{**SMALL, **knobs}).prepare(progress)

    return make


def axes(wanted):
    """Rows: the camera's right, up and back."""
    return np.array(wanted.matrix).reshape(4, 4).T[:3, :3]


def test_a_view_depends_on_mesh_and_number_alone():
    code = "from trainables.data.formats.mesh_views import view; print(view(3, 7) == eval(input()))"
    assert printed_by(code, input=repr(tuple(view(3, 7)))) == "True\n"
    assert len({view(mesh, number).matrix for mesh in range(10) for number in range(10)}) == 100


def test_the_camera_is_a_rotation_and_sees_the_unit_ball():
    for number in range(50):
        wanted = view(0, number)
        np.testing.assert_allclose(axes(wanted) @ axes(wanted).T, np.eye(3), atol=1e-12)
        assert np.linalg.det(axes(wanted)) > 0.99
        x, y, z, one = wanted.matrix[12:]
        assert one == 1
        widest = 2.4 / math.sqrt(z * z - 1) + 2.4 * max(abs(x), abs(y)) / -z
        assert 0.6 < widest < 1.02
        assert math.hypot(*wanted.light_direction) == pytest.approx(1)
        assert axes(wanted)[2] @ wanted.light_direction > 0.2  # never from behind
        assert (wanted.ambient + wanted.diffuse) * max(wanted.light_color) <= 1


def test_rotations_are_uniform():
    """The columns of a uniform rotation have mean 0 and second moments 1/3; 4 standard errors of 3,000 views."""
    rotations = np.array([axes(view(mesh, number)) for mesh in range(100) for number in range(30)])
    assert np.abs(rotations.mean(0)).max() < 4 * math.sqrt(1 / 3 / 3000)
    assert np.abs((rotations**2).mean(0) - 1 / 3).max() < 4 * math.sqrt(4 / 45 / 3000)


def test_pictures_classes_and_halves(prepare):
    pictures = prepare()
    assert pictures.images.shape == (600, 32, 32, 3)
    assert pictures.labels.tolist() == [number // 20 for number in range(600)]
    assert pictures.class_names[:2] == ("000", "001")
    assert pictures.test_classes == tuple(range(15, 30))
    for number in (0, 137, 599):
        assert tuple(pictures.images[number][-1, -1]) == view(*divmod(number, 20)).background


@pytest.mark.slow
def test_a_picture_does_not_depend_on_the_number_of_pictures(prepare):
    many, few = prepare(), prepare("other", views=4, classes=6)
    assert many.digest != few.digest
    for mesh in range(6):
        assert np.array_equal(many.images[mesh * 20 : mesh * 20 + 4], few.images[mesh * 4 : mesh * 4 + 4])


def test_the_digest_knows_settings_meshes_and_renderer(meshes, monkeypatch, tmp_path):
    def digest(**knobs):
        return build_dataset("objects", cache_dir=tmp_path, **{**SMALL, **knobs}).digest()

    first = digest()
    assert first == digest()
    assert len({first, digest(size=64), digest(views=3), digest(classes=8)}) == 4
    monkeypatch.setattr(objects, "version", lambda name: "1")
    assert digest() != first
    monkeypatch.setattr(objects, "version", lambda name: "0")
    mesh_file(meshes, 3).write_text("another mesh")
    assert digest() != first


@pytest.mark.slow
def test_a_stopped_call_is_continued(prepare):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(progress=stop)
    seen = []
    again = prepare(progress=lambda done, total: seen.append(done))
    assert seen[0] > 256  # the first chunk is there already
    assert np.array_equal(again.images, prepare("other").images)


@pytest.mark.slow
def test_pixels_that_differ_from_the_record_give_a_note(prepare, monkeypatch):
    monkeypatch.setattr(objects, "_VIEWS", 20)
    monkeypatch.setattr(objects, "_MESHES", 30)
    assert prepare("a").notes == ()  # no digest is recorded for this size
    monkeypatch.setitem(objects._PIXELS, 32, "0" * 64)
    (note,) = prepare("b").notes
    assert "differ from the recorded ones" in note
    monkeypatch.setitem(objects._PIXELS, 32, objects._pixels_digest(prepare("a").images))
    assert prepare("c").notes == ()


@pytest.mark.parametrize(
    ("system", "machine", "python", "remedy"),
    [
        ("Linux", "x86_64", (3, 11), "Run `pip install 'tune-dml[objects]'`."),
        ("Linux", "x86_64", (3, 12), "no wheel for Python 3.12 on Linux x86_64: use Python 3.11 on Linux x86_64"),
        ("Linux", "aarch64", (3, 11), "no wheel for Python 3.11 on Linux aarch64"),
        ("Darwin", "arm64", (3, 11), "no wheel for Python 3.11 on Darwin arm64"),
    ],
)
def test_without_pybullet_one_line_has_the_remedy(system, machine, python, remedy, monkeypatch, tmp_path):
    monkeypatch.setattr(objects, "_mesh_folder", lambda: None)
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "version_info", (*python, 0))
    data = build_dataset("objects", cache_dir=tmp_path)
    (problem,) = data.check()
    assert str(problem).startswith("data.name: objects needs the package pybullet")
    assert remedy in str(problem)
    assert "\n" not in str(problem)
    for call in (data.prepare, data.digest):
        with pytest.raises(DataError, match="needs the package pybullet"):
            call()


def test_missing_meshes_are_counted(meshes, tmp_path):
    mesh_file(meshes, 3).unlink()
    (problem,) = build_dataset("objects", cache_dir=tmp_path, **SMALL).check()
    assert "must have 30 meshes" in str(problem)
    assert "29 meshes" in str(problem)


def test_a_renderer_that_does_not_start_is_one_problem(meshes, prepare):
    mesh_file(meshes, 0).write_text("broken")
    with pytest.raises(DataError, match=r"pybullet must render.*ValueError: mesh 0 is broken") as error:
        prepare()
    assert len(error.value.problems) == 1


@pytest.mark.slow
def test_a_renderer_that_dies_is_reported_with_its_last_output(meshes, prepare, tmp_path):
    mesh_file(meshes, 29).write_text("broken")
    with pytest.raises(DataError, match=r"mesh 029, view .*ValueError: mesh 29 is broken"):
        prepare()
    assert not list((tmp_path / "cache").glob("*objects-*/images.npy"))


@pytest.mark.slow
def test_no_process_is_left(prepare, monkeypatch):
    started = []
    start = RendererProcess.__init__
    monkeypatch.setattr(
        RendererProcess, "__init__", lambda self, *given: (start(self, *given), started.append(self))[0]
    )
    prepare()
    assert started
    assert all(process.process.returncode == 0 for process in started)
