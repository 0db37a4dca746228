"""Ways out of `/exec`, tried on every confinement that this machine has: as root and as an ordinary user.

`ATTEMPTS` is the list of what was tried; `docs/security.md` has it in words.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dragoman.hub.sandbox import Sandbox, process
from dragoman.hub.sandbox import folder_copy as copying
from dragoman.hub.sandbox.child_process import RunAsUser
from dragoman.hub.sandbox.process import BUBBLEWRAP, NAMESPACES, ProcessIsolation
from dragoman.hub.sandbox.workspace import Workspace
from tests.hub.escaping import SECRET
from tests.hub.test_sandbox import OWNERS, namespaces
from tests.waiting import block_until

PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else shutil.which("python3") or "python3"
DRIVER = Path(__file__).with_name("escaping.py")

READ = {
    "the hub's files, by their path": "cat @FOLDER@/hub.secret @FOLDER@/hub.db",
    "the hub's files, from the folder upwards": "cat ../../hub.secret ../../../hub.secret",
    "the hub's files, through the roots of processes": "cat /proc/[0-9]*/root@FOLDER@/hub.secret",
    "the hub's files, through the folders of processes": "cat /proc/[0-9]*/cwd/../../hub.secret",
    "the hub's files, uncovered in namespaces of its own": (
        "unshare -Urm sh -c 'umount @FOLDER@; umount -l @FOLDER@; cat @FOLDER@/hub.secret'"
    ),
    "the hub's files, through a bind mount of its own": (
        "mkdir -p m; unshare -Urm sh -c 'mount --rbind / m; umount m@FOLDER@; cat m@FOLDER@/hub.secret'"
    ),
    "the hub's namespaces": "nsenter -t @PID@ -a cat @FOLDER@/hub.secret; nsenter -t 1 -m cat @FOLDER@/hub.secret",
    "another tenant's files": "cat @FOLDER@/workspaces/t2/theirs ../t2/theirs /mnt/t2/theirs",
    "the copies of folders": "cat @FOLDER@/workspaces/.before/*/* ../.before/*/*",
    "the hub's environment": "cat /proc/@PID@/environ /proc/$PPID/environ /proc/[0-9]*/environ | tr '\\0' '\\n'; env",
    "descriptors that the hub has open": "cat /proc/self/fd/@FD@; for n in 3 4 5 6 7 8 9; do cat <&$n; done",
    "descriptors of other processes": "cat /proc/[0-9]*/fd/*",
    "the memory of other processes": "cat /proc/@PID@/mem /proc/@PID@/maps",
    "the disk itself": f"cat /dev/vda /dev/sda /dev/mem /dev/kmsg | head -c 1000000 | grep -a {SECRET}",
    "the hub's settings, where it was started": "cat @FOLDER@/../dragoman.toml /proc/[0-9]*/cwd/dragoman.toml",
    "files of the machine that are not programs": (
        "cat /etc/shadow /etc/machine-id /etc/hostname /etc/ssh/* /etc/environment /etc/resolv.conf /var/log/* /root/.*rc "
        "/home/*/.*rc /opt/*/hub/hub.secret 2>/dev/null | head -c 1 | tr -d '\\n' | sed 's/./" + SECRET + "/'"
    ),
    "the root before it was replaced": (
        f'{PYTHON} -c \'import os\nfor n in range(30): os.chdir("..")\nprint(open("@FOLDER@/hub.secret").read())\'; '
        "cat /proc/1/root@FOLDER@/hub.secret /mnt/../../..@FOLDER@/hub.secret"
    ),
    "the root, through another chroot in namespaces of its own": (
        f'mkdir -p c; unshare -Ur {PYTHON} -c \'import os\nf = os.open("/", 0)\nos.chroot("c")\nos.fchdir(f)\n'
        'for n in range(30): os.chdir("..")\nos.chroot(".")\nprint(open("@FOLDER@/hub.secret").read())\''
    ),
    "the keyring of the hub's user": (
        f"{PYTHON} -c 'import ctypes\nl = ctypes.CDLL(None)\nb = ctypes.create_string_buffer(99)\n"
        "for number in (250, 219): l.syscall(number, 11, @KEY@, b, 99)\nprint(b.value)'; "
        f"grep -q dragoman-test /proc/keys && {PYTHON} -c 'import ctypes\nl = ctypes.CDLL(None)\n"
        'for number in (250, 219):\n    if l.syscall(number, 0, -3, 0) > 0: print("' + SECRET + "\")'"
    ),
    "a device of its own making": "mknod d b 254 0; mknod d b 8 0; mknod d b 259 0; head -c 1000 d",
}
"""None of these may print the secret."""

REACH = {
    "the hub's port": f'{PYTHON} -c \'import socket; socket.create_connection(("127.0.0.1", @PORT@)); print("GOT" + "THERE")\'',
    "an abstract socket": (
        f'{PYTHON} -c \'import socket; s = socket.socket(socket.AF_UNIX); s.connect("\\0dragoman-@PID@"); '
        'print("GOT" + "THERE")\''
    ),
    "the outside": f'{PYTHON} -c \'import socket; socket.create_connection(("192.0.2.1", 80), 1); print("GOT" + "THERE")\'',
    "the hub, with a signal": "kill -0 @PID@ && echo GOT'THERE'; kill -9 @PID@ && echo GOT'THERE'",
    "the machine's settings": "echo 1 > /proc/sys/kernel/sysrq && echo GOT'THERE'; echo x > /proc/sysrq-trigger && echo GOT'THERE'",
    "the machine's files": (
        "for at in /etc /usr /opt /var/tmp /root /home /run /sys /; do touch $at/.made-by-a-command 2>/dev/null "
        "&& ! mountpoint -q $at && echo GOT'THERE' $at; done; true"
    ),
    "privileges, with a set-user-id program": (
        "cp $(command -v id) i && chmod 6755 i && ./i -u | grep -qx 0 && grep -q CapEff:.*[1-9a-f] /proc/self/status "
        "&& echo GOT'THERE'"
    ),
    "privileges, in namespaces of its own": (
        "unshare -Ur sh -c 'mount -o remount,bind,rw / && touch /etc/.made-by-a-command && echo GOT\"THERE\"'"
    ),
    "a terminal": "echo GOT'THERE' > /dev/tty; echo GOT'THERE' > /dev/console; echo GOT'THERE' > /dev/pts/0",
    "a process before it, with ptrace": (
        f"{PYTHON} -c 'import ctypes\nfor pid in (1, @PID@):\n"
        '    if ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0: print("GOT" + "THERE")\''
    ),
    "the first process of its namespace, whose memory could be changed": "exec 5<> /proc/1/mem && echo GOT'THERE'; ls /proc/1/fd && echo GOT'THERE'",
    "a session of its own, with a share of the processors of its own": (
        f"{PYTHON} -c 'import os\nif os.fork() == 0:\n    os.setsid()\n"
        '    if os.getsid(0) == os.getpid(): print("GOT" + "THERE")\''
    ),
    "a socket of a service": "for s in /run/*.sock /var/run/docker.sock /run/dbus/system_bus_socket; do test -S $s && echo GOT'THERE'; done",
    "a cgroup": "mkdir /sys/fs/cgroup/x /sys/fs/cgroup/*/x 2>/dev/null && echo GOT'THERE'; ls -A /sys 2>/dev/null | grep . && echo GOT'THERE'",
    "its own limits": "ulimit -v unlimited 2>/dev/null && echo GOT'THERE'; ulimit -u 100000 2>/dev/null && echo GOT'THERE'; renice -n 0 $$ 2>/dev/null && echo GOT'THERE'",
    "the machine's handler of crashes, which root runs, with a core of any size": (
        "grep -Eq 'core file size +1 +1 ' /proc/self/limits || echo GOT'THERE'"
    ),
    "programs of the machine, to change them": "for f in /bin/sh /usr/bin/env; do chmod u+s $f 2>/dev/null && echo GOT'THERE'; echo x >> $f && echo GOT'THERE'; done",
    "the next command of another tenant, through /tmp": "touch /tmp/left /dev/shm/left; ls /tmp/before /dev/shm/before 2>/dev/null && echo GOT'THERE'",
    "the host of a virtual machine, and other networks that namespaces do not separate": (
        f"{PYTHON} -c 'import socket\nfor family in range(3, 46):\n    if family in (10, 16): continue\n"
        "    for kind in (1, 2, 3, 5):\n        try: socket.socket(family, kind)\n        except OSError: continue\n"
        '        print("GOT" + "THERE", family)\''
    ),
    "a user namespace of its own": "unshare -U true && echo GOT'THERE'; unshare -Ur true && echo GOT'THERE'",
    "the first process of its namespace, through a descriptor of it: its files, namespaces and memory": (
        f"{PYTHON} -c 'import ctypes\nl = ctypes.CDLL(None)\np = l.syscall(434, 1, 0)\nb = ctypes.create_string_buffer(64)\n"
        'class Part(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]\n'
        "here, there = Part(ctypes.addressof(b), 8), Part(0x400000, 8)\n"
        "got = [l.syscall(438, p, n, 0) for n in range(9)] + [l.setns(p, kind) for kind in (0x20000, 0x10000000, 0x40000000)]\n"
        "got.append(l.process_vm_readv(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))\n"
        'if any(each >= 0 for each in got): print("GOT" + "THERE", got)\'; '
        "for n in mnt net pid ipc uts cgroup user; do nsenter --$n=/proc/1/ns/$n true 2>/dev/null && echo GOT'THERE' $n; done"
    ),
    "mounts, with the system calls for them that are newer": (
        f"{PYTHON} -c 'import ctypes\nl = ctypes.CDLL(None)\n"
        'for number, given in ((428, (-100, b"/", 1)), (429, (-100, b"/tmp", -100, b"/mnt", 0)), (430, (b"tmpfs", 0)), (433, (-100, b"/", 0)),\n'
        '    (442, (-100, b"/", 0, bytes(32), 32))):\n'
        '    if l.syscall(number, *given) >= 0: print("GOT" + "THERE", number)\''
    ),
    "a user namespace of its own, with clone3": (
        f"{PYTHON} -c 'import ctypes, os, struct\nl = ctypes.CDLL(None)\n"
        'given = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)\nchild = l.syscall(435, given, 64)\n'
        'if child == 0: os._exit(0)\nif child > 0: print("GOT" + "THERE")\''
    ),
    "the processors and the disk before others": (
        f"{PYTHON} -c 'import os\nfor work in (lambda: os.sched_setscheduler(0, 1, os.sched_param(1)), lambda: os.setpriority(0, 0, 0)):\n"
        '    try: work()\n    except OSError: continue\n    print("GOT" + "THERE")\'; '
        "ionice -c1 -n0 true 2>/dev/null && echo GOT'THERE'; (echo -5 > /proc/self/autogroup) 2>/dev/null && echo GOT'THERE'"
    ),
    "the settings of the kernel": (
        "for f in kernel/core_pattern kernel/modprobe kernel/hostname fs/file-max fs/binfmt_misc/register vm/drop_caches "
        "user/max_user_namespaces net/ipv4/ip_forward kernel/keys/maxkeys; do (echo 1 > /proc/sys/$f) 2>/dev/null && echo GOT'THERE' $f; done; "
        "(echo 1 > /proc/irq/default_smp_affinity) 2>/dev/null && echo GOT'THERE'"
    ),
    "a network that it makes itself, and packets of its own making": (
        f"{PYTHON} -c 'import socket, struct\ns = socket.socket(16, 3, 0)\ns.bind((0, 0))\n"
        'name, kind = struct.pack("HH8s", 12, 3, b"dum0"), struct.pack("HHHH8s", 16, 18, 12, 1, b"dummy")\n'
        'link = struct.pack("BxHiII", 0, 0, 0, 0, 0) + name + kind\n'
        's.send(struct.pack("IHHII", 16 + len(link), 16, 0x605, 1, 0) + link)\n'
        'if struct.unpack("i", s.recv(4096)[16:20])[0] == 0: print("GOT" + "THERE")\n'
        "for kind in ((2, 3, 1), (2, 3, 255), (10, 3, 58)):\n    try: socket.socket(*kind)\n    except OSError: continue\n"
        '    print("GOT" + "THERE", kind)\''
    ),
    "the terminal of the hub, by what is typed there": (
        f'{PYTHON} -c \'import fcntl\nfor n in (0, 1, 2):\n    try: fcntl.ioctl(n, 0x5412, b"x")\n'
        '    except OSError: continue\n    print("GOT" + "THERE", n)\''
    ),
    "what a command before it left running": "pgrep -f '[s]leep 4242' && echo GOT'THERE'",
}
"""None of these may print GOTTHERE."""

_FILL = "head -c 3000000 /dev/zero"
_FIRST_THREAD_ENDS = (
    "import ctypes, os, threading, time\ndef work():\n    time.sleep(0.2); {}; time.sleep({})\n"
    '    os.write(1, b"GOT" + b"THERE" + b"NOT" + b"STOPPED"); os._exit(0)\n'
    'threading.Thread(target=work).start()\nctypes.CDLL(None).syscall({{"x86_64": 60}}.get(os.uname().machine, 93), 0)'
)
"""A process whose first thread has ended, so that /proc has no memory and no files for it, but for its other threads."""
_TWO_GONE = (
    'f = [os.open(name, os.O_WRONLY | os.O_CREAT) for name in "ab"]; os.unlink("a"); os.unlink("b"); '
    "[os.write(each, bytes(700_000)) for each in f]"
)
TAKE = {
    "bytes in a file": f"{_FILL} > big; sleep 5",
    "bytes below a path that is longer than the kernel takes": (
        f'{PYTHON} -c \'import os\nfor n in range(40): os.mkdir("d" * 200); os.chdir("d" * 200)\n'
        'open("big", "wb").write(bytes(3_000_000))\'; sleep 5'
    ),
    "bytes below a thousand folders": (
        f'{PYTHON} -c \'import os\nfor n in range(1500): os.mkdir("d"); os.chdir("d")\n'
        'open("big", "wb").write(bytes(3_000_000))\'; sleep 5'
    ),
    "bytes in a locked folder": f"mkdir l; {_FILL} > l/big; chmod 0 l; sleep 5",
    "bytes in a file that is deleted and open": f"exec 5> gone; rm gone; {_FILL} >&5; sleep 20; echo NOT'STOPPED'",
    "bytes in a file that is deleted and open in a grandchild": (
        f"(exec 5> gone; rm gone; {_FILL} >&5; exec setsid sleep 20) & sleep 20; echo NOT'STOPPED'"
    ),
    "bytes in files that are deleted and mapped": (
        f"{PYTHON} -c 'import mmap, os, time\nmaps = []\nfor n in range(3):\n"
        '    f = os.open("gone", os.O_RDWR | os.O_CREAT)\n    os.unlink("gone")\n'
        "    os.truncate(f, 600_000)\n    maps.append(mmap.mmap(f, 600_000))\n    os.close(f)\n"
        '    maps[-1].write(b"x" * 600_000)\ntime.sleep(20)\nprint("NOT" + "STOPPED")\''
    ),
    "bytes in a program that cannot be looked into": (
        "cp $(command -v sleep) s; exec 5> gone; rm gone; "
        f"{_FILL} >&5; chmod 111 s; exec ./s 20; echo NOT'STOPPED'"
    ),
    "bytes in a deleted file of a process whose first thread has ended": (
        f"{PYTHON} -c '" + _FIRST_THREAD_ENDS.format(_TWO_GONE, 20) + "' & sleep 20"
    ),
    "bytes in a deleted file that one thread has for itself": (
        f"{PYTHON} -c 'import ctypes, os, threading, time\ndef work():\n    ctypes.CDLL(None).unshare(0x400)\n"
        f"    {_TWO_GONE}; time.sleep(20)\nthreading.Thread(target=work).start()'; echo NOT'STOPPED'"
    ),
    "bytes in holes": "truncate -s 600000 a b c; sleep 5",
    "files without bytes": "for n in $(seq 400); do : > f$n; done; sleep 5",
    "hard links": "head -c 300000 /dev/zero > a; for n in 1 2 3 4 5; do ln a b$n; done; sleep 5",
}
"""After each of these the folder is as it was. It may have a megabyte."""

USE = {
    "more memory than it may": (
        f'{PYTHON} -c \'x = bytearray(1 << 31); print("GOT" + "THERE")\'',
        "GOTTHERE",
    ),
    "more processes than it may": (
        "n=0; while [ $n -lt 400 ]; do sleep 9 & n=$((n+1)); done 2>/dev/null; sleep 3; echo STARTED $(ls -d /proc/[0-9]* | wc -l)",
        r"STARTED (?:[3-9]\d\d|\d{4})",
    ),
    "more memory than it may, in many processes": (
        f'n=0; while [ $n -lt 6 ]; do {PYTHON} -c \'x = bytearray(200 << 20); import time; time.sleep(3); print("GOT" + "THERE")\' & '
        "n=$((n+1)); done; wait",
        "GOTTHERE",
    ),
    "more memory than it may, in files without a name": (
        f'{PYTHON} -c \'import os, time\nfor n in range(6):\n    f = os.memfd_create("m")\n'
        '    for i in range(200): os.write(f, bytes(1 << 20))\ntime.sleep(3)\nprint("GOT" + "THERE")\'',
        "GOTTHERE",
    ),
    "memory in /dev/shm and /tmp": (
        "head -c 100M /dev/zero > /dev/shm/x; head -c 300M /dev/zero > /tmp/x; "
        "test $(du -sm /tmp /dev/shm | cut -f1 | paste -sd+ | sed 's/$/+0/' | tr + '\\n' | sort -n | tail -1) -gt 70 && echo GOT'THERE'",
        "GOTTHERE",
    ),
    "more memory than it may, in attributes of a file": (
        f'{PYTHON} -c \'import os, time\nopen("/tmp/x", "w")\nfor n in range(12_000):\n'
        '    os.setxattr("/tmp/x", f"user.{n}", bytes(60_000))\ntime.sleep(1)\nprint("GOT" + "THERE")\'',
        "GOTTHERE",
    ),
    "more memory than it may, in a file system of its own": (
        "unshare -Urm sh -c 'mount -t tmpfs none /tmp && head -c 700M /dev/zero > /tmp/a && sleep 1 && echo GOT\"THERE\"'",
        "GOTTHERE",
    ),
    "more memory than it may, in files on their way through a socket": (
        f"{PYTHON} -c 'import array, os, socket, time\na, b = socket.socketpair()\nfor n in range(3):\n"
        '    f = os.memfd_create("m")\n    for i in range(300): os.write(f, bytes(1 << 20))\n'
        '    a.sendmsg([b"x"], [(1, 1, array.array("i", [f]))])\n    os.close(f)\ntime.sleep(1)\nprint("GOT" + "THERE")\'',
        "GOTTHERE",
    ),
    "more memory than it may, shared and not looked at": (
        f"n=0; while [ $n -lt 3 ]; do {PYTHON} -c 'import mmap, time\nm = mmap.mmap(-1, 300 << 20)\nfor i in range(300):\n"
        "    m[i << 20 : i + 1 << 20] = bytes(1 << 20); m.madvise(mmap.MADV_DONTNEED)\ntime.sleep(3)\n"
        'print("GOT" + "THERE")\' & n=$((n+1)); done; wait',
        "GOTTHERE",
    ),
    "more memory than it may, in processes whose first thread has ended": (
        f"n=0; while [ $n -lt 6 ]; do {PYTHON} -c '"
        + _FIRST_THREAD_ENDS.format("x = bytearray(200 << 20)", 3)
        + "' & n=$((n+1)); done; wait; sleep 5",
        "GOTTHERE",
    ),
    "more watches of epoll than it may, of which its user has a number": (
        f"{PYTHON} -c 'import os, select, time\nfiles = [os.pipe()[0] for n in range(50)]\nsets = [select.epoll() for n in range(60)]\n"
        "for n in range(200, 210):\n    for f in files:\n        os.dup2(f, n)\n        for s in sets: s.register(n)\n"
        'time.sleep(3)\nprint("GOT" + "THERE")\'',
        "GOTTHERE",
    ),
    "memory that belongs to no process": (
        f"{PYTHON} -c 'import ctypes\nl = ctypes.CDLL(None)\nl.shmat.restype = ctypes.c_void_p\n"
        "l.shmdt.argtypes = [ctypes.c_void_p]\nfor n in range(6):\n    i = l.shmget(0, 150 << 20, 0o1600)\n"
        "    if i < 0: break\n    p = l.shmat(i, None, 0)\n    ctypes.memset(p, 1, 150 << 20)\n    l.shmdt(p)\n"
        'else: print("GOT" + "THERE")\'',
        "GOTTHERE",
    ),
    "a file larger than it may be": (
        f'{PYTHON} -c \'import os\ntry:\n    f = os.memfd_create("m"); os.ftruncate(f, 2 << 30); print("GOT" + "THERE")\nexcept OSError: pass\'',
        "GOTTHERE",
    ),
    "the whole disk at once, before anybody can look": (
        f'{PYTHON} -c \'import ctypes, fcntl, os, struct\nl = ctypes.CDLL(None)\nf = os.open("f", os.O_RDWR | os.O_CREAT)\n'
        'number = {"x86_64": 285}.get(os.uname().machine, 47)\n'
        "size = ctypes.c_long(50 << 20)\n"
        'if l.syscall(number, f, 0, ctypes.c_long(0), size) == 0: print("GOT" + "THERE")\n'
        "for request in (0x40305828, 0x4030582A, 0x40305839):\n"
        '    try: fcntl.ioctl(f, request, struct.pack("hhqqiI4i", 0, 0, 0, 50 << 20, *[0] * 6))\n'
        '    except OSError: continue\n    print("GOT" + "THERE", request)\n\'',
        "GOTTHERE",
    ),
    "its time, deaf to signals": (
        "trap '' TERM INT HUP; while :; do sleep 1; done; echo GOT'THERE'",
        "GOTTHERE",
    ),
}

OUTLIVE = {
    "as the first of its processes, in a session of its own": "exec setsid sleep @MARK@",
    "as the first of its processes, which does not die with its parent": (
        f"exec {PYTHON} -c 'import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
        "try: os.setsid()\nexcept OSError: pass\ntime.sleep(@MARK@)'"
    ),
    "in the background, in a session of its own": "setsid sleep @MARK@ & (setsid sleep @MARK@ &) ; sleep @MARK@",
    "through the first of its processes, changed with ptrace": (
        f'{PYTHON} -c \'import ctypes, time\nl = ctypes.CDLL(None)\nif l.ptrace(16, 1, 0, 0) == 0: print("stopped it")\n'
        "time.sleep(@MARK@)'"
    ),
}
"""Nothing of these runs when the result is there."""


def confinements() -> list[Any]:
    """The ways that confine, on this machine; what is missing is skipped, and says so."""
    out = []
    for way, reason in (
        (BUBBLEWRAP, "THERE IS NO BUBBLEWRAP HERE"),
        (NAMESPACES, "users have no namespaces here"),
    ):
        missing = shutil.which("bwrap") is None if way == BUBBLEWRAP else namespaces.args[0]
        out.append(pytest.param(way, marks=pytest.mark.skipif(missing, reason=reason)))
    return out


def users() -> list[Any]:
    """As whom a hub runs here: root, whose commands are nobody's; or somebody."""
    if os.geteuid() != 0:
        return [pytest.param([], id="user")]
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    return [pytest.param([], id="root"), pytest.param(drop, id="user")]


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder for a hub, in a place that is not hidden for another reason, which any user may have."""
    with tempfile.TemporaryDirectory(dir="/opt" if os.geteuid() == 0 else None) as made:
        os.chmod(made, 0o777)
        yield Path(made)


def driver(
    as_: list[str], folder: Path, commands: list[str], way: str = "", **settings: Any
) -> tuple[list[str], dict[str, Any]]:
    """The command line of the driver, and what else `subprocess` needs to run it."""
    given = {"folder": str(folder / "hub"), "commands": commands, "settings": settings}
    given |= {"way": way} if way else {}
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(path for path in sys.path if path),
        "HOME": "/nonexistent",
    }
    return [*as_, sys.executable, str(DRIVER), json.dumps(given)], {"cwd": folder, "env": environment}


def tried(
    as_: list[str], folder: Path, commands: list[str], way: str = "", **settings: Any
) -> dict[str, Any]:
    line, options = driver(as_, folder, commands, way, **settings)
    ran = subprocess.run(line, capture_output=True, text=True, timeout=300, **options)
    assert ran.returncode == 0, ran.stderr
    came: dict[str, Any] = json.loads(ran.stdout)
    assert (came["uid"] == 0) is (not as_ and os.geteuid() == 0)
    return came


@pytest.mark.parametrize("way", confinements())
@pytest.mark.parametrize("as_", users())
def test_no_command_reads_what_is_not_its_own_or_reaches_beyond_its_folder(
    as_: list[str], way: str, outside: Path
) -> None:
    left = "(setsid sleep 4242 &) ; ln -s @FOLDER@/hub.secret link; echo made"
    # A command that stops the first process of its own namespace with ptrace waits until its time is over.
    commands = [left, *READ.values(), *REACH.values(), "echo fine"]
    *came, after = tried(as_, outside, commands, way, exec_seconds=5)["came"]
    assert came.pop(0)["output"] == "made\n" and after["output"] == "fine\n", "and the sandbox goes on"
    for what, ran in zip([*READ, *REACH], came, strict=True):
        assert SECRET not in ran["output"], what
        assert "GOTTHERE" not in ran["output"], what
        assert "refused" not in ran, what
    for made in ("/etc", "/usr", "/opt", "/var/tmp", "/root", "/"):
        assert not Path(made, ".made-by-a-command").exists()


@pytest.mark.parametrize("way", confinements())
@pytest.mark.parametrize("as_", users())
def test_no_link_of_a_command_leads_a_hub_out_of_its_folder(as_: list[str], way: str, outside: Path) -> None:
    came = tried(as_, outside, ["ln -s @FOLDER@/hub.secret link"], way)
    assert came["link"] == "" and came["listed"] == []


@pytest.mark.parametrize("way", confinements())
@pytest.mark.parametrize("as_", users())
def test_no_command_takes_more_of_the_disk_than_it_may(as_: list[str], way: str, outside: Path) -> None:
    came = tried(as_, outside, ["echo kept > kept", *TAKE.values()], way, exec_disk_mb=1)
    for what, ran in zip(TAKE, came["came"][1:], strict=True):
        assert "[undone:" in ran["output"] and "NOTSTOPPED" not in ran["output"], (what, ran)
    assert came["listed"] == ["kept"]
    below = outside / "hub" / "workspaces" / ".before"
    assert [path.name for path in below.iterdir()] == ["t1"], "and nothing is left of taking it away"


@pytest.mark.parametrize("way", confinements())
@pytest.mark.parametrize("as_", users())
def test_no_command_uses_more_of_the_machine_than_it_may(as_: list[str], way: str, outside: Path) -> None:
    commands = [command for command, _ in USE.values()]
    came = tried(as_, outside, commands, way, exec_seconds=6)["came"]
    for (what, (_, never)), ran in zip(USE.items(), came, strict=True):
        assert "refused" not in ran, what
        assert not re.search(never, ran["output"]), (what, ran["output"])


@pytest.mark.parametrize("way", confinements())
@pytest.mark.parametrize("as_", users())
def test_no_command_outlives_its_time(as_: list[str], way: str, outside: Path) -> None:
    mark = f"4243.{os.getpid()}"
    commands = [command.replace("@MARK@", mark) for command in OUTLIVE.values()]
    came = tried(as_, outside, commands, way, exec_seconds=1)["came"]
    assert all(ran["late"] for ran in came), came

    block_until(lambda: not running(mark))


def running(mark: str) -> list[str]:
    """The command lines of processes that have `mark` in it, but for the driver's."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = place.read_bytes().decode("utf-8", "replace")
            found += [line] if mark in line and str(DRIVER) not in line else []
    return found


