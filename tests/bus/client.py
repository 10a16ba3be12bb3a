# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls over the bus, as any user: who a connection belongs to is decided when it is made."""

import os

import dbus
import dbus.bus
import dbus.lowlevel
import dbus.mainloop.glib
from gi.repository import GLib

NAME = "org.sandboxd1"
ROOT = "/org/sandboxd1"
MANAGER = "org.sandboxd1.Manager"
SANDBOX = "org.sandboxd1.Sandbox"
PROCESS = "org.sandboxd1.Process"
TEMPLATE = "org.sandboxd1.Template"
JOB = "org.sandboxd1.Job"
PROPERTIES = "org.freedesktop.DBus.Properties"
OBJECTS = "org.freedesktop.DBus.ObjectManager"
LIMIT = 20  # seconds for any reply

MAIN_LOOP = dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)


class Failure(Exception):
    """An error reply."""

    def __init__(self, name, message):
        super().__init__(f"{name}: {message}")
        self.name = name.removeprefix("org.sandboxd1.Error.").removeprefix("org.freedesktop.DBus.Error.")
        self.full_name = name
        self.message = message


class Pending:
    """A call under way."""

    def __init__(self):
        self.reply = None

    def done(self):
        context = GLib.MainContext.default()
        while context.iteration(False):
            pass
        return self.reply is not None

    def result(self, timeout=LIMIT):
        """The reply's values: None, the only one, or a list."""
        context = GLib.MainContext.default()
        late = []
        timer = GLib.timeout_add(int(timeout * 1000), lambda: late.append(1) or True)
        while self.reply is None and not late:
            context.iteration(True)
        GLib.source_remove(timer)
        assert self.reply is not None, f"no reply within {timeout} s"
        values = self.reply.get_args_list()
        if isinstance(self.reply, dbus.lowlevel.ErrorMessage):
            raise Failure(self.reply.get_error_name(), str(values[0]) if values else "")
        return values[0] if len(values) == 1 else values or None


class Client:
    def __init__(self, address, uid=0):
        self.uid = uid
        os.seteuid(uid)
        try:
            self.bus = dbus.bus.BusConnection(address, mainloop=MAIN_LOOP)
        finally:
            os.seteuid(0)
        self.bus.set_exit_on_disconnect(False)
        self.matches = []

    def close(self):
        self.bus.close()

    def start(self, path, interface, member, signature="", *values, interactive=False, name=NAME):
        message = dbus.lowlevel.MethodCallMessage(name, path, interface, member)
        message.append(*values, signature=signature)
        if interactive:
            message.set_allow_interactive_authorization(True)
        pending = Pending()
        self.bus.send_message_with_reply(message, lambda reply: setattr(pending, "reply", reply), timeout_s=2 * LIMIT)
        self.bus.flush()
        return pending

    def call(self, *args, timeout=LIMIT, **keywords):
        return self.start(*args, **keywords).result(timeout)

    def manager(self, member, signature="", *values, **keywords):
        return self.call(ROOT, MANAGER, member, signature, *values, **keywords)

    def start_create(self, template="base", **options):
        return self.start(ROOT, MANAGER, "CreateSandbox", "sa{sv}t", template, options, 0)

    def create(self, template="base", **options):
        """Returns id and path."""
        return [str(v) for v in self.start_create(template, **options).result()]

    def remove(self, path):
        return self.call(path, SANDBOX, "Remove", "t", 0)

    def start_run(self, path, *argv, **options):
        return self.start(path, SANDBOX, "Run", "asa{sv}t", argv, options, 0)

    def run(self, path, *argv, **options):
        """Returns result, status, stdout, stderr, truncated…, cpu, memory."""
        return self.start_run(path, *argv, **options).result()

    def start_exec(self, path, *argv, **options):
        return self.start(path, SANDBOX, "Exec", "asa{sv}t", dbus.Array(argv, "s"), dbus.Dictionary(options, "sv"), 0)

    def exec(self, path, *argv, **options):
        """Returns the process's path, its id and the pipes."""
        return self.start_exec(path, *argv, **options).result()

    def wait(self, process):
        return self.call(process, PROCESS, "Wait", "t", 0)

    def get(self, path, interface, name):
        return self.call(path, PROPERTIES, "Get", "ss", interface, name)

    def get_all(self, path, interface):
        return self.call(path, PROPERTIES, "GetAll", "s", interface)

    def listen(self, **match):
        """A list to which signals are added as they come: (member, path, values)."""
        heard = []

        def on_signal(*values, member=None, path=None):
            heard.append((str(member), str(path), values))

        # What has come already, because of an earlier match, isn't meant.
        while GLib.MainContext.default().iteration(False):
            pass
        self.matches.append(self.bus.add_signal_receiver(on_signal, member_keyword="member", path_keyword="path", **match))
        return heard

    def stop_listening(self):
        for match in self.matches:
            match.remove()
        self.matches = []


def u64(value):
    return dbus.UInt64(value)


def strings(*values):
    return dbus.Array(values, "s")
