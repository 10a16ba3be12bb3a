# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine that the runner builds, captured and restored under KVM and under TCG, with a payload in real mode instead
of a kernel: it runs wherever /dev/kvm opens, even where nested virtualisation can't carry a stock kernel. Needs, in the
environment, RUNNER_TEST_ARGS (the built machine-args) and RUNNER_TEST_PAYLOAD (the assembled kvm-payload)."""

import json
import os
import select
import shutil
import socket
import subprocess

import pytest

ARGS = os.environ.get('RUNNER_TEST_ARGS')
PAYLOAD = os.environ.get('RUNNER_TEST_PAYLOAD')
MEMORY_MIB = 128
KVM_VMM = shutil.which('qemu-system-x86_64-microvm') or '/usr/bin/qemu-system-x86_64'
pytestmark = pytest.mark.skipif(not ARGS or not PAYLOAD, reason='RUNNER_TEST_ARGS or RUNNER_TEST_PAYLOAD not set')


class Machine:
    def __init__(self, accelerator, mode, vmm, files):
        self.pairs = {n: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM if n == 'network' else socket.SOCK_STREAM)
                      for n in ('qmp', 'agent', 'console', 'network')}
        fds = {n: p[1].fileno() for n, p in self.pairs.items()}
        opened = {n: os.open(path, flags) for n, (path, flags) in files.items()}
        if accelerator == 'kvm':
            opened['kvm'] = os.open('/dev/kvm', os.O_RDWR)
        fds |= opened
        arguments = subprocess.check_output([ARGS, vmm, accelerator, mode, PAYLOAD, str(MEMORY_MIB), '4',
                                             *(f'{k}={v}' for k, v in fds.items())], text=True).splitlines()
        self.process = subprocess.Popen(arguments, pass_fds=fds.values(), stdin=subprocess.DEVNULL)
        for fd in opened.values():
            os.close(fd)
        for pair in self.pairs.values():
            pair[1].close()
        self.pairs['network'][0].close()
        self.text = self.answers = b''

    def counter(self, timeout=30):
        """The next number that it prints; None when it says nothing. A line that was begun before a capture has only its
        end after it: it is skipped."""
        console = self.pairs['console'][0]
        while True:
            while b'\n' not in self.text:
                if not select.select([console], [], [], timeout)[0]:
                    return None
                self.text += console.recv(4096)
            line, self.text = self.text.split(b'\n', 1)
            if len(line) == 8:
                return int(line, 16)

    def last_counter(self):
        last = None
        while (number := self.counter(0.3)) is not None:
            last = number
        return last

    def command(self, name, fd=None, **arguments):
        qmp = self.pairs['qmp'][0]
        text = json.dumps({'execute': name, 'arguments': arguments}).encode() + b'\n'
        socket.send_fds(qmp, [text], [fd] if fd is not None else [])
        while True:
            while b'\n' not in self.answers:
                self.answers += qmp.recv(65536)
            line, self.answers = self.answers.split(b'\n', 1)
            answer = json.loads(line)
            assert 'error' not in answer, answer
            if 'return' in answer:
                return answer['return']

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize('accelerator,vmm', [('kvm', KVM_VMM), ('tcg', '/usr/bin/qemu-system-x86_64')])
def test_counter_goes_on(accelerator, vmm, tmp_path):
    if accelerator == 'kvm' and not os.access('/dev/kvm', os.R_OK | os.W_OK):
        pytest.skip('no /dev/kvm')
    memory, disk, devices = (str(tmp_path / n) for n in ('memory', 'disk', 'devices'))
    for path, size in (memory, MEMORY_MIB << 20), (disk, 16 << 20), (devices, 0):
        with open(path, 'wb') as f:
            f.truncate(size)

    baked = Machine(accelerator, 'boot', vmm, {'memory': (memory, os.O_RDWR), 'disk': (disk, os.O_RDWR)})
    try:
        assert baked.counter() == 1
        while baked.counter() < 20:
            pass
        baked.command('qmp_capabilities')
        baked.command('stop')
        fd = os.open(devices, os.O_WRONLY)
        fdset = baked.command('add-fd', fd)['fdset-id']
        os.close(fd)
        baked.command('xen-save-devices-state', filename=f'/dev/fdset/{fdset}')
        stopped_at = baked.last_counter() or 20
    finally:
        baked.kill()
    os.chmod(memory, 0o444)
    assert 0 < os.path.getsize(devices) < 65536

    for _ in range(3):
        restored = Machine(accelerator, 'restore', vmm, {'memory': (memory, os.O_RDONLY), 'disk': (disk, os.O_RDWR),
                                                         'devices': (devices, os.O_RDONLY)})
        try:
            # It prints where it stood, not from the start, and not where another copy of it got to.
            first = restored.counter()
            assert stopped_at <= first <= stopped_at + 2
            assert restored.counter() == first + 1
        finally:
            restored.kill()
