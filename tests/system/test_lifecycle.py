# SPDX-License-Identifier: LGPL-2.1-or-later
"""Creation, deadline, removal, metering: all that a sandbox is goes up together and comes down together."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from host import (SLOW, TEMPLATE, assert_same_state, burn, ctl, daemon_environment, daemon_pid, guest, host_state, ids, processes_of,
                  rounds, sandbox, sh, show, text, unit_property, usage, vmm_pid, wait_for)


def unit(identifier):
    return f"sandbox-{identifier}.scope"


def gone(identifier):
    return identifier not in ids()


def test_names_and_metadata():
    name = "x" * 64
    with sandbox("--name", name, "--metadata", "project=a", "--metadata", "step=1") as created:
        properties = show(name)
        assert properties["Id"] == created and properties["Name"] == name
        assert properties["Metadata"] == {"project": "a", "step": "1"}
        assert guest(name, "echo", "ok") == "ok"
        again = ctl("create", TEMPLATE, "--name", name, check=False)
        assert again.returncode == 1 and name.encode() in again.stderr
    assert ctl("create", TEMPLATE, "--name", "a/b", check=False).returncode == 1


def test_status_and_list():
    with sandbox("--name", "shown") as name:
        assert name in text("list") and "shown" in text("list")
        status = text("status", name)
        assert unit(name) in status and TEMPLATE in status
        assert json.loads(text("list", "--json=short"))[0]["id"] == name


def test_unknown_template_and_options():
    assert b"nosuch" in ctl("create", "nosuch", check=False).stderr
    assert ctl("create", TEMPLATE, "--memory", "1000G", check=False).returncode == 1
    assert ctl("create", TEMPLATE, "--cpus", "900", check=False).returncode == 1
    assert ctl("create", TEMPLATE, "--no-such-option", check=False).returncode == 1


def test_receipt_is_complete():
    with sandbox() as name:
        receipt = show(name)["Receipt"]
        assert set(receipt["steps"]) == {"clock", "entropy", "reseed", "identity", "network", "resources", "generation", "thaw"}
        assert receipt["entropy_bytes"] >= 32
        assert guest(name, "cat", "/run/sandbox/generation") == str(receipt["generation"])
        journal = sh("journalctl", "-b", "-o", "json", f"SANDBOX_ID={name}").stdout.decode()
        assert "SANDBOX_RECEIPT" in journal


def test_parallel_creates():
    before = host_state()
    width = rounds(30)
    with ThreadPoolExecutor(width) as pool:
        names = list(pool.map(lambda _: text("create", TEMPLATE, "--ttl", "10min", timeout=600), range(width)))
        assert len(set(names)) == width
        answers = list(pool.map(lambda n: guest(n, "hostname", timeout=600), names))
        assert len(set(answers)) == width
        uids = {show(n)["UID"] for n in names}
        assert len(uids) == width
        list(pool.map(lambda n: ctl("rm", n, timeout=600), names))
    assert_same_state(before)


def test_many_in_a_row_leave_nothing():
    ctl("rm", text("create", TEMPLATE))
    before = host_state()
    for _ in range(rounds(200)):
        name = text("create", TEMPLATE)
        ctl("rm", name)
    assert_same_state(before)


@pytest.mark.parametrize("rung", ["storage", "unit", "vmm", "record"])
def test_each_rung_undone(rung):
    with daemon_environment(SANDBOXD_FAIL=rung):
        # The first one also starts the daemon's workers.
        ctl("create", TEMPLATE, check=False)
        before, living = host_state(), ids()
        done = ctl("create", TEMPLATE, check=False)
        assert done.returncode == 1 and f'rung "{rung}"'.encode() in done.stderr
        assert ids() == living
        assert_same_state(before)
    with sandbox() as name:
        assert guest(name, "echo", "ok") == "ok"


def test_remove_is_idempotent():
    name = text("create", TEMPLATE)
    ctl("rm", name)
    assert ctl("rm", name, check=False).returncode == 1
    ctl("rm", "-f", name)


@pytest.mark.parametrize("victim", ["vmm", "runner"])
def test_stopped_processes_dont_hold_a_removal(victim):
    name = text("create", TEMPLATE)
    os.kill(vmm_pid(name) if victim == "vmm" else show(name)["Leader"], signal.SIGSTOP)
    start = time.monotonic()
    ctl("rm", name)
    assert time.monotonic() - start < 5
    assert gone(name) and processes_of(name) == []


def test_guest_that_stops_its_init():
    name = text("create", TEMPLATE)
    ctl("exec", name, "--", "kill", "-STOP", "1", check=False)
    start = time.monotonic()
    ctl("rm", name)
    assert time.monotonic() - start < 5


def test_parallel_removals_of_one():
    name = text("create", TEMPLATE)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: ctl("rm", "-f", name), range(10)))
    assert gone(name) and len(usage(name)) == 1


def test_ttl_ends_it():
    name = text("create", TEMPLATE, "--ttl", "5s")
    wait_for(lambda: gone(name), 20, "the end at the ttl")
    record = usage(name)[0]
    assert record["result"] == "deadline" and 4.5e6 < record["lifetime_usec"] < 15e6
    assert sh("systemctl", "is-active", unit(name), check=False).stdout.strip() != b"active"


def test_ttl_can_be_moved():
    with sandbox("--ttl", "8s") as name:
        ctl("ttl", name, "1h")
        time.sleep(10)
        assert guest(name, "echo", "ok") == "ok"
        ctl("ttl", name, "1s")
        wait_for(lambda: gone(name), 15, "the end at the new ttl")


def test_deadlines_hold_without_the_daemon():
    soft = text("create", TEMPLATE, "--ttl", "12s")
    hard = text("create", TEMPLATE, "--runtime-max", "12s")
    for name in soft, hard:
        burn(name)
    sh("systemctl", "stop", "sandboxd.service")
    try:
        for name in soft, hard:
            wait_for(lambda n=name: sh("systemctl", "is-active", unit(n), check=False).returncode != 0, 25,
                     "the end without the daemon")
    finally:
        sh("systemctl", "start", "sandboxd.service")
    wait_for(lambda: gone(soft) and gone(hard), 15, "the cleaning up")
    for name in soft, hard:
        assert len(usage(name)) == 1
        assert usage(name)[0]["source"] == "journal" and usage(name)[0]["cpu_usec"] > 0
    assert usage(soft)[0]["result"] == "deadline"


def test_hard_limit():
    name = text("create", TEMPLATE, "--runtime-max", "5s", "--ttl", "0")
    wait_for(lambda: gone(name), 20, "the end at the hard limit")
    assert usage(name)[0]["result"] == "runtime-max"


@pytest.mark.parametrize("action", [["stop"], ["kill"], ["kill", "-s", "KILL"]])
def test_systemctl_is_noticed(action):
    name = text("create", TEMPLATE)
    sh("systemctl", *action, unit(name))
    wait_for(lambda: gone(name), 15, "the daemon noticing")
    assert len(usage(name)) == 1 and usage(name)[0]["result"] == "stopped"


def test_systemctl_set_property():
    with sandbox() as name:
        sh("systemctl", "set-property", "--runtime", unit(name), "CPUWeight=20")
        assert unit_property(unit(name), "CPUWeight") == "20"
        assert b"sandbox-runner" in sh("systemctl", "status", "--no-pager", unit(name)).stdout


def test_vmm_that_dies():
    name = text("create", TEMPLATE)
    os.kill(vmm_pid(name), signal.SIGKILL)
    wait_for(lambda: gone(name), 15, "the daemon noticing")
    assert usage(name)[0]["result"] in ("vmm", "agent")


def test_limits_of_the_scope():
    with sandbox("--memory", "256M", "--cpus", "0.5", "--runtime-max", "2h") as name:
        assert unit_property(unit(name), "TasksMax").isdigit()
        assert unit_property(unit(name), "DevicePolicy") == "closed"
        assert unit_property(unit(name), "RuntimeMaxUSec") == "2h"
        assert 256 * 2**20 <= int(unit_property(unit(name), "MemoryMax")) <= 1024 * 2**20
        assert unit_property(unit(name), "CPUQuotaPerSecUSec") == "500ms"
        assert unit_property(unit(name), "Slice") == "sandbox-u0.slice"
        controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
        group = Path("/sys/fs/cgroup") / unit_property(unit(name), "ControlGroup").lstrip("/")
        if "memory" in controllers:
            assert int((group / "memory.max").read_text()) == int(unit_property(unit(name), "MemoryMax"))
        if "pids" in controllers:
            assert (group / "pids.max").read_text().strip() == unit_property(unit(name), "TasksMax")
        if "cpu" in controllers:
            assert (group / "cpu.max").read_text().split()[0] != "max"


def test_guest_memory_limit():
    with sandbox("--memory", "128M") as name:
        done = ctl("exec", name, "--", "python3", "-c", "x = bytearray(400 * 1024 * 1024); print(len(x))", check=False)
        assert done.returncode == 128 + 9
        assert guest(name, "echo", "alive") == "alive"


def test_disk_can_be_larger():
    with sandbox("--disk", "12G") as name:
        size = int(guest(name, "sh", "-c", "df -B1 --output=size / | tail -1"))
        assert size > 11 * 2**30


def test_full_guest_disk_is_the_guests_problem():
    with sandbox() as full, sandbox() as other:
        done = ctl("exec", full, "--", "sh", "-c", "fallocate -l 100G /big || dd if=/dev/zero of=/big bs=1M count=1 seek=900000",
                   check=False)
        assert done.returncode != 0
        assert guest(other, "sh", "-c", "echo data >/f && sync && cat /f") == "data"


def test_metering():
    name = text("create", TEMPLATE)
    assert show(name)["CPUUsageNSec"] > 0
    before = show(name)["CPUUsageNSec"]
    ctl("exec", name, "--", "timeout", "2", "sh", "-c", "while :; do :; done", check=False)
    after = show(name)
    assert after["CPUUsageNSec"] - before > 1e9
    assert after["LifetimeUSec"] > 2e6
    if "memory" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split():
        assert 0 < after["MemoryCurrent"] <= after["MemoryPeak"]
    live = json.loads(text("usage", name, "--json=short"))
    assert live[-1]["id"] == name and live[-1]["ended_usec"] == 0
    ctl("rm", name)
    records = usage(name)
    assert len(records) == 1 and records[0]["result"] == "removed" and records[0]["source"] == "systemd"
    assert records[0]["cpu_usec"] * 1000 >= after["CPUUsageNSec"]
    # systemd's own record of the same scope says the same.
    logged = sh("journalctl", "-b", "-o", "json", f"UNIT={unit(name)}", "MESSAGE_ID=ae8f7b866b0347b9af31fe1c80b127c0").stdout
    assert int(json.loads(logged.splitlines()[-1])["CPU_USAGE_NSEC"]) // 1000 == records[0]["cpu_usec"]
    assert json.loads(text("usage", name, "--json=short"))[0]["cpu_usec"] == records[0]["cpu_usec"]


def test_monitor_shows_events():
    done = sh("sh", "-c", f"timeout 30 sandboxctl monitor >/run/monitor.out & sleep 1; id=$(sandboxctl create {TEMPLATE}); "
              "sandboxctl rm $id; sleep 1; kill %1 2>/dev/null; echo $id; cat /run/monitor.out")
    lines = done.stdout.decode().splitlines()
    assert sum(lines[0] in line for line in lines[1:]) >= 2


def test_daemon_grows_no_descriptors():
    before = len(os.listdir(f"/proc/{daemon_pid()}/fd"))
    with sandbox() as name:
        for _ in range(rounds(50)):
            guest(name, "true")
    wait_for(lambda: len(os.listdir(f"/proc/{daemon_pid()}/fd")) <= before, 10, "the descriptors' end")
    assert not SLOW or before < 100
