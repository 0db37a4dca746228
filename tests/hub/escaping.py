"""A hub's sandbox in a process of its own, as `dragoman hub` has it, for whoever wants to break out of it.

    python escaping.py '{"folder": ..., "disk": ..., "commands": [...]}'    prints what each command came to, as JSON

It has what a command must not get: a file, a key in the environment, an open descriptor that children inherit, a listener
on loopback, another tenant's file.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from dragoman.errors import A2AError
from dragoman.hub.assembly import application
from dragoman.hub.sandbox import process
from dragoman.hub.settings import Settings
from dragoman.hub.tools.toolbox import open_services
from tests.hub.scripted import ScriptedModel

SECRET = "sesame-open"


async def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    if "way" in given:
        process.CONFINED = (given["way"],)
    settings = Settings(data=str(folder), allow_exec=True, **given.get("settings", {}))
    hub, _ = application(settings, model=ScriptedModel([]))
    await hub.database.open()
    Path("dragoman.toml").write_text(f'[hub]\nadmin_token = "{SECRET}"\n')
    (folder / "hub.secret").write_text(SECRET)
    os.environ["SOME_API_KEY"] = SECRET
    held = os.open(folder / "hub.secret", os.O_RDONLY)
    os.set_inheritable(held, True)
    listener = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0dragoman-{os.getpid()}")
    abstract.listen()
    sandbox = open_services(settings, hub.metrics, hub.policies).sandbox
    assert sandbox is not None
    await sandbox.write("2", "theirs", SECRET.encode())
    keyring = Path("/proc/keys").exists() and _add_key()
    known = {
        "KEY": keyring,
        "FOLDER": folder,
        "PORT": listener.getsockname()[1],
        "PID": os.getpid(),
        "FD": held,
    }
    came = []
    for command in given["commands"]:
        for name, value in known.items():
            command = command.replace(f"@{name}@", str(value))
        try:
            ran = await sandbox.run("1", command)
            came.append({"output": ran.output, "code": ran.code, "late": ran.timed_out})
        except A2AError as error:
            came.append({"output": "", "code": -1, "refused": error.message})
    listed = [path for path, _ in await sandbox.list("1")]
    link = await sandbox.read("1", "link")
    print(json.dumps({"came": came, "listed": listed, "link": (link or b"").decode(), "uid": os.geteuid()}))


def _add_key() -> int:
    """A key in the session keyring of the hub, as a login or Kerberos may have put there. Returns its id; negative: none."""
    number = {"x86_64": 248, "aarch64": 217}.get(os.uname().machine)
    if number is None:
        return -1
    libc = ctypes.CDLL(None)
    return int(libc.syscall(number, b"user", b"dragoman-test", SECRET.encode(), len(SECRET), -3))


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
