"""Messages of a trial to its driver: their content, and when they are sent; its device, with a fake GPU."""

import json
import os
import sys
import threading
from dataclasses import replace

import pytest
import torch
from helpers.published_formats import image_folder
from helpers.toys import plan_of
from helpers.trials import TASKS, config_of

from trainables.context import TrialContext
from trainables.data.image_folder import ImageFolder
from trainables.errors import DataError, Diverged
from trainables.losses import LOSSES
from trainables.losses.triplet import TripletLoss
from trainables.models.small_conv import SmallConv
from trainables.tasks import task_of
from trainables.training import train
from tune_dml.planning.checks.data import data_key, known_digests
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request, Resources
from tune_dml.planning.study import Search
from tune_dml.record.events import TrialEnd
from tune_dml.running.trials import trial as trials
from tune_dml.running.trials.device import cuda_error, device_of, missing_device
from tune_dml.running.trials.messages import MessageQueue, Messages
from tune_dml.space import Grid, Knob


@pytest.mark.parametrize(("loss", "spent"), [("triplet", False), ("elsewhere", True)])
def test_a_process_ends_after_a_trial_with_a_third_party_method(monkeypatch, messages_of, loss, spent):
    """Its global changes would affect the next trial."""
    kind = type("Elsewhere", (TripletLoss,), {"name": "elsewhere", "__module__": "own_package"})
    monkeypatch.setitem(LOSSES.data, "elsewhere", kind)
    settings = config_of(TASKS["retrieval"], loss__name=loss, training__steps=2, training__eval_every=2).settings()
    last = messages_of(settings)[-1]
    assert last["ended"]["status"] == "finished"
    assert last.get("spent", False) == spent


SHORT = config_of(TASKS["retrieval"], training__steps=2, training__eval_every=2).settings()


def end_of_trial(tmp_path, workers=1):
    return trials.run_trial(SHORT, TrialContext(tmp_path / "k", torch.device("cpu"), world_size=workers), None)


def test_a_process_that_ray_exits_fails_no_trial(monkeypatch, tmp_path):
    ray_exits = eval("lambda self, row: exit(0)", {"__name__": "ray.train", "exit": sys.exit})  # noqa: S307
    monkeypatch.setattr(TrialContext, "report", lambda self, row, state=None: ray_exits(self, row))
    with pytest.raises(SystemExit):
        end_of_trial(tmp_path)


class UncatchableError(BaseException):
    """An exception of a method that derives from BaseException."""


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GeneratorExit(), UncatchableError()], ids=repr)
def test_any_exception_of_a_method_fails_its_trial(monkeypatch, tmp_path, error):
    """Ray treats KeyboardInterrupt as a cancelled task, so the trial was retried as lost."""

    def stop(self, row, state=None):
        raise error

    monkeypatch.setattr(TrialContext, "report", stop)
    end = end_of_trial(tmp_path)
    assert (end.status, end.kind) == ("failed", "bug")
    assert end.reason.startswith(f"error: {type(error).__name__} (test_messages_of_a_trial.py:")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("error", [ValueError("no process group"), Diverged("the loss is nan at step 1", 1, {})])
def test_errors_after_a_removed_process_group_do_not_end_the_trial(monkeypatch, tmp_path, workers, error):
    """Ray Train removes it during training, so an exchange fails with any error or returns no gradient."""

    def meet(*given, **named):
        raise error

    monkeypatch.setattr("trainables.training.train", meet)
    if workers == 2:
        with pytest.raises(type(error)):
            end_of_trial(tmp_path, workers)
    else:
        assert end_of_trial(tmp_path).status in {"failed", "diverged"}


def test_each_trial_starts_from_the_same_global_state(monkeypatch, messages_of, tmp_path):
    """A process runs many trials; without its folder it runs none."""

    def leave(settings, context, cache_dir):
        (tmp_path / "own").mkdir()
        os.chdir(tmp_path / "own")
        (tmp_path / "own").rmdir()
        return TrialEnd("finished")

    monkeypatch.setattr(trials, "run_trial", leave)
    messages_of({"data.name": "digits"})
    assert os.getcwd() == str(tmp_path)


def test_long_messages_are_cut(monkeypatch, tmp_path):
    def report(self, row, state=None):
        raise ValueError("password=hunter2 " + "y" * 1_000_000)

    monkeypatch.setattr(TrialContext, "report", report)
    end = end_of_trial(tmp_path)
    assert len(json.dumps(end.to_json())) < 10_000
    assert "in report" in end.traceback
    assert "hunter2" not in json.dumps(end.to_json())