@pytest.mark.parametrize("way", confinements())
@pytest.mark.parametrize("as_", users())
def test_a_command_ends_when_its_hub_is_killed(as_: list[str], way: str, outside: Path) -> None:
    """Nobody would watch what it takes of the disk and of the memory, and the hub may be back before its time is over."""
    mark = f"4244.{os.getpid()}"
    command = f"setsid sleep {mark} & trap '' ALRM HUP TERM; touch up; while :; do sleep {mark}; done"
    line, options = driver(as_, outside, [command], way, exec_seconds=3600)
    with subprocess.Popen(line, **options) as hub:
        try:
            block_until((outside / "hub" / "workspaces" / "t1" / "up").exists)
            block_until(lambda: running(mark))
        finally:
            hub.kill()
    block_until(lambda: not running(mark))


@pytest.mark.parametrize("way", confinements())
@pytest.mark.parametrize("as_", users())
def test_a_command_that_does_odd_things_is_no_reason_to_end_it(
    as_: list[str], way: str, outside: Path
) -> None:
    """A process that has ended, and whose parent does not look; a folder that nobody may enter; room for a file, before it is written."""
    dead = f"{PYTHON} -c 'import os, time\nif os.fork() == 0: os._exit(0)\ntime.sleep(3)\nprint(\"fine\")'"
    reserve = f"{PYTHON} -c 'import os\nf = os.open(\"f\", os.O_RDWR | os.O_CREAT)\nos.posix_fallocate(f, 0, 9999)\nprint(os.fstat(f).st_size)'; rm f"
    commands = [dead, "echo mine > link; chmod 0 .", "cat link", reserve]
    came = tried(as_, outside, commands, way)
    assert [ran["output"] for ran in came["came"]] == ["fine\n", "", "mine\n", "9999\n"]
    assert came["link"] == "mine\n" and came["listed"] == ["link"]


