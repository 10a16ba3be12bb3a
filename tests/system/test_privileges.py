# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who may do what, and what a runner and its VMM can't do."""

import os
from pathlib import Path

import pytest

from host import TEMPLATE, as_user, ctl, guest, processes_of, sandbox, sh, show, text, vmm_pid, wait_for

RULES = Path("/etc/polkit-1/rules.d/10-sandboxd-test.rules")


@pytest.fixture(scope="module")
def box():
    with sandbox("--name", "guarded") as name:
        yield name


def status_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.mark.parametrize("who", ["runner", "vmm"])
def test_processes_have_given_all_up(box, who):
    pid = show(box)["Leader"] if who == "runner" else vmm_pid(box)
    status = status_of(pid)
    assert set(status["Uid"].split()) == {str(show(box)["UID"])}
    assert set(status["Gid"].split()) == {str(show(box)["UID"])}
    assert status["Groups"].strip() == ""
    for which in "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb":
        assert int(status[which], 16) == 0, which
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"


@pytest.mark.parametrize("who", ["runner", "vmm"])
def test_processes_have_namespaces_of_their_own(box, who):
    pid = show(box)["Leader"] if who == "runner" else vmm_pid(box)
    for kind in "mnt", "ipc", "uts", "net", "pid":
        assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/1/ns/{kind}"), kind


def test_jail_holds_nothing_of_the_host(box):
    root = Path(f"/proc/{vmm_pid(box)}/root")
    for path in "etc/shadow", "etc/passwd", "var/lib/sandboxd", "home", "root", "run/dbus", "src", "boot":
        assert not (root / path).exists(), path
    mounts = Path(f"/proc/{vmm_pid(box)}/mounts").read_text().splitlines()
    for line in mounts:
        _, where, kind, options = line.split()[:4]
        if kind not in ("proc",) and not where.startswith(("/dev", "/proc")):
            assert "ro" in options.split(","), line
    links = sh("nsenter", "-t", vmm_pid(box), "-n", "cat", "/proc/net/dev").stdout.decode().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in links] == ["lo"]


def test_vmm_has_only_virtio(box):
    argv = Path(f"/proc/{vmm_pid(box)}/cmdline").read_bytes().decode().split("\0")
    devices = [argv[i + 1].split(",")[0] for i, a in enumerate(argv) if a == "-device"]
    assert devices and all(d.startswith("virt") for d in devices), devices
    assert "-nodefaults" in argv and "-no-user-config" in argv
    assert any(a.startswith("on,") and "spawn=deny" in a for a in argv)
    assert any(a.startswith("microvm") for a in argv)


def test_uids_are_apart():
    with sandbox() as a, sandbox() as b:
        assert show(a)["UID"] != show(b)["UID"]
        assert show(a)["UID"] > 100000


def test_a_stranger_is_refused(box):
    call = ["busctl", "call", "org.sandboxd1", "/org/sandboxd1", "org.sandboxd1.Manager"]
    path = f"/org/sandboxd1/sandbox/{box}"
    sandbox_call = ["busctl", "call", "org.sandboxd1", path, "org.sandboxd1.Sandbox"]
    refused = [
        call + ["CreateSandbox", "sa{sv}t", TEMPLATE, "0", "0"],
        call + ["BakeTemplate", "sa{sv}t", TEMPLATE, "0", "0"],
        sandbox_call + ["Exec", "asa{sv}t", "1", "true", "0", "0"],
        sandbox_call + ["Run", "asa{sv}t", "1", "true", "0", "0"],
        sandbox_call + ["Kill", "it", "9", "0"],
        sandbox_call + ["Remove", "t", "0"],
        sandbox_call + ["SetTTL", "tt", "1", "0"],
        sandbox_call + ["ListProcesses", "t", "0"],
        ["busctl", "get-property", "org.sandboxd1", path, "org.sandboxd1.Sandbox", "Metadata"],
        ["busctl", "call", "org.sandboxd1", path, "org.freedesktop.DBus.Properties", "GetAll", "s", "org.sandboxd1.Sandbox"],
        ["busctl", "call", "org.sandboxd1", "/org/sandboxd1", "org.freedesktop.DBus.ObjectManager", "GetManagedObjects"],
        ["busctl", "call", "org.sandboxd1", f"/org/sandboxd1/template/{TEMPLATE}", "org.sandboxd1.Template", "Remove", "t", "0"],
        ["busctl", "set-property", "org.sandboxd1", "/org/freedesktop/LogControl1", "org.freedesktop.LogControl1", "LogLevel", "s",
         "debug"],
    ]
    for argv in refused:
        done = as_user("alice", *argv, check=False)
        assert done.returncode != 0, argv
        assert b"denied" in done.stderr.lower() or b"authoriz" in done.stderr.lower(), (argv, done.stderr)
    assert guest(box, "echo", "alive") == "alive"
    assert box not in as_user("alice", "sandboxctl", "list").stdout.decode()


