# SPDX-License-Identifier: LGPL-2.1-or-later
"""On a test host, finds what the tests need; elsewhere the environment says."""

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "lib"))
import guest_files  # noqa: E402

if "SANDBOXD_TEST_HOST" in os.environ:
    sys.path.insert(0, str(TESTS / "guest"))
    from agent_vm import tsc_khz

    built = TESTS.parent / "build/tests/runner"
    khz = tsc_khz()
    found = {
        "SPAWN": built / "spawn-runner",
        "ARGS": built / "machine-args",
        "PROBE": built / "jail-probe",
        "PAYLOAD": built / "kvm-payload.bin",
        "RUNNER": guest_files.LIBEXEC / "sandbox-runner",
        "KERNEL": guest_files.get("kernel"),
        "INITRD": guest_files.get("initrd"),
        "DISK": guest_files.get("root"),
        "APPEND": f"console=hvc0 quiet panic=-1 reboot=t mitigations=off tsc=reliable tsc_early_khz={khz} lpj={khz * 4}",
    }
    for name, value in found.items():
        os.environ.setdefault("RUNNER_TEST_" + name, str(value))