@pytest.mark.parametrize("way", confinements())
@pytest.mark.parametrize("as_", users())
def test_no_program_of_a_command_lends_the_hubs_user_to_others_of_the_machine(
    as_: list[str], way: str, outside: Path
) -> None:
    """The folder of the hub may be one that its operator made, and that others may enter."""
    (outside / "hub").mkdir()
    (outside / "hub").chmod(0o777)
    command = "cp $(command -v id) i; chmod 6755 i; mkdir -m 7777 d; chmod 7777 ."
    tried(as_, outside, [command], way)
    spaces = outside / "hub" / "workspaces"
    assert stat.S_IMODE(spaces.stat().st_mode) == 0o700, "nobody else reaches what a command made"
    copies = spaces / ".before" / "t1"
    for copy in (copies, copies / "i", copies / "d"):
        assert not stat.S_IMODE(copy.stat().st_mode) & 0o7000, copy


@pytest.mark.parametrize("as_", users())
def test_without_namespaces_commands_run_only_with_exec_unconfined(as_: list[str], outside: Path) -> None:
    """A machine without namespaces, made by taking away the programs that would use them."""
    bin = outside / "bin"
    bin.mkdir()
    for name in ("sh", "cat", "echo", "timeout"):
        found = shutil.which(name)
        if found is not None:
            (bin / name).symlink_to(found)
    as_ = [shutil.which(as_[0]) or as_[0], *as_[1:]] if as_ else []
    before, os.environ["PATH"] = os.environ["PATH"], str(bin)
    try:
        (ran,) = tried(as_, outside, ["cat @FOLDER@/hub.secret"])["came"]
        assert ran["refused"] == process.REFUSED and ran["output"] == ""
        (ran,) = tried(as_, outside, ["echo said"], exec_unconfined=True)["came"]
        assert ran["output"] == "said\n"
    finally:
        os.environ["PATH"] = before


