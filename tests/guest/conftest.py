# SPDX-License-Identifier: LGPL-2.1-or-later
"""One booted machine for all tests of the agent."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import guest_files  # noqa: E402
from agent_vm import STEPS_ALL, Agent, Machine  # noqa: E402


@pytest.fixture(scope="session", name="folder")
def fixture_folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("agent"))


@pytest.fixture(scope="session", name="disk")
def fixture_disk(folder):
    path = folder + "/disk"
    subprocess.run(["cp", "--sparse=always", guest_files.need("root"), path], check=True)
    return path


@pytest.fixture(scope="session", name="machine")
def fixture_machine(folder, disk):
    machine = Machine(folder + "/machine", disk, guest_files.need("kernel"), guest_files.need("initrd"))
    yield machine
    print(machine.console()[-3000:])
    machine.stop()


@pytest.fixture(scope="session", name="connection")
def fixture_connection(machine):
    a = Agent(machine.folder + "/agent")
    a.hello(300)
    receipt = a.setup()
    assert receipt["steps"] == STEPS_ALL, receipt
    return a


@pytest.fixture(name="a")
def fixture_a(connection, request):
    """The agent, set up. What a failed test left is cut off."""
    failed = request.session.testsfailed
    yield connection
    if request.session.testsfailed > failed:
        connection.commands.clear()
        connection.hello()
        connection.setup()
