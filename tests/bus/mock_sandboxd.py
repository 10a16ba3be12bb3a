#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A stand-in for sandboxd, to try its clients: the same bus interface, with commands that run on this machine.

Its state is a directory, and each command has a small process of its own beside it that notes how it ended. So, as with the
real service, commands outlive a kill of this process, and the next one finds them again.

Templates and what they are for:
    base     works           slow     takes a second        bad      fails as a rung of the creation would
    denied   refused         (others) NoSuchTemplate
Bakes: base succeeds by steps, broken fails, slow goes on until it's canceled.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

STATE = None


def write_json(path, value):
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as f:
        json.dump(value, f)
    os.rename(temporary, path)


def read_json(path):
    try:
        with open(path) as f:
            return json.load(f)
    except FileNotFoundError:
        return None


def write_result(directory, result, status):
    """The first one counts: who removes a sandbox has said "lost" before its commands die of it."""
    temporary = f"{directory}/result.{os.getpid()}"
    with open(temporary, "w") as f:
        json.dump([result, status], f)
    try:
        os.link(temporary, f"{directory}/result")
    except FileExistsError:
        pass
    os.unlink(temporary)


def run_command(directory):
    """The process beside a command: its end is noted after its output, which it writes itself, is out."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    spec = read_json(f"{directory}/spec")
    child = subprocess.Popen(spec["argv"], env=spec["env"], cwd=spec["cwd"], start_new_session=True)
    write_json(f"{directory}/pid", child.pid)
    # It must not hold the streams open itself.
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    try:
        status = child.wait(spec["timeout"] or None)
        write_result(directory, *(("exited", status) if status >= 0 else ("signaled", -status)))
    except subprocess.TimeoutExpired:
        write_result(directory, "timeout", signal.SIGKILL)
        os.killpg(child.pid, signal.SIGKILL)


if len(sys.argv) > 2 and sys.argv[1] == "--run":
    run_command(sys.argv[2])
    sys.exit(0)

import dbus  # noqa: E402
import dbus.bus  # noqa: E402
import dbus.mainloop.glib  # noqa: E402
import dbus.service  # noqa: E402
from gi.repository import GLib  # noqa: E402

NAME = "org.sandboxd1"
ROOT = "/org/sandboxd1"
MANAGER, SANDBOX, PROCESS, JOB = (f"{NAME}.{i}" for i in ("Manager", "Sandbox", "Process", "Job"))
PROPERTIES = "org.freedesktop.DBus.Properties"
OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"


class Error(dbus.DBusException):
    def __init__(self, name, message):
        super().__init__(message, name=name if "." in name else f"{NAME}.Error.{name}")


def log(member, *args):
    with open(f"{STATE}/log", "a") as f:
        f.write(json.dumps([member, *args], default=lambda v: int(v) if isinstance(v, int) else str(v)) + "\n")


def plain(options):
    return {str(k): (v if isinstance(v, dbus.types.UnixFd) else json.loads(json.dumps(v))) for k, v in options.items()}


def usec():
    return time.time_ns() // 1000


class Object(dbus.service.Object):
    """An object with properties(), which is what Get and GetAll need."""

    interface = None

    @dbus.service.method(PROPERTIES, in_signature="s", out_signature="a{sv}")
    def GetAll(self, interface):
        return self.properties() if interface == self.interface else {}

    @dbus.service.method(PROPERTIES, in_signature="ss", out_signature="v")
    def Get(self, interface, name):
        return self.properties()[name]

    @dbus.service.signal(PROPERTIES, signature="sa{sv}as")
    def PropertiesChanged(self, interface, changed, invalidated):
        pass


class Process(Object):
    interface = PROCESS

    def __init__(self, bus, sandbox, number):
        self.sandbox, self.number = sandbox, number
        self.directory = f"{sandbox.directory}/{number}"
        self.path = f"{sandbox.path}/process/{number}"
        self.spec = read_json(f"{self.directory}/spec")
        super().__init__(bus, self.path)

    def result(self):
        return read_json(f"{self.directory}/result")

    def row(self):
        result, status = self.result() or ("", -1)
        return (dbus.UInt32(self.number), self.spec["argv"], "ended" if result else "running", result,
                dbus.Int32(status), dbus.UInt64(self.spec["started"]), dbus.ObjectPath(self.path))

    def properties(self):
        return {"Id": dbus.UInt32(self.number), "Sandbox": dbus.ObjectPath(self.sandbox.path),
                "Argv": dbus.Array(self.spec["argv"], "s")}

    def pid(self):
        while not (pid := read_json(f"{self.directory}/pid")):
            time.sleep(0.01)
        return pid

    @dbus.service.method(PROCESS, in_signature="it")
    def Signal(self, number, flags):
        log("Signal", self.number, number)
        if self.result():
            raise Error("NoSuchProcess", "The command has ended")
        (os.killpg if number == signal.SIGKILL else os.kill)(self.pid(), number)

    @dbus.service.method(PROCESS, in_signature="t", out_signature="sitt", async_callbacks=("reply", "error"))
    def Wait(self, flags, reply, error):
        log("Wait", self.number)

        def look():
            result = self.result()
            if result:
                reply(result[0], result[1], 1500, 1 << 20)
            return not result

        if look():
            GLib.timeout_add(20, look)


class Sandbox(Object):
    interface = SANDBOX

    def __init__(self, manager, identifier):
        self.manager = manager
        self.directory = f"{STATE}/{identifier}"
        self.record = read_json(f"{self.directory}/record")
        self.path = f"{ROOT}/sandbox/{identifier}"
        super().__init__(manager.bus, self.path)
        numbers = sorted(int(n) for n in os.listdir(self.directory) if n.isdigit())
        self.processes = {n: Process(manager.bus, self, n) for n in numbers}

    def row(self):
        r = self.record
        return (r["id"], r["name"], dbus.UInt32(r["owner"]), r["template"], "running", dbus.UInt64(r["created"]),
                dbus.UInt64(r["deadline"]), dbus.ObjectPath(self.path))

    def properties(self):
        r = self.record
        running = sum(1 for p in self.processes.values() if not p.result())
        return {
            "Id": r["id"], "Name": r["name"], "Owner": dbus.UInt32(r["owner"]), "Template": r["template"],
            "TemplateVersion": "0" * 64, "State": "running", "CreatedUSec": dbus.UInt64(r["created"]),
            "DeadlineUSec": dbus.UInt64(r["deadline"]), "RuntimeMaxUSec": dbus.UInt64(86400 * 10**6),
            "MemoryMax": dbus.UInt64(r["options"].get("MemoryMax", 512 << 20)), "CPUs": dbus.Double(1.5),
            "DiskSize": dbus.UInt64(2 << 30), "Hostname": r["name"],
            "Metadata": dbus.Dictionary(r["options"].get("Metadata", {}), "ss"),
            "Unit": f"sandbox-{r['id']}.scope", "Leader": dbus.UInt32(1234), "UID": dbus.UInt32(1879113728),
            "Receipt": dbus.Dictionary({"generation": dbus.UInt64(3), "steps": dbus.Array(["clock", "entropy"], "s"),
                                        "clock_step_nsec": dbus.Int64(-5), "entropy_bytes": dbus.UInt32(64)}, "sv"),
            "TimingsUSec": dbus.Dictionary({"storage": dbus.UInt64(70), "total": dbus.UInt64(90000)}, "st"),
            "CPUUsageNSec": dbus.UInt64(1234567890), "MemoryCurrent": dbus.UInt64(100 << 20),
            "MemoryPeak": dbus.UInt64(2**64 - 1), "LifetimeUSec": dbus.UInt64(usec() - r["created"]),
            "NCommands": dbus.UInt32(len(self.processes)), "NRunning": dbus.UInt32(running),
        }

    @dbus.service.method(SANDBOX, in_signature="asa{sv}t", out_signature="ouah")
    def Exec(self, argv, options, flags):
        options = plain(options)
        argv = [str(a) for a in argv]
        fds = [options.pop(k, None) for k in ("StandardInput", "StandardOutput", "StandardError")]
        log("Exec", argv, options, [fd is not None for fd in fds])
        if not shutil.which(argv[0]):
            missing = not os.path.exists(argv[0])
            raise Error("NotExecutable", f"{'not found' if missing else 'permission denied'}: {argv[0]}")
        number = len(self.processes) + 1
        directory = f"{self.directory}/{number}"
        os.mkdir(directory)
        env = {"PATH": os.environ["PATH"]}
        env.update(e.split("=", 1) for e in self.record["options"].get("Environment", []) + options.get("Environment", []))
        write_json(f"{directory}/spec", {"argv": argv, "env": env, "cwd": options.get("WorkingDirectory", "/"),
                                         "timeout": options.get("TimeoutUSec", 0) / 1e6, "started": usec()})
        fds = [fd.take() if fd is not None else os.open("/dev/null", os.O_RDWR) for fd in fds]
        subprocess.Popen([sys.executable, __file__, "--run", directory], stdin=fds[0], stdout=fds[1], stderr=fds[2],
                         start_new_session=True)
        for fd in fds:
            os.close(fd)
        process = self.processes[number] = Process(self.manager.bus, self, number)
        process.pid()
        self.manager.InterfacesAdded(process.path, {PROCESS: process.properties()})
        return dbus.ObjectPath(process.path), number, dbus.Array([], "h")

    @dbus.service.method(SANDBOX, in_signature="it")
    def Kill(self, number, flags):
        log("Kill", number)
        for p in self.processes.values():
            if not p.result():
                os.killpg(p.pid(), number)

    @dbus.service.method(SANDBOX, in_signature="t")
    def Remove(self, flags):
        log("Remove", self.record["id"])
        for p in self.processes.values():
            if not p.result():
                write_result(p.directory, "lost", -1)
                os.killpg(p.pid(), signal.SIGKILL)
        with open(f"{STATE}/usage", "a") as f:
            f.write(json.dumps(self.usage(usec(), "removed")) + "\n")
        os.rename(self.directory, f"{STATE}/removed-{self.record['id']}")
        for p in self.processes.values():
            p.directory = p.directory.replace(self.directory, f"{STATE}/removed-{self.record['id']}")
        del self.manager.sandboxes[self.record["id"]]
        self.remove_from_connection()
        self.manager.InterfacesRemoved(self.path, [SANDBOX])

    def usage(self, ended, result):
        r = self.record
        return {"id": r["id"], "name": r["name"], "owner": r["owner"], "template": r["template"], "version": "0" * 64,
                "created_usec": r["created"], "ended_usec": ended, "lifetime_usec": 65 * 10**6, "cpu_usec": 1234567,
                "memory_peak": None, "commands": len(self.processes), "result": result, "source": "cgroup"}

    @dbus.service.method(SANDBOX, in_signature="tt")
    def SetTTL(self, ttl, flags):
        log("SetTTL", ttl)
        self.record["deadline"] = usec() + int(ttl) if ttl else 0
        write_json(f"{self.directory}/record", self.record)
        self.PropertiesChanged(SANDBOX, {"DeadlineUSec": dbus.UInt64(self.record["deadline"])}, [])

    @dbus.service.method(SANDBOX, in_signature="t", out_signature="a(uasssito)")
    def ListProcesses(self, flags):
        return dbus.Array([p.row() for p in self.processes.values()], "(uasssito)")


class Job(Object):
    interface = JOB

    def __init__(self, manager, number, target):
        self.manager, self.number, self.target = manager, number, target
        self.state, self.progress, self.status = "running", 0.0, "starting"
        self.path = f"{ROOT}/job/{number}"
        super().__init__(manager.bus, self.path)

    def properties(self):
        return {"Id": dbus.UInt32(self.number), "Type": "bake", "Target": self.target, "State": self.state,
                "Progress": dbus.Double(self.progress), "Status": self.status}

    def row(self):
        return (dbus.UInt32(self.number), "bake", self.target, self.state, dbus.Double(self.progress), self.status,
                dbus.ObjectPath(self.path))

    def step(self):
        if self.number not in self.manager.jobs:
            return False
        self.progress += 0.25
        self.status = "packing\x1b[31m files"
        if self.progress >= 1 and self.target == "base":
            self.end("done", "")
            return False
        if self.progress >= 0.5 and self.target == "broken":
            self.end("failed", "The command of step 2 failed\nlast line of the console\x1b]0;evil\x07")
            return False
        self.progress = min(self.progress, 0.75)
        self.PropertiesChanged(JOB, {"Progress": dbus.Double(self.progress), "Status": self.status}, [])
        return True

    def end(self, result, error):
        del self.manager.jobs[self.number]
        self.manager.JobRemoved(dbus.UInt32(self.number), dbus.ObjectPath(self.path), result, error)
        self.remove_from_connection()

    @dbus.service.method(JOB, in_signature="t", async_callbacks=("reply", "error"))
    def Cancel(self, flags, reply, error):
        log("Cancel", self.number)
        self.state = "canceling"

        def canceled():
            self.end("canceled", "Canceled by the caller")
            reply()

        GLib.timeout_add(100, canceled)


class Manager(Object):
    interface = MANAGER

    def __init__(self, bus):
        self.bus = bus
        self.jobs, self.n_jobs = {}, 0
        super().__init__(bus, ROOT)
        self.sandboxes = {i: Sandbox(self, i) for i in os.listdir(STATE) if len(i) == 12}

    def properties(self):
        return {"Version": "mock", "Accelerator": "tcg", "MissingControllers": dbus.Array(["cpu", "pids"], "s"),
                "NSandboxes": dbus.UInt32(len(self.sandboxes))}

    @dbus.service.signal(OBJECT_MANAGER, signature="oa{sa{sv}}")
    def InterfacesAdded(self, path, interfaces):
        pass

    @dbus.service.signal(OBJECT_MANAGER, signature="oas")
    def InterfacesRemoved(self, path, interfaces):
        pass

    @dbus.service.signal(MANAGER, signature="uoss")
    def JobRemoved(self, number, job, result, error):
        pass

    def create(self, template, options, reply):
        identifier = os.urandom(6).hex()
        os.mkdir(f"{STATE}/{identifier}")
        write_json(f"{STATE}/{identifier}/record",
                   {"id": identifier, "name": options.get("Name", identifier), "owner": os.getuid(),
                    "template": template, "created": usec(), "deadline": usec() + 3600 * 10**6, "options": options})
        sandbox = self.sandboxes[identifier] = Sandbox(self, identifier)
        self.InterfacesAdded(sandbox.path, {SANDBOX: sandbox.properties()})
        reply(identifier, dbus.ObjectPath(sandbox.path))

    @dbus.service.method(MANAGER, in_signature="sa{sv}t", out_signature="so", async_callbacks=("reply", "error"))
    def CreateSandbox(self, template, options, flags, reply, error):
        template, options = str(template), plain(options)
        log("CreateSandbox", template, options)
        if template == "bad":
            error(Error("StartFailed", "Failed to create sandbox from bad: vmm: it ended with status 1"))
        elif template == "denied":
            error(Error("org.freedesktop.DBus.Error.AccessDenied", "Creating sandboxes is not for you"))
        elif template == "slow":
            GLib.timeout_add(1000, lambda: self.create(template, options, reply))
        elif template == "base":
            self.create(template, options, reply)
        else:
            error(Error("NoSuchTemplate", f"There is no template {template}"))

    @dbus.service.method(MANAGER, in_signature="st", out_signature="o")
    def GetSandbox(self, name, flags):
        for s in self.sandboxes.values():
            if name in (s.record["id"], s.record["name"]) or (len(name) >= 4 and s.record["id"].startswith(name)):
                return dbus.ObjectPath(s.path)
        raise Error("NoSuchSandbox", f"There is no sandbox {name}")

    @dbus.service.method(MANAGER, in_signature="a{sv}t", out_signature="a(ssusstto)")
    def ListSandboxes(self, filters, flags):
        filters = plain(filters)
        log("ListSandboxes", filters)
        rows = [s.row() for s in self.sandboxes.values() if filters.get("Name", s.record["name"]) == s.record["name"]]
        return dbus.Array(rows, "(ssusstto)")

    @dbus.service.method(MANAGER, in_signature="t", out_signature="a(ssttutuo)")
    def ListTemplates(self, flags):
        return dbus.Array([("base", "0123456789abcdef" * 4, dbus.UInt64(usec() - 7200 * 10**6), dbus.UInt64(512 << 20),
                            dbus.UInt32(2), dbus.UInt64(2 << 30), dbus.UInt32(len(self.sandboxes)),
                            dbus.ObjectPath(f"{ROOT}/template/base"))], "(ssttutuo)")

    @dbus.service.method(MANAGER, in_signature="sa{sv}t", out_signature="o")
    def BakeTemplate(self, name, options, flags):
        log("BakeTemplate", name, plain(options))
        if name not in ("base", "broken", "slow"):
            raise Error("NoSuchTemplate", f"There is no {name}.yaml")
        self.n_jobs += 1
        job = self.jobs[self.n_jobs] = Job(self, self.n_jobs, str(name))
        GLib.timeout_add(100, job.step)
        return dbus.ObjectPath(job.path)

    @dbus.service.method(MANAGER, in_signature="t", out_signature="a(usssdso)")
    def ListJobs(self, flags):
        return dbus.Array([j.row() for j in self.jobs.values()], "(usssdso)")

    @dbus.service.method(MANAGER, in_signature="a{sv}t", out_signature="h")
    def GetUsage(self, options, flags):
        log("GetUsage", plain(options))
        fd = os.memfd_create("usage")
        with os.fdopen(os.dup(fd), "w") as f:
            if os.path.exists(f"{STATE}/usage"):
                with open(f"{STATE}/usage") as ledger:
                    f.write(ledger.read())
            for s in self.sandboxes.values():
                f.write(json.dumps(s.usage(0, "")) + "\n")
        os.lseek(fd, 0, os.SEEK_SET)
        wrapped = dbus.types.UnixFd(fd)
        os.close(fd)
        return wrapped


def main():
    global STATE
    STATE = sys.argv[1]
    dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # commands belong to nobody here
    bus = dbus.bus.BusConnection(os.environ["DBUS_SYSTEM_BUS_ADDRESS"])
    Manager(bus)
    name = dbus.service.BusName(NAME, bus, do_not_queue=True)
    GLib.MainLoop().run()
    del name


main()
