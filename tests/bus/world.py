# SPDX-License-Identifier: LGPL-2.1-or-later
"""A host for the daemon, in the mount namespace that the run is in: storage on btrfs, configuration, a VMM and a kernel that are
good enough to be looked at, a runner, and a bus with systemd and polkit on it."""

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import client

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("SANDBOXD_BUILD", HERE.parent.parent / "build"))
STORAGE = Path("/var/lib/sandboxd")
RUNTIME = Path("/run/sandboxd")
PLACE = Path("/run/test")
BUS = Path("/run/dbus/system_bus_socket")
CONFIGURATION = Path("/etc/sandboxd/sandboxd.conf")
VMM_VERSION = "10.0.2 (Debian 1:10.0.2+ds-2)"
SNAPSHOT = "0123456789ab"
USERS = (1000, 1001)
MIB = 1 << 20
LIMIT = 20

SUBVOL_CREATE = 0x5000940E

# As a distribution's system bus, with the service's own policy.
BUS_CONFIG = f"""<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={BUS}</listen>
  <limit name="max_connections_per_user">1000</limit>
  <limit name="max_replies_per_connection">1000</limit>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
  </policy>
  <policy user="root">
    <allow own="*"/>
    <allow send_destination="*"/>
  </policy>
  <include>{HERE.parent.parent}/dbus/org.sandboxd1.conf</include>
</busconfig>
"""

MANIFEST = {
    "format": 1, "id": SNAPSHOT, "name": "base", "version": "ab" * 16, "description": "A base", "created_usec": 1700000000000000,
    "vmm_version": VMM_VERSION, "accelerator": "tcg", "cpu_model": "max", "machine": 1, "memory": 256 * MIB, "cpus": 2,
    "volumes": 4, "kernel": "6.1.0-test", "disk_size": 8 * MIB, "generation": 7, "directory": "/tmp",
    "environment": ["LANG=C.UTF-8"],
}


def wait_for(condition, what, limit=LIMIT):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError(f"waited in vain for {what}")


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def make_subvolume(path):
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.ioctl(parent, SUBVOL_CREATE, bytearray(struct.pack("=q4088s", 0, path.name.encode())))
    finally:
        os.close(parent)


def is_subvolume(path):
    return path.stat().st_ino == 256


