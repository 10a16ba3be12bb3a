# SPDX-License-Identifier: LGPL-2.1-or-later
"""org.freedesktop.LogControl1."""

import dbus
import pytest
from client import Failure, PROPERTIES

PATH = "/org/freedesktop/LogControl1"
INTERFACE = "org.freedesktop.LogControl1"


def set_property(daemon, name, value):
    daemon.root.call(PATH, PROPERTIES, "Set", "ssv", INTERFACE, name, value)


def test_level_is_read_and_written(daemon):
    assert daemon.root.get(PATH, INTERFACE, "LogLevel") == "info"
    for level in ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"):
        set_property(daemon, "LogLevel", level)
        assert daemon.root.get(PATH, INTERFACE, "LogLevel") == level


def test_unknown_level_is_refused(daemon):
    with pytest.raises(Failure) as e:
        set_property(daemon, "LogLevel", "loud")
    assert e.value.name == "InvalidArgs" and "loud" in e.value.message
    assert daemon.root.get(PATH, INTERFACE, "LogLevel") == "info"


def test_level_of_a_wrong_type_is_refused(daemon):
    with pytest.raises(Failure):
        set_property(daemon, "LogLevel", dbus.UInt32(7))


def test_level_decides_what_is_logged(daemon):
    set_property(daemon, "LogLevel", "err")
    id, path = daemon.root.create()
    daemon.root.remove(path)
    assert id not in daemon.log.read_text()
    set_property(daemon, "LogLevel", "info")
    id, path = daemon.root.create()
    assert id in daemon.log.read_text()


def test_identity(daemon):
    assert daemon.root.get(PATH, INTERFACE, "SyslogIdentifier") == "sandboxd"
    assert daemon.root.get(PATH, INTERFACE, "LogTarget") == "console"
    with pytest.raises(Failure):
        set_property(daemon, "LogTarget", "journal")


def test_level_is_roots(daemon):
    """So says the bus's policy, before the daemon is asked."""
    user = daemon.user()
    daemon.polkit("yes")
    with pytest.raises(Failure) as e:
        user.get(PATH, INTERFACE, "LogLevel")
    assert e.value.name == "AccessDenied"
    with pytest.raises(Failure) as e:
        user.call(PATH, PROPERTIES, "Set", "ssv", INTERFACE, "LogLevel", "debug")
    assert e.value.name == "AccessDenied"
    assert daemon.root.get(PATH, INTERFACE, "LogLevel") == "info"


def test_name_is_roots(world):
    with pytest.raises(dbus.DBusException) as e:
        world.user().bus.request_name("org.sandboxd1")
    assert e.value.get_dbus_name() == "org.freedesktop.DBus.Error.AccessDenied"
