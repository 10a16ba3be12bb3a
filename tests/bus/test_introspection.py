# SPDX-License-Identifier: LGPL-2.1-or-later
"""The live objects are what dbus/ says: no member missing, none more, none different."""

import pytest
from client import Failure, JOB, MANAGER, OBJECTS, PROCESS, PROPERTIES, ROOT, SANDBOX, TEMPLATE
from contract import contract, of_live

INTROSPECTABLE = "org.freedesktop.DBus.Introspectable"


def introspect(daemon, path):
    return of_live(daemon.root.call(path, INTROSPECTABLE, "Introspect"))


def check(daemon, path, interface):
    ours, names = introspect(daemon, path)
    written = contract()[interface]
    assert set(ours) == {interface}
    assert set(ours[interface]) == set(written)
    for member in written:
        assert ours[interface][member] == written[member], member
    assert PROPERTIES in names
    # Values have the types that are promised.
    values = daemon.root.get_all(path, interface)
    assert set(values) == {name for kind, name in written if kind == "property"}


def test_every_interface_is_compared_here():
    assert set(contract()) == {MANAGER, SANDBOX, PROCESS, TEMPLATE, JOB}


def test_manager(daemon):
    check(daemon, ROOT, MANAGER)
    assert OBJECTS in introspect(daemon, ROOT)[1]


def test_template(daemon):
    check(daemon, ROOT + "/template/base", TEMPLATE)


def test_sandbox_and_process(daemon):
    _, path = daemon.root.create()
    check(daemon, path, SANDBOX)
    process, _, _ = daemon.root.exec(path, "sleep", "60")
    check(daemon, process, PROCESS)


def test_sandbox_that_is_being_created(daemon):
    daemon.behave(start="hang")
    pending = daemon.root.start_create()
    rows = daemon.root.manager("ListSandboxes", "a{sv}t", {}, 0)
    assert [r[4] for r in rows] == ["creating"] and not pending.done()
    check(daemon, rows[0][7], SANDBOX)


def test_job(daemon):
    path = daemon.root.manager("BakeTemplate", "sa{sv}t", "base", {}, 0)
    check(daemon, path, JOB)


def test_object_manager_has_all_objects(daemon):
    _, path = daemon.root.create()
    process, _, _ = daemon.root.exec(path, "sleep", "60")
    job = daemon.root.manager("BakeTemplate", "sa{sv}t", "base", {}, 0)
    objects = daemon.root.call(ROOT, OBJECTS, "GetManagedObjects")
    expected = {path: SANDBOX, process: PROCESS, job: JOB, ROOT + "/template/base": TEMPLATE}
    ours = {p: {i for i in interfaces if i.startswith("org.sandboxd1.")} for p, interfaces in objects.items()}
    assert ours == {p: {i} for p, i in expected.items()}
    for p, interface in expected.items():
        assert set(objects[p][interface]) == {name for kind, name in contract()[interface] if kind == "property"}


@pytest.mark.parametrize("path", ["/sandbox/000000000000", "/sandbox/x", "/template/none", "/job/99",
                                  "/sandbox/000000000000/process/1", "/job/1x", "/job/01"])
def test_objects_that_are_not_there(daemon, path):
    with pytest.raises(Failure) as e:
        introspect(daemon, ROOT + path)
    assert e.value.name == "UnknownObject"
