# SPDX-License-Identifier: LGPL-2.1-or-later
"""sandbox-runner with a real VMM and a real guest, but without sandboxd. Needs root, and in the environment:
RUNNER_TEST_SPAWN and RUNNER_TEST_RUNNER (the built spawn-runner and sandbox-runner), RUNNER_TEST_KERNEL,
RUNNER_TEST_INITRD, RUNNER_TEST_DISK (an ext4 image of a Debian), RUNNER_TEST_APPEND (the kernel's command line);
optionally RUNNER_TEST_PROBE (the built jail-probe) and RUNNER_TEST_FOLDER, where the template is kept between runs."""

import errno
import hashlib
import os
import re
import signal
import socket
import subprocess
import time

import pytest

import runner_vm

ENV = {k: os.environ.get('RUNNER_TEST_' + k.upper())
       for k in ('spawn', 'runner', 'kernel', 'initrd', 'disk', 'append')}
pytestmark = pytest.mark.skipif(not all(ENV.values()) or os.getuid() != 0,
                                reason='RUNNER_TEST_… not set, or not root')
UID = 1900000001


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
    return os.environ.get('RUNNER_TEST_FOLDER') or str(tmp_path_factory.mktemp('runner'))


@pytest.fixture(scope='session')
def make(folder):
    return lambda: runner_vm.Runner(ENV['spawn'], ENV['runner'], folder + '/run')


@pytest.fixture(scope='session')
def template(folder, make):
    path = folder + '/template'
    if not os.path.exists(path + '/devices'):
        runner_vm.bake(make, path, ENV['kernel'], ENV['initrd'], ENV['disk'], append=ENV['append'])
    return path


@pytest.fixture(scope='session')
def restore(folder, make, template):
    def f(**fields):
        runner = make()
        disk = f'{folder}/run/{runner.id}.raw'
        runner_vm.clone(template + '/disk.raw', disk)
        reply = runner.start('restore', disk, template + '/memory', template + '/devices', generation=2, **fields)
        os.unlink(disk)
        assert reply['error'] == 0, reply
        runner.started = reply
        return runner
    return f


@pytest.fixture(scope='module')
def box(restore):
    runner = restore()
    yield runner
    assert runner.end() == 'exit 0'


def vmm_of(runner):
    return int(subprocess.check_output(['pgrep', '-P', str(runner.pid)]))


def status_of(pid):
    with open(f'/proc/{pid}/status', encoding='ascii') as f:
        return dict(line.rstrip('\n').split(':\t', 1) for line in f if ':\t' in line)


# --- the jail

