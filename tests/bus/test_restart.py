# SPDX-License-Identifier: LGPL-2.1-or-later
"""The daemon is killed, sandboxes go on, and the next one takes over; what is half done is finished or undone, and no usage is
lost or counted twice."""

import json
import os
import signal
import time

import pytest
from client import Failure, MANAGER, PROCESS, ROOT, SANDBOX, strings, u64
from world import RUNTIME, STORAGE, is_alive, make_subvolume, wait_for


def restart(world):
    world.kill()
    world.start()


def count(world):
    return world.root.get(ROOT, MANAGER, "NSandboxes")


def swept(world):
    wait_for(lambda: world.traces() == [], f"the sweep of {world.traces()}")


def test_stop_leaves_sandboxes(daemon):
    _, path = daemon.root.create()
    leader = daemon.leader(path)
    daemon.stop()
    assert is_alive(leader)
    daemon.start()
    assert daemon.leader(path) == leader


def test_sandboxes_are_taken_over(daemon):
    daemon.polkit("yes")
    made = [daemon.root.create(Name="web", TTLUSec=u64(600_000_000), CPUs=1.5), daemon.user().create(TTLUSec=u64(0))]
    before = [daemon.root.get_all(path, SANDBOX) for _, path in made]
    restart(daemon)
    for (_, path), old in zip(made, before):
        new = daemon.root.get_all(path, SANDBOX)
        for key in set(old) - {"CPUUsageNSec", "LifetimeUSec", "MemoryCurrent", "TimingsUSec", "DeadlineUSec"}:
            assert new[key] == old[key], key
        assert abs(new["DeadlineUSec"] - old["DeadlineUSec"]) < 1e5
    daemon.polkit("absent")
    user = daemon.user()
    assert user.run(made[1][1], "true")[:2] == ["exited", 0]
    user.remove(made[1][1])
    daemon.root.remove(made[0][1])
    assert daemon.traces() == [] and len(daemon.ledger()) == 2


def test_start_is_quick_with_many(daemon):
    for pending in [daemon.root.start_create() for _ in range(15)]:
        pending.result()
    daemon.kill()
    began = time.monotonic()
    daemon.start()
    assert count(daemon) == 15
    assert time.monotonic() - began < 5  # 1 on a machine with nothing else to do


def test_commands_go_on(daemon):
    _, path = daemon.root.create()
    ended, _, _ = daemon.root.exec(path, "sh", "-c", "exit 4")
    daemon.root.wait(ended)
    stdin = os.pipe()
    cat, _, pipes = daemon.root.exec(path, "sh", "-c", "cat; exit 5", User="someone", Pipes=strings("stdin", "stdout"))
    ins, out = [p.take() for p in pipes]
    later, _, _ = daemon.root.exec(path, "sh", "-c", "sleep 0.3; exit 6")
    daemon.kill()
    os.write(ins, b"while nobody looks")
    os.close(ins)
    assert os.read(out, 100) == b"while nobody looks" and os.read(out, 1) == b""
    time.sleep(0.5)
    daemon.start()
    for process, status in ((cat, 5), (later, 6)):
        assert daemon.root.wait(process)[:2] == ["exited", status]
    assert daemon.root.get(cat, PROCESS, "Argv") == ["sh", "-c", "cat; exit 5"]
    assert daemon.root.get(cat, PROCESS, "User") == "someone"
    for fd in (out, *stdin):
        os.close(fd)


def test_running_command_is_resumed(daemon):
    id, path = daemon.root.create()
    process, _, _ = daemon.root.exec(path, "sleep", "60")
    before = daemon.root.get_all(process, PROCESS)
    restart(daemon)
    assert daemon.root.get_all(process, PROCESS) == before
    assert ["RefUnit", f"sandbox-{id}.scope"] in daemon.systemd_state()["calls"]
    waiting = daemon.root.start(process, PROCESS, "Wait", "t", u64(0))
    daemon.root.call(process, PROCESS, "Signal", "it", 15, 0)
    assert waiting.result()[:2] == ["signaled", 15]
    wait_for(lambda: [r["process"] for r in daemon.requests(id) if r["type"] == "forget"] == [1], "the runner's forgetting")


def test_no_number_is_given_twice(daemon):
    """Also not that of a command which ended and was forgotten before the kill."""
    _, path = daemon.root.create()
    for _ in range(3):
        daemon.root.run(path, "true")
    for _ in range(2):
        time.sleep(0.1)
        restart(daemon)
        assert daemon.root.get(path, SANDBOX, "NCommands") >= 3
        assert daemon.root.exec(path, "true")[1] >= 4
    daemon.root.remove(path)
    assert daemon.ledger()[0]["commands"] == 5


def test_runner_that_went_meanwhile(daemon):
    id, path = daemon.root.create(Name="gone")
    daemon.kill()
    os.kill(int(daemon.record(id)["leader"]), signal.SIGKILL)
    daemon.start()
    wait_for(lambda: count(daemon) == 0, "the end")
    swept(daemon)
    record, = daemon.ledger()
    assert (record["id"], record["name"], record["result"]) == (id, "gone", "lost")
    assert record["ended_usec"] >= record["created_usec"] > 0
    restart(daemon)
    assert len(daemon.ledger()) == 1


def test_runner_that_reached_its_deadline_meanwhile(daemon):
    id, path = daemon.root.create(TTLUSec=u64(300_000))
    daemon.kill()
    os.kill(int(daemon.record(id)["leader"]), signal.SIGKILL)
    time.sleep(0.4)
    daemon.start()
    swept(daemon)
    assert [r["result"] for r in daemon.ledger()] == ["deadline"]


