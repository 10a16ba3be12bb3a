# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the system tests say to the host that they run on: as a user would, through sandboxctl, busctl and systemctl."""

import contextlib
import glob
import json
import os
import subprocess
import time
from pathlib import Path

STORAGE = Path("/var/lib/sandboxd")
TEMPLATE = "base"
# A test host without hardware virtualisation of its own is slow; how often things are repeated follows from that.
SLOW = subprocess.run(["systemd-detect-virt"], capture_output=True, text=True, check=False).stdout.strip() == "uml"


def rounds(many):
    """How often to repeat: all of it on a host of native speed, a tenth on a slow one."""
    return max(2, many // 10) if SLOW else many


def sh(*argv, check=True, timeout=120, **kwargs):
    """Runs a command; returns what it wrote and how it ended."""
    done = subprocess.run([str(a) for a in argv], capture_output=True, timeout=timeout, check=False, **kwargs)
    if check and done.returncode != 0:
        raise AssertionError(f"{argv} ended with {done.returncode}:\n{done.stdout!r}\n{done.stderr!r}")
    return done


def ctl(*argv, check=True, timeout=120, **kwargs):
    return sh("sandboxctl", *argv, check=check, timeout=timeout, **kwargs)


def text(*argv, **kwargs):
    """The output of a sandboxctl command, as text without the last newline."""
    return ctl(*argv, **kwargs).stdout.decode().rstrip("\n")


def guest(sandbox, *argv, **kwargs):
    """The output of a command in a sandbox, as text without the last newline."""
    return text("exec", sandbox, "--", *argv, **kwargs)


def burn(sandbox, seconds=2):
    """Uses CPU time: systemd writes a record of what a scope has used only if that is over a second."""
    ctl("exec", "--timeout", str(seconds), sandbox, "--", "sh", "-c", "while :; do :; done", check=False)


def show(sandbox):
    """All properties of a sandbox."""
    shown = json.loads(text("show", sandbox, "--json=short"))
    return shown[0] if isinstance(shown, list) else shown


def usage(sandbox):
    """The usage records of a sandbox, from the ledger itself."""
    lines = (STORAGE / "usage.jsonl").read_text().splitlines() if (STORAGE / "usage.jsonl").exists() else []
    return [r for r in map(json.loads, lines) if r["id"] == sandbox]


def ids():
    listed = text("list", "--json=short")
    return [s["id"] for s in json.loads(listed)] if listed else []


@contextlib.contextmanager
def sandbox(*options, template=TEMPLATE):
    """A sandbox for the length of a with block."""
    name = text("create", template, *options)
    try:
        yield name
    finally:
        ctl("rm", "-f", name)


def as_user(user, *argv, check=True, **kwargs):
    return sh("setpriv", "--reuid", user, "--regid", user, "--init-groups", "env", "-i", "PATH=/usr/bin:/bin", *argv, check=check,
              **kwargs)


def wait_for(condition, timeout=10, what="the condition"):
    """Waits until condition() is true and returns its value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} didn't come true in {timeout} s"
        time.sleep(0.05)


def unit_property(unit, name):
    return sh("systemctl", "show", "-P", name, unit).stdout.decode().strip()


def daemon_pid():
    return int(unit_property("sandboxd.service", "MainPID"))


def wait_for_daemon(timeout=30):
    """Until the daemon answers."""
    wait_for(lambda: sh("busctl", "call", "org.sandboxd1", "/org/sandboxd1", "org.sandboxd1.Manager", "ListTemplates", "t", "0",
                        check=False).returncode == 0, timeout, "an answer of sandboxd")


def kill_daemon():
    """SIGKILL, and wait for systemd's next start of it. Returns how long that took."""
    old = daemon_pid()
    start = time.monotonic()
    sh("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "sandboxd.service")
    wait_for(lambda: daemon_pid() not in (0, old), 30, "a new sandboxd")
    wait_for_daemon()
    return time.monotonic() - start


@contextlib.contextmanager
def daemon_environment(**variables):
    """Runs the daemon with more in its environment."""
    directory = Path("/run/systemd/system/sandboxd.service.d")
    directory.mkdir(parents=True, exist_ok=True)
    drop_in = directory / "test.conf"
    drop_in.write_text("[Service]\n" + "".join(f"Environment={k}={v}\n" for k, v in variables.items()))
    try:
        sh("systemctl", "daemon-reload")
        sh("systemctl", "restart", "sandboxd.service")
        yield
    finally:
        drop_in.unlink()
        sh("systemctl", "daemon-reload")
        sh("systemctl", "restart", "sandboxd.service")


def processes_of(sandbox_id):
    """Pids in a sandbox's scope, runner first."""
    group = unit_property(f"sandbox-{sandbox_id}.scope", "ControlGroup")
    if not group:
        return []
    try:
        return [int(p) for p in Path(f"/sys/fs/cgroup{group}/cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []


def command_of(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def vmm_pid(sandbox_id):
    return next(p for p in processes_of(sandbox_id) if command_of(p).startswith("qemu"))


def host_state():
    """What sandboxes leave on a host while they live, and must not leave when they are gone."""
    pid = daemon_pid()
    units = sh("systemctl", "list-units", "--all", "--plain", "--no-legend", "sandbox-*.scope").stdout.decode()
    return {
        "units": sorted(line.split()[0] for line in units.splitlines()),
        "subvolumes": sorted(os.listdir(STORAGE / "sandboxes")),
        "runtime": sorted(os.listdir("/run/sandboxd")),
        "mounts": len(Path("/proc/mounts").read_text().splitlines()),
        "links": sorted(os.listdir("/sys/class/net")),
        "namespaces": len({os.readlink(p) for p in glob.glob("/proc/[0-9]*/ns/net") if os.path.exists(p)}),
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "children": len(sh("pgrep", "-f", "sandbox-runner", check=False).stdout.split()),
    }


def assert_same_state(before, timeout=10):
    """The host is as it was."""
    after = {}

    def same():
        after.clear()
        after.update(host_state())
        return after == before

    deadline = time.monotonic() + timeout
    while not same():
        assert time.monotonic() < deadline, {k: (before[k], after[k]) for k in before if before[k] != after[k]}
        time.sleep(0.1)
