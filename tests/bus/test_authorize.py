# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who may do what: root all, owners all with what is theirs, anyone else what polkit says."""

import dbus
import pytest
from client import Failure, JOB, MANAGER, PROCESS, PROPERTIES, ROOT, SANDBOX, TEMPLATE, u64
from contract import contract, methods
from world import STORAGE

# A value that is good enough to be called with.
SAMPLES = {"s": "base", "a{sv}": {}, "t": u64(0), "as": dbus.Array(["true"], "s"), "i": dbus.Int32(15)}

# Methods that anyone may call, since what they show is no secret or only the caller's own; what each shows is tested below.
# A method that is neither here nor refused fails.
OPEN = {(MANAGER, m) for m in ("GetSandbox", "ListSandboxes", "ListTemplates", "ListJobs", "GetUsage")}

# polkit's action of each method that is guarded.
ACTIONS = {
    (MANAGER, "CreateSandbox"): "create", (MANAGER, "BakeTemplate"): "bake", (TEMPLATE, "Remove"): "manage-templates",
    (JOB, "Cancel"): "bake", (SANDBOX, "Exec"): "exec", (SANDBOX, "Run"): "exec", (SANDBOX, "Kill"): "exec",
    (SANDBOX, "Remove"): "manage", (SANDBOX, "SetTTL"): "manage", (SANDBOX, "ListProcesses"): "inspect",
    (PROCESS, "Signal"): "exec", (PROCESS, "Wait"): "exec",
}
GUARDED = [(i, m, a) for i, m, a in methods() if (i, m) not in OPEN]
IDS = [f"{i.rpartition('.')[2]}.{m}" for i, m, _ in GUARDED]


@pytest.fixture
def objects(daemon):
    """One of each, all root's."""
    id, sandbox = daemon.root.create()
    process, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    job = daemon.root.manager("BakeTemplate", "sa{sv}t", "slow", {}, 0)
    return {MANAGER: ROOT, SANDBOX: sandbox, PROCESS: process, JOB: job, TEMPLATE: ROOT + "/template/base", "id": id}


def start(who, objects, interface, method, arguments, **keywords):
    signature = "".join(t for _, t in arguments)
    return who.start(objects[interface], interface, method, signature, *(SAMPLES[t] for _, t in arguments), **keywords)


def refusal(pending):
    with pytest.raises(Failure) as e:
        pending.result()
    return e.value.full_name


def test_each_guarded_method_has_its_action():
    assert {(i, m) for i, m, _ in GUARDED} == set(ACTIONS)


@pytest.mark.parametrize("interface, method, arguments", GUARDED, ids=IDS)
def test_others_are_refused(daemon, objects, interface, method, arguments):
    user = daemon.user()
    for answer, error in (("no", "org.freedesktop.DBus.Error.AccessDenied"),
                          ("challenge", "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"),
                          ("absent", "org.freedesktop.DBus.Error.AccessDenied")):
        daemon.polkit(answer)
        assert refusal(start(user, objects, interface, method, arguments)) == error
    # Nothing of it happened.
    assert daemon.root.get(objects[SANDBOX], SANDBOX, "State") == "running"
    assert daemon.root.get(objects[SANDBOX], SANDBOX, "NCommands") == 1
    assert daemon.root.get(objects[PROCESS], PROCESS, "State") == "running"
    assert daemon.root.get(objects[JOB], JOB, "State") == "running"
    assert len(daemon.root.manager("ListJobs", "t", 0)) == 1
    assert daemon.root.get(ROOT, MANAGER, "NSandboxes") == 1
    assert (STORAGE / "templates/base.json").exists()


@pytest.mark.parametrize("interface, method, arguments", GUARDED, ids=IDS)
def test_what_polkit_is_asked(daemon, objects, interface, method, arguments):
    user = daemon.user()
    refusal(start(user, objects, interface, method, arguments))
    asked, = daemon.polkit_asked()
    verb = ACTIONS[interface, method]
    of_sandbox = interface in (SANDBOX, PROCESS)
    template = {JOB: "slow"}.get(interface, "base")
    assert asked == {
        "subject": ["system-bus-name", {"name": user.bus.get_unique_name()}],
        "action": "org.sandboxd1." + verb,
        "details": {"verb": verb, "uid": "1000", "template": template, "sandbox": objects["id"] if of_sandbox else "",
                    "owner": "0" if of_sandbox else ""},
        "flags": 0,
    }


def test_interaction_is_allowed_if_the_caller_allows_it(daemon, objects):
    for interactive in (True, False):
        refusal(start(daemon.user(), objects, SANDBOX, "Remove", [("flags", "t")], interactive=interactive))
    assert [a["flags"] for a in daemon.polkit_asked()] == [1, 0]


def test_root_is_not_asked_about(daemon, objects):
    daemon.polkit("absent")
    root = daemon.root
    assert root.run(objects[SANDBOX], "true")[:2] == ["exited", 0]
    root.call(objects[SANDBOX], SANDBOX, "SetTTL", "tt", u64(60_000_000), 0)
    root.call(objects[PROCESS], PROCESS, "Signal", "it", 9, 0)
    root.call(objects[JOB], JOB, "Cancel", "t", 0)
    root.remove(objects[SANDBOX])
    root.call(objects[TEMPLATE], TEMPLATE, "Remove", "t", 0)
    assert daemon.polkit_asked() == []