async def test_a_machine_that_has_namespaces_only_later_runs_commands_then(tmp_path: Path) -> None:
    class Later(ProcessIsolation):
        tried = 0

        async def _works(self, way: str, folder: Path) -> bool:
            self.tried += 1
            return self.tried > 2 and await super()._works(way, folder)

    sandbox = Sandbox(tmp_path, Later(), seconds=10.0)
    with pytest.raises(Exception, match="cannot be confined"):
        await sandbox.run("1", "true")
    if namespaces.args[0]:
        pytest.skip("users have no namespaces here")
    assert (await sandbox.run("1", "echo now")).output == "now\n"


# -- the copy of a folder ------------------------------------------------------------------------------------------


def test_unchanged_files_are_not_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_TICK_NS", -(10**12))  # what was made a moment ago counts as settled, too
    workspace = Workspace(tmp_path / "t1", tmp_path / "before", limit=1 << 20)
    for n in range(20):
        workspace.write(f"d/f{n}", b"x")
    (tmp_path / "t1" / "l").symlink_to("d/f1")

    def copies() -> dict[str, int]:
        return {path: about.st_ino for path, about in copying.entries(tmp_path / "before")}

    room = workspace.save()
    first = copies()
    assert not workspace.keep_or_restore(room) and workspace.save() == room
    assert copies() == first and len(first) == 22
    (tmp_path / "t1" / "d" / "f3").unlink()
    (tmp_path / "t1" / "d" / "f4").write_bytes(b"y")
    (tmp_path / "t1" / "l").unlink()
    (tmp_path / "t1" / "l").symlink_to("d/f2")
    workspace.save()
    second = copies()
    assert "d/f3" not in second and os.readlink(tmp_path / "before" / "l") == "d/f2"
    assert (tmp_path / "before" / "d" / "f4").read_bytes() == b"y"
    assert {p for p in second if first[p] != second[p]} <= {"d/f4", "l"}


