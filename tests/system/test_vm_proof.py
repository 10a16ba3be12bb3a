# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one proof under a KVM that carries a stock kernel: bake, restore and exec, with the accelerator chosen by itself."""

from pathlib import Path

import pytest

from host import guest, sandbox, show, unit_property, vmm_pid

pytestmark = pytest.mark.vm


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def test_service_chose_kvm():
    assert "kvm" in unit_property("sandboxd.service", "StatusText")


def test_restore_under_kvm():
    with sandbox() as one, sandbox() as two:
        for identifier in one, two:
            assert any(word.split(",")[0] == "kvm" for word in command_line(vmm_pid(identifier)))
            assert guest(identifier, "sh", "-c", "echo $((6 * 7))") == "42"
            assert "entropy" in str(show(identifier)["Receipt"])
        machine_ids = {guest(identifier, "cat", "/etc/machine-id") for identifier in (one, two)}
        assert len(machine_ids) == 2
        assert guest(one, "sh", "-c", "touch /mark && uname -r").endswith("cloud-amd64")
        assert guest(two, "sh", "-c", "test -e /mark || echo private") == "private"