def is_alive(pid):
    """Zombies are dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def library_directory():
    """Where the daemon looks for its runner: it was compiled in."""
    options = json.loads((BUILD / "meson-info/intro-buildoptions.json").read_text())
    return Path(next(o["value"] for o in options if o["name"] == "prefix")) / "lib/sandboxd"


class World:
    def __init__(self, directory):
        self.directory = directory
        self.daemon = None
        self.log = directory / "log"
        self.extra_mounts = []
        self.clients = []
        self.service = Path("/sys/fs/cgroup") / os.environ["SANDBOXD_TEST_CGROUP"] / "sandboxd.service"
        self.make_mounts()
        self.make_host()
        self.make_users()
        self.make_bus()

    # The host

    def overlay(self, path):
        """What is made below path from here on is gone with this run."""
        name = str(path).replace("/", "-")
        upper, work = self.tmpfs / f"upper{name}", self.tmpfs / f"work{name}"
        upper.mkdir()
        work.mkdir()
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", path)

    def make_mounts(self):
        self.tmpfs = self.directory / "tmpfs"
        self.tmpfs.mkdir()
        mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", self.tmpfs)
        library = library_directory()
        for path in (Path("/etc"), Path("/var/lib"), next(p for p in library.parents if p.exists())):
            self.overlay(path)
        mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
        mount("-t", "cgroup2", "none", "/sys/fs/cgroup")
        image = self.directory / "storage.img"
        image.touch()
        os.truncate(image, 2048 * MIB)
        subprocess.run(["mkfs.btrfs", "-q", image], check=True)
        STORAGE.mkdir(mode=0o700, exist_ok=True)
        mount("-o", "loop", image, STORAGE)
        image.unlink()
        for name in ("sandboxes", "snapshots", "templates", "work"):
            (STORAGE / name).mkdir()
        library.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "fake_runner.py", library / "sandbox-runner")
        self.runner = library / "sandbox-runner"
        CONFIGURATION.parent.mkdir(exist_ok=True)

    def make_host(self):
        PLACE.mkdir()
        self.vmm = PLACE / "qemu"
        self.write_vmm(f"QEMU emulator version {VMM_VERSION}")
        kernel = bytearray(1024)
        kernel[0x202:0x206] = b"HdrS"
        kernel[0x20E:0x210] = struct.pack("<H", 0x80)
        kernel[0x280:0x290] = b"6.1.0-test (me) "
        (PLACE / "boot").mkdir()
        (PLACE / "boot/vmlinuz").write_bytes(kernel)
        (PLACE / "usr/lib/modules/6.1.0-test").mkdir(parents=True)

    def make_users(self):
        """The bus serves nobody that it can't look up."""
        for uid in USERS:
            with contextlib.suppress(KeyError):
                pwd.getpwuid(uid)
                continue
            with open("/etc/passwd", "a") as users, open("/etc/group", "a") as groups:
                users.write(f"sandbox-test-{uid}:x:{uid}:{uid}::/:/usr/sbin/nologin\n")
                groups.write(f"sandbox-test-{uid}:x:{uid}:\n")

    def write_vmm(self, says):
        self.vmm.write_text(f"#!/bin/sh\necho '{says}'\n")
        self.vmm.chmod(0o755)

    def make_bus(self):
        BUS.parent.mkdir()
        (PLACE / "bus.conf").write_text(BUS_CONFIG)
        self.address = f"unix:path={BUS}"
        os.environ["DBUS_SYSTEM_BUS_ADDRESS"] = self.address
        command = ["dbus-daemon", "--nofork", "--nopidfile", "--nosyslog", f"--config-file={PLACE}/bus.conf"]
        self.broker = subprocess.Popen(command)
        wait_for(BUS.exists, "the bus")
        self.mocks = subprocess.Popen(["/usr/bin/python3", HERE / "mocks.py"], stdout=subprocess.PIPE)
        assert self.mocks.stdout.readline() == b"ready\n"
        self.root = client.Client(self.address)

    def close(self):
        self.root.close()
        for process in (self.mocks, self.broker):
            process.terminate()
            process.wait()
        subprocess.run(["umount", STORAGE], check=True)
        # The rest goes with the namespace.

    # One test's

    def reset(self):
        for mock in ("PolicyKit1", "systemd1"):
            self.mock(mock, "Reset")
        CONFIGURATION.write_text("")
        self.configure()
        self.write_template()
        self.log.write_bytes(b"")

    def clear(self):
        if self.daemon:
            self.kill()
        self.root.stop_listening()
        for c in self.clients:
            c.close()
        self.clients = []
        for procs in self.service.parent.glob("**/cgroup.procs"):
            for pid in procs.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for path in self.extra_mounts:
            subprocess.run(["umount", path], check=True)
        self.extra_mounts = []
        for path in [*STORAGE.glob("*/*"), *RUNTIME.glob("*"), *STORAGE.glob("*.jsonl"), *PLACE.glob("requests-*"),
                     PLACE / "runner.json", PLACE / "runner-fails"]:
            if path.is_dir():
                subprocess.run(["rm", "-rf", path], check=True)
            else:
                path.unlink(missing_ok=True)
        self.write_vmm(f"QEMU emulator version {VMM_VERSION}")

    def configure(self, **more):
        values = {"Accelerator": "tcg", "VMM": self.vmm, "Kernel": PLACE / "boot/vmlinuz",
                  "AllowMissingControllers": "cpu memory pids", "AgentTimeoutSec": 5} | more
        lines = [f"{k}={v}\n" for k, v in values.items() if v is not None]
        CONFIGURATION.write_text("[Sandboxd]\n" + "".join(lines))

    def bind(self, source, target):
        """Puts something in the place of a host's file, until the end of the test."""
        mount("--bind", source, target)
        self.extra_mounts.append(target)

    def write_template(self, name="base", **changes):
        manifest = MANIFEST | {"name": name} | changes
        snapshot = STORAGE / "snapshots" / manifest["id"]
        if not snapshot.exists():
            make_subvolume(snapshot)
            for file, size in (("disk.raw", 8 * MIB), ("memory", MIB), ("devices", 4096)):
                (snapshot / file).write_bytes(file.encode() * (size // 16))
                os.truncate(snapshot / file, size)
        (snapshot / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))
        published = STORAGE / "templates" / f"{name}.json"
        published.write_text(json.dumps({"name": name, "snapshot": manifest["id"]}))

    # The daemon

    def spawn(self, **environment):
        """In a control group, as systemd would."""
        self.service.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen(["sh", "-c", f'echo $$ >{self.service}/cgroup.procs; exec "$0"',
                                            self.binary()], stderr=log, env=os.environ | environment)

    def is_serving(self):
        if self.daemon.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.daemon.returncode}:\n{self.log.read_text()}")
        return self.root.bus.name_has_owner(client.NAME)

    def start(self, **environment):
        self.spawn(**environment)
        wait_for(self.is_serving, "the daemon's name")

    def reap(self):
        """Waits for the daemon, then ends what is left in its group (KillMode=control-group). Returns its status."""
        status = self.daemon.wait(LIMIT)
        self.daemon = None
        (self.service / "cgroup.kill").write_text("1")
        wait_for(lambda: not (self.service / "cgroup.procs").read_text(), "the end of the daemon's processes")
        return status

    def stop(self):
        """Sandboxes go on."""
        self.daemon.terminate()
        status = self.reap()
        wait_for(lambda: not self.root.bus.name_has_owner(client.NAME), "the end of the name")
        assert status == 0, f"the daemon ended with {status}:\n{self.log.read_text()}"

    def kill(self):
        self.daemon.kill()
        self.reap()
        wait_for(lambda: not self.root.bus.name_has_owner(client.NAME), "the end of the name")

    def fails_to_start(self, **environment):
        """Returns what it says."""
        self.log.write_bytes(b"")
        self.spawn(**environment)
        status = self.reap()
        assert status not in (0, -signal.SIGSEGV, -signal.SIGABRT), self.log.read_text()
        return self.log.read_text()

    def binary(self):
        return BUILD / "src/sandboxd/sandboxd"

    # Others on the bus

    def user(self, uid=1000):
        c = client.Client(self.address, uid)
        self.clients.append(c)
        return c

    def mock(self, service, member, signature="", *values):
        path = {"PolicyKit1": "/org/freedesktop/PolicyKit1/Authority", "systemd1": "/org/freedesktop/systemd1"}[service]
        # By the name that never goes away: polkit's may be absent.
        return self.root.call(path, "org.sandboxd1.Test", member, signature, *values, name="org.freedesktop.systemd1")

    def polkit(self, answer):
        self.mock("PolicyKit1", "Configure", "s", json.dumps({"answer": answer}))

    def polkit_asked(self):
        return json.loads(self.mock("PolicyKit1", "State"))["asked"]

    def systemd(self, **settings):
        self.mock("systemd1", "Configure", "s", json.dumps(settings))

    def systemd_state(self):
        return json.loads(self.mock("systemd1", "State"))

    def set_unit(self, name, **values):
        self.mock("systemd1", "SetUnit", "ss", name, json.dumps(values))

    def behave(self, **behaviour):
        """What runners do from now on."""
        (PLACE / "runner.json").write_text(json.dumps(behaviour))

    # What is there

    def requests(self, id):
        """What a runner was asked."""
        path = PLACE / f"requests-{id}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ledger(self):
        path = STORAGE / "usage.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def record(self, id):
        return json.loads((STORAGE / f"sandboxes/{id}.json").read_text())

    def leader(self, path):
        return int(self.root.get(path, client.SANDBOX, "Leader"))

    def traces(self):
        """What there is of any sandbox on this host; records that were put aside stay."""
        sandboxes = [p for p in STORAGE.glob("sandboxes/*") if p.suffix != ".bad"]
        found = [str(p) for p in [*sandboxes, *STORAGE.glob("work/*"), *filter(Path.is_dir, RUNTIME.glob("*"))]]
        for p in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"sandbox-runner" in (p / "cmdline").read_bytes() and is_alive(p.name):
                    found.append(f"process {p.name}")
        return found + [n for n, values in self.systemd_state()["units"].items() if values["ActiveState"] != "inactive"]
