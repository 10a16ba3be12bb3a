#!/usr/bin/python3 -IS
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A stand-in for sandbox-runner that speaks src/shared/control.h. Commands are run right here, as its own children.

What it should do otherwise is in BEHAVIOUR (JSON), read once per request:
    {"start": {"error": 5, "rung": "vmm", "message": "…"}}   an error reply, then it exits
    {"start": "hang" | "die" | "no-receipt"}
    {"exec": "hang"}                                          no reply
    {"ttl": {"error": 5, "message": "…"}}
Commands that mean the machine: ["!ended", REASON] sends an event and exits as a real one would, ["!exit", STATUS] exits,
["!hangup"] closes the connection, ["!nonsense"] sends what is no message. Each request is noted in LOG, one a line."""

import array
import fcntl
import json
import os
import select
import signal
import socket
import sys

PLACE = "/run/test"
SOCKETS = [socket.SCM_RIGHTS]


def behaviour():
    try:
        with open(f"{PLACE}/runner.json") as f:
            return json.load(f)
    except FileNotFoundError:
        return {}


class Command:
    def __init__(self, request, fds):
        self.id = request["process"]
        self.label = request.get("label")
        self.capture = request.get("capture", 0)
        self.result = None
        self.outputs = {}
        self.report = {}
        self.start(request, fds)

    def start(self, request, fds):
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        streams = [fds.get("stdin", null)]
        for name in ("stdout", "stderr"):
            if self.capture and name not in fds:
                self.outputs[name] = os.memfd_create(name)
            streams.append(self.outputs.get(name, fds.get(name, null)))
        failed, report = os.pipe2(os.O_CLOEXEC)
        environment = dict(e.split("=", 1) for e in request["environment"])
        environment.setdefault("PATH", "/usr/bin:/bin")
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                for i, fd in enumerate(streams):
                    os.dup2(fd, i)
                os.chdir(request["directory"] or "/")
                os.execvpe(request["argv"][0], request["argv"], environment)
            except OSError as e:
                os.write(report, b"%d" % e.errno)
            os._exit(127)
        os.close(report)
        error = os.read(failed, 16)
        os.close(failed)
        os.close(null)
        if error:
            os.waitpid(self.pid, 0)
            raise OSError(int(error), os.strerror(int(error)))

    def ended(self, status, usage):
        self.result = "signaled" if os.WIFSIGNALED(status) else "exited"
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self.report = {"result": self.result, "status": number, "cpu_usec": 1234, "memory_peak": 4096, "leftovers": 0}

    def kept(self):
        """Head and tail halves of what was written."""
        sizes, fds = {}, {}
        for name, fd in self.outputs.items():
            data = os.pread(fd, 1 << 26, 0)
            sizes[f"{name}_size"] = len(data)
            if len(data) > self.capture:
                half = self.capture // 2
                data = data[:half] + data[len(data) - (self.capture - half):]
            fds[name] = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.write(fds[name], data)
            fcntl.fcntl(fds[name], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        return sizes, fds

    def entry(self):
        state = {"state": "exited", **self.report} if self.result else {"state": "running"}
        return {"process": self.id, "pid": self.pid, "label": self.label, **state}


class Runner:
    def __init__(self):
        self.id = sys.argv[1].removeprefix("--id=")
        self.listener = socket.socket(fileno=3)
        self.listener.setblocking(True)
        self.peer = None
        self.state = "waiting"
        self.receipt = None
        self.deadline = 0
        self.commands = {}
        self.wakeup, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.end("terminated", 13))

    def note(self, what):
        with open(f"{PLACE}/requests-{self.id}.jsonl", "a") as f:
            f.write(json.dumps(what) + "\n")

    def send(self, body, fds=None):
        if not self.peer:
            return
        if fds:
            body["fds"] = list(fds)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds.values()))] if fds else []
        try:
            self.peer.sendmsg([json.dumps(body).encode()], ancillary)
        except OSError:
            self.peer = None

    def reply(self, request, error=0, message="", **more):
        self.send({"type": "reply", "serial": request["serial"], "error": error, "message": message, **more})

    def end(self, reason, status):
        self.send({"type": "ended", "reason": reason, "message": "as it was told to"})
        os._exit(status)

    def hello(self):
        self.send({"type": "hello", "version": 1, "id": self.id, "state": self.state, "deadline_usec": self.deadline,
                   "receipt": self.receipt, "processes": [c.entry() for c in self.commands.values()]})

    def do_start(self, request, fds):
        told = behaviour().get("start")
        for name in ("disk", "memory", "devices"):
            os.pread(fds[name], 1, 0)
        if told == "hang":
            return
        if told == "die":
            os._exit(1)
        if isinstance(told, dict):
            self.reply(request, **told)
            os._exit(1)
        self.state = "running"
        self.deadline = request["deadline_usec"]
        if told != "no-receipt":
            self.receipt = {"generation": request["generation"], "steps": 255, "clock_step_nsec": -5, "entropy_bytes": 32}
        timings = {"jail": 1, "vmm": 2, "agent": 3}
        more = {"receipt": self.receipt} if self.receipt else {}
        self.reply(request, timings_usec=timings, pid=2, **more)

    def do_exec(self, request, fds):
        argv = request["argv"]
        if behaviour().get("exec") == "hang":
            return
        if argv[0] == "!ended":
            self.end(argv[1], {"deadline": 10, "vmm": 11, "agent": 12}[argv[1]])
        if argv[0] == "!exit":
            os._exit(int(argv[1]))
        if argv[0] == "!hangup":
            self.peer.close()
            self.peer = None
            return
        if argv[0] == "!nonsense":
            self.peer.send(b"[1, 2]")
            return
        try:
            command = Command(request, fds)
        except OSError as e:
            self.reply(request, e.errno, os.strerror(e.errno))
            return
        self.commands[command.id] = command
        self.reply(request, pid=command.pid)

    def do_signal(self, request, fds):
        wanted = [c for c in self.commands.values() if not c.result and request["process"] in (0, c.id)]
        for c in wanted:
            (os.killpg if request["tree"] else os.kill)(c.pid, request["signal"])
        gone = request["process"] and not wanted
        self.reply(request, 3 if gone else 0, "No such process" if gone else "")

    def do_forget(self, request, fds):
        self.commands.pop(request["process"], None)
        self.reply(request)

    def do_ttl(self, request, fds):
        told = behaviour().get("ttl", {})
        if not told:
            self.deadline = request["deadline_usec"]
        self.reply(request, **told)

    def do_end(self, request, fds):
        os._exit(0)

    def receive(self):
        try:
            data, ancillary, _, _ = self.peer.recvmsg(1 << 22, socket.CMSG_SPACE(8 * 4))
        except OSError:
            data = b""
        if not data:
            self.peer.close()
            self.peer = None
            return
        request = json.loads(data)
        numbers = array.array("i")
        for _, kind, payload in ancillary:
            numbers.frombytes(payload[: len(payload) - len(payload) % 4])
        fds = dict(zip(request.get("fds", []), numbers))
        self.note(request)
        getattr(self, "do_" + request["type"])(request, fds)
        for fd in numbers:
            os.close(fd)

    def reap(self):
        os.read(self.wakeup, 100)
        for c in [c for c in self.commands.values() if not c.result]:
            pid, status, usage = os.wait4(c.pid, os.WNOHANG)
            if pid:
                c.ended(status, usage)
                sizes, fds = c.kept()
                self.send({"type": "process-exited", "process": c.id, **c.report, **sizes}, fds)

    def run(self):
        while True:
            waiting = [self.listener, self.wakeup] + ([self.peer] if self.peer else [])
            ready, _, _ = select.select(waiting, [], [])
            if self.wakeup in ready:
                self.reap()
            if self.listener in ready:
                if self.peer:
                    self.peer.close()
                self.peer, _ = self.listener.accept()
                self.hello()
            elif self.peer in ready:
                self.receive()


if os.path.exists(f"{PLACE}/runner-fails"):
    sys.exit(1)
Runner().run()
