#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""polkit and systemd as far as sandboxd sees them, in one process on the bus. What they are to answer is set, and what they were
asked is read, over the interface org.sandboxd1.Test of either (JSON in strings).

polkit  answer: "yes", "no", "challenge", "slow" (keeps the question until Release), or {action: answer}; asked: list
systemd start, stop: "done", "refuse", "hang", "elsewhere" (done, and not where it should be) or a job's result;
        history: the units that were asked for; units: those that are there; calls: list of [method, argument].
        A scope is a real control group, so that its processes are where the daemon looks for them."""

import json
import os
import signal
import sys
import time

import dbus
import dbus.service
from dbus.mainloop.glib import DBusGMainLoop
from gi.repository import GLib

SYSTEMD = "org.freedesktop.systemd1"
MANAGER = SYSTEMD + ".Manager"
PATH = "/org/freedesktop/systemd1"
TEST = "org.sandboxd1.Test"
CGROUP = "/sys/fs/cgroup/" + os.environ["SANDBOXD_TEST_CGROUP"]


class NoSuchUnit(dbus.DBusException):
    _dbus_error_name = SYSTEMD + ".NoSuchUnit"


class Refused(dbus.DBusException):
    _dbus_error_name = "org.freedesktop.DBus.Error.LimitsExceeded"


def plain(value):
    """What JSON can hold of it."""
    if isinstance(value, dbus.Boolean):
        return bool(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dbus.types.UnixFd):
        return pid_of(value)
    return value


def pid_of(unix_fd):
    """The process behind a pidfd, in place of the descriptor."""
    fd = unix_fd.take()
    with open(f"/proc/self/fdinfo/{fd}") as f:
        pid = next(int(line.split()[1]) for line in f if line.startswith("Pid:"))
    os.close(fd)
    return pid


class Polkit(dbus.service.Object):
    def __init__(self, bus):
        super().__init__(bus, "/org/freedesktop/PolicyKit1/Authority")
        self.bus = bus
        self.Reset()

    @dbus.service.method(TEST)
    def Reset(self):
        self.answer, self.asked, self.waiting = "no", [], []
        self.bus.request_name("org.freedesktop.PolicyKit1")

    @dbus.service.method(TEST, in_signature="s")
    def Configure(self, text):
        for key, value in json.loads(text).items():
            setattr(self, key, value)
        if self.answer == "absent":
            self.bus.release_name("org.freedesktop.PolicyKit1")

    @dbus.service.method(TEST, out_signature="s")
    def State(self):
        return json.dumps({"asked": self.asked, "waiting": len(self.waiting)})

    @dbus.service.method(TEST, in_signature="s")
    def Release(self, answer):
        for reply in self.waiting:
            reply(self.verdict(answer))
        self.waiting = []

    @staticmethod
    def verdict(answer):
        return answer == "yes", answer == "challenge", dbus.Dictionary({}, "ss")

    @dbus.service.method("org.freedesktop.PolicyKit1.Authority", in_signature="(sa{sv})sa{ss}us", out_signature="(bba{ss})",
                         async_callbacks=("reply", "fail"))
    def CheckAuthorization(self, subject, action, details, flags, cancellation, reply, fail):
        self.asked.append(plain({"subject": subject, "action": action, "details": details, "flags": flags}))
        answer = self.answer.get(action, "no") if isinstance(self.answer, dict) else self.answer
        if answer == "slow":
            self.waiting.append(reply)
        else:
            reply(self.verdict(answer))


class Unit(dbus.service.Object):
    def __init__(self, bus, name, properties, pids):
        escaped = "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in name)
        super().__init__(bus, f"{PATH}/unit/{escaped}")
        self.name, self.properties, self.pids = name, properties, pids
        self.values = {"ActiveState": "activating", "Result": "success"}
        self.values["StatusText" if name.endswith(".service") else "CPUUsageNSec"] = ""
        if name.endswith(".scope"):
            self.values |= {"CPUUsageNSec": dbus.UInt64(7_000_000_000), "MemoryPeak": dbus.UInt64(1 << 20)}
            self.group = f"{CGROUP}/{properties['Slice']}/{name}"

    def activate(self):
        self.values["ActiveState"] = "active"
        if self.pids:
            os.makedirs(self.group, exist_ok=True)
            for pid in self.pids:
                with open(f"{self.group}/cgroup.procs", "w") as f:
                    f.write(str(pid))

    def members(self):
        try:
            with open(f"{self.group}/cgroup.procs") as f:
                return [int(line) for line in f]
        except FileNotFoundError:
            return []

    def stop(self):
        self.values["ActiveState"] = "inactive"
        if not self.pids:
            return
        deadline = time.monotonic() + 2
        while members := self.members():
            for pid in members:
                try:
                    os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)

    @dbus.service.method(dbus.PROPERTIES_IFACE, in_signature="s", out_signature="a{sv}")
    def GetAll(self, interface):
        return self.values

    @dbus.service.signal(dbus.PROPERTIES_IFACE, signature="sa{sv}as")
    def PropertiesChanged(self, interface, changed, invalidated):
        pass


class Systemd(dbus.service.Object):
    def __init__(self, bus):
        super().__init__(bus, PATH)
        self.bus = bus
        self.units, self.jobs = {}, 0
        self.Reset()

    @dbus.service.method(TEST)
    def Reset(self):
        for unit in self.units.values():
            unit.remove_from_connection()
        self.start = self.stop = "done"
        self.units, self.calls, self.history, self.hanging = {}, [], [], []

    @dbus.service.method(TEST, in_signature="s")
    def Configure(self, text):
        for key, value in json.loads(text).items():
            setattr(self, key, value)

    @dbus.service.method(TEST, out_signature="s")
    def State(self):
        return json.dumps({"units": {n: dict(u.values) for n, u in self.units.items()}, "calls": self.calls,
                           "history": self.history, "hanging": len(self.hanging)}, default=plain)

    @dbus.service.method(TEST, in_signature="ss")
    def SetUnit(self, name, text):
        """Makes an unknown unit, too; tells whoever watches."""
        if name not in self.units:
            self.units[name] = Unit(self.bus, name, {"Slice": "sandbox.slice"}, [])
        self.units[name].values |= json.loads(text)
        self.units[name].PropertiesChanged(SYSTEMD + ".Service", dbus.Dictionary({}, "sv"), dbus.Array([], "s"))

    @dbus.service.method(TEST, in_signature="s")
    def Release(self, result):
        for job, name in self.hanging:
            self.JobRemoved(job, self.job_path(job), name, result)
        self.hanging = []

    @staticmethod
    def job_path(job):
        return dbus.ObjectPath(f"{PATH}/job/{job}")

    def queue(self, name, result):
        """A job whose end is told after the reply, as systemd does."""
        self.jobs += 1
        job = self.jobs
        if result == "hang":
            self.hanging.append((job, name))
        else:
            GLib.idle_add(lambda: self.JobRemoved(job, self.job_path(job), name, result))
        return self.job_path(job)

    @dbus.service.method(MANAGER)
    def Subscribe(self):
        self.calls.append(["Subscribe", ""])

    @dbus.service.method(MANAGER, in_signature="ssa(sv)a(sa(sv))", out_signature="o")
    def StartTransientUnit(self, name, mode, properties, auxiliary):
        wanted = {str(k): plain(v) for k, v in properties}
        self.calls.append(["StartTransientUnit", name])
        self.history.append({"name": name, "mode": mode, "properties": wanted})
        if self.start == "refuse":
            raise Refused("No unit today")
        if name in self.units:
            raise Refused(f"Unit {name} exists")
        unit = self.units[str(name)] = Unit(self.bus, name, wanted, wanted.get("PIDFDs", []))
        if self.start in ("done", "hang"):
            unit.activate()
        return self.queue(name, "done" if self.start == "elsewhere" else self.start)

    @dbus.service.method(MANAGER, in_signature="ss", out_signature="o")
    def StopUnit(self, name, mode):
        self.calls.append(["StopUnit", name])
        if name not in self.units:
            raise NoSuchUnit(f"Unit {name} not loaded.")
        if self.stop == "refuse":
            raise Refused("No stop today")
        if self.stop != "hang":
            self.units[name].stop()
            self.units[name].PropertiesChanged(SYSTEMD + ".Unit", dbus.Dictionary({}, "sv"), dbus.Array([], "s"))
        return self.queue(name, self.stop)

    @dbus.service.method(MANAGER, in_signature="asas", out_signature="a(ssssssouso)")
    def ListUnitsByPatterns(self, states, patterns):
        from fnmatch import fnmatch

        return [(n, "", "loaded", u.values["ActiveState"], "running", "", dbus.ObjectPath("/"), dbus.UInt32(0), "",
                 dbus.ObjectPath("/")) for n, u in self.units.items() if any(fnmatch(n, p) for p in patterns)]

    def drop(self, name):
        unit = self.units.pop(name, None)
        if unit:
            unit.remove_from_connection()

    @dbus.service.method(MANAGER, in_signature="s")
    def UnrefUnit(self, name):
        self.calls.append(["UnrefUnit", name])
        self.drop(name)

    @dbus.service.method(MANAGER, in_signature="s")
    def RefUnit(self, name):
        self.calls.append(["RefUnit", name])

    @dbus.service.method(MANAGER, in_signature="s")
    def ResetFailedUnit(self, name):
        self.calls.append(["ResetFailedUnit", name])
        if name not in self.units:
            raise NoSuchUnit(f"Unit {name} not loaded.")

    @dbus.service.signal(MANAGER, signature="uoss")
    def JobRemoved(self, id, job, unit, result):
        pass


DBusGMainLoop(set_as_default=True)
connection = dbus.bus.BusConnection(os.environ["DBUS_SYSTEM_BUS_ADDRESS"])
Polkit(connection)
Systemd(connection)
connection.request_name(SYSTEMD)
sys.stdout.write("ready\n")
sys.stdout.flush()
GLib.MainLoop().run()
