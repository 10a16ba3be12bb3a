# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fixtures for tests of the real daemon. They need root, and a mount and a pid namespace of their own: as soon as a test asks for
the fixture `host`, the run starts once more inside of them (see in-namespace)."""

import os
import signal
import sys
from pathlib import Path

import pytest

# Whoever starts the suite in the background may have it ignore these; its children shall have them as a shell's have.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

HERE = Path(__file__).resolve().parent
INSIDE = "SANDBOXD_TEST_CGROUP" in os.environ


def needs_host(item):
    return "host" in getattr(item, "fixturenames", ())


def pytest_collection_finish(session):
    config = session.config
    if INSIDE or config.option.collectonly or os.geteuid() != 0 or not any(map(needs_host, session.items)):
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture:
        capture.stop_global_capturing()
    sys.stdout.flush()
    os.chdir(config.invocation_params.dir)
    command = [sys.executable, "-m", "pytest", *map(str, config.invocation_params.args)]
    os.execv(HERE / "in-namespace", ["in-namespace", *command])


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    """What a host has: storage, configuration, a bus, systemd and polkit (mocks of both)."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount namespace, a loop device and control groups")
    from world import World

    world = World(tmp_path_factory.mktemp("host"))
    yield world
    world.close()


@pytest.fixture
def world(host):
    """A host in its first state, for one test."""
    host.reset()
    yield host
    host.clear()


@pytest.fixture
def daemon(world):
    """A daemon that serves. It must end well, whatever the test did to it."""
    world.start()
    yield world
    if world.daemon:
        world.stop()
