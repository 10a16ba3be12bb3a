# SPDX-License-Identifier: LGPL-2.1-or-later
"""The daemon is killed at the worst moments: what runs goes on, what was half done is undone, nothing is lost."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from host import (SLOW, STORAGE, TEMPLATE, assert_same_state, burn, ctl, daemon_pid, guest, host_state, ids, kill_daemon, rounds, sandbox,
                  sh, show, text, unit_property, usage, wait_for)


def test_sandboxes_outlive_a_killed_daemon():
    names = [text("create", TEMPLATE, "--ttl", "1h") for _ in range(3)]
    receipts = [show(n)["Receipt"] for n in names]
    took = kill_daemon()
    assert SLOW or took < 3
    assert set(names) <= set(ids())
    assert [show(n)["Receipt"] for n in names] == receipts
    for name in names:
        assert guest(name, "echo", "ok") == "ok"
        ctl("rm", name)
        assert len(usage(name)) == 1


def test_sandboxes_outlive_a_stopped_daemon():
    with sandbox() as name:
        sh("systemctl", "stop", "sandboxd.service")
        assert unit_property(f"sandbox-{name}.scope", "ActiveState") == "active"
        sh("systemctl", "start", "sandboxd.service")
        assert guest(name, "echo", "ok") == "ok"


def test_running_command_goes_on_with_its_streams():
    with sandbox() as name:
        script = "for i in $(seq 1 12); do echo $i; sleep 0.5; done; cat; exit 3"
        with subprocess.Popen(["sandboxctl", "exec", "-i", name, "--", "sh", "-c", script], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"1\n"
            kill_daemon()
            process.stdin.write(b"to the end\n")
            process.stdin.close()
            rest = process.stdout.read()
            assert process.wait(60) == 3, process.stderr.read()
        assert rest == b"".join(b"%d\n" % i for i in range(2, 13)) + b"to the end\n"


def test_command_that_ends_meanwhile():
    with sandbox() as name:
        with subprocess.Popen(["sandboxctl", "exec", name, "--", "sh", "-c", "echo started; sleep 2; exit 9"],
                              stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"started\n"
            sh("systemctl", "stop", "sandboxd.service")
            time.sleep(4)
            sh("systemctl", "start", "sandboxd.service")
            assert process.wait(60) == 9


def test_numbers_of_commands_go_on():
    with sandbox() as name:
        guest(name, "true")
        before = show(name)["NCommands"]
        kill_daemon()
        guest(name, "true")
        assert show(name)["NCommands"] > before


def test_killed_during_creations():
    before = host_state()
    width = rounds(20)
    with ThreadPoolExecutor(width) as pool:
        creates = [pool.submit(ctl, "create", TEMPLATE, check=False, timeout=300) for _ in range(width)]
        time.sleep(0.7)
        kill_daemon()
        results = [c.result() for c in creates]
    # What was handed out is there; of the rest nothing is, after the daemon's next start.
    handed_out = {r.stdout.decode().strip() for r in results if r.returncode == 0}
    assert handed_out <= set(ids())
    with ThreadPoolExecutor(width) as pool:
        more = list(pool.map(lambda _: text("create", TEMPLATE, timeout=300), range(width)))
    living = ids()
    uids = [show(n)["UID"] for n in living]
    assert len(uids) == len(set(uids))
    for name in living:
        assert guest(name, "echo", "ok") == "ok"
        ctl("rm", name)
    assert set(more) <= set(living)
    before["fds"] = host_state()["fds"]
    assert_same_state(before, 20)


def test_killed_during_removals():
    names = [text("create", TEMPLATE) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        removals = [pool.submit(ctl, "rm", n, check=False) for n in names]
        time.sleep(0.05)
        kill_daemon()
        for r in removals:
            r.result()
    for name in names:
        ctl("rm", "-f", name)
        wait_for(lambda n=name: n not in ids(), 15, "the removal")
        assert len(usage(name)) == 1


def test_usage_of_what_ended_meanwhile():
    name = text("create", TEMPLATE)
    burn(name)
    burned = show(name)["CPUUsageNSec"]
    sh("systemctl", "stop", "sandboxd.service")
    sh("systemctl", "stop", f"sandbox-{name}.scope")
    sh("systemctl", "start", "sandboxd.service")
    wait_for(lambda: usage(name), 15, "the record")
    record = usage(name)
    assert len(record) == 1 and record[0]["source"] == "journal"
    assert record[0]["cpu_usec"] * 1000 >= burned
    assert name not in ids()


def test_leftovers_are_swept():
    before = host_state()
    sh("systemctl", "stop", "sandboxd.service")
    sh("btrfs", "subvolume", "create", STORAGE / "sandboxes" / "00deadbeef00")
    sh("btrfs", "subvolume", "create", STORAGE / "work" / "bake-dead")
    os.mkdir("/run/sandboxd/00deadbeef00")
    Path("/run/sandboxd/00deadbeef00/control").touch()
    sh("systemd-run", "--scope", "--unit=sandbox-00deadbeef00.scope", "--slice=sandbox.slice", "sh", "-c",
       "sleep 1000 >/dev/null 2>&1 &")
    sh("systemctl", "start", "sandboxd.service")
    before["fds"] = host_state()["fds"]
    assert_same_state(before, 15)
    wait_for(lambda: not (STORAGE / "work" / "bake-dead").exists(), 10, "the sweep of work/")
    journal = sh("journalctl", "-b", "-u", "sandboxd.service", "MESSAGE_ID=e91d5b3f7a2c4c68a4f0d6b8e3c7f125").stdout
    assert b"00deadbeef00" in journal


def test_damaged_record_harms_nobody():
    with sandbox() as name:
        sh("systemctl", "stop", "sandboxd.service")
        (STORAGE / "sandboxes" / "00badbadbad0.json").write_text('{"id": "00badbadbad0", "slot": -1}')
        sh("systemctl", "start", "sandboxd.service")
        assert guest(name, "echo", "ok") == "ok"
        assert not (STORAGE / "sandboxes" / "00badbadbad0.json").exists()
        # It is put aside, for whoever wants to know.
        (STORAGE / "sandboxes" / "00badbadbad0.json.bad").unlink()


def test_storage_can_be_restarted_under_sandboxes():
    with sandbox() as name:
        sh("systemctl", "restart", "sandboxd-storage.service")
        sh("systemctl", "start", "sandboxd.service")
        assert guest(name, "sh", "-c", "echo data >/f && sync && cat /f") == "data"
        with sandbox() as other:
            assert guest(other, "echo", "ok") == "ok"


def test_watchdog_and_notify():
    assert unit_property("sandboxd.service", "Type") == "notify"
    assert unit_property("sandboxd.service", "WatchdogUSec") not in ("0", "infinity")
    assert unit_property("sandboxd.service", "StatusText")


def test_bus_activation():
    sh("systemctl", "stop", "sandboxd.service")
    sh("busctl", "call", "org.sandboxd1", "/org/sandboxd1", "org.sandboxd1.Manager", "ListTemplates", "t", "0")
    assert daemon_pid() > 0
