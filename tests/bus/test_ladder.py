# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each rung of a creation, and what is left when one fails: nothing."""

import os
import time

import dbus
import pytest
from client import Failure, MANAGER, ROOT, SANDBOX, u64
from world import MIB, PLACE, RUNTIME, STORAGE, is_alive, wait_for


def failure(world, pending=None):
    """The refusal of a creation that fails; afterwards the host is as before."""
    with pytest.raises(Failure) as e:
        (pending or world.root.start_create()).result()
    assert world.traces() == [] and world.ledger() == []
    assert world.root.get(ROOT, MANAGER, "NSandboxes") == 0
    return e.value.name, e.value.message


def works(world):
    _, path = world.root.create()
    world.root.remove(path)


@pytest.mark.parametrize("rung", ["storage", "unit", "vmm", "record"])
def test_injected_failure(world, rung):
    world.start(SANDBOXD_FAIL=rung)
    name, message = failure(world)
    assert name == "StartFailed" and message.startswith(f'rung "{rung}": ')
    assert f'rung "{rung}"' in world.log.read_text()
    world.stop()
    world.start()
    works(world)


def test_unit_is_refused(daemon):
    daemon.systemd(start="refuse")
    assert failure(daemon) == ("StartFailed", 'rung "unit": No unit today')
    daemon.systemd(start="done")
    works(daemon)


def test_units_job_fails(daemon):
    daemon.systemd(start="failed")
    name, message = failure(daemon)
    assert name == "StartFailed" and message.startswith('rung "unit": ') and '"failed"' in message
    daemon.systemd(start="done")
    works(daemon)


def test_runner_cannot_be_executed(daemon):
    daemon.bind("/dev/null", daemon.runner)
    name, message = failure(daemon)
    assert name == "StartFailed" and message.startswith('rung "unit": ') and "ermission" in message


def test_runner_ends_at_once(daemon):
    (PLACE / "runner-fails").touch()
    name, message = failure(daemon)
    assert name == "StartFailed" and message.startswith('rung "')


def test_runner_is_not_in_its_scope(daemon):
    """A job can be done and its process be somewhere else: then no limit holds."""
    daemon.systemd(start="elsewhere")
    name, message = failure(daemon)
    assert (name, message) == ("StartFailed", 'rung "unit": the runner isn\'t in its scope')


@pytest.mark.parametrize("told, text", [
    ({"error": 12, "rung": "jail", "message": "no room"}, "no room"), ("die", "closed its connection"),
    ("no-receipt", "no receipt")])
def test_runner_fails(daemon, told, text):
    daemon.behave(start=told)
    name, message = failure(daemon)
    assert name == "StartFailed" and message.startswith('rung "vmm": ') and text in message
    if isinstance(told, dict):
        assert "jail" in message
    daemon.behave()
    works(daemon)


def test_storage_fails(daemon):
    (STORAGE / "snapshots/0123456789ab/memory").unlink()
    name, message = failure(daemon)
    assert name == "StartFailed" and message.startswith('rung "storage": ') and "memory" in message


def test_removed_while_it_is_created(daemon):
    daemon.behave(start="hang")
    pending = daemon.root.start_create()
    path = wait_for(lambda: daemon.root.manager("ListSandboxes", "a{sv}t", {}, 0), "a sandbox")[0][7]
    wait_for(lambda: daemon.requests(path.rpartition("/")[2]), "the start")
    with pytest.raises(Failure) as e:
        daemon.root.run(path, "true")
    assert e.value.name == "WrongState"
    daemon.root.remove(path)
    assert failure(daemon, pending)[0] == "StartFailed"


def test_removed_while_systemd_thinks(daemon):
    daemon.systemd(start="hang")
    pending = daemon.root.start_create()
    path = wait_for(lambda: daemon.root.manager("ListSandboxes", "a{sv}t", {}, 0), "a sandbox")[0][7]
    wait_for(lambda: daemon.systemd_state()["hanging"], "the job")
    removal = daemon.root.start(path, SANDBOX, "Remove", "t", u64(0))
    assert daemon.root.get(path, SANDBOX, "State") == "removing"
    daemon.mock("systemd1", "Release", "s", "done")
    removal.result()
    assert failure(daemon, pending)[0] == "StartFailed"


def test_caller_that_leaves_gets_its_sandbox_all_the_same(daemon):
    daemon.polkit("yes")
    user = daemon.user()
    daemon.systemd(start="hang")
    user.start_create()
    wait_for(lambda: daemon.systemd_state()["hanging"], "the job")
    user.close()
    daemon.clients.remove(user)
    daemon.mock("systemd1", "Release", "s", "failed")
    wait_for(lambda: daemon.root.get(ROOT, MANAGER, "NSandboxes") == 0, "the end")


def test_scope(daemon):
    id, path = daemon.root.create(MemoryMax=u64(64 * MIB), CPUs=1.5, TasksMax=u64(99), RuntimeMaxUSec=u64(7_000_000))
    asked, = daemon.systemd_state()["history"]
    properties = asked["properties"]
    assert (asked["name"], asked["mode"]) == (f"sandbox-{id}.scope", "fail")
    assert properties.pop("PIDFDs") == [daemon.leader(path)]
    assert id in properties.pop("Description")
    assert properties == {
        "Slice": "sandbox-u0.slice", "AddRef": True, "CollectMode": "inactive-or-failed", "CPUAccounting": True,
        "MemoryAccounting": True, "TasksAccounting": True, "TimeoutStopUSec": 2_000_000, "MemoryMax": (64 + 192) * MIB,
        "MemorySwapMax": 0, "TasksMax": 99, "DevicePolicy": "closed", "CPUQuotaPerSecUSec": 1_500_000,
        "RuntimeMaxUSec": 7_000_000, "After": ["sandboxd-storage.service"], "DeviceAllow": [["/dev/net/tun", "rw"]]}
    assert daemon.systemd_state()["calls"][:2] == [["Subscribe", ""], ["StartTransientUnit", f"sandbox-{id}.scope"]]


