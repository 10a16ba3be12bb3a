# SPDX-License-Identifier: LGPL-2.1-or-later
"""Properties of sandboxes and commands are for their owners, however they are asked for."""

import pytest
from client import Failure, MANAGER, OBJECTS, PROCESS, PROPERTIES, ROOT, SANDBOX, TEMPLATE, u64

INTROSPECTABLE = "org.freedesktop.DBus.Introspectable"


@pytest.fixture
def objects(daemon):
    """A sandbox and a command of root's, and a stranger."""
    _, sandbox = daemon.root.create(Name="secret")
    process, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    return sandbox, process, daemon.user()


def refused(who, *call):
    with pytest.raises(Failure) as e:
        who.call(*call)
    return e.value.name


def test_strangers_get_nothing(daemon, objects):
    sandbox, process, user = objects
    for answer, error in (("no", "AccessDenied"), ("challenge", "InteractiveAuthorizationRequired"), ("absent", "AccessDenied")):
        daemon.polkit(answer)
        for path, interface in ((sandbox, SANDBOX), (process, PROCESS)):
            assert refused(user, path, PROPERTIES, "Get", "ss", interface, "State") == error
            assert refused(user, path, PROPERTIES, "GetAll", "s", interface) == error
            assert refused(user, path, PROPERTIES, "GetAll", "s", "") == error
            assert refused(user, path, PROPERTIES, "Set", "ssv", interface, "State", "x") == error
        assert refused(user, ROOT, OBJECTS, "GetManagedObjects") == error


def test_strangers_get_nothing_without_naming_an_interface(daemon, objects):
    sandbox, process, user = objects
    for path, interface in ((sandbox, SANDBOX), (process, PROCESS)):
        for member, signature, values in (("Get", "ss", (interface, "State")), ("GetAll", "s", (interface,))):
            with pytest.raises(Failure) as e:
                user.call(path, None, member, signature, *values)
            assert e.value.name in ("AccessDenied", "UnknownMethod", "UnknownObject")
    with pytest.raises(Failure) as e:
        user.call(ROOT, None, "GetManagedObjects")
    assert e.value.name in ("AccessDenied", "UnknownMethod", "UnknownObject")


def test_inspection_allows_no_more_than_that(daemon, objects):
    """Also not where a call names no interface."""
    sandbox, process, user = objects
    daemon.polkit({"org.sandboxd1.inspect": "yes"})
    assert user.get(sandbox, SANDBOX, "Name") == "secret"
    for interface in (None, SANDBOX):
        for member, signature, values in (("Remove", "t", (0,)), ("Run", "asa{sv}t", (["true"], {}, 0)),
                                          ("SetTTL", "tt", (0, 0)), ("Kill", "it", (9, 0))):
            with pytest.raises(Failure) as e:
                user.call(sandbox, interface, member, signature, *values)
            assert e.value.name in ("AccessDenied", "UnknownMethod", "UnknownObject"), (interface, member)
    for interface in (None, PROCESS):
        with pytest.raises(Failure) as e:
            user.call(process, interface, "Signal", "it", 9, 0)
        assert e.value.name in ("AccessDenied", "UnknownMethod", "UnknownObject")
    assert daemon.root.get(sandbox, SANDBOX, "NCommands") == 1


def test_inspectors_and_root_get_all(daemon, objects):
    sandbox, process, user = objects
    daemon.polkit({"org.sandboxd1.inspect": "yes"})
    for who in (daemon.root, user):
        assert who.get(sandbox, SANDBOX, "Name") == "secret"
        assert who.get_all(process, PROCESS)["Argv"] == ["sleep", "60"]
        assert sandbox in who.call(ROOT, OBJECTS, "GetManagedObjects")
    asked = daemon.polkit_asked()
    assert len(asked) == 3 and {a["action"] for a in asked} == {"org.sandboxd1.inspect"}
    assert asked[0]["details"] == {"verb": "inspect", "uid": "1000", "owner": "0", "sandbox": sandbox.rpartition("/")[2],
                                   "template": "base"}


def test_owners_get_theirs(daemon, objects):
    daemon.polkit("yes")
    user = objects[2]
    _, mine = user.create(Name="mine")
    daemon.polkit("absent")
    assert user.get(mine, SANDBOX, "Name") == "mine"
    process, _, _ = user.exec(mine, "sleep", "60")
    assert user.get(process, PROCESS, "Argv") == ["sleep", "60"]
    assert refused(daemon.user(1001), mine, PROPERTIES, "GetAll", "s", SANDBOX) == "AccessDenied"


def test_no_property_can_be_set(daemon, objects):
    sandbox, process, _ = objects
    for path, interface, name in ((sandbox, SANDBOX, "Owner"), (process, PROCESS, "Status"), (ROOT, MANAGER, "Version"),
                                  (ROOT + "/template/base", TEMPLATE, "Name")):
        assert refused(daemon.root, path, PROPERTIES, "Set", "ssv", interface, name, "x") in ("PropertyReadOnly", "InvalidArgs")


def test_errors_of_a_guarded_read_are_passed_on(daemon, objects):
    sandbox, _, _ = objects
    assert refused(daemon.root, sandbox, PROPERTIES, "Get", "ss", SANDBOX, "Colour") == "UnknownProperty"
    assert refused(daemon.root, sandbox, PROPERTIES, "GetAll", "s", "org.example") == "UnknownInterface"


def test_what_isnt_a_sandboxs_is_for_all(daemon, objects):
    user = objects[2]
    daemon.polkit("absent")
    assert user.get(ROOT, MANAGER, "Accelerator") == "tcg"
    assert user.get_all(ROOT, MANAGER)["NSandboxes"] == 1
    assert user.get(ROOT + "/template/base", TEMPLATE, "Name") == "base"
    assert "interface" in user.call(ROOT, INTROSPECTABLE, "Introspect")
    assert daemon.polkit_asked() == []


def test_signals_tell_strangers_nothing_that_is_guarded(daemon):
    """Signals go to everyone who listens: what a command's line or a sandbox's metadata says must not be in them."""
    user = daemon.user()
    heard = user.listen()
    id, sandbox = daemon.root.create(Name="secret-name", TTLUSec=u64(60_000_000))
    process, _, _ = daemon.root.exec(sandbox, "sh", "-c", "exit 7 # secret-argument")
    daemon.root.wait(process)
    daemon.root.remove(sandbox)
    user.get(ROOT, MANAGER, "Version")
    assert [m for m, _, _ in heard if m == "InterfacesAdded"]
    assert "secret" not in str(heard)