def test_a_trial_refuses_other_data_than_those_of_its_sweep(messages_of, cache_dir):
    """Another node may have other data under the same path, and a folder may change during a sweep."""
    config = config_of(TASKS["face_recognition"], training__steps=2, training__eval_every=2)
    request = Request("sec_rho", dataset="digits", settings={"training.steps": 2, "training.eval_every": 2})
    plan = prepare(request, cache_dir=cache_dir).plan
    known = known_digests(plan, cache_dir)
    assert [*known.values()] == [{"digits": plan.data_digest}]
    settings = config.settings()
    digests = {
        "same": {data_key(settings): {"digits": plan.data_digest}},
        "other": {data_key(settings): {"digits": "0" * 64}},
        "unknown": known,
    }
    ends = [messages_of(settings, key=key, digests=given)[-1]["ended"] for key, given in digests.items()]
    same, other, unknown = ends
    assert (same["status"], unknown["status"]) == ("finished", "finished")
    assert (other["status"], other["kind"]) == ("failed", "data")
    assert "the data must equal those of the sweep" in other["reason"]


def test_data_of_listed_cells_are_known_in_advance(cache_dir):
    scale = Knob("data.scale", Grid((2, 3)), symbol="scale")
    assert len({each["digits"] for each in known_digests(plan_of(scale), cache_dir).values()}) == 2
    assert not known_digests(plan_of(scale, search=Search("random", num_samples=2)), cache_dir)


def test_data_decoded_by_the_driver_are_not_checked_again(monkeypatch, tmp_path):
    """A trial starts at once for any number of pictures, and trains on those of its sweep."""
    root = image_folder(tmp_path / "mine")
    data = {"data.name": "image_folder", "data.root": str(root), "data.validation_fraction": 0.5}
    quick = {"training.steps": 2, "training.eval_every": 2, "batch.batch_size": 4, "batch.instances_per_class": 2}
    config = config_of({**data, **quick})
    dataset = task_of(config).dataset(tmp_path / "cache")
    before = dataset.prepare()
    with monkeypatch.context() as changed:
        changed.setattr(ImageFolder, "check", lambda self: pytest.fail("looked"))
        changed.setattr(ImageFolder, "digest", lambda self: pytest.fail("looked"))
        context = TrialContext(tmp_path / "a", torch.device("cpu"), digests={"image_folder": before.digest})
        assert train(config, context, cache_dir=tmp_path / "cache").metrics
    next(root.rglob("*.png")).unlink()
    assert train(config, replace(context, folder=tmp_path / "b"), cache_dir=tmp_path / "cache").metrics
    rule = r"the data must equal those of the sweep.* but got '[0-9a-f]{12}'\. Restore them"
    with pytest.raises(DataError, match=rule):
        train(config, replace(context, folder=tmp_path / "c"), cache_dir=tmp_path / "another node's")


@pytest.mark.parametrize("name", ["dro_k", "dro_gamma", "sec_rho"])
def test_data_are_known_for_knobs_without_a_default(name, cache_dir):
    plan = prepare(Request(name, seeds=1), cache_dir=cache_dir).plan
    assert [*known_digests(plan, cache_dir).values()] == [{"glyphs": plan.data_digest}]


def sent(said, stall_limit=None, end=None):
    """Return (second, message) for each message sent, given (second, row or note or None for a step)."""
    queue, out = MessageQueue(stall_limit), []

    def send_until(second):
        while (now := max(last, 0.0)) + (left := queue.seconds_until_due(now)) <= second:
            out.append((now + left, queue.take(now + left)))

    last = 0.0
    for second, what in said:
        send_until(second)
        last = second
        if what is not None:
            (queue.note if isinstance(what, str) else queue.row)(what)
        elif queue.needs_sign(second):
            queue.request_sign()
        send_until(second)
    return out, queue.take(last)


def rows_at(*seconds):
    return [(second, {"step": step}) for step, second in enumerate(seconds)]


def steps(message):
    return [row["step"] for row in message.get("rows", ())]


@pytest.mark.parametrize(
    ("times", "expected", "waiting"),
    [
        ((0.0, 0.1, 0.9, 1.1, 1.2, 1.3), [(0.0, [0]), (1.0, [1, 2])], [3, 4, 5]),
        ((0.0, 30.0, 60.0), [(0.0, [0]), (30.0, [1]), (60.0, [2])], []),
    ],
)
def test_fast_rows_are_sent_together_and_slow_ones_at_once(times, expected, waiting):
    out, rest = sent(rows_at(*times))
    assert [(second, steps(message)) for second, message in out] == expected
    assert steps(rest) == waiting


def test_the_resumed_step_is_reported_once_with_the_first_rows():
    sent = []
    with Messages(sent.append, None) as messages:
        messages.resumed(40)
        messages.row({"step": 20})
        messages.row({"step": 40})
        messages.ended(TrialEnd("finished"))
    assert [message["resumed"] for message in sent if "resumed" in message] == [40]
    assert "resumed" in sent[0]
    assert [row["step"] for message in sent for row in message.get("rows", ())] == [20, 40]


def test_a_note_is_sent_at_once_with_waiting_rows():
    out, rest = sent([*rows_at(0.0, 0.1), (0.2, "storage is away"), (0.3, {"step": 2}), (0.3, "it is back")])
    found = [(steps(message), message.get("note")) for _, message in out]
    assert found == [([0], None), ([1], "storage is away"), ([2], "it is back")]
    assert rest == {}


