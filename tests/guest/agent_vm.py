# SPDX-License-Identifier: LGPL-2.1-or-later
"""A microVM with the guest agent in it, and a client of the agent protocol; for tests of the agent alone.

Needs QEMU 10, a guest kernel, an initrd made by guest/mkinitrd and an ext4 root. Nothing of sandboxd runs here: what
is tested is the contract in src/shared/agent-protocol.h, from the host's side of the wire."""

import json
import os
import re
import select
import socket
import struct
import subprocess
import time

HELLO, HELLO_REPLY, SETUP, RECEIPT, FREEZE, FROZEN, THAW, THAWED, EXEC, STARTED, EXEC_FAILED = range(1, 12)
DATA, EOF, CLOSE, CREDIT, SIGNAL, EXITED, PING, PONG, ERROR = range(12, 21)
STDIN, STDOUT, STDERR = range(3)
WINDOW = 256 * 1024
DATA_MAX = 32 * 1024
STEPS_ALL = 255
EXIT_CODE, EXIT_SIGNAL, EXIT_TIMEOUT = 1, 2, 3


def string(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(raw)) + raw + b"\0"


def take_string(raw, offset):
    (n,) = struct.unpack_from("<I", raw, offset)
    return raw[offset + 4:offset + 4 + n].decode()


class Ended(Exception):
    """The agent said ERROR, or the connection broke."""


class Command:
    """What the host knows of one stream."""

    def __init__(self, stream):
        self.stream = stream
        self.out = {STDOUT: bytearray(), STDERR: bytearray()}
        self.eof = set()
        self.pid = self.exited = self.failed = None
        self.stdin_credit, self.stdin_closed = WINDOW, False
        self.stdin, self.stdin_eof = b"", None
        self.paused = set()  # channels to which no credit is given back
        self.owed = {STDOUT: 0, STDERR: 0}

    @property
    def over(self):
        return self.exited is not None or self.failed is not None

    @property
    def status(self):
        return self.exited[:2] if self.exited else None


