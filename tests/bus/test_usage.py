# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ledger and what is told from it."""

import json
import os
import time

import pytest
from client import Failure, u64
from world import STORAGE

FIELDS = {"id", "name", "owner", "template", "version", "created_usec", "ended_usec", "lifetime_usec", "cpu_usec", "memory_peak",
          "commands", "result", "source"}


def usage(who, **options):
    fd = who.manager("GetUsage", "a{sv}t", options, 0).take()
    with open(fd) as f:
        return [json.loads(line) for line in f]


@pytest.fixture
def users(daemon):
    daemon.polkit({"org.sandboxd1.create": "yes"})
    return daemon.user(1000), daemon.user(1001)


def test_record_of_an_ended_one(daemon):
    id, path = daemon.root.create(Name="web")
    daemon.root.run(path, "true")
    daemon.root.run(path, "true")
    time.sleep(0.1)
    daemon.root.remove(path)
    record, = daemon.ledger()
    assert set(record) == FIELDS and [record] == usage(daemon.root)
    expected = {"id": id, "name": "web", "owner": 0, "template": "base", "version": "ab" * 16, "commands": 2, "result": "removed",
                "source": "systemd", "cpu_usec": 7_000_000, "memory_peak": 1 << 20}
    assert {k: record[k] for k in expected} == expected
    assert record["lifetime_usec"] == record["ended_usec"] - record["created_usec"] > 100_000
    assert (STORAGE / "usage.jsonl").stat().st_mode & 0o777 == 0o600


def test_record_of_a_living_one(daemon):
    id, path = daemon.root.create()
    record, = usage(daemon.root)
    assert set(record) == FIELDS and (record["id"], record["ended_usec"], record["source"]) == (id, 0, "cgroup")
    assert 0 <= record["cpu_usec"] < 60_000_000
    assert daemon.ledger() == []


def test_one_that_was_never_handed_out_costs_nothing(daemon):
    daemon.behave(start="die")
    with pytest.raises(Failure):
        daemon.root.create()
    assert usage(daemon.root) == []


def test_ones_own_or_all(daemon, users):
    ids = [who.create()[0] for who in (*users, daemon.root)]
    daemon.root.remove("/org/sandboxd1/sandbox/" + ids[0])
    assert [r["id"] for r in usage(users[0])] == [ids[0]]
    assert [r["id"] for r in usage(users[1])] == [ids[1]]
    assert {r["id"] for r in usage(daemon.root)} == set(ids)
    daemon.polkit({"org.sandboxd1.inspect": "yes"})
    assert {r["id"] for r in usage(users[0])} == set(ids)


def test_options(daemon):
    ids = []
    for name in ("a", "b", "c"):
        id, path = daemon.root.create(Name=name)
        daemon.root.remove(path)
        ids.append(id)
    records = daemon.ledger()
    assert [r["id"] for r in usage(daemon.root)] == ids
    assert [r["id"] for r in usage(daemon.root, Limit=u64(2))] == ids[1:]
    assert [r["id"] for r in usage(daemon.root, Sandbox="b")] == [ids[1]]
    assert [r["id"] for r in usage(daemon.root, Sandbox=ids[2])] == [ids[2]]
    assert [r["id"] for r in usage(daemon.root, Since=u64(records[1]["ended_usec"]))] == ids[1:]
    assert usage(daemon.root, Since=u64((1 << 63) - 1)) == []


def test_living_ones_come_last_and_oldest_first(daemon):
    ids = [daemon.root.create()[0] for _ in range(3)]
    assert [r["id"] for r in usage(daemon.root)] == ids
    assert [r["id"] for r in usage(daemon.root, Limit=u64(1))] == ids[2:]


def test_torn_line_is_passed_over(daemon):
    id, path = daemon.root.create()
    daemon.root.remove(path)
    with open(STORAGE / "usage.jsonl", "a") as f:
        f.write('{"id":"0123')
    next_id, path = daemon.root.create()
    daemon.root.remove(path)
    assert [r["id"] for r in usage(daemon.root)] == [id, next_id]


def test_ledger_that_cannot_be_written_keeps_the_record(daemon):
    """The sandbox isn't gone before its usage is safe; it is tried again."""
    id, path = daemon.root.create()
    os.mkdir(STORAGE / "usage.jsonl")
    try:
        with pytest.raises(Failure) as e:
            daemon.root.remove(path)
        assert e.value.name == "Unavailable" and "usage.jsonl" in e.value.message
        assert (STORAGE / f"sandboxes/{id}.json").exists() and (STORAGE / "sandboxes" / id).exists()
    finally:
        os.rmdir(STORAGE / "usage.jsonl")
    daemon.root.remove(path)
    assert [r["id"] for r in daemon.ledger()] == [id] and daemon.traces() == []
