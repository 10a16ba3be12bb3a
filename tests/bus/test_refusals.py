# SPDX-License-Identifier: LGPL-2.1-or-later
"""What keeps the daemon from serving is said at its start, with what to do about it."""

import subprocess

import pytest
from world import PLACE, STORAGE


def refusal(world, **environment):
    said = world.fails_to_start(**environment)
    lines = [line for line in said.splitlines() if "Can't serve: " in line]
    assert len(lines) == 1, said
    return lines[0]


def empty_file(tmp_path, text="", mode=0o644):
    path = tmp_path / "file"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_no_vmm(world, tmp_path):
    world.configure(VMM=None)
    for name in ("qemu-system-x86_64", "qemu-system-x86_64-microvm"):
        try:
            world.bind(empty_file(tmp_path), f"/usr/bin/{name}")
        except subprocess.CalledProcessError:
            pass  # it isn't on this machine
    assert "QEMU is missing: install the package qemu-system-x86 (8.2 or newer)" in refusal(world)


def test_no_vmm_where_it_is_said_to_be(world):
    world.configure(VMM="/nothing")
    said = refusal(world)
    assert "VMM=/nothing" in said and "No such file" in said


@pytest.mark.parametrize("version", ["8.1.9", "7.2.0", "2.12.0"])
def test_vmm_that_is_too_old(world, version):
    world.write_vmm(f"QEMU emulator version {version} (Debian)")
    said = refusal(world)
    assert version.rpartition(".")[0] in said and "8.2 or newer is needed: install qemu-system-x86" in said


@pytest.mark.parametrize("version", ["8.2.0", "10.0.2", "11.0"])
def test_vmm_that_is_new_enough(world, version):
    world.write_vmm(f"QEMU emulator version {version}")
    world.start()
    assert world.root.get("/org/sandboxd1", "org.sandboxd1.Manager", "VMMVersion") == version
    world.stop()


def test_something_else_in_the_vmms_place(world):
    world.write_vmm("Hello")
    assert 'is not QEMU: it says "Hello"' in refusal(world)


def test_vmm_that_fails(world):
    world.vmm.write_text("#!/bin/sh\nexit 3\n")
    assert "doesn't say its version" in refusal(world)


@pytest.mark.parametrize("missing", ["cpu", "memory", "pids"])
def test_missing_controller(world, tmp_path, missing):
    rest = [c for c in ("cpu", "memory", "pids") if c != missing]
    world.bind(empty_file(tmp_path, " ".join(rest) + "\n"), "/sys/fs/cgroup/cgroup.controllers")
    world.configure(AllowMissingControllers=" ".join(rest))
    said = refusal(world)
    assert f'"{missing}"' in said and f"AllowMissingControllers={missing}" in said and "/etc/sandboxd/sandboxd.conf" in said
    world.configure(AllowMissingControllers=missing)
    world.start()
    assert world.root.get("/org/sandboxd1", "org.sandboxd1.Manager", "MissingControllers") == [missing]
    world.stop()


def test_none_is_missing(world, tmp_path):
    world.bind(empty_file(tmp_path, "cpuset cpu io memory pids\n"), "/sys/fs/cgroup/cgroup.controllers")
    world.configure(AllowMissingControllers=None)
    world.start()
    assert world.root.get("/org/sandboxd1", "org.sandboxd1.Manager", "MissingControllers") == []
    world.stop()


def test_no_unified_hierarchy(world, tmp_path):
    world.bind(tmp_path, "/sys/fs/cgroup")
    try:
        said = subprocess.run([world.binary()], capture_output=True, text=True, timeout=20)
    finally:
        subprocess.run(["umount", "/sys/fs/cgroup"], check=True)
        world.extra_mounts.remove("/sys/fs/cgroup")
    assert said.returncode != 0
    assert "no cgroup v2 hierarchy" in said.stderr and "systemd.unified_cgroup_hierarchy=1" in said.stderr


def test_storage_that_is_not_btrfs(world):
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", STORAGE], check=True)
    world.extra_mounts.append(STORAGE)
    said = refusal(world)
    assert "/var/lib/sandboxd isn't on btrfs" in said and "sandboxd-storage.service" in said


def test_storage_that_is_not_set_up(world):
    (STORAGE / "sandboxes").rename(STORAGE / "sandboxes.away")
    try:
        assert "isn't set up" in refusal(world)
    finally:
        (STORAGE / "sandboxes.away").rename(STORAGE / "sandboxes")


def test_no_kernel(world, tmp_path):
    world.configure(Kernel=None)
    world.bind(tmp_path, "/boot")
    assert "No kernel for sandboxes in /boot: install linux-image-cloud-amd64" in refusal(world)


def test_kernel_that_is_none(world):
    world.configure(Kernel="/etc/passwd")
    assert "/etc/passwd is not a Linux kernel image" in refusal(world)
    world.configure(Kernel="/nothing")
    assert "/nothing: No such file" in refusal(world)


def test_kernel_without_modules(world):
    (PLACE / "usr/lib/modules/6.1.0-test").rename(PLACE / "usr/lib/modules/other")
    try:
        said = refusal(world)
    finally:
        (PLACE / "usr/lib/modules/other").rename(PLACE / "usr/lib/modules/6.1.0-test")
    assert "6.1.0-test" in said and "modules" in said


@pytest.mark.parametrize("line, text", [("Colour=red", "Colour= is unknown"), ("UIDBase=7", "out of range"),
                                        ("nonsense", "Neither"), ("TasksMax=many", "not a number")])
def test_bad_configuration(world, line, text):
    with open("/etc/sandboxd/sandboxd.conf", "a") as f:
        f.write(line + "\n")
    said = refusal(world)
    assert "configuration" in said
    assert f"sandboxd.conf:{1 + 5 + 1}: " in world.log.read_text() and text in world.log.read_text()


def test_accelerator_that_is_not_there(world, tmp_path):
    world.configure(Accelerator="kvm")
    world.bind(tmp_path, "/sys/module")
    assert "Accelerator=kvm, and KVM doesn't work here" in refusal(world)


def test_another_one_runs(world):
    """The second one must not touch what is the first one's."""
    world.start()
    _, path = world.root.create()
    done = subprocess.run([world.binary()], capture_output=True, text=True, timeout=20)
    assert done.returncode != 0 and "another sandboxd is running" in done.stderr
    assert world.root.run(path, "true")[:2] == ["exited", 0]
    world.stop()


def test_arguments(world):
    for arguments, status, text in ((["--version"], 0, "sandboxd "), (["--help"], 2, "systemd starts it")):
        done = subprocess.run([world.binary(), *arguments], capture_output=True, text=True)
        assert done.returncode == status and text in done.stdout + done.stderr
