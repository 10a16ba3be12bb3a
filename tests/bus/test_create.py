# SPDX-License-Identifier: LGPL-2.1-or-later
"""Creating, finding, listing and removing sandboxes, and the errors of that."""

import os
import time

import dbus
import pytest
from client import Failure, MANAGER, OBJECTS, PROPERTIES, ROOT, SANDBOX, strings, u64
from world import MIB, RUNTIME, SNAPSHOT, STORAGE, is_alive, is_subvolume, wait_for


def error_of(pending):
    with pytest.raises(Failure) as e:
        pending.result()
    return e.value.name, e.value.message


def test_what_a_sandbox_is_made_of(daemon):
    id, path = daemon.root.create(Name="web", TTLUSec=u64(60_000_000), Metadata=dbus.Dictionary({"a": "b"}, "ss"),
                                  Environment=strings("X=1"), Hostname="h.example", CPUs=1.5, MemoryMax=u64(64 * MIB),
                                  DiskSize=u64(16 * MIB), TasksMax=u64(99), RuntimeMaxUSec=u64(3_600_000_000))
    assert path == f"{ROOT}/sandbox/{id}"
    values = daemon.root.get_all(path, SANDBOX)
    expected = {"Id": id, "Name": "web", "Owner": 0, "Template": "base", "TemplateVersion": "ab" * 16, "State": "running",
                "RuntimeMaxUSec": 3_600_000_000, "MemoryMax": 64 * MIB, "CPUs": 1.5, "DiskSize": 16 * MIB,
                "Hostname": "h.example", "Metadata": {"a": "b"}, "Unit": f"sandbox-{id}.scope", "NCommands": 0, "NRunning": 0}
    assert {k: values[k] for k in expected} == expected
    assert abs(values["DeadlineUSec"] - (time.time() + 60) * 1e6) < 5e6
    assert set(values["TimingsUSec"]) == {"storage", "unit", "jail", "vmm", "agent", "total"}
    receipt = values["Receipt"]
    assert (receipt["generation"], receipt["clock_step_nsec"], receipt["entropy_bytes"]) == (8, -5, 32)
    assert receipt["steps"] == ["clock", "entropy", "reseed", "identity", "network", "resources", "generation", "thaw"]
    assert values["CPUUsageNSec"] < 60e9 and values["LifetimeUSec"] < 60e6
    assert is_alive(values["Leader"])
    subvolume = STORAGE / "sandboxes" / id
    assert is_subvolume(subvolume) and subvolume.stat().st_mode & 0o777 == 0o700
    assert (subvolume / "disk.raw").stat().st_size == 16 * MIB
    with open(subvolume / "disk.raw", "rb") as f:
        assert f.read(8) == b"disk.raw"
    assert daemon.record(id)["handed_out"] is True
    assert os.stat(RUNTIME / id / "control").st_mode & 0o777 == 0o600


def test_what_the_runner_is_told(daemon):
    id, path = daemon.root.create(TTLUSec=u64(0))
    start, = daemon.requests(id)
    uid = daemon.root.get(path, SANDBOX, "UID")
    expected = {"type": "start", "id": id, "uid": uid, "mode": "restore", "accelerator": "tcg", "vmm": "/run/test/qemu",
                "memory": 256 * MIB, "cpus": 2, "volumes": 4, "deadline_usec": 0, "generation": 8, "memory_max": 0,
                "disk_size": 0, "hostname": f"sandbox-{id}", "fds": ["disk", "memory", "devices"]}
    assert {k: start[k] for k in expected} == expected
    assert len(start["machine_id"]) == len(start["boot_token"]) == 32 and start["machine_id"] != start["boot_token"]
    assert daemon.root.get(path, SANDBOX, "DeadlineUSec") == 0
    # 0 is "as it is": only what differs from the machine as it was baked is the guest's business.
    id, _ = daemon.root.create(DiskSize=u64(16 * MIB), MemoryMax=u64(64 * MIB), Hostname="h")
    start, = daemon.requests(id)
    assert (start["disk_size"], start["memory_max"], start["hostname"]) == (16 * MIB, 64 * MIB, "h")