def test_steps_without_rows_are_reported_several_times_within_the_limit():
    """The first one at once: it shows that the trial makes steps."""
    out, _ = sent([(second, None) for second in (0.0, 10.0, 25.0, 26.0, 60.0)], stall_limit=100.0)
    assert out == [(0.0, {}), (26.0, {}), (60.0, {})]
    assert sent([(second, None) for second in (0.0, 100.0, 1000.0)]) == ([], {})  # without a limit


class Driver:
    """A driver that takes a message when it is allowed to."""

    def __init__(self):
        self.taken, self.asked, self.may = [], threading.Event(), threading.Event()

    def send(self, message):
        self.asked.set()
        assert self.may.wait(60)
        self.taken.append(message)


def test_a_trial_continues_while_its_driver_is_busy():
    driver = Driver()
    with Messages(driver.send, stall_limit=1e-9) as messages:
        messages.row({"step": 0})
        assert driver.asked.wait(60)
        for step in (1, 2):  # and the first has not been taken yet
            messages.row({"step": step})
            messages.at_work()
        messages.note("storage is away")
        messages.row({"step": 3})
        assert not driver.taken
        driver.may.set()
        messages.ended(TrialEnd("finished"))
    assert [step for message in driver.taken for step in steps(message)] == [0, 1, 2, 3]
    assert [message["note"] for message in driver.taken if "note" in message] == ["storage is away"]
    assert driver.taken[-1]["ended"]["status"] == "finished"
    assert sum("ended" in message for message in driver.taken) == 1


def test_the_last_report_is_sent_by_the_training_thread():
    """Ray ends it there."""
    threads = []
    with Messages(lambda message: threads.append(threading.current_thread()), None) as messages:
        messages.ended(TrialEnd("finished"))
    assert threads == [threading.current_thread()]


def test_a_failed_report_ends_the_trial_at_its_next_row():
    asked = []

    def send(message):
        asked.append(message)
        raise SystemExit(0)

    def trial(last_word):
        with Messages(send, None) as messages:
            messages.row({"step": 0})
            messages._thread.join(60)
            last_word(messages)

    for last_word in (
        lambda messages: messages.row({"step": 1}),
        lambda messages: messages.note("x"),
        lambda messages: messages.at_work(),
        lambda messages: messages.ended(TrialEnd("finished")),
    ):
        asked.clear()
        with pytest.raises(SystemExit):
            trial(last_word)
        assert asked == [{"rows": [{"step": 0}]}]


def test_rows_before_an_error_are_delivered():
    driver = Driver()
    driver.may.set()

    def trial():
        with Messages(driver.send, None) as messages:
            messages.note("storage is away")
            messages.row({"step": 0})
            raise ConnectionError

    with pytest.raises(ConnectionError):
        trial()
    assert [message.get("note") for message in driver.taken if "note" in message] == ["storage is away"]
    assert [step for message in driver.taken for step in steps(message)] == [0]


CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("share", "there", "device"), [(1.0, True, CUDA), (0.25, True, CUDA), (0.0, True, CPU), (1.0, False, CPU)]
)
def test_a_trial_without_gpu_uses_none(monkeypatch, share, there, device):
    """Ray leaves the node's GPUs visible to tasks that request none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    resources = Resources(gpus_per_worker=share)
    assert device_of(resources) == device
    assert bool(missing_device(resources, device)) == (share > 0 and not there)


@pytest.mark.parametrize(
    "error", [None, RuntimeError("CUDA error: device-side assert triggered")], ids=["well", "sick"]
)
def test_a_device_that_fails_every_call_is_broken(monkeypatch, error):
    def synchronize(device):
        if error:
            raise error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert cuda_error(CUDA) is error
    assert cuda_error(CPU) is None


def test_a_missing_gpu_is_reported_once_and_is_no_progress(messages_of):
    said = messages_of(SHORT, Resources(gpus_per_worker=1.0))
    notes = [message["note"] for message in said if "note" in message]
    assert len(notes) == 1
    assert "trains on the CPU" in notes[0]
    assert not any("note" in message for message in messages_of(SHORT, Resources(gpus_per_worker=0.0)))


@pytest.mark.parametrize("sick", [True, False])
def test_a_trial_that_breaks_its_device_reports_it_and_ends_its_process(monkeypatch, messages_of, sick):
    def forward(self, pictures):
        raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART")

    words = "CUDA error: device-side assert triggered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    monkeypatch.setattr(SmallConv, "forward", forward)
    monkeypatch.setattr(trials, "cuda_error", lambda device: RuntimeError(words) if sick else None)
    last = messages_of(SHORT)[-1]
    assert last["ended"]["status"] == "failed"
    assert last.get("spent", False) == sick
    expected = (
        "device-side assert triggered (noticed at test_messages_of_a_trial.py:"
        if sick
        else "CUDNN_STATUS_EXECUTION_FAILED"
    )
    assert expected in last["ended"]["reason"]
