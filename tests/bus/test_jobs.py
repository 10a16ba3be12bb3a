# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bakes: units of their own that the daemon starts, watches and takes over."""

import time

import pytest
from client import Failure, JOB, MANAGER, OBJECTS, PROPERTIES, ROOT, u64
from world import STORAGE, library_directory, make_subvolume, wait_for

UNIT = "sandbox-bake-web.service"


@pytest.fixture
def removed(daemon):
    return daemon.root.listen(dbus_interface=MANAGER, signal_name="JobRemoved")


def bake(daemon, **options):
    return daemon.root.manager("BakeTemplate", "sa{sv}t", "web", options, 0)


def jobs(daemon):
    return daemon.root.manager("ListJobs", "t", 0)


def ending(daemon, removed):
    """Id, path, result and error of the one job that ended."""
    wait_for(lambda: jobs(daemon) == [], "the end of the job")
    (_, _, values), = removed
    return [v for v in values]


def test_what_systemd_is_asked(daemon):
    bake(daemon)
    asked, = daemon.systemd_state()["history"]
    program = str(library_directory() / "sandboxd-bake")
    properties = asked["properties"]
    assert (asked["name"], properties["ExecStart"]) == (UNIT, [[program, [program, "web"], False]])
    assert properties["Type"] == "exec" and properties["NotifyAccess"] == "main" and properties["AddRef"] is True


def test_forced(daemon):
    bake(daemon, Force=True)
    assert daemon.systemd_state()["history"][0]["properties"]["ExecStart"][0][1][1:] == ["--force", "web"]


def test_progress(daemon):
    path = bake(daemon)
    changed = daemon.root.listen(dbus_interface=PROPERTIES, signal_name="PropertiesChanged")
    row, = jobs(daemon)
    assert list(row) == [1, "bake", "web", "running", 0.0, "", path]
    daemon.set_unit(UNIT, StatusText="42% unpacking")
    wait_for(lambda: daemon.root.get(path, JOB, "Progress") == 0.42, "the progress")
    values = daemon.root.get_all(path, JOB)
    assert {k: values[k] for k in ("Id", "Type", "Target", "Owner", "Unit", "State", "Status")} == {
        "Id": 1, "Type": "bake", "Target": "web", "Owner": 0, "Unit": UNIT, "State": "running", "Status": "unpacking"}
    assert [dict(v[1]) for _, p, v in changed if p == path] == [{"Progress": 0.42, "Status": "unpacking"}]
    daemon.set_unit(UNIT, StatusText="no number")
    wait_for(lambda: daemon.root.get(path, JOB, "Status") == "no number", "the status")
    assert daemon.root.get(path, JOB, "Progress") == 0.42


def test_done(daemon, removed):
    path = bake(daemon)
    daemon.write_template("web", id="aaaaaaaaaaaa")
    daemon.set_unit(UNIT, ActiveState="inactive", Result="success", StatusText="100% done")
    assert ending(daemon, removed) == [1, path, "done", ""]
    assert daemon.root.get(ROOT + "/template/web", "org.sandboxd1.Template", "Version") == "ab" * 16
    daemon.root.create("web")
    calls = [call for call, unit in daemon.systemd_state()["calls"] if unit == UNIT]
    assert calls == ["StartTransientUnit", "ResetFailedUnit", "UnrefUnit"]


def test_failed_with_a_reason(daemon, removed):
    path = bake(daemon)
    make_subvolume(STORAGE / "work/bake-web")
    daemon.set_unit(UNIT, ActiveState="failed", Result="exit-code", StatusText="error: mmdebstrap found no mirror")
    assert ending(daemon, removed) == [1, path, "failed", "mmdebstrap found no mirror"]
    wait_for(lambda: not (STORAGE / "work/bake-web").exists(), "the removal of what it left")


def test_failed_without_a_reason(daemon, removed):
    path = bake(daemon)
    daemon.set_unit(UNIT, ActiveState="failed", Result="oom-kill", StatusText="30% unpacking")
    id, where, result, error = ending(daemon, removed)
    assert (where, result) == (path, "failed")
    assert "oom-kill" in error and "unpacking" in error