def test_defaults_come_from_the_configuration(world):
    world.configure(DefaultTTLSec=600, RuntimeMaxSec=3600, TasksMax=77, UIDBase=2000000)
    world.start()
    id, path = world.root.create()
    values = world.root.get_all(path, SANDBOX)
    assert abs(values["DeadlineUSec"] - (time.time() + 600) * 1e6) < 5e6
    assert values["RuntimeMaxUSec"] == 3600e6 and values["UID"] == 2000000 and values["Name"] == id
    assert world.systemd_state()["history"][-1]["properties"]["TasksMax"] == 77
    # More than the administrator's cap can't be had.
    _, path = world.root.create(RuntimeMaxUSec=u64(7200_000_000))
    assert world.root.get(path, SANDBOX, "RuntimeMaxUSec") == 3600e6


def test_each_has_its_own_identity(daemon):
    made = [daemon.root.create() for _ in range(3)]
    starts = [daemon.requests(id)[0] for id, _ in made]
    for field in ("id", "uid", "machine_id", "boot_token"):
        assert len({s[field] for s in starts}) == 3, field


def test_remove_leaves_nothing(daemon):
    id, path = daemon.root.create()
    assert daemon.traces()
    daemon.root.remove(path)
    assert daemon.traces() == []
    assert daemon.root.get(ROOT, MANAGER, "NSandboxes") == 0
    with pytest.raises(Failure):
        daemon.root.remove(path)


def test_two_removals_are_both_answered(daemon):
    _, path = daemon.root.create()
    pending = [daemon.root.start(path, SANDBOX, "Remove", "t", u64(0)) for _ in range(3)]
    for p in pending:
        try:
            p.result()
        except Failure as e:
            # It was gone before this one was looked at.
            assert e.name in ("NoSuchSandbox", "UnknownObject", "UnknownMethod")
    assert daemon.traces() == []


def test_signals_of_a_life(daemon):
    added = daemon.root.listen(dbus_interface=OBJECTS)
    changed = daemon.root.listen(dbus_interface=PROPERTIES, signal_name="PropertiesChanged")
    _, path = daemon.root.create()
    daemon.root.remove(path)
    daemon.root.get(ROOT, MANAGER, "Version")
    assert [(m, v[0]) for m, _, v in added] == [("InterfacesAdded", path), ("InterfacesRemoved", path)]
    assert [v[1]["State"] for _, p, v in changed if p == path and "State" in v[1]] == ["running", "removing"]


def test_no_such_template(daemon):
    assert error_of(daemon.root.start_create("nothing")) == ("NoSuchTemplate", 'No template "nothing"; bake it first')


@pytest.mark.parametrize("field, value, text", [
    ("vmm_version", "9.2.0", "VMM version is 9.2.0"), ("accelerator", "kvm", "accelerator is kvm, here tcg"),
    ("machine", 99, "machine layout is 99, here 1"), ("cpu_model", "Pentium", "CPU model is Pentium, here max")])
def test_template_mismatch_names_the_field(world, field, value, text):
    world.write_template(**{field: value})
    world.start()
    name, message = error_of(world.root.start_create())
    assert name == "TemplateMismatch" and text in message and "baked again" in message
    assert text in world.root.get(ROOT + "/template/base", "org.sandboxd1.Template", "Mismatch")
    assert world.traces() == []


def test_template_with_a_broken_manifest_is_not_offered(world):
    world.write_template(memory=12345)
    world.start()
    assert error_of(world.root.start_create())[0] == "NoSuchTemplate"
    assert '"memory"' in world.log.read_text()


def test_name_exists(daemon):
    daemon.root.create(Name="one")
    assert error_of(daemon.root.start_create(Name="one")) == ("NameExists", 'A sandbox "one" exists already')
    daemon.polkit("yes")
    daemon.user().create(Name="one")


def test_limit_of_the_host_counts_what_is_being_created(world):
    world.configure(MaxSandboxes=10)
    world.start()
    world.behave(start="hang")
    pending = [world.root.start_create() for _ in range(10)]
    name, message = error_of(world.root.start_create())
    assert name == "LimitExceeded" and "10" in message
    assert not any(p.done() for p in pending)
    assert world.root.get(ROOT, MANAGER, "NSandboxes") == 10


def test_limit_of_an_owner(world):
    world.configure(MaxSandboxesPerOwner=2)
    world.start()
    world.polkit("yes")
    user = world.user()
    _, first = user.create()
    user.create()
    name, message = error_of(user.start_create())
    assert name == "LimitExceeded" and "uid 1000" in message
    world.root.create()
    user.remove(first)
    user.create()