def test_owner_needs_no_polkit(daemon):
    daemon.polkit("yes")
    user = daemon.user()
    id, path = user.create(Name="mine")
    daemon.polkit("absent")
    assert user.get(path, SANDBOX, "Owner") == 1000
    assert user.get_all(path, SANDBOX)["Name"] == "mine"
    process, _, _ = user.exec(path, "sleep", "60")
    assert user.get(process, PROCESS, "State") == "running"
    assert len(user.call(path, SANDBOX, "ListProcesses", "t", 0)) == 1
    user.call(process, PROCESS, "Signal", "it", 15, 0)
    assert user.wait(process)[:2] == ["signaled", 15]
    user.call(path, SANDBOX, "SetTTL", "tt", u64(60_000_000), 0)
    user.call(path, SANDBOX, "Kill", "it", 15, 0)
    user.remove(path)
    assert len(daemon.polkit_asked()) == 1


@pytest.mark.parametrize("verb", sorted(set(ACTIONS.values())))
def test_one_action_allows_its_methods_only(daemon, objects, verb):
    daemon.polkit({"org.sandboxd1." + verb: "yes"})
    user = daemon.user()
    for interface, method, arguments in GUARDED:
        if ACTIONS[interface, method] != verb:
            assert refusal(start(user, objects, interface, method, arguments)).endswith("AccessDenied"), method
    assert {a["action"] for a in daemon.polkit_asked()} == {"org.sandboxd1." + v for v in set(ACTIONS.values()) - {verb}}


def test_allowed_others_get_through(daemon, objects):
    daemon.polkit("yes")
    user = daemon.user()
    assert user.run(objects[SANDBOX], "true")[:2] == ["exited", 0]
    user.remove(objects[SANDBOX])
    assert daemon.root.get(ROOT, MANAGER, "NSandboxes") == 0


def test_slow_polkit_delays_nobody_else(daemon, objects):
    daemon.polkit("slow")
    user = daemon.user()
    pending = [start(user, objects, i, m, a) for i, m, a in GUARDED]
    guarded = user.start(objects[SANDBOX], PROPERTIES, "GetAll", "s", SANDBOX)
    for _ in range(3):
        assert daemon.root.run(objects[SANDBOX], "true")[:2] == ["exited", 0]
        daemon.root.create()
    assert len(daemon.polkit_asked()) == len(GUARDED) + 1
    assert not any(p.done() for p in pending + [guarded])
    daemon.mock("PolicyKit1", "Release", "s", "no")
    for p in pending + [guarded]:
        assert refusal(p).endswith("AccessDenied")


def test_sandbox_that_went_while_polkit_thought(daemon, objects):
    daemon.polkit("slow")
    user = daemon.user()
    pending = [start(user, objects, i, m, a) for i, m, a in GUARDED if i in (SANDBOX, PROCESS)]
    daemon.root.remove(objects[SANDBOX])
    daemon.mock("PolicyKit1", "Release", "s", "yes")
    for p in pending:
        assert refusal(p) in ("org.sandboxd1.Error.NoSuchSandbox", "org.freedesktop.DBus.Error.UnknownObject")


def test_caller_that_went_while_polkit_thought(daemon, objects):
    daemon.polkit("slow")
    user = daemon.user()
    start(user, objects, SANDBOX, "Remove", [("flags", "t")])
    daemon.root.run(objects[SANDBOX], "true")
    user.close()
    daemon.clients.remove(user)
    daemon.mock("PolicyKit1", "Release", "s", "no")
    assert daemon.root.get(objects[SANDBOX], SANDBOX, "State") == "running"


def test_open_methods_show_only_what_is_the_callers(daemon, objects):
    daemon.polkit("no")
    user = daemon.user()
    assert user.manager("ListSandboxes", "a{sv}t", {}, 0) == []
    assert len(user.manager("ListTemplates", "t", 0)) == 1
    assert len(user.manager("ListJobs", "t", 0)) == 1
    assert user.manager("GetSandbox", "st", objects["id"], 0) == objects[SANDBOX]
    assert user.manager("GetUsage", "a{sv}t", {}, 0).take() >= 0
    # Asked whether all may be shown, with nobody to be bothered by it.
    user.call(ROOT, MANAGER, "ListSandboxes", "a{sv}t", {}, 0, interactive=True)
    assert {(a["action"], a["flags"]) for a in daemon.polkit_asked()} == {("org.sandboxd1.inspect", 0)}
    daemon.polkit({"org.sandboxd1.inspect": "yes"})
    assert len(user.manager("ListSandboxes", "a{sv}t", {}, 0)) == 1


def test_the_walk_covers_the_contract():
    assert {(i, m) for i, m, _ in methods()} == OPEN | set(ACTIONS)
    assert all(t in SAMPLES for _, _, arguments in methods() for _, t in arguments)
    assert all(name[-1][0] == "flags" for _, _, name in methods())
    assert len(contract()) == 5
