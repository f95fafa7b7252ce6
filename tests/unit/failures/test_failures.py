"""Every failure of a trial, as an exception and as the text that a worker returns."""

import pickle
import re
import time
import traceback
from types import SimpleNamespace

import pytest
import torch
from ray import exceptions

from trainables.errors import ConfigError, DataError, Diverged, Problem
from tune_dml.running.failures import classify
from tune_dml.running.recorder import _last_failure


def class_named(module, name, *bases, **members):
    """Return a class as another package defines it."""
    return type(name, bases or (Exception,), {"__module__": module, **members})


ActorDiedError = class_named("ray.exceptions", "ActorDiedError")
RayTaskError = class_named("ray.exceptions", "RayTaskError")
WorkerGroupError = class_named("ray.train.v2.api.exceptions", "WorkerGroupError")
TorchOOM = class_named("torch", "OutOfMemoryError", RuntimeError)
RayOOM = class_named("ray.exceptions", "OutOfMemoryError")
DistBackendError = class_named("torch.distributed", "DistBackendError", RuntimeError)
PROBLEM = Problem("loss.k", "must be > 0", -1, "Raise it.")

# What Ray 2.60 prints when an actor's process is killed; it speaks of the OOM killer without knowing.
ACTOR_DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: A
\tpid: 8321
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly \
exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due \
to high memory usage, (2) ray stop --force was called."""

# Messages of Ray 2.60 about Tune's actor on a node without pandas, and about another actor.
NOT_LOADED = """The actor with name ImplicitFunc failed to import on the worker. This may be because needed library dependencies \
are not installed in the worker environment:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/ray/tune/__init__.py", line 5, in <module>
    import pandas  # noqa: F401
    ^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'pandas'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/ray/tune/__init__.py", line 9, in <module>
    raise ImportError(
ImportError: Can't import ray.tune as some dependencies are missing. Run `pip install "ray[tune]"` to fix.
"""
TUNE_NOT_LOADED = f"""The actor died unexpectedly before finishing this task.
\tclass_name: wrap_function.<locals>.ImplicitFunc
\tip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits \
unexpectedly. Worker exits with an exit code None. Traceback (most recent call last):
  File "python/ray/_raylet.pyx", line 2198, in ray._raylet.execute_task
RuntimeError: {NOT_LOADED}
During handling of the above exception, another exception occurred:

RuntimeError: {NOT_LOADED}
An unexpected internal error occurred while the worker was executing a task."""
OTHER_NOT_LOADED = f"""The actor died because of an error raised in its creation task, \x1b[36mray::A.__init__()\x1b[39m \
(pid=23334, ip=192.0.2.2, actor_id=53aa98, repr=<modx.TemporaryActor object at 0x7f46>)
RuntimeError: {NOT_LOADED}"""

WORKER_NOT_LOADED = f"""\x1b[36mray::ImplicitFunc.train()\x1b[39m (pid=8114, ip=192.0.2.9, actor_id=c2474, repr=trial)
ray.train.v2.api.exceptions.ControllerError: Training failed due to controller error:
One of the worker actors failed to initialize due to error:
Traceback (most recent call last):
ray.exceptions.ActorDiedError: {TUNE_NOT_LOADED}"""

# What Ray 2.60 sends back from a worker: frames may be missing, the header is coloured.
RAY_TEXT = """\x1b[36mray::A.go()\x1b[39m (pid=8114, ip=192.0.2.2, actor_id=c2474, repr=<rayfail.A object at 0x7f27>)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/trial.py", line 9, in go
    raise something
    ^^^^^^^^^^^^^^^
{error}"""


def chained(cause, error):
    error.__cause__ = cause
    return error


def ranks(*failures):
    error = WorkerGroupError("Training failed due to worker errors")
    error.worker_failures = dict(enumerate(failures))
    return error


def task(cause, text=""):
    error = RayTaskError(text)
    error.cause = cause
    return error


EXCEPTIONS = [
    (MemoryError("Unable to allocate 9 GiB"), "out_of_memory"),
    (TorchOOM("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out_of_memory"),
    (OSError(12, "Cannot allocate memory"), "out_of_memory"),
    (Diverged("the loss is nan", 30, {"norm": 0.0}), "diverged"),
    (DataError(PROBLEM), "data"),
    (ConfigError(PROBLEM), "config"),
    (ActorDiedError(ACTOR_DIED), "infrastructure"),
    (RayOOM("Task was killed due to the node running low on memory"), "infrastructure"),
    (ConnectionResetError("peer"), "infrastructure"),
    (DistBackendError("NCCL error: remote process exited"), "infrastructure"),
    (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1"), "infrastructure"),
    (OSError(28, "No space left on device"), "infrastructure"),
    (RuntimeError("DataLoader worker (pid 33) is killed by signal: Killed."), "infrastructure"),
    (class_named("ray.train.v2.api.exceptions", "PreemptionError")("node is going"), "preempted"),
    (ActorDiedError("the node was preempted"), "preempted"),
    (ActorDiedError("its node has died.\n\tthe actor's node was terminated expectedly: received SIGTERM"), "preempted"),
    (RuntimeError("node gpu-7 does not have what the driver has: no torch."), "node"),
    (ValueError("shapes do not match"), "bug"),
    (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "bug"),
    (KeyError("memory"), "bug"),
    (FileNotFoundError(2, "No such file or directory"), "bug"),
]


@pytest.mark.parametrize(("error", "kind"), EXCEPTIONS, ids=lambda value: str(value)[:40])
def test_exceptions_reprs_and_tracebacks_agree(error, kind):
    assert classify(error).kind == kind
    assert classify(error).is_retryable == (kind in {"infrastructure", "preempted", "node"})
    try:
        raise error
    except BaseException as raised:
        text = "".join(traceback.format_exception(raised))
    assert classify(text).kind == kind, text
    assert classify(task(error)).kind == kind
    last = traceback.format_exception_only(error)[-1] if "\n" not in str(error) else text.rpartition("raise error\n")[2]
    assert classify(RAY_TEXT.format(error=last)).kind == kind
    assert classify(repr(error)).kind == kind


CYCLIC = ValueError("loop")
CYCLIC.__cause__ = CYCLIC
ECHO = RuntimeError("Connection closed by peer")
KINDS = [
    (class_named("mine", "Collapsed", Diverged)("flat", 3), "diverged"),  # of a user's package
    ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "out_of_memory"),  # classes of one name
    ("ray.exceptions.OutOfMemoryError: 1 worker was killed", "infrastructure"),
    (class_named("sqlalchemy.exc", "DataError")("column too long"), "bug"),
    (ranks(ECHO, Diverged("the loss is nan", 3)), "diverged"),  # the rank that failed first counts
    (ranks(ECHO, ValueError("shapes")), "bug"),
    (ranks(ActorDiedError(ACTOR_DIED), ValueError("no peer")), "infrastructure"),
    (ranks(ECHO, ECHO), "infrastructure"),
    (ranks(TorchOOM("CUDA out of memory"), ValueError("odd")), "out_of_memory"),
    (ExceptionGroup("two", [ValueError("x"), DataError(PROBLEM)]), "data"),
    (CYCLIC, "bug"),
    ("", "bug"),
]


@pytest.mark.parametrize(("error", "kind"), KINDS, ids=lambda value: str(value)[:40])
def test_the_kind_follows_class_module_and_rank(error, kind):
    assert classify(error).kind == kind


def test_an_unknown_error_with_a_known_cause_has_the_kind_of_its_cause():
    assert classify(chained(ConnectionResetError("peer"), RuntimeError("wrapped"))).kind == "infrastructure"
    assert classify(chained(KeyError("x"), RuntimeError("wrapped"))).reason.startswith("error: RuntimeError: wrapped")
    text = (
        "Traceback (most recent call last):\nConnectionResetError: peer\n\n"
        "The above exception was the direct cause of the following exception:\n\n" + RAY_TEXT
    )
    assert classify(text.format(error="RuntimeError: wrapped")).kind == "infrastructure"
    assert classify(task(RuntimeError("wrapped"), text.format(error="RuntimeError: wrapped"))).kind == "infrastructure"


def test_an_error_raised_while_handling_another_keeps_its_kind():
    text = "KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n" + RAY_TEXT
    assert classify(text.format(error="ValueError: bad: thing")).reason == "error: ValueError: bad: thing (trial.py:9)"
    text = text.replace("KeyError: 'x'", "ConnectionResetError: peer")
    assert classify(text.format(error="ValueError: bad")).kind == "bug"


def test_a_constructor_that_raised_in_an_actor_is_not_a_lost_actor():
    error = ActorDiedError(
        "The actor died because of an error raised in its creation task, "
        + RAY_TEXT.format(error="trainables.errors.ConfigError: loss.k: must be > 0")
    )
    error.actor_init_failed = True
    assert classify(error).kind == "config"


def test_reasons_are_one_clean_bounded_line():
    problems = ConfigError([PROBLEM, Problem("optim.lr", "must be > 0", 0.0)])
    assert classify(problems).reason == "configuration: loss.k: must be > 0, but got -1. Raise it. (and 1 more)"
    assert classify(Diverged("the loss is nan", 30)).reason == "diverged: the loss is nan (step 30)"
    long = classify(ValueError("\x1b[31mred\x1b[0m\x07 " + "x" * 5000)).reason
    assert long.isprintable()
    assert len(long) <= 240
    assert "hunter2" not in classify(OSError("cannot reach http://me:hunter2@host:5000/")).reason


def test_an_error_without_a_message_is_no_lost_process():
    """The error that `__str__` raised was taken for one of Ray, and the trial was retried."""

    class Mute(Exception):
        def __str__(self):
            raise KeyError("text")

    assert classify(Mute("x")).reason.endswith(".Mute: no message: its __str__ raised KeyError")
    assert classify(chained(ConnectionResetError("peer"), Mute("x"))).kind == "infrastructure"


def test_a_message_with_a_whole_tensor_is_read_quickly():
    """A few million characters took a minute, in which the trial counted as stalled."""
    began = time.monotonic()
    assert classify(ValueError("y" * 3_000_000)).reason.startswith("error: ValueError: yyy")
    text = RAY_TEXT.format(error="ValueError: " + "y" * 3_000_000 + "\n\nConnectionResetError: peer")
    assert classify(text).kind == "bug"
    assert time.monotonic() - began < 5


def test_a_gpu_error_may_be_raised_after_its_cause():
    words = "CUDA error: device-side assert triggered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile"
    error = class_named("torch", "AcceleratorError", RuntimeError)(words)
    try:
        raise error
    except RuntimeError as raised:
        found = classify(raised)
    assert found.kind == "bug"
    assert re.fullmatch(
        r"error: AcceleratorError: CUDA error: device-side assert triggered "
        r"\(noticed at test_failures.py:\d+; CUDA_LAUNCH_BLOCKING=1 shows where it arose\)",
        found.reason,
    )


def trial_with(folder, *, pickled=None, text=None):
    """Return a trial as Tune stores it: the names of its files, None for a missing file."""
    files: dict[str, str | None] = {"pickled_error_file": None, "error_file": None}
    for name, content in (("pickled_error_file", pickled), ("error_file", text and text.encode())):
        if content is not None:
            (folder / name).write_bytes(content)
            files[name] = str(folder / name)
    return SimpleNamespace(**files)


@pytest.mark.parametrize(
    ("error", "kind"), [(exceptions.ActorDiedError(), "infrastructure"), (ValueError("shapes"), "bug")]
)
def test_the_kind_follows_from_the_error_itself(tmp_path, error, kind):
    failure = _last_failure(trial_with(tmp_path, pickled=pickle.dumps(error), text="Failure # 1\nKeyError: 'x'\n"))
    assert failure.kind == kind


def test_an_error_that_cannot_be_unpickled_is_read_as_text_and_the_last_one_counts(tmp_path):
    text = "Failure # 1 (occurred at noon)\nKeyError: 'x'\nFailure # 2 (occurred at one)\nConnectionResetError: peer\n"
    failure = _last_failure(trial_with(tmp_path, pickled=b"no pickle", text=text))
    assert (failure.kind, failure.reason) == ("infrastructure", "infrastructure: peer")


def test_a_lost_process_without_stored_error_is_reported(tmp_path):
    assert _last_failure(trial_with(tmp_path)).reason == "its process was lost"


def test_the_exit_of_a_process_is_reported_if_known():
    """Ray's first line states only that it ended, its last line the possible cause."""
    reason = classify(ActorDiedError(ACTOR_DIED)).reason
    assert reason.startswith("infrastructure: its process ended without a message: it was")
    assert "(`--max-concurrent` runs fewer trials at once)" in reason
    known = ACTOR_DIED.partition("Worker unexpectedly")[0] + "Worker exits with an exit code 7.\nmore"
    assert classify(ActorDiedError(known)).reason == "infrastructure: Worker exits with an exit code 7."


def test_a_process_that_ray_killed_for_memory_has_a_remedy():
    """Two trials that together exceed the memory were lost three times each."""
    reason = classify(RayOOM("Task was killed due to the node running low on memory.\nmore")).reason
    remedy = "`--max-concurrent` runs fewer trials at once (Task"
    assert reason.startswith(f"infrastructure: its node ran short of memory: {remedy}")


@pytest.mark.parametrize("text", [TUNE_NOT_LOADED, OTHER_NOT_LOADED, WORKER_NOT_LOADED])
def test_a_node_that_cannot_start_processes_is_named_with_the_cause(text):
    expected = "node 192.0.2.2 does not have what the driver has: No module named 'pandas'. Install it there."
    for error in (text, exceptions.RayActorError(error_msg=text)):
        failure = classify(error)
        assert (failure.kind, failure.reason) == ("node", expected)
        assert failure.is_retryable


def test_a_reason_names_the_line_that_called_torch():
    """It named a line of torch: no user finds the mistake of a method there."""
    with pytest.raises(IndexError) as caught:
        torch.zeros(3).norm(dim=1)
    text = "".join(traceback.format_exception(caught.value))
    for error in (caught.value, text):
        assert re.search(r"\(test_failures\.py:\d+\)", classify(error).reason)
