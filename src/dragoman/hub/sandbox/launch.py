"""Run a program without system calls that no command needs, and that get around its limits. A script: `launch.py PROGRAM ...`.

It runs before the command is confined, as the user of the hub. What it takes away stays away in all that the program starts:
the keyrings of the hub's user, shared memory and queues of System V (they count as nobody's memory), and parts of the kernel
that are known for their bugs. Without a table for the machine's processor it takes away nothing.
"""

import ctypes
import os
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
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def program(machine: str) -> bytes:
    """The filter for a machine; empty if there is no table for it. A refused call fails with EPERM."""
    if machine not in ARCHITECTURES:
        return b""
    architecture, column = ARCHITECTURES[machine]
    numbers = [each[column] for each in DENIED.values()]
    lines = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, len(numbers) + 1, 0, _X32),
        *((_EQUAL, len(numbers) - n, 0, number) for n, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def restrict() -> None:
    """Raises `OSError`."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # if the machine runs out of memory, the kernel ends the command, not the hub
    except OSError:
        pass
    if not (code := program(os.uname().machine)):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    lines = ctypes.create_string_buffer(code, len(code))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(lines)))
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, whole, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")


if __name__ == "__main__":
    restrict()
    os.execvp(sys.argv[1], sys.argv[1:])
