"""Chaos: random kills and failing calls within Ray do not change the table of a sweep."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from helpers.sweeps import SweepProcess, outcome, sweep_file, table

TRIALS, KILLS, SEED = 60, 30, 7
STEPS, EVERY = 3000, 200
MOST = 1.5
"""Largest time, as a multiple of the quiet run's."""
LIMIT = 900
"""Time limit of the quiet run in seconds; the other run is aborted at twice its largest time."""

# Ray's fault injection: percentages of calls whose request is lost, whose reply is lost, that fail in flight; and the
# most failures per process. `CoreWorkerService.PushTask` is left out: its failure is a lost process, and kills may
# already have used both retries of a trial.
GCS = "ray::rpc::"
FAILURES = {
    "NodeManagerService.grpc_client.RequestWorkerLease": ((5, 5, 5), 10),
    "NodeManagerService.grpc_client.ReturnWorkerLease": ((5, 5, 5), 10),
    f"{GCS}ActorInfoGcsService.grpc_client.GetActorInfo": ((5, 5, 5), 10),
    f"{GCS}PlacementGroupInfoGcsService.grpc_client.CreatePlacementGroup": ((5, 5, 5), 10),
    f"{GCS}PlacementGroupInfoGcsService.grpc_client.RemovePlacementGroup": ((5, 5, 5), 10),
    f"{GCS}InternalKVGcsService.grpc_client.InternalKVGet": ((2, 2, 2), 10),
    f"{GCS}NodeInfoGcsService.grpc_client.CheckAlive": ((5, 5, 5), 10),
    f"{GCS}WorkerInfoGcsService.grpc_client.AddWorkerInfo": ((5, 5, 5), 10),
    f"{GCS}TaskInfoGcsService.grpc_client.AddTaskEventData": ((5, 5, 5), 10),
}


def injection():
    """Return Ray's settings for failing calls and slow servers. Delaying all calls (`*`) would break raylets."""
    names = ("req_failure_prob", "resp_failure_prob", "in_flight_failure_prob")
    calls = {
        call: {"num_failures": most, **dict(zip(names, shares, strict=True))}
        for call, (shares, most) in FAILURES.items()
    }
    servers = [call.removeprefix(GCS).replace("grpc_client", "grpc_server") for call in FAILURES]
    delays = ",".join(f"{server}=0:2000" for server in servers)
    return {"RAY_testing_rpc_failure": json.dumps(calls), "RAY_testing_asio_delay_us": delays}


def values(number):
    return [round(0.01 + 0.98 * index / (number - 1), 4) for index in range(number)]


def killable_processes(sweep):
    """Return processes that may be killed: no trial may lose a third process."""
    ended = {event.key for event in sweep.events("ended")}
    lost = Counter(event.key for event in sweep.events("retry"))
    spared = any(number >= 2 and key not in ended for key, number in lost.items())
    return [] if spared else sweep.find("ray::ImplicitFunc")


INJECTED = re.compile(r"Inject RPC (.+) for (?:ray::rpc::)?(\w+)\.grpc_client")


def injected_failures(since):
    """Return how calls failed, and of which services, from Ray's logs."""
    logs = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray").glob("session_2*/logs/*.*")  # noqa: S108
    recent = [log for log in logs if log.is_file() and log.stat().st_mtime > since]
    found = {match for log in recent for match in INJECTED.findall(log.read_text(errors="replace"))}
    return {way for way, _ in found}, {service for _, service in found}


@pytest.mark.slow
@pytest.mark.timeout((1 + 2 * MOST) * LIMIT)
def test_kills_and_failing_calls_do_not_change_the_table(tmp_path, cache_dir, found):
    file = sweep_file(values(TRIALS), steps=STEPS, every=EVERY)
    common = ["sweep", file, "--cache-dir", cache_dir, "--stall-limit", "60"]
    quiet = SweepProcess([*common, "--name", "quiet"], tmp_path / "sweeps" / "quiet")
    began = time.monotonic()
    assert quiet.end(LIMIT) == 0, quiet.read_output()
    quiet_seconds = time.monotonic() - began

    draw, kills = random.Random(SEED), Counter()
    since, began = time.time(), time.monotonic()
    sweep = SweepProcess([*common, "--name", "chaos"], tmp_path / "sweeps" / "chaos", injection())
    pause = 0.8 * quiet_seconds / KILLS  # all kills before the end, even if the quiet run was slow
    while sweep.process.poll() is None and time.monotonic() - began < 2 * MOST * quiet_seconds:
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.process.wait(pause * (0.5 + draw.random()))
        if sum(kills.values()) >= KILLS or not sweep.events("started"):
            continue
        kind = draw.choices(("worker", "driver"), (14, 1))[0]
        if kind == "driver" and kills["driver"] < 2:  # of three drivers the last one stays
            pids = [sweep.driver]
        else:
            kind, pids = "worker", killable_processes(sweep)
        if pids and sweep.process.poll() is None:
            os.kill(draw.choice(pids), signal.SIGKILL)
            kills[kind] += 1
    chaos_seconds, code = time.monotonic() - began, sweep.process.poll()
    sweep.stop()
    assert code == 0, sweep.read_output()
    assert table(sweep.folder) == table(quiet.folder)
    assert sum(kills.values()) >= KILLS, kills
    ratio = chaos_seconds / quiet_seconds
    killed = f"{kills['worker']} workers and {kills['driver']} of three drivers killed"
    what = f"chaos over {TRIALS} trials of {STEPS:,} steps: {killed}"
    ways, services = injected_failures(since)
    assert len(ways) == 3, ways
    assert len(services) >= 6, services
    calls = f"three kinds of failing calls on {len(services)} of Ray's services; {ratio:.2f} times the quiet run's time"
    found(f"{what}, {calls}", outcome(sweep.folder, since))
    assert ratio <= MOST
