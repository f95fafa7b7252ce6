"""A trial that Ray gave up: its recorded kind and reason come from the error that Tune kept."""

import pickle
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

from tune_dml.running.sweep import _last_failure


def trial_with(folder, *, pickled=None, text=None):
    """As Tune leaves a trial: the names of its files, None where there is none."""
    files: dict[str, str | None] = {"pickled_error_file": None, "error_file": None}
    for name, content in (("pickled_error_file", pickled), ("error_file", text and text.encode())):
        if content is not None:
            (folder / name).write_bytes(content)
            files[name] = str(folder / name)
    return SimpleNamespace(**files)


@pytest.mark.parametrize(("error", "kind"), [(ActorDiedError(), "infrastructure"), (ValueError("shapes"), "bug")])
def test_the_error_itself_says_it(tmp_path, error, kind):
    failure = _last_failure(trial_with(tmp_path, pickled=pickle.dumps(error), text="Failure # 1\nKeyError: 'x'\n"))
    assert failure.kind == kind


def test_an_error_that_cannot_be_unpickled_is_read_as_text_and_the_last_one_counts(tmp_path):
    text = "Failure # 1 (occurred at noon)\nKeyError: 'x'\nFailure # 2 (occurred at one)\nConnectionResetError: peer\n"
    failure = _last_failure(trial_with(tmp_path, pickled=b"no pickle", text=text))
    assert (failure.kind, failure.reason) == ("infrastructure", "infrastructure: peer")


def test_nothing_was_kept(tmp_path):
    assert _last_failure(trial_with(tmp_path)).reason == "its process was lost"