def test_a_file_that_changes_within_a_tick_of_the_clock_is_copied_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "t1", tmp_path / "before", limit=1 << 20)
    workspace.write("f", b"old")
    about = (tmp_path / "t1" / "f").stat()
    room = workspace.save()
    (tmp_path / "t1" / "f").write_bytes(b"new")
    os.utime(tmp_path / "t1" / "f", ns=(about.st_atime_ns, about.st_mtime_ns))
    workspace.save()
    (tmp_path / "t1" / "big").write_bytes(bytes(2 << 20))
    assert workspace.keep_or_restore(room) and workspace.read("f") == b"new"


@pytest.mark.parametrize("owner", OWNERS)
def test_a_hub_that_is_killed_while_it_restores_a_folder_loses_nothing(
    tmp_path: Path, owner: RunAsUser | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = never = 10**9

    class Killed(BaseException):
        pass

    def dies(call: Callable[..., Any]) -> Callable[..., Any]:
        def done(*given: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(*given, **options)

        return done

    def workspace() -> Workspace:
        return Workspace(tmp_path / "t1", tmp_path / ".before" / "t1", limit=1 << 20, owner=owner)

    for name in ("rename", "replace", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, dies(getattr(os, name)))
    mine = dict.fromkeys(("a", "b", "d/a", "e"), b"mine")
    for path in mine:
        workspace().write(path, b"mine")
    for kills in count():
        room = workspace().save()
        (tmp_path / "t1" / "b").write_bytes(b"theirs")
        (tmp_path / "t1" / "d" / "a").rename(tmp_path / "t1" / "c")
        (tmp_path / "t1" / "big").write_bytes(bytes(2 << 20))
        left = kills
        try:
            workspace().keep_or_restore(room)
            break
        except Killed:
            left = never
            workspace().save()
            found = {path: workspace().read(path) for path, _ in workspace().list()}
            assert found == mine, f"after a kill before step {kills + 1}"
    assert kills > 10 and os.listdir(tmp_path / ".before") == ["t1"]


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    here = os.getcwd()
    (tmp_path / "t").mkdir()
    os.chdir(tmp_path / "t")
    try:
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
            open("f", "w").close()
    finally:
        os.chdir(here)
    copying.remove(tmp_path / "t", tmp_path / "heap")
    assert os.listdir(tmp_path) == []


def test_folders_deeper_than_the_limit_are_removed_before_a_command(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "t1", tmp_path / "before", limit=1 << 20)
    workspace.write("/".join("d" * (copying.MAX_DEPTH - 1)) + "/f", b"mine")
    deep = tmp_path / "t1" / "/".join("d" * (copying.MAX_DEPTH - 1))
    (deep / "e").mkdir()
    (deep / "e" / "f").write_bytes(b"too deep")
    assert workspace.used() > 1 << 60
    assert workspace.save() == 1 << 20 and os.listdir(deep) == ["f"]