def test_rule_for_one_template(box):
    RULES.parent.mkdir(parents=True, exist_ok=True)
    RULES.write_text("""
polkit.addRule(function (action, subject) {
    if (action.id == "org.sandboxd1.create" && action.lookup("template") == "%s" && action.lookup("verb") == "create" &&
        subject.user == "alice")
        return polkit.Result.YES;
});
""" % TEMPLATE)
    try:
        def create():
            done = as_user("alice", "sandboxctl", "create", TEMPLATE, "--no-ask-password", check=False)
            return done.stdout.decode().strip()
        mine = wait_for(create, 15, "polkit's reading of the rule")
        try:
            # An owner needs no rule for what it owns.
            assert as_user("alice", "sandboxctl", "exec", mine, "--", "echo", "hi").stdout == b"hi\n"
            assert as_user("alice", "sandboxctl", "show", mine).returncode == 0
            assert mine in as_user("alice", "sandboxctl", "list").stdout.decode()
            assert show(mine)["Owner"] == 1000
            assert sh("systemctl", "show", "-P", "Slice", f"sandbox-{mine}.scope").stdout.strip() == b"sandbox-u1000.slice"
            # Not another template, not another's sandbox, and nobody else.
            other = as_user("alice", "sandboxctl", "create", "other", "--no-ask-password", check=False)
            assert other.returncode == 1 and b"authoriz" in other.stderr.lower()
            assert as_user("alice", "sandboxctl", "exec", box, "--", "true", check=False).returncode == 125
            assert as_user("bob", "sandboxctl", "create", TEMPLATE, "--no-ask-password", check=False).returncode == 1
            assert as_user("bob", "sandboxctl", "exec", mine, "--", "true", check=False).returncode == 125
            assert as_user("bob", "sandboxctl", "rm", mine, check=False).returncode == 1
            assert as_user("alice", "sandboxctl", "rm", mine).returncode == 0
        finally:
            ctl("rm", "-f", mine)
    finally:
        RULES.unlink()


def test_members_of_the_group_may_create():
    assert as_user("bob", "sandboxctl", "create", TEMPLATE, "--no-ask-password", check=False).returncode == 1
    sh("usermod", "-aG", "sandboxd", "bob")
    try:
        mine = as_user("bob", "sandboxctl", "create", TEMPLATE, "--no-ask-password").stdout.decode().strip()
        assert as_user("bob", "sandboxctl", "exec", mine, "--", "echo", "hi").stdout == b"hi\n"
        assert as_user("bob", "sandboxctl", "rm", mine).returncode == 0
        assert as_user("bob", "sandboxctl", "bake", TEMPLATE, "--no-ask-password", check=False).returncode == 1
    finally:
        sh("gpasswd", "-d", "bob", "sandboxd")


def test_kill_of_the_daemon_leaves_scopes(box):
    assert len(processes_of(box)) >= 2
    assert text("list", "--no-legend").count(box) == 1
