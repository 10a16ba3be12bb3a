# SPDX-License-Identifier: LGPL-2.1-or-later
"""A controller for one sandbox-runner, for tests and measurements: what sandboxd does, without sandboxd."""

import contextlib
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import time

MESSAGE_MAX = 2 * 1024 * 1024


class Controller:
    """One connection to a runner."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.serial = 0
        self.events = []
        self.replies = {}
        self.hello = self.receive(10)
        assert self.hello['type'] == 'hello', self.hello

    def receive(self, timeout):
        """The next message, its descriptors as {name: fd} in 'fds'; None at the end of the connection."""
        if not select.select([self.socket], [], [], timeout)[0]:
            raise TimeoutError('the runner says nothing')
        data, fds, _, _ = socket.recv_fds(self.socket, MESSAGE_MAX, 8)
        if not data:
            return None
        message = json.loads(data)
        message['fds'] = dict(zip(message.get('fds', []), fds))
        return message

    def send(self, kind, fds=None, **fields):
        self.serial += 1
        body = {'type': kind, 'serial': self.serial, **fields}
        if fds:
            body['fds'] = list(fds)
        socket.send_fds(self.socket, [json.dumps(body).encode()], list(fds.values()) if fds else [])
        return self.serial

    def pump(self, timeout):
        message = self.receive(timeout)
        if message is None:
            raise ConnectionError('the runner closed the connection')
        if message['type'] == 'reply':
            self.replies[message['serial']] = message
        else:
            self.events.append(message)

    def reply(self, serial, timeout=60):
        end = time.monotonic() + timeout
        while serial not in self.replies:
            self.pump(max(0, end - time.monotonic()))
        return self.replies.pop(serial)

    def request(self, kind, fds=None, timeout=60, **fields):
        return self.reply(self.send(kind, fds, **fields), timeout)

    def event(self, kind, timeout=60, **fields):
        """The next event of a kind, whose fields are as given."""
        end = time.monotonic() + timeout
        while True:
            for message in self.events:
                if message['type'] == kind and all(message.get(k) == v for k, v in fields.items()):
                    self.events.remove(message)
                    return message
            self.pump(max(0, end - time.monotonic()))

    def close(self):
        self.socket.close()


class Runner:
    """A runner process and the controller that talks to it."""

    processes = 0

    def __init__(self, spawn, program, folder, stderr=None):
        self.id = secrets.token_hex(6)
        os.makedirs(folder, exist_ok=True)
        self.path = f'{folder}/{self.id}'
        self.process = subprocess.Popen([spawn, program, self.id, self.path], stdout=subprocess.PIPE, text=True,
                                        stderr=stderr)
        self.pid = int(self.process.stdout.readline().split()[1])
        self.control = Controller(self.path)

    def reconnect(self):
        self.control.close()
        self.control = Controller(self.path)

    def start(self, mode, disk, memory, devices=None, kernel=None, initrd=None, memory_mib=512, uid=1900000001, **fields):
        request = {
            'id': self.id, 'uid': uid, 'mode': mode, 'accelerator': 'tcg', 'vmm': '/usr/bin/qemu-system-x86_64',
            'memory': memory_mib << 20, 'cpus': 1, 'volumes': 4, 'deadline_usec': 0, 'agent_timeout_usec': 300000000,
            'hostname': 'box-' + self.id, 'machine_id': secrets.token_hex(16), 'boot_token': secrets.token_hex(16),
            'generation': 1, 'memory_max': 0, 'disk_size': 0, **fields}
        with contextlib.ExitStack() as stack:
            def opened(path, flags):
                fd = os.open(path, flags | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                return fd
            fds = {'disk': opened(disk, os.O_RDWR),
                   'memory': opened(memory, os.O_RDWR if mode == 'boot' else os.O_RDONLY)}
            if devices:
                fds['devices'] = opened(devices, os.O_RDONLY)
            if kernel:
                fds['kernel'] = opened(kernel, os.O_RDONLY)
            if initrd:
                fds['initrd'] = opened(initrd, os.O_RDONLY)
            return self.control.request('start', fds, timeout=330, **request)

    def capture(self, devices):
        fd = os.open(devices, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            return self.control.request('capture', {'devices': fd})
        finally:
            os.close(fd)

    def exec(self, *argv, fds=None, **fields):
        """Starts a command. Returns its number; raises OSError with the runner's errno."""
        Runner.processes += 1
        number = Runner.processes
        reply = self.control.request('exec', fds, process=number, argv=list(argv), **fields)
        if reply['error']:
            raise OSError(reply['error'], reply['message'])
        return number

    def wait(self, number, timeout=60):
        event = self.control.event('process-exited', timeout, process=number)
        self.control.request('forget', process=number)
        return event

    def run(self, *argv, stdin=None, capture=1 << 20, timeout=60, **fields):
        """Runs a command with captured output. Returns (exit event, stdout, stderr)."""
        fds = {}
        if stdin is not None:
            memory = os.memfd_create('stdin')
            os.write(memory, stdin)
            os.lseek(memory, 0, os.SEEK_SET)
            fds['stdin'] = memory
        number = self.exec(*argv, fds=fds, capture=capture, **fields)
        for fd in fds.values():
            os.close(fd)
        event = self.wait(number, timeout)
        return event, self.kept(event, 'stdout'), self.kept(event, 'stderr')

    @staticmethod
    def kept(event, name):
        with open(event['fds'][name], 'rb') as f:
            return f.read()

    def end(self):
        """Ends it; returns what the spawner says of the runner's exit."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError):
                self.control.send('end')
        return self.exited()

    def exited(self, timeout=10):
        out, _ = self.process.communicate(timeout=timeout)
        self.control.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        return out.strip()


def clone(source, target):
    """A copy of a disk that shares its blocks where the file system can."""
    subprocess.run(['cp', '--reflink=auto', '--sparse=always', source, target], check=True)


def bake(make_runner, folder, kernel, initrd, disk, memory_mib=512, append='', uid=1900000001):
    """Boots once and captures, into folder. Returns the replies."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    clone(disk, f'{folder}/disk.raw')
    with open(f'{folder}/memory', 'wb') as f:
        f.truncate(memory_mib << 20)
    os.chown(f'{folder}/memory', uid, uid)
    runner = make_runner()
    started = runner.start('boot', f'{folder}/disk.raw', f'{folder}/memory', kernel=kernel, initrd=initrd,
                           memory_mib=memory_mib, uid=uid, command_line=append)
    if started['error']:
        raise RuntimeError(started['message'])
    captured = runner.capture(f'{folder}/devices')
    if captured['error']:
        raise RuntimeError(captured['message'])
    assert runner.end() == 'exit 0'
    os.chown(f'{folder}/memory', 0, 0)
    os.chmod(f'{folder}/memory', 0o444)
    return started, captured