def test_canceled(daemon, removed):
    path = bake(daemon)
    make_subvolume(STORAGE / "work/bake-web")
    daemon.root.call(path, JOB, "Cancel", "t", 0)
    # What it had made is gone when this replies.
    assert not (STORAGE / "work/bake-web").exists()
    assert ending(daemon, removed) == [1, path, "canceled", "Canceled"]


def test_canceled_by_two(daemon, removed):
    path = bake(daemon)
    daemon.systemd(stop="hang")
    pending = [daemon.root.start(path, JOB, "Cancel", "t", u64(0)) for _ in range(2)]
    wait_for(lambda: daemon.systemd_state()["hanging"], "the stop")
    assert daemon.root.get(path, JOB, "State") == "canceling" and jobs(daemon)[0][3] == "canceling"
    daemon.set_unit(UNIT, ActiveState="failed", Result="signal")
    for p in pending:
        assert p.result() is None
    assert ending(daemon, removed)[2] == "canceled"


def test_not_twice_at_once(daemon, removed):
    bake(daemon)
    with pytest.raises(Failure) as e:
        bake(daemon)
    assert (e.value.name, e.value.message) == ("WrongState", "Template web is being baked already")
    daemon.set_unit(UNIT, ActiveState="inactive", Result="success")
    ending(daemon, removed)
    assert bake(daemon) == ROOT + "/job/2"


@pytest.mark.parametrize("start", ["refuse", "failed"])
def test_unit_that_does_not_start(daemon, removed, start):
    daemon.systemd(start=start)
    with pytest.raises(Failure) as e:
        bake(daemon)
    assert e.value.name == "Unavailable" and e.value.message
    assert jobs(daemon) == []


def test_unit_that_ends_before_it_is_looked_at(daemon, removed):
    daemon.systemd(start="hang")
    pending = daemon.root.start(ROOT, MANAGER, "BakeTemplate", "sa{sv}t", "web", {}, u64(0))
    wait_for(lambda: daemon.systemd_state()["hanging"], "the job")
    daemon.set_unit(UNIT, ActiveState="failed", Result="exit-code", StatusText="error: at once")
    daemon.mock("systemd1", "Release", "s", "done")
    assert pending.result() == ROOT + "/job/1"
    assert ending(daemon, removed)[2:] == ["failed", "at once"]


def test_taken_over(daemon):
    bake(daemon)
    make_subvolume(STORAGE / "work/bake-web")
    daemon.kill()
    daemon.set_unit(UNIT, StatusText="70% booting")
    daemon.start()
    removed = daemon.root.listen(dbus_interface=MANAGER, signal_name="JobRemoved")
    wait_for(lambda: [r[4] for r in jobs(daemon)] == [0.7], "the progress")
    assert (STORAGE / "work/bake-web").exists()
    assert ["RefUnit", UNIT] in daemon.systemd_state()["calls"]
    daemon.write_template("web", id="aaaaaaaaaaaa")
    daemon.set_unit(UNIT, ActiveState="inactive", Result="success")
    assert ending(daemon, removed)[2] == "done"
    daemon.root.create("web")


def test_ended_meanwhile(daemon):
    bake(daemon)
    make_subvolume(STORAGE / "work/bake-web")
    daemon.kill()
    daemon.set_unit(UNIT, ActiveState="failed", Result="exit-code", StatusText="error: no mirror")
    daemon.start()
    wait_for(lambda: jobs(daemon) == [], "the end of the job")
    wait_for(lambda: not (STORAGE / "work/bake-web").exists(), "the removal of what it left")


def test_snapshots_are_not_collected_under_a_bake(daemon):
    """A new snapshot is there a moment before its name is."""
    bake(daemon)
    make_subvolume(STORAGE / "snapshots/bbbbbbbbbbbb")
    _, path = daemon.root.create()
    daemon.root.remove(path)
    time.sleep(0.2)
    assert (STORAGE / "snapshots/bbbbbbbbbbbb").exists()


def test_objects_come_and_go(daemon):
    heard = daemon.root.listen(dbus_interface=OBJECTS)
    path = bake(daemon)
    daemon.set_unit(UNIT, ActiveState="failed", Result="exit-code")
    wait_for(lambda: jobs(daemon) == [], "the end of the job")
    assert [(m, v[0]) for m, _, v in heard if v[0] == path] == [("InterfacesAdded", path), ("InterfacesRemoved", path)]
    assert [JOB in v[1] for _, _, v in heard if v[0] == path] == [True, True]
