"""A real SLURM on this machine: slurmctld and a slurmd for each virtual node, without munge, in a private folder."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from helpers.clusters import COMMAND, PROJECT, free_port

HAS_SLURM = all(map(shutil.which, ("slurmctld", "slurmd", "sbatch", "srun"))) and os.getuid() == 0
CONF = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
MaxArraySize=2001
ReturnToService=2
KillWait=30
MinJobAge=600
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes={names} Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes={names} MaxTime=60 State=UP PriorityTier=2 PreemptMode=OFF
"""


class Slurm:
    """SLURM cluster: `with Slurm(folder, nodes=2) as slurm:`. Each node is this machine, with four nominal CPUs."""

    def __init__(self, folder, nodes=2, cpus=4):
        self.folder = Path(folder)
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.daemons = {}
        for place in ("state", "spool", "home"):
            (self.folder / place).mkdir(parents=True)
        lines = "\n".join(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs={cpus} RealMemory=4000"
            for name in self.names
        )
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text(CONF.format(port=free_port(), folder=self.folder, nodes=lines, names=",".join(self.names)))
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        # SLURM leaves a batch job little time where it believes that its machine restarted meanwhile.
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RAY_"))},
            **{"SLURM_CONF": str(self.conf), "HOME": str(self.folder / "home"), "PYTHONPATH": str(PROJECT)},
            **{"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "RAY_USAGE_STATS_ENABLED": "0"},
            **{"RAY_memory_monitor_refresh_ms": "0"},
        }

    def __enter__(self):
        self.start_controller()
        for name in self.names:
            self.daemons[name] = self._daemon(name, "slurmd", "-D", "-N", name)
        states = ("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
        self.wait_for(lambda: self.out(*states).split() == ["idle"] * len(self.names))
        return self

    def __exit__(self, *error):
        self.out("scancel", f"--user={os.getuid()}", check=False)
        self.wait_for(lambda: not self.out("squeue", "-h", check=False).strip(), seconds=60)
        for daemon in self.daemons.values():
            daemon.terminate()
            daemon.wait()

    def _daemon(self, name, *command):
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "-f", str(self.conf)], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def start_controller(self):
        self.daemons["slurmctld"] = self._daemon("slurmctld", "slurmctld", "-D")

    def kill_controller(self):
        self.daemons["slurmctld"].kill()
        self.daemons["slurmctld"].wait()

    def out(self, *command, check=True):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0 or not check, (command, done.stdout, done.stderr)
        return done.stdout

    def tune(self, *words, cwd, check=True, timeout=240):
        """Run `tune-dml WORDS` on the login node."""
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
        return done

    def wait_for(self, is_so, seconds=60):
        until = time.monotonic() + seconds
        while not is_so():
            logs = [(log.name, log.read_text(errors="replace")[-1500:]) for log in self.folder.glob("*.log")]
            assert time.monotonic() < until, logs
            time.sleep(0.2)

    def profile(self, text):
        place = self.folder / "home" / ".config" / "tune-dml" / "slurm.toml"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def jobs(slurm, name):
    """Return the ids of a sweep's waiting and running jobs."""
    return slurm.out("squeue", "-h", "--name", f"tune-dml-{name}", "-o", "%i", check=False).split()
