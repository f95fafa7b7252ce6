"""`list`, `status` and `plan` answer quickly: they load no statistics, and an answer is computed once."""

import json
import subprocess
import sys

import pytest
from helpers.toys import write_sweep

from tune_dml.cli._stored_answers import _FILE
from tune_dml.cli._sweep_status_text import answer_of, headline_of
from tune_dml.record.results import load_results
from tune_dml.record.state import read_state

HEAVY = ("scipy.stats", "scipy.optimize", "pandas", "ray", "mlflow", "optuna", "matplotlib")


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("storage")
    write_sweep(folder / "toy")
    read_state(folder / "toy").record_look("sweep")
    return folder


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["list"], (*HEAVY, "torch", "numpy")),
        (["status", "toy"], (*HEAVY, "torch", "numpy")),
        (["plan", "sec_rho"], HEAVY),
    ],
)
def test_verbs_of_every_day_load_nothing_heavy(storage, words, heavy):
    results = load_results(storage, "toy")
    assert headline_of(results)
    assert answer_of(results)
    code = (
        "import sys\nfrom tune_dml.cli import main\n"
        f"sys.argv = {['tune-dml', *words, '--storage', str(storage)]!r}\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        f"loaded = {set(heavy)!r} & set(sys.modules)\nassert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_an_answer_is_computed_again_when_the_ledger_grows_or_its_file_is_damaged(storage):
    results, path = load_results(storage, "toy"), storage / "toy" / _FILE
    answer = answer_of(results)
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "lines": {"answer": ["another answer"]}}))
    assert answer_of(results) == ["another answer"]
    path.write_text("[")
    assert answer_of(results) == answer
    path.write_text(json.dumps({**stored, "lines": {"answer": ["another answer"]}}))
    with (storage / "toy" / "ledger.jsonl").open("a") as ledger:
        ledger.write("\n")
    assert answer_of(results) == answer