def test_slice_is_the_owners(daemon):
    daemon.polkit("yes")
    daemon.user().create()
    assert daemon.systemd_state()["history"][0]["properties"]["Slice"] == "sandbox-u1000.slice"


def test_no_hard_limit(world):
    world.configure(RuntimeMaxSec="infinity")
    world.start()
    _, path = world.root.create()
    assert "RuntimeMaxUSec" not in world.systemd_state()["history"][0]["properties"]
    assert world.root.get(path, SANDBOX, "RuntimeMaxUSec") == 0


def test_scope_is_released(daemon):
    id, path = daemon.root.create()
    daemon.root.remove(path)
    calls = [call for call, unit in daemon.systemd_state()["calls"] if unit == f"sandbox-{id}.scope"]
    assert calls == ["StartTransientUnit", "StopUnit", "ResetFailedUnit", "UnrefUnit"]


def test_removal_goes_on_when_the_stop_is_refused(daemon):
    _, path = daemon.root.create()
    daemon.systemd(stop="refuse")
    daemon.root.remove(path)
    assert daemon.traces() == []


@pytest.mark.parametrize("signal", [9, 15])
def test_killed_runner_is_noticed(daemon, signal):
    id, path = daemon.root.create()
    leader = daemon.leader(path)
    os.kill(leader, signal)
    wait_for(lambda: daemon.root.get(ROOT, MANAGER, "NSandboxes") == 0, "the end")
    assert not is_alive(leader) and daemon.traces() == []
    record, = daemon.ledger()
    assert record["result"] == "stopped"


@pytest.mark.parametrize("result, recorded", [("timeout", "runtime-max"), ("oom-kill", "oom-kill"), ("success", "stopped")])
def test_result_of_the_scope_is_recorded(daemon, result, recorded):
    id, path = daemon.root.create()
    daemon.set_unit(f"sandbox-{id}.scope", Result=result)
    os.kill(daemon.leader(path), 9)
    wait_for(lambda: daemon.ledger(), "a record")
    assert daemon.ledger()[0]["result"] == recorded


@pytest.mark.parametrize("reason", ["deadline", "vmm", "agent"])
def test_runner_tells_why_it_ended(daemon, reason):
    _, path = daemon.root.create()
    pending = daemon.root.start_exec(path, "!ended", reason)
    with pytest.raises(Failure) as e:
        pending.result()
    assert e.value.name in ("Unavailable", "NoSuchSandbox")
    wait_for(lambda: daemon.ledger(), "a record")
    assert daemon.ledger()[0]["result"] == reason
    wait_for(lambda: daemon.traces() == [], "the end")


@pytest.mark.parametrize("status, result", [(10, "deadline"), (11, "vmm"), (12, "agent"), (13, "stopped"), (0, "lost"),
                                            (1, "lost")])
def test_exit_status_tells_where_no_message_did(daemon, status, result):
    _, path = daemon.root.create()
    daemon.root.start_exec(path, "!exit", str(status))
    wait_for(lambda: daemon.ledger(), "a record")
    assert daemon.ledger()[0]["result"] == result


def test_link_is_made_again(daemon):
    id, path = daemon.root.create()
    for command in ("!hangup", "!nonsense"):
        with pytest.raises(Failure) as e:
            daemon.root.exec(path, command)
        assert e.value.name == "Unavailable"

        def runs():
            try:
                return daemon.root.run(path, "true")[0] == "exited"
            except Failure:
                return False
        wait_for(runs, "a new link")
    assert daemon.root.get(path, SANDBOX, "State") == "running"


def test_many_at_once(daemon):
    pending = [daemon.root.start_create() for _ in range(20)]
    paths = [p.result()[1] for p in pending]
    assert len({daemon.root.get(p, SANDBOX, "UID") for p in paths}) == 20
    for p in [daemon.root.start(p, SANDBOX, "Remove", "t", u64(0)) for p in paths]:
        p.result()
    assert daemon.traces() == [] and len(daemon.ledger()) == 20


def test_descriptors_are_given_back(daemon):
    def count():
        return len(os.listdir(f"/proc/{daemon.daemon.pid}/fd"))
    works(daemon)
    # The reply is sent a moment before the last is closed.
    time.sleep(0.2)
    before = count()
    for _ in range(5):
        _, path = daemon.root.create()
        daemon.root.run(path, "true")
        process, _, pipes = daemon.root.exec(path, "cat", Pipes=dbus.Array(["stdin", "stdout"], "s"))
        for pipe in pipes:
            os.close(pipe.take())
        daemon.root.wait(process)
        daemon.root.remove(path)
    daemon.behave(start={"error": 5, "rung": "vmm", "message": "x"})
    failure_of = daemon.root.start_create()
    with pytest.raises(Failure):
        failure_of.result()
    wait_for(lambda: count() == before, "the closing of descriptors")
    assert [p for p in RUNTIME.iterdir() if p.is_dir()] == []
