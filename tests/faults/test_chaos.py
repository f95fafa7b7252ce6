"""Chaos parity: a sweep of short trials under random kills and failing calls within Ray ends with the same table."""

import json
import os
import random
import signal
import time
from collections import Counter

import pytest
from helpers.sweeps import Running, outcome, sweep_file, table

TRIALS, KILLS, SEED = 60, 30, 7
STEPS, EVERY = 40, 10
LIMIT = 1500

# Ray's own fault injection, in percent of calls: requests lost, replies lost, calls that end in flight.
FAILURES = {
    "NodeManagerService.grpc_client.RequestWorkerLease": (5, 5, 5),
    "NodeManagerService.grpc_client.ReturnWorkerLease": (5, 5, 5),
    "ActorInfoGcsService.grpc_client.GetActorInfo": (10, 10, 10),
    "PlacementGroupInfoGcsService.grpc_client.CreatePlacementGroup": (10, 10, 0),
    "PlacementGroupInfoGcsService.grpc_client.RemovePlacementGroup": (10, 10, 10),
    "InternalKVGcsService.grpc_client.InternalKVGet": (5, 5, 5),
    "CoreWorkerService.grpc_client.PushTask": (1, 1, 1),
}


def injection():
    names = ("req_failure_prob", "resp_failure_prob", "in_flight_failure_prob")
    calls = {call: {"num_failures": 40, **dict(zip(names, shares, strict=True))} for call, shares in FAILURES.items()}
    return {"RAY_testing_rpc_failure": json.dumps(calls), "RAY_testing_asio_delay_us": "*=0:2000"}


def values(number):
    return [round(0.01 + 0.98 * index / (number - 1), 4) for index in range(number)]


def victims(sweep):
    """Processes that may be killed now: no trial of which two processes were lost already may lose a third."""
    ended = {event.key for event in sweep.events("ended")}
    lost = Counter(event.key for event in sweep.events("retry"))
    spared = any(number >= 2 and key not in ended for key, number in lost.items())
    return [] if spared else sweep.find("ray::ImplicitFunc")


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
def test_the_table_under_kills_and_failing_calls_is_that_of_a_quiet_run(tmp_path, monkeypatch, cache_dir, found):
    monkeypatch.chdir(tmp_path)
    file = sweep_file(values(TRIALS), steps=STEPS, every=EVERY)
    common = ["sweep", file, "--cache-dir", cache_dir, "--stall-limit", "60"]
    quiet = Running([*common, "--name", "quiet"], tmp_path / "sweeps" / "quiet")
    began = time.monotonic()
    assert quiet.end(LIMIT) == 0, quiet.said()
    quiet_seconds = time.monotonic() - began

    draw, kills = random.Random(SEED), Counter()
    since, began = time.time(), time.monotonic()
    sweep = Running([*common, "--name", "chaos"], tmp_path / "sweeps" / "chaos", injection())
    pause = quiet_seconds / KILLS
    while sweep.process.poll() is None and time.monotonic() - began < LIMIT:
        time.sleep(pause * (0.5 + draw.random()))
        if sum(kills.values()) >= KILLS or not sweep.events("started"):
            continue
        kind = draw.choices(("worker", "driver"), (14, 1))[0]
        if kind == "driver" and kills["driver"] < 2:  # of three drivers the last one stays
            pids = [sweep.driver]
        else:
            kind, pids = "worker", victims(sweep)
        if pids and sweep.process.poll() is None:
            os.kill(draw.choice(pids), signal.SIGKILL)
            kills[kind] += 1
    assert sweep.end(1) == 0, sweep.said()
    chaos_seconds = time.monotonic() - began
    assert table(sweep.folder) == table(quiet.folder)
    ratio = chaos_seconds / quiet_seconds
    what = f"chaos over {TRIALS} trials: {kills['worker']} workers and {kills['driver']} drivers killed"
    calls = f"three kinds of failing calls on {len(FAILURES)} of Ray's; {ratio:.1f} times the quiet run's time"
    found(f"{what}, {calls}", outcome(sweep.folder, since))