def test_limit_of_ten_holds_for_eleven_at_once(world):
    world.configure(MaxSandboxesPerOwner=10)
    world.start()
    outcomes = []
    for pending in [world.root.start_create() for _ in range(11)]:
        try:
            pending.result()
            outcomes.append("made")
        except Failure as e:
            outcomes.append(e.name)
    assert sorted(outcomes) == ["LimitExceeded"] + ["made"] * 10


def test_more_metadata_than_a_record_can_hold(daemon):
    big = dbus.Dictionary({f"key{i}": "x" * 100_000 for i in range(25)}, "ss")
    assert error_of(daemon.root.start_create(Metadata=big))[0] in ("StartFailed", "LimitExceeded", "InvalidArgument")
    assert daemon.traces() == []
    daemon.root.create()


def test_lookup(daemon):
    id, path = daemon.root.create(Name="web")
    get = lambda what: daemon.root.manager("GetSandbox", "st", what, 0)
    assert get(id) == get(id[:4]) == get(id[:7]) == get("web") == path
    for what in (id[:3], "nothing", "", id + "0", "we"):
        with pytest.raises(Failure) as e:
            get(what)
        assert e.value.name == "NoSuchSandbox" and e.value.message == f'No sandbox "{what}"'


def test_lookup_prefers_the_caller(daemon):
    daemon.polkit("yes")
    alice, bob = daemon.user(1000), daemon.user(1001)
    _, hers = alice.create(Name="web")
    _, his = bob.create(Name="web")
    assert alice.manager("GetSandbox", "st", "web", 0) == hers
    assert bob.manager("GetSandbox", "st", "web", 0) == his
    with pytest.raises(Failure) as e:
        daemon.root.manager("GetSandbox", "st", "web", 0)
    assert e.value.message == '"web" names several sandboxes'


def test_list_filters(daemon):
    daemon.write_template("other", id="ba9876543210")
    daemon.kill()
    daemon.start()
    daemon.polkit({"org.sandboxd1.create": "yes"})
    user = daemon.user()
    _, a = daemon.root.create(Name="a", Metadata=dbus.Dictionary({"k": "1", "l": "x"}, "ss"))
    _, b = daemon.root.create("other", Name="b", Metadata=dbus.Dictionary({"k": "2"}, "ss"))
    _, c = user.create(Name="c", TTLUSec=u64(0))

    def listed(who=daemon.root, **filter):
        return {str(row[7]) for row in who.manager("ListSandboxes", "a{sv}t", filter, 0)}

    assert listed() == {a, b, c} and listed(user) == {c}
    assert listed(Name="a") == {a} and listed(Template="other") == {b} and listed(Owner=dbus.UInt32(1000)) == {c}
    assert listed(State="running") == {a, b, c} and listed(State="creating") == set()
    assert listed(Metadata=dbus.Dictionary({"k": "1"}, "ss")) == {a}
    assert listed(Metadata=dbus.Dictionary({"k": "1", "l": "y"}, "ss")) == set()
    row, = user.manager("ListSandboxes", "a{sv}t", {}, 0)
    assert list(row[1:5]) == ["c", 1000, "base", "running"] and row[6] == 0
    with pytest.raises(Failure) as e:
        listed(Colour="red")
    assert e.value.name == "InvalidArgument" and "Colour" in e.value.message


def test_list_templates(daemon):
    daemon.root.create()
    row, = daemon.root.manager("ListTemplates", "t", 0)
    assert list(row) == ["base", "ab" * 16, 1700000000000000, 256 * MIB, 2, 8 * MIB, 1, ROOT + "/template/base"]


def test_removed_template_goes_with_its_last_sandbox(daemon):
    _, path = daemon.root.create()
    daemon.root.call(ROOT + "/template/base", "org.sandboxd1.Template", "Remove", "t", 0)
    assert error_of(daemon.root.start_create())[0] == "NoSuchTemplate"
    assert daemon.root.manager("ListTemplates", "t", 0) == []
    time.sleep(0.1)
    assert (STORAGE / "snapshots" / SNAPSHOT).exists()
    daemon.root.remove(path)
    wait_for(lambda: not (STORAGE / "snapshots" / SNAPSHOT).exists(), "the end of the snapshot")
