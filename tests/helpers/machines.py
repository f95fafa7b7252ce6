"""Virtual machines for `ray up`: namespaces of this one with SSH, home, name and network."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

BRIDGE, NETWORK = "tunedml-br", "10.215.7"
GATEWAY = f"{NETWORK}.1"
NEEDED = ("sshd", "ssh", "ssh-keygen", "rsync", "ip", "unshare", "nsenter")

# As on Debian, each machine's own name resolves to 127.0.1.1. What Python needs stays visible below the new /tmp and
# /home. The user has root's number, since Python may be in root's home.
BOOT = r"""
name=$1 keys=$2 shared=$3; shift 3
hostname "$name"
mount -t tmpfs tmpfs /mnt; mkdir /mnt/shared; mount --bind "$shared" /mnt/shared
mount -t tmpfs tmpfs /run; mkdir -p /run/sshd /run/machine; cp "$keys"/* /etc/passwd /etc/shadow /etc/group /run/machine
cd /run/machine
sed -i '1i tune:x:0:0::/home/tune:/bin/bash' passwd; sed -i '1i tune:*:19000:0:99999:7:::' shadow
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name" > hosts
for file in passwd shadow hosts; do mount --bind $file /etc/$file; done
for tree; do mkdir -p kept"$tree"; mount --bind "$tree" kept"$tree"; done
mount -t tmpfs -o mode=1777 tmpfs /tmp; mount -t tmpfs tmpfs /home; mkdir -p -m 700 /home/tune/.ssh
for tree; do mkdir -p "$tree"; mount --bind kept"$tree" "$tree"; done
cp /etc/skel/.bashrc /etc/skel/.profile /home/tune; cp user.pub /home/tune/.ssh/authorized_keys
exec "$(command -v sshd || echo /usr/sbin/sshd)" -D -e -h /run/machine/host -o UsePAM=no -o PidFile=none -o StrictModes=no
"""


def lacking():
    """Return what this machine lacks to create namespaces; empty if it lacks nothing."""
    path = "/usr/sbin:/sbin"
    if missing := [name for name in NEEDED if not (shutil.which(name) or shutil.which(name, path=path))]:
        return f"needs {', '.join(missing)}"
    made = _run("ip", "link", "add", BRIDGE, "type", "bridge")
    if made.returncode:
        return f"needs the right to make networks: {made.stderr.strip()}"
    _run("ip", "link", "delete", BRIDGE)
    return ""


class Machines:
    """Virtual machines: `with Machines(folder, 3) as machines:`.

    `ssh -i machines.key tune@ADDRESS` reaches each of `machines.addresses`. They share /mnt/shared (`machines.shared`
    here) and the Python of the tests; each has a separate /tmp and /home.
    """

    def __init__(self, folder, number):
        self.folder, self.shared, self.keys = Path(folder), Path(folder) / "shared", Path(folder) / "keys"
        self.names = [f"tunedml{place}" for place in range(number)]
        self.addresses = [f"{NETWORK}.{10 + place}" for place in range(number)]
        self.key = self.keys / "user"
        self._booted = []

    def __enter__(self):
        for place in (self.shared, self.keys):
            place.mkdir(parents=True)
        for key in ("user", "host"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.keys / key, check=True)
        try:
            self._connect()
            for name, address in zip(self.names, self.addresses, strict=True):
                self._boot(name, address)
            for address in self.addresses:
                self._wait_for(address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def on(self, number, *words):
        return _run("ip", "netns", "exec", self.names[number], *words, check=True).stdout

    def _connect(self):
        _run("ip", "link", "add", BRIDGE, "type", "bridge", check=True)
        _run("ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE, check=True)
        _run("ip", "link", "set", BRIDGE, "up", check=True)

    def _boot(self, name, address):
        _run("ip", "netns", "add", name, check=True)
        _run("ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name, check=True)
        _run("ip", "link", "set", f"{name}v", "master", BRIDGE, "up", check=True)
        for words in (
            ("address", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", GATEWAY),
        ):
            _run("ip", "-n", name, *words, check=True)
        alone = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        hidden = {tree for tree in (sys.prefix, sys.base_prefix) if tree.startswith(("/tmp/", "/home/", "/run/"))}  # noqa: S108
        words = ["bash", "-euc", BOOT, "bash", name, self.keys, self.shared, *sorted(hidden)]
        with (self.folder / f"{name}.log").open("w") as log:
            command = ["ip", "netns", "exec", name, *alone, *map(str, words)]
            self._booted.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _wait_for(self, address, seconds=60):
        deadline = time.monotonic() + seconds
        quiet = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
        while (asked := _run("ssh", *quiet, "-i", self.key, f"tune@{address}", "true")).returncode:
            logs = [file.read_text() for file in self.folder.glob("*.log")]
            assert time.monotonic() < deadline, (asked.stderr, logs)
            time.sleep(0.2)

    def __exit__(self, *error):
        for machine in self._booted:  # which takes all that runs there with it
            machine.kill()
            machine.wait()
        for name in self.names:
            for pid in _run("ip", "netns", "pids", name).stdout.split():
                _run("kill", "-9", pid)
            _run("ip", "netns", "delete", name)
            _run("ip", "link", "delete", f"{name}v")
        _run("ip", "link", "delete", BRIDGE)


def _run(*words, check=False):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=check)
