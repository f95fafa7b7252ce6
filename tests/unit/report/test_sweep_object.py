"""The object that Python gets for a sweep, without training."""

import copy
import json
import pickle

from helpers.toys import write_sweep

import tune_dml


def test_a_sweep_in_python_can_be_copied_and_pickled(tmp_path):
    write_sweep(tmp_path / "toy", histories=False)
    sweep = tune_dml.load_sweep("toy", storage=tmp_path)
    for copied in (pickle.loads(pickle.dumps(sweep)), copy.deepcopy(sweep)):  # noqa: S301 - our own bytes
        assert copied == sweep
        assert copied.table().equals(sweep.table())
        assert "rho matters" in tune_dml.write_report(copied, tmp_path / "out").verdicts.read_text()


def test_comparison_bars_in_python_equal_those_of_the_report(tmp_path):
    write_sweep(tmp_path / "high", means=dict.fromkeys((0.01, 0.1, 0.5), 99.9), sd=0.3, histories=False)
    bars = (sweep := tune_dml.load_sweep("high", storage=tmp_path)).curve()
    written = json.loads(tune_dml.write_report(sweep, tmp_path / "out").verdicts.read_text())["cells"]
    assert sorted(bars["high"]) == sorted(cell["high"] for cell in written)
    assert max(bars["high"]) == 100.0
