"""Run a program without system calls that commands do not need, and that would get around their limits.

A script: `launch.py OPTIONS PROGRAM ...`. It runs before the command is confined, as the user of the hub. A seccomp filter denies, to the
program and to everything it starts: the keyrings of the hub's user, memory that counts for no process (System V shared memory and
queues, files without a name), disk space that is allocated without writing, sockets that a network namespace does not isolate (vsock),
and parts of the kernel that are known for their bugs. `--no-user-namespaces` denies new user namespaces, too. On a processor without a
table here nothing is denied.

`--seconds=N --parent=PID` end the program after so many seconds, and when the thread of the hub that started it ends, even if the hub is
killed or hangs. A program can undo that. So these options are for programs that confine the command, and kill it when they end.
"""

import ctypes
import os
import signal
import struct
import sys

# Numbers of system calls on x86_64 and aarch64.
DENIED = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
}
IGNORED = {"setsid": (112, 157)}
"""These do nothing, and report success. Many kernels give each session the same share of the processors, whatever its priority: a command
with a hundred sessions would leave the hub a hundredth."""
FALLOCATE, IOCTL = (285, 47), (16, 29)
RESERVING = (0x40305828, 0x4030582A, 0x40305839)
"""Requests of `ioctl` that do the same as `fallocate`: allocate any number of bytes of the disk at once, before a check can notice. Both
fail as on a file system that does not support it, and programs write instead."""
SOCKETS = ((41, 198), (53, 199))
"""`socket` and `socketpair`: only for these families."""
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
CLONES = ((56, 220), (272, 97))
"""`clone` and `unshare`: their first argument has the flag of a user namespace. A filter cannot read the flags of `clone3`, so it fails as
on a kernel that does not have it, and programs use `clone`."""
CLONE3 = (435, 435)
NO_USER_NAMESPACES, SECONDS, PARENT = "--no-user-namespaces", "--seconds", "--parent"

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32 = 0x40000000
_NEW_USER = 0x10000000
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`, which a filter reads."""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EOPNOTSUPP, _EAFNOSUPPORT = 1, 38, 95, 97
_DIE_WITH_PARENT, _NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 1, 38, 22, 2

Line = tuple[int, int, int, int]


def program(machine: str, *, user_namespaces: bool = True) -> bytes:
    """The filter for a machine; empty if there is no table for it. A refused call fails with EPERM."""
    if machine not in ARCHITECTURES:
        return b""
    architecture, column = ARCHITECTURES[machine]
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | _EPERM)
    argument = (_LOAD, 0, 0, _ARGUMENT)

    def when(test: int, value: int, *then: Line) -> list[Line]:
        return [(test, 0, len(then), value), *then]

    known = [(_EQUAL, len(FAMILIES) - n, 0, family) for n, family in enumerate(FAMILIES)]
    family = [argument, *known, (_RETURN, 0, 0, _ERROR | _EAFNOSUPPORT), allow]
    absent = (_RETURN, 0, 0, _ERROR | _EOPNOTSUPP)
    reserving = [(_EQUAL, len(RESERVING) - n, 0, request) for n, request in enumerate(RESERVING)]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *when(_AT_LEAST, _X32, refuse),
    ]
    for numbers in DENIED.values():
        lines += when(_EQUAL, numbers[column], refuse)
    for numbers in IGNORED.values():
        lines += when(_EQUAL, numbers[column], (_RETURN, 0, 0, _ERROR))
    lines += when(_EQUAL, FALLOCATE[column], absent)
    lines += when(_EQUAL, IOCTL[column], (_LOAD, 0, 0, _SECOND_ARGUMENT), *reserving, allow, absent)
    for numbers in SOCKETS:
        lines += when(_EQUAL, numbers[column], *family)
    if not user_namespaces:
        for numbers in CLONES:
            lines += when(_EQUAL, numbers[column], argument, *when(_HAS_BIT, _NEW_USER, refuse), allow)
        lines += when(_EQUAL, CLONE3[column], (_RETURN, 0, 0, _ERROR | _ENOSYS))
    return b"".join(struct.pack("HBBI", *line) for line in [*lines, allow])


def restrict(*, user_namespaces: bool) -> None:
    """Install the filter for this process and all that it starts. Raises `OSError`."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # if the machine runs out of memory, the kernel ends the command, not the hub
    except OSError:
        pass
    if not (code := program(os.uname().machine, user_namespaces=user_namespaces)):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    lines = ctypes.create_string_buffer(code, len(code))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(lines)))
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, whole, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")


def end_with(parent: int, seconds: int) -> None:
    """End this process with its parent, and after so many seconds, also after `exec`. Raises `OSError`."""
    signal.alarm(seconds)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel does not end processes with their parents")
    if os.getppid() != parent:  # it has ended before that
        sys.exit(1)


def main(arguments: list[str]) -> None:
    given: dict[str, str] = {}
    while arguments[0].startswith("--"):
        name, _, given[name] = arguments.pop(0).partition("=")
    if PARENT in given:
        end_with(int(given[PARENT]), int(given[SECONDS]))
    restrict(user_namespaces=NO_USER_NAMESPACES not in given)
    os.execvp(arguments[0], arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