class Agent:
    """The host's side of one connection."""

    def __init__(self, path, timeout=60):
        self.path = path
        deadline = time.monotonic() + timeout
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(path)
                break
            except OSError:
                self.socket.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        self.socket.setblocking(False)
        self.input, self.output = bytearray(), bytearray()
        self.commands, self.last_stream = {}, 0
        self.frames = []  # those of the machine
        self.nonce = os.urandom(16)

    def close(self):
        self.socket.close()

    def send(self, kind, flags=0, stream=0, payload=b""):
        self.output += struct.pack("<IHHI", len(payload), kind, flags, stream) + payload

    def step(self, timeout):
        """Moves bytes both ways once."""
        for c in self.commands.values():
            self.feed(c)
        r, w, _ = select.select([self.socket], [self.socket] if self.output else [], [], timeout)
        if w:
            n = self.socket.send(self.output[:65536])
            del self.output[:n]
        if r:
            raw = self.socket.recv(1 << 18)
            if not raw:
                raise Ended("the connection was closed")
            self.input += raw
            self.cut()

    def cut(self):
        offset = 0
        while len(self.input) - offset >= 12:
            length, kind, flags, stream = struct.unpack_from("<IHHI", self.input, offset)
            if len(self.input) - offset < 12 + length:
                break
            payload = bytes(self.input[offset + 12:offset + 12 + length])
            offset += 12 + length
            try:
                self.frame(kind, flags, stream, payload)
            except Ended:
                self.input.clear()
                self.output.clear()
                raise
        del self.input[:offset]

    def frame(self, kind, flags, stream, payload):
        if kind == ERROR:
            raise Ended("ERROR %d: %s" % (struct.unpack_from("<I", payload)[0], take_string(payload, 4)))
        if stream == 0:
            self.frames.append((kind, payload))
            return
        c = self.commands.get(stream)
        if c is None:
            return  # given up by a test that failed
        assert not c.over, "frame %d after the end of stream %d" % (kind, stream)
        if kind == STARTED:
            (c.pid,) = struct.unpack("<I", payload)
        elif kind == EXEC_FAILED:
            c.failed = (struct.unpack_from("<I", payload)[0], take_string(payload, 4))
        elif kind == DATA:
            assert c.pid and flags not in c.eof
            c.out[flags] += payload
            c.owed[flags] += len(payload)
            assert c.owed[flags] <= WINDOW, "more than the window"
            self.give(c)
        elif kind == EOF:
            c.eof.add(flags)
        elif kind == CLOSE:
            assert flags == STDIN
            c.stdin_closed, c.stdin = True, b""
        elif kind == CREDIT:
            assert flags == STDIN
            c.stdin_credit += struct.unpack("<I", payload)[0]
            assert c.stdin_credit <= WINDOW
        elif kind == EXITED:
            assert c.eof == {STDOUT, STDERR}, "EXITED before EOF"
            c.exited = struct.unpack("<IIQQI", payload)
        else:
            raise Ended("unexpected frame %d" % kind)

    def give(self, c):
        for channel in (STDOUT, STDERR):
            if c.owed[channel] >= WINDOW // 4 and channel not in c.paused:
                self.send(CREDIT, channel, c.stream, struct.pack("<I", c.owed[channel]))
                c.owed[channel] = 0

    def feed(self, c):
        while c.stdin and c.stdin_credit and not c.stdin_closed and len(self.output) < 1 << 18:
            n = min(len(c.stdin), c.stdin_credit, DATA_MAX)
            self.send(DATA, STDIN, c.stream, bytes(c.stdin[:n]))
            c.stdin, c.stdin_credit = c.stdin[n:], c.stdin_credit - n
        if c.stdin_eof and not c.stdin and not c.stdin_closed:
            self.send(EOF, STDIN, c.stream)
            c.stdin_eof = False

    def until(self, condition, timeout=60):
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.step(min(left, 1))

    def wait_frame(self, kind, timeout=60):
        self.until(lambda: any(k == kind for k, _ in self.frames), timeout)
        i = next(i for i, (k, _) in enumerate(self.frames) if k == kind)
        return self.frames.pop(i)[1]

    def hello(self, timeout=60):
        self.send(HELLO, payload=struct.pack("<II", 1, 0) + self.nonce)
        reply = self.wait_frame(HELLO_REPLY, timeout)
        assert reply == struct.pack("<II", 1, 0) + self.nonce

    def setup(self, generation=1, hostname="box", disk_size=0, memory_max=0, address=0x0A000002, gateway=0x0A000001,
              prefix=30, nonce=None, realtime=None):
        self.machine_id, self.token = os.urandom(16), os.urandom(16)
        self.send(SETUP, payload=(nonce or self.nonce) + struct.pack("<QQ", generation, realtime or time.time_ns()) +
                  self.machine_id + self.token + os.urandom(64) +
                  struct.pack("<QQIII", disk_size, memory_max, address, gateway, prefix) + string(hostname))
        raw = self.wait_frame(RECEIPT)
        assert raw[:16] == self.nonce
        keys = ("generation", "steps", "error", "clock_step_nsec", "entropy_bytes")
        receipt = dict(zip(keys, struct.unpack_from("<QIIqI", raw, 16)))
        receipt["message"] = take_string(raw, 44)
        return receipt

    def freeze(self, flags=0):
        self.send(FREEZE, flags)
        raw = self.wait_frame(FROZEN)
        return struct.unpack_from("<I", raw)[0]

    def thaw(self):
        self.send(THAW)
        raw = self.wait_frame(THAWED)
        return struct.unpack_from("<I", raw)[0]

    def start(self, *argv, stdin=None, user="", directory="", environment=(), timeout=0):
        """Sends EXEC; stdin None is /dev/null, bytes are sent and then ended, "open" is kept open."""
        self.last_stream += 1
        c = self.commands[self.last_stream] = Command(self.last_stream)
        payload = struct.pack("<IQ", 0 if stdin is None else 1, int(timeout * 1e6)) + string(user) + string(directory)
        for strings in (argv, environment):
            payload += struct.pack("<I", len(strings)) + b"".join(map(string, strings))
        if isinstance(stdin, (bytes, bytearray)):
            c.stdin, c.stdin_eof = memoryview(stdin), True
        self.send(EXEC, 0, c.stream, payload)
        return c

    def finish(self, c, timeout=60):
        self.until(lambda: c.over, timeout)
        return c

    def run(self, *argv, timeout=0, wait=60, **kwargs):
        c = self.finish(self.start(*argv, timeout=timeout, **kwargs), wait)
        del self.commands[c.stream]
        return c

    def shell(self, script, **kwargs):
        """The standard output of a script that must succeed."""
        c = self.run("sh", "-c", script, **kwargs)
        assert c.status == (EXIT_CODE, 0), (script, c.failed, c.status, bytes(c.out[STDERR]))
        return bytes(c.out[STDOUT]).decode()

    def signal(self, c, number, tree=False):
        self.send(SIGNAL, 0, c.stream, struct.pack("<II", number, int(tree)))


