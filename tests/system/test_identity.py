# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two machines from one snapshot are two machines: clock, randomness, identity, disk."""

import os
import time

import pytest

from host import ctl, guest, sandbox, sh


@pytest.fixture(scope="module")
def pair():
    with sandbox() as a, sandbox() as b:
        yield a, b


@pytest.mark.parametrize("path", ["/etc/machine-id", "/proc/sys/kernel/random/uuid", "/run/sandbox/boot-token", "/etc/hostname",
                                  "/proc/sys/kernel/hostname"])
def test_identities_differ(pair, path):
    values = [guest(name, "cat", path) for name in pair]
    assert values[0] and values[0] != values[1]


def test_randomness_differs(pair):
    script = "import os, uuid; print(os.urandom(1024).hex()); print(uuid.uuid4())"
    values = [guest(name, "python3", "-c", script) for name in pair]
    assert values[0].splitlines()[0] != values[1].splitlines()[0]
    assert values[0].splitlines()[1] != values[1].splitlines()[1]


def test_no_seed_is_shared(pair):
    for path in "/var/lib/systemd/random-seed", "/etc/ssh/ssh_host_ed25519_key":
        values = [ctl("exec", name, "--", "cat", path, check=False) for name in pair]
        if all(v.returncode == 0 for v in values):
            assert values[0].stdout != values[1].stdout, path


def test_clock_is_the_hosts(pair):
    for name in pair:
        before = time.time()
        inside = float(guest(name, "date", "+%s.%N"))
        after = time.time()
        assert before - 0.5 <= inside <= after + 0.5


def test_clock_is_right_in_a_new_one_after_a_while():
    """The template was captured long ago: what counts is the moment of the creation."""
    with sandbox() as name:
        assert abs(float(guest(name, "date", "+%s.%N")) - time.time()) < 30
        assert guest(name, "date", "+%Y") == time.strftime("%Y", time.gmtime())
        # Monotonic time doesn't jump: it goes on from the capture.
        assert float(guest(name, "cut", "-d ", "-f1", "/proc/uptime")) < 3600


def test_disks_are_apart(pair):
    a, b = pair
    data = os.urandom(1 << 20)
    ctl("exec", "-i", a, "--", "sh", "-c", "cat >/root/mine && sync", input=data)
    assert ctl("exec", b, "--", "cat", "/root/mine", check=False).returncode != 0
    assert ctl("exec", a, "--", "cat", "/root/mine").stdout == data
    with sandbox() as fresh:
        assert ctl("exec", fresh, "--", "test", "-e", "/root/mine", check=False).returncode == 1


def test_kernel_log_is_clean(pair):
    log = guest(pair[0], "sh", "-c", "dmesg 2>/dev/null || cat /dev/kmsg")
    for bad in "soft lockup", "EXT4-fs error", "Oops", "BUG:":
        assert bad not in log


def test_memory_is_shared_between_restores(pair):
    """The template's pages are mapped, not copied: what a machine has of its own is a fraction of its memory."""
    from host import vmm_pid
    private = 0
    for line in open(f"/proc/{vmm_pid(pair[0])}/smaps_rollup", encoding="ascii"):
        if line.startswith(("Private_Dirty", "Anonymous")):
            private = max(private, int(line.split()[1]))
    assert private < 300 * 1024


def test_hostname_is_what_was_asked_for():
    with sandbox("--hostname", "build-7") as name:
        assert guest(name, "hostname") == "build-7"
        assert sh("hostname").stdout.strip() != b"build-7"