def test_privileges(box):
    for pid in (box.pid, vmm_of(box)):
        s = status_of(pid)
        assert s['Uid'].split() == [str(UID)] * 4 and s['Gid'].split() == [str(UID)] * 4
        assert s['Groups'].strip() == ''
        assert all(int(s[k], 16) == 0 for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'))
        assert (s['NoNewPrivs'], s['Seccomp']) == ('1', '2')


def test_namespaces(box):
    for pid in (box.pid, vmm_of(box)):
        for kind in ('mnt', 'pid', 'net', 'ipc', 'uts'):
            assert os.readlink(f'/proc/{pid}/ns/{kind}') != os.readlink(f'/proc/self/ns/{kind}')
        with open(f'/proc/{pid}/net/dev', encoding='ascii') as f:
            assert [line.split(':')[0].strip() for line in f][2:] == ['lo']


def test_files(box):
    with open(f'/proc/{vmm_of(box)}/mountinfo', encoding='ascii') as f:
        mounts = {line.split()[4]: line.split()[5].split(',') for line in f}
    assert set(mounts) <= {'/', '/proc', '/dev/null', '/dev/urandom', '/usr/bin/qemu-system-x86_64', '/usr/lib64',
                           '/usr/lib/x86_64-linux-gnu', '/usr/share/qemu', '/usr/share/seabios'}
    assert all('ro' in options for path, options in mounts.items() if path not in ('/proc', '/dev/null'))
    assert all('nosuid' in options for options in mounts.values())
    assert sorted(os.listdir(f'/proc/{vmm_of(box)}/root')) == ['dev', 'lib', 'lib64', 'proc', 'usr']


def test_descriptors(box):
    """No socket of the runner's has come along to QEMU, the control channel least of all."""
    def sockets(pid):
        links = [os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')]
        return {x for x in links if x.startswith('socket:')}
    assert not sockets(box.pid) & sockets(vmm_of(box))


def test_jail_holds(make, folder, template):
    """A program in QEMU's place tries to get out."""
    if not os.environ.get('RUNNER_TEST_PROBE'):
        pytest.skip('RUNNER_TEST_PROBE not set')
    runner = make()
    disk = f'{folder}/run/{runner.id}.raw'
    runner_vm.clone(template + '/disk.raw', disk)
    reply = runner.start('restore', disk, template + '/memory', template + '/devices',
                         vmm=os.environ['RUNNER_TEST_PROBE'])
    os.unlink(disk)
    assert 'done' in reply['message'] and 'ALLOWED' not in reply['message'], reply['message']
    assert runner.exited() == 'exit 1'


def test_receipt(box):
    receipt = box.started['receipt']
    assert receipt['generation'] == 2 and receipt['steps'] == 255 and receipt['entropy_bytes'] == 64
    assert set(box.started['timings_usec']) == {'jail', 'vmm', 'agent'}


# --- commands

def test_streams_apart_and_status(box):
    event, out, err = box.run('sh', '-c', 'echo out; echo err >&2; exit 7')
    assert (out, err) == (b'out\n', b'err\n')
    assert (event['result'], event['status']) == ('exited', 7)
    assert event['cpu_usec'] > 0 and event['memory_peak'] > 0
    assert (event['stdout_size'], event['stderr_size']) == (4, 4)


def test_environment_user_directory(box):
    _, out, _ = box.run('sh', '-c', 'echo $X; pwd; id -un', environment=['X=a b'], directory='/usr', user='nobody')
    assert out == b'a b\n/usr\nnobody\n'


@pytest.mark.parametrize('argv,error', [(['/nonexistent'], errno.ENOENT), (['/etc/passwd'], errno.EACCES)])
def test_exec_failure(box, argv, error):
    with pytest.raises(OSError) as e:
        box.exec(*argv)
    assert e.value.errno == error


def test_signal(box):
    n = box.exec('sleep', '1000')
    assert box.control.request('signal', process=n, signal=signal.SIGTERM)['error'] == 0
    event = box.wait(n)
    assert (event['result'], event['status']) == ('signaled', signal.SIGTERM)
    assert box.control.request('signal', process=n, signal=signal.SIGTERM)['error'] == errno.ESRCH


def test_timeout_takes_the_tree(box):
    event, _, _ = box.run('sh', '-c', 'setsid sleep 999 & sleep 999', timeout_usec=1000000)
    assert event['result'] == 'timeout'
    assert box.run('sh', '-c', 'cat /proc/[0-9]*/comm')[1].decode().split().count('sleep') == 0


def test_capture_keeps_head_and_tail(box):
    event, out, _ = box.run('seq', '100000', capture=1000)
    whole = b''.join(b'%d\n' % i for i in range(1, 100001))
    assert event['stdout_size'] == len(whole)
    assert out == whole[:500] + whole[-500:]


def test_input_from_file_and_eof(box):
    assert box.run('cat', stdin=b'abc')[1] == b'abc'
    assert box.run('sh', '-c', 'cat; echo end', stdin=b'')[1] == b'end\n'


def test_stdin_hash(box):
    data = os.urandom(20 << 20)
    r, w = os.pipe()
    begin = time.monotonic()
    n = box.exec('sha256sum', fds={'stdin': r}, capture=1000)
    os.close(r)
    with open(w, 'wb') as f:
        f.write(data)
    event = box.wait(n)
    print('stdin: %.1f MB/s' % (20 / (time.monotonic() - begin)))
    assert box.kept(event, 'stdout').split()[0].decode() == hashlib.sha256(data).hexdigest()


def drain(fd, pause=0.0, size=65536):
    out = b''
    while chunk := os.read(fd, size):
        out += chunk
        if pause:
            time.sleep(pause)
    os.close(fd)
    return out


def test_output_complete_through_slow_reader(box):
    r, w = os.pipe()
    n = box.exec('seq', '300000', fds={'stdout': w})
    os.close(w)
    time.sleep(1)
    # Its end comes before the news of the exit.
    whole = b''.join(b'%d\n' % i for i in range(1, 300001))
    assert hashlib.sha256(drain(r, 0.005)).digest() == hashlib.sha256(whole).digest()
    assert box.wait(n)['status'] == 0


def test_exit_waits_for_the_reader_but_others_do_not(box):
    r, w = os.pipe()
    n = box.exec('head', '-c', '200000', '/dev/zero', fds={'stdout': w})
    os.close(w)
    assert box.run('echo', 'others')[1] == b'others\n'
    with pytest.raises(TimeoutError):
        box.wait(n, 1)
    assert len(drain(r)) == 200000
    assert box.wait(n)['status'] == 0


def test_kill_releases_a_reader_that_stands_still(box):
    r, w = os.pipe()
    n = box.exec('cat', '/dev/zero', fds={'stdout': w})
    os.close(w)
    time.sleep(0.5)
    assert box.control.request('signal', process=n, signal=signal.SIGKILL, tree=True)['error'] == 0
    event = box.wait(n, 20)
    assert event['result'] == 'signaled'
    os.close(r)


def test_stderr_flows_while_stdout_is_stuck(box):
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    n = box.exec('sh', '-c', 'cat /dev/zero & sleep 1; echo alive >&2; exec 2>&-; wait',
                 fds={'stdout': out_w, 'stderr': err_w})
    os.close(out_w)
    os.close(err_w)
    assert os.read(err_r, 100) == b'alive\n'
    os.close(out_r)
    os.close(err_r)
    box.control.request('signal', process=n, signal=signal.SIGKILL, tree=True)
    box.wait(n)


def test_closed_reader_is_sigpipe(box):
    r, w = os.pipe()
    n = box.exec('cat', '/dev/zero', fds={'stdout': w})
    os.close(w)
    assert os.read(r, 10)
    os.close(r)
    event = box.wait(n)
    assert (event['result'], event['status']) == ('signaled', signal.SIGPIPE)


def test_sockets(box):
    ours, theirs = socket.socketpair()
    n = box.exec('cat', fds={'stdin': theirs.fileno(), 'stdout': theirs.fileno()})
    theirs.close()
    ours.sendall(b'x' * 100000)
    ours.shutdown(socket.SHUT_WR)
    got = b''
    while chunk := ours.recv(65536):
        got += chunk
    assert got == b'x' * 100000
    assert box.wait(n)['status'] == 0


def test_output_to_file_keeps_position(box, tmp_path):
    with open(tmp_path / 'out', 'w+b') as f:
        f.write(b'before\n')
        f.flush()
        n = box.exec('seq', '3', fds={'stdout': f.fileno()})
        box.wait(n)
        os.write(f.fileno(), b'after\n')
    assert (tmp_path / 'out').read_bytes() == b'before\n1\n2\n3\nafter\n'


def test_flags_of_client_descriptors_stay(box):
    import fcntl
    r, w = os.pipe()
    n = box.exec('echo', 'x', fds={'stdout': w})
    box.wait(n)
    assert not fcntl.fcntl(w, fcntl.F_GETFL) & os.O_NONBLOCK
    os.close(w)
    assert drain(r) == b'x\n'


def test_null_devices_and_refusals(box):
    null = os.open('/dev/null', os.O_RDWR)
    n = box.exec('sh', '-c', 'cat; echo x', fds={'stdin': null, 'stdout': null, 'stderr': null})
    assert box.wait(n)['status'] == 0
    master, slave = os.openpty()
    directory = os.open('/', os.O_RDONLY)
    r, w = os.pipe()
    for name, fd in (('stdout', slave), ('stdin', slave), ('stdin', directory), ('stdin', w), ('stdout', r)):
        with pytest.raises(OSError) as e:
            box.exec('true', fds={name: fd})
        assert e.value.errno == errno.EINVAL
    for fd in (null, master, slave, directory, r, w):
        os.close(fd)


def test_open_stdin_does_not_hold_the_exit(box):
    r, w = os.pipe()
    n = box.exec('true', fds={'stdin': r})
    assert box.wait(n, 20)['status'] == 0
    os.close(r)
    os.close(w)


def test_many_at_once(box):
    numbers = [box.exec('sh', '-c', f'echo {i}; sleep 0.2', capture=100) for i in range(30)]
    for i, n in enumerate(numbers):
        assert box.kept(box.wait(n), 'stdout') == b'%d\n' % i


def test_bad_requests(box):
    for kind, fields in (('nonsense', {}), ('exec', {'process': 0, 'argv': ['true']}),
                         ('exec', {'process': 10**9, 'argv': []}), ('signal', {'process': 1, 'signal': 0}),
                         ('ttl', {'deadline_usec': -1}), ('start', {}), ('capture', {})):
        assert box.control.request(kind, **fields)['error'] != 0, kind
    assert box.control.request('forget', process=10**9)['error'] == errno.ESRCH


def test_timeout_with_a_reader_that_stands_still(box):
    r, w = os.pipe()
    n = box.exec('cat', '/dev/zero', fds={'stdout': w}, timeout_usec=10**6)
    os.close(w)
    assert box.wait(n, 20)['result'] == 'timeout'
    os.close(r)


# --- controllers come and go

def test_reconnect(box):
    r, w = os.pipe()
    running = box.exec('sh', '-c', 'sleep 2; echo late', fds={'stdout': w})
    os.close(w)
    gone = box.exec('sh', '-c', 'echo kept; exit 3', capture=100)
    box.control.close()
    time.sleep(1.5)
    box.control = runner_vm.Controller(box.path)
    hello = box.control.hello
    assert hello['id'] == box.id and hello['state'] == 'running' and hello['receipt']['steps'] == 255
    states = {p['process']: p for p in hello['processes']}
    assert states[running]['state'] == 'running'
    assert states[gone]['state'] == 'exited' and states[gone]['status'] == 3
    assert box.kept(box.wait(gone), 'stdout') == b'kept\n'
    assert drain(r) == b'late\n'
    assert box.wait(running)['status'] == 0


def test_newest_controller_wins(box):
    old = box.control
    box.control = runner_vm.Controller(box.path)
    assert old.receive(5) is None
    old.close()
    assert box.run('true')[0]['status'] == 0


def test_foreign_controller_is_refused(box):
    os.chmod(box.path, 0o666)
    os.chmod(os.path.dirname(box.path), 0o755)
    code = ('import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); '
            's.connect("%s"); print(s.recv(10))')
    link = '/tmp/runner-%s' % box.id
    os.link(box.path, link)
    try:
        out = subprocess.run(['/usr/bin/python3', '-c', code % link], capture_output=True, text=True, check=False)
    finally:
        os.unlink(link)
        os.chmod(box.path, 0o600)
    assert out.stdout.strip() == "b''", out
    assert box.run('true')[0]['status'] == 0


def test_controller_that_does_not_read(box):
    """It is dropped, and the machine goes on."""
    with pytest.raises(OSError):
        for _ in range(200000):
            box.control.send('signal', process=10**9, signal=1)
    box.control.close()
    box.control = runner_vm.Controller(box.path)
    assert box.run('true')[0]['status'] == 0


# --- clock and identity

def test_clock_and_identity(restore, box):
    other = restore()
    try:
        ids = set()
        for runner in (box, other):
            _, out, _ = runner.run('sh', '-c', 'date +%s%N; cat /etc/machine-id /proc/sys/kernel/random/uuid')
            clock, *names = out.decode().split()
            assert abs(int(clock) - time.time_ns()) < 3e9
            ids.update(names)
        assert len(ids) == 4
    finally:
        other.end()


# --- the end

def test_deadline(restore):
    runner = restore(deadline_usec=boottime() + 3600 * 10**6)
    n = runner.exec('sleep', '1000')
    begin = time.monotonic()
    assert runner.control.request('ttl', deadline_usec=boottime() + 10**6)['error'] == 0
    assert runner.control.event('process-exited', process=n)['result'] == 'lost'
    assert runner.control.event('ended')['reason'] == 'deadline'
    assert 0.9 < time.monotonic() - begin < 3
    assert runner.exited() == 'exit 10'


def boottime():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def test_deadline_without_controller(restore):
    runner = restore()
    assert runner.control.request('ttl', deadline_usec=boottime() + 10**6)['error'] == 0
    runner.control.close()
    assert runner.exited(15) == 'exit 10'


def test_terminate(restore):
    runner = restore()
    os.kill(runner.pid, signal.SIGTERM)
    assert runner.control.event('ended')['reason'] == 'terminated'
    assert runner.exited() == 'exit 13'


def test_vmm_dies(restore):
    runner = restore()
    n = runner.exec('sleep', '1000')
    os.kill(vmm_of(runner), signal.SIGKILL)
    assert runner.control.event('process-exited', process=n)['result'] == 'lost'
    ended = runner.control.event('ended')
    assert ended['reason'] == 'vmm' and 'signal 9' in ended['message']
    assert runner.exited() == 'exit 11'


def test_guest_powers_off(restore):
    runner = restore()
    runner.exec('sh', '-c', 'echo o >/proc/sysrq-trigger')
    assert runner.control.event('ended')['reason'] == 'vmm'
    assert runner.exited() == 'exit 11'


def test_stopped_vmm_is_ended(restore):
    runner = restore()
    os.kill(vmm_of(runner), signal.SIGSTOP)
    begin = time.monotonic()
    assert runner.end() == 'exit 0'
    assert time.monotonic() - begin < 5


def test_runner_killed_takes_vmm(restore):
    runner = restore()
    vmm = vmm_of(runner)
    os.kill(runner.pid, signal.SIGKILL)
    assert runner.exited() == 'signal 9'
    assert not os.path.exists(f'/proc/{vmm}')


def test_end_before_start(make):
    assert make().end() == 'exit 0'


def test_failures_name_the_rung(make, folder, template):
    for change, rung in (({'vmm': '/usr/bin/nonexistent'}, 'jail'), ({'vmm': '/usr/bin/true'}, 'vmm'),
                         ({'memory_mib': 256}, 'vmm')):
        runner = make()
        disk = f'{folder}/run/{runner.id}.raw'
        runner_vm.clone(template + '/disk.raw', disk)
        reply = runner.start('restore', disk, template + '/memory', template + '/devices', **change)
        os.unlink(disk)
        assert reply['error'] != 0 and reply['rung'] in (rung, 'agent'), reply
        assert reply['message'] and re.fullmatch(r'[\x20-\x7e\n\t]*', reply['message'])
        assert runner.exited() == 'exit 1'


def test_silent_guest_is_a_failure(make, folder, template):
    runner = make()
    disk = f'{folder}/run/{runner.id}.raw'
    runner_vm.clone(template + '/disk.raw', disk)
    reply = runner.start('restore', disk, template + '/memory', template + '/devices', agent_timeout_usec=20000)
    os.unlink(disk)
    assert reply['error'] != 0 and 'in time' in reply['message']
    assert runner.exited() == 'exit 1'