def tsc_khz():
    """The host's TSC, without which a guest under TCG hangs in its calibration."""
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
        return int(float(re.search(r"tsc: Detected ([0-9.]+) MHz", log).group(1)) * 1000)
    except (AttributeError, OSError):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return int(float(re.search(r"cpu MHz\s*: ([0-9.]+)", f.read()).group(1)) * 1000)


class Machine:
    """One QEMU. Boots, or restores from the files that capture() of another has left."""

    MEMORY = 512

    def __init__(self, folder, disk, kernel=None, initrd=None, memory=None, devices=None):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        restoring = devices is not None
        self.memory = memory or os.path.join(folder, "memory")
        if not restoring:
            with open(self.memory, "wb") as f:
                f.truncate(self.MEMORY << 20)
        share = "share=off,readonly=on,rom=off" if restoring else "share=on"
        size = "%dM" % self.MEMORY
        arguments = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            "-machine", "microvm,acpi=on,pic=on,pit=on,rtc=on,isa-serial=off,memory-backend=mem,suppress-vmdesc=on",
            "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max", "-smp", "1", "-m", size,
            "-object", "memory-backend-file,id=mem,size=%s,%s,mem-path=%s" % (size, share, self.memory),
            "-global", "migration.send-configuration=off", "-global", "virtio-mmio.force-legacy=off",
            "-device", "virtio-serial-device,id=serial",
            "-chardev", "socket,id=agent,path=%s/agent,server=on,wait=off" % folder,
            "-device", "virtserialport,bus=serial.0,nr=1,chardev=agent,name=org.sandboxd1.agent",
            "-chardev", "file,id=console,path=%s/console" % folder,
            "-device", "virtconsole,bus=serial.0,nr=2,chardev=console",
            "-blockdev", "driver=file,node-name=file0,filename=%s" % disk,
            "-blockdev", "driver=raw,node-name=disk0,file=file0", "-device", "virtio-blk-device,drive=disk0",
            "-device", "virtio-rng-device",
            "-netdev", "user,id=net0,restrict=on", "-device", "virtio-net-device,netdev=net0,mac=52:54:00:12:34:56",
            "-qmp", "unix:%s/qmp,server=on,wait=off" % folder,
        ]
        if restoring:
            arguments += ["-incoming", "file:" + devices]
        else:
            khz = tsc_khz()
            arguments += ["-kernel", kernel, "-initrd", initrd, "-append",
                          "console=hvc0 quiet panic=-1 reboot=t mitigations=off tsc=reliable tsc_early_khz=%d lpj=%d" % (khz, khz * 2)]
        self.started = time.monotonic()
        with open(folder + "/qemu.log", "wb") as log:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.qmp = None

    def command(self, name, **arguments):
        if not self.qmp:
            deadline = time.monotonic() + 10
            while True:
                s = socket.socket(socket.AF_UNIX)
                try:
                    s.connect(self.folder + "/qmp")
                    break
                except OSError:
                    s.close()
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.005)
            self.qmp = s.makefile("rw")
            self.qmp_socket = s
            self.qmp.readline()
            self.command("qmp_capabilities")
        self.qmp.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
        self.qmp.flush()
        while True:
            answer = json.loads(self.qmp.readline())
            if "error" in answer:
                raise RuntimeError("%s: %s" % (name, answer["error"]["desc"]))
            if "return" in answer:
                return answer["return"]

    def capture(self, devices):
        self.command("stop")
        self.command("xen-save-devices-state", filename=devices, live=False)

    def console(self):
        with open(self.folder + "/console", "rb") as f:
            return f.read().decode(errors="replace")

    def stop(self):
        self.process.kill()
        self.process.wait()
        if self.qmp:
            self.qmp.close()
            self.qmp_socket.close()
