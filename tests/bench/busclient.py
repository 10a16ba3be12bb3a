# SPDX-License-Identifier: LGPL-2.1-or-later
"""A client of org.sandboxd1 with one lasting connection, as a service would have."""

import dbus

NAME = "org.sandboxd1"


class Client:
    def __init__(self):
        self.bus = dbus.SystemBus(private=True)
        self.manager = self.interface("/org/sandboxd1", "Manager")

    def interface(self, path, name):
        return dbus.Interface(self.bus.get_object(NAME, path, introspect=False), f"{NAME}.{name}")

    def create(self, template):
        _, path = self.manager.CreateSandbox(template, dbus.Dictionary({}, signature="sv"), dbus.UInt64(0),
                                             signature="sa{sv}t", timeout=300)
        return path

    def run(self, path, argv):
        result = self.interface(path, "Sandbox").Run(argv, dbus.Dictionary({}, signature="sv"), dbus.UInt64(0),
                                                     signature="asa{sv}t", timeout=300)
        return str(result[0]), int(result[1])

    def timings(self, path):
        properties = dbus.Interface(self.bus.get_object(NAME, path, introspect=False), "org.freedesktop.DBus.Properties")
        return {str(k): int(v) for k, v in properties.Get(f"{NAME}.Sandbox", "TimingsUSec").items()}

    def remove(self, path):
        self.interface(path, "Sandbox").Remove(dbus.UInt64(0), signature="t", timeout=60)