def test_pid_that_is_anothers_by_now(daemon):
    id, _ = daemon.root.create()
    daemon.kill()
    record = daemon.record(id)
    os.kill(record["leader"], signal.SIGKILL)
    other = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")
    record["leader"] = other
    (STORAGE / f"sandboxes/{id}.json").write_text(json.dumps(record))
    daemon.start()
    swept(daemon)
    assert is_alive(other) and [r["result"] for r in daemon.ledger()] == ["lost"]
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)


def test_killed_right_after_the_reply(daemon):
    """Whoever has been told of a sandbox has one."""
    for _ in range(5):
        id, path = daemon.root.create()
        restart(daemon)
        assert daemon.root.get(path, SANDBOX, "State") == "running"
        daemon.root.remove(path)
    assert len(daemon.ledger()) == 5


@pytest.mark.parametrize("stage", ["unit", "vmm"])
def test_killed_during_a_creation(daemon, stage):
    if stage == "unit":
        daemon.systemd(start="hang")
    else:
        daemon.behave(start="hang")
    pending = daemon.root.start_create()
    if stage == "unit":
        wait_for(lambda: daemon.systemd_state()["hanging"], "the job")
    else:
        wait_for(lambda: list(RUNTIME.parent.glob("test/requests-*")), "the start")
    daemon.kill()
    with pytest.raises(Failure):
        pending.result()
    daemon.start()
    wait_for(lambda: count(daemon) == 0, "the undoing")
    swept(daemon)
    assert daemon.ledger() == []


def test_killed_during_many_creations(daemon):
    for delay in (0.01, 0.05, 0.1, 0.2):
        pending = [daemon.root.start_create() for _ in range(10)]
        time.sleep(delay)
        daemon.kill()
        told = []
        for p in pending:
            try:
                told.append(str(p.result()[0]))
            except Failure:
                pass
        daemon.start()
        ids = {str(r[0]) for r in daemon.root.manager("ListSandboxes", "a{sv}t", {"State": "running"}, 0)}
        assert set(told) <= ids
        for id in ids:
            path = f"{ROOT}/sandbox/{id}"
            assert daemon.root.run(path, "true")[:2] == ["exited", 0]
            daemon.root.remove(path)
        wait_for(lambda: count(daemon) == 0, "the undoing")
        swept(daemon)
        assert {r["id"] for r in daemon.ledger()} >= ids
    ids = [r["id"] for r in daemon.ledger()]
    assert len(ids) == len(set(ids))


def test_killed_during_a_removal(daemon):
    id, path = daemon.root.create()
    daemon.systemd(stop="hang")
    daemon.root.start(path, SANDBOX, "Remove", "t", u64(0))
    wait_for(lambda: daemon.systemd_state()["hanging"], "the stop")
    daemon.kill()
    daemon.systemd(stop="done")
    daemon.start()
    swept(daemon)
    assert [r["id"] for r in daemon.ledger()] == [id]


def test_killed_between_ledger_and_removal_of_the_record(daemon):
    id, path = daemon.root.create()
    record = (STORAGE / f"sandboxes/{id}.json").read_text()
    daemon.root.remove(path)
    assert len(daemon.ledger()) == 1
    daemon.kill()
    (STORAGE / f"sandboxes/{id}.json").write_text(record)
    make_subvolume(STORAGE / "sandboxes" / id)
    daemon.start()
    wait_for(lambda: count(daemon) == 0, "the end")
    swept(daemon)
    assert [r["id"] for r in daemon.ledger()] == [id]


def test_leftovers_are_swept(world):
    make_subvolume(STORAGE / "sandboxes/0123456789ab")
    (STORAGE / "sandboxes/0123456789ab/disk.raw").write_bytes(b"x")
    make_subvolume(STORAGE / "work/bake-x")
    make_subvolume(STORAGE / "snapshots/ffffffffffff")
    (STORAGE / "sandboxes/ba9876543210.json.tmp").write_text("{")
    (STORAGE / "sandboxes/ba9876543210.json").write_text("{")
    RUNTIME.mkdir(exist_ok=True)
    (RUNTIME / "0123456789ab").mkdir()
    (RUNTIME / "0123456789ab/control").touch()
    world.set_unit("sandbox-0123456789ab.scope", ActiveState="active")
    world.start()
    swept(world)
    wait_for(lambda: not (STORAGE / "snapshots/ffffffffffff").exists(), "the unused snapshot's end")
    assert (STORAGE / "snapshots/0123456789ab").exists()
    log = world.log.read_text()
    for what in ("subvolume 0123456789ab", "work bake-x", "directory 0123456789ab", "unit sandbox-0123456789ab.scope"):
        assert f"Removing the leftover {what}" in log
    assert "ba9876543210.json" in log


@pytest.mark.parametrize("change", [{"slot": -1}, {"slot": 16384}, {"owner": -1}, {"owner": "0"}, {"metadata": []},
                                    {"environment": "x"}, {"format": 99}, {"name": None}, {"id": "ffffffffffff"}])
def test_broken_record_harms_nothing_else(daemon, change):
    id, path = daemon.root.create()
    _, other = daemon.root.create()
    daemon.kill()
    record = daemon.record(id) | change
    (STORAGE / f"sandboxes/{id}.json").write_text(json.dumps(record))
    daemon.start()
    assert count(daemon) == 1
    assert daemon.root.run(other, "true")[:2] == ["exited", 0]
    wait_for(lambda: not (STORAGE / "sandboxes" / id).exists(), "the sweep")
