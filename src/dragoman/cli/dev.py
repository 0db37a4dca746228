"""`dragoman dev FILE[:agent]`: serve agents while you write them.

This process holds the listening socket and watches the files. The agents run in another process (`dev_server.py`). When a file
changes, a new process loads the new code. Only if that works, the old process drains and stops, and the new one serves on
the same socket: callers that connect meanwhile wait, and none is refused. Tasks that ran go on in the new process, because
they are in the store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.cli.arguments import add_address, add_command, add_flag, add_repeated, add_serving, number
from dragoman.cli.load import missing, split
from dragoman.cli.watch import FileWatch, folder_of
from dragoman.observe.terminal import sanitize_for
from dragoman.stores import default_store

EPILOG = """\
FILE and MODULE as for `dragoman serve`. The agent is served on loopback. Open the URL of the console in a browser to see it, talk to
it, and watch its tasks. When you save a file of its package, it is
loaded again: running tasks go on with the new code, after --drain seconds in which they may finish. If the new code has an error,
the error is shown and the old code goes on serving.

  dragoman dev hello.py
  dragoman dev mypkg.agents:billing --port 9000
  dragoman dev hello.py --watch prompts/system.md      load it again when this file changes, too
"""

_SERVE_OPTIONS = ("host", "store", "drain", "grpc_port", "log_level", "insecure")
"""The options that the process of the agents passes on to `serve`."""
_SETTLE_SECONDS = 0.1
"""An editor may write several files. They are loaded when nothing has changed for this long."""
_STOP_SECONDS = 15.0
"""How long a process may take to stop after its drain."""
_NOTIFY_SECONDS = 2.0
"""How long a process may take to tell the pages of the console that it stops."""
_EARLY_SECONDS, _MAX_EARLY_ENDS = 3.0, 3
"""A process that ends within this time of its start has failed; after so many in a row a file has to change first."""


def register(commands: Any) -> None:
    parser = add_command(
        commands, "dev", "serve agents while you write them: reload on every save", EPILOG, run
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE[:agent]", help="a Python file or module that creates an Agent"
    )
    add_address(parser)
    add_serving(parser)
    parser.add_argument(
        "--store",
        default=default_store(),
        help="sqlite:///PATH, postgresql://HOST/DATABASE or memory:, which forgets all tasks at every reload "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--drain",
        type=number,
        default=1.0,
        help="seconds that running tasks get to finish before a reload; then they go on with the new code (default: 1)",
    )
    add_repeated(
        parser,
        "--watch",
        "PATH",
        "also reload when this file, or a Python file below this folder, changes; may be repeated",
    )
    add_flag(parser, "--no-console", help="do not serve the console at /console")
    add_flag(
        parser, "--allow-private", help="let the console call agents on this machine and in private networks"
    )


async def run(args: argparse.Namespace) -> int:
    if sys.platform == "win32":
        raise SystemExit(
            "dragoman dev hands a socket from process to process, which Windows does not do: use WSL"
        )
    return await Reloader(args).run()


def say(text: str) -> None:
    print(sanitize_for(text), flush=True)


class AgentProcess:
    """A process that has loaded the agents, or is about to."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_used: Callable[[], None],
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._on_used = on_used
        self.ended = asyncio.create_task(process.wait())
        self.began = time.monotonic()
        self.error = ""
        """Why it did not load the agents, or did not serve them."""
        self._messages: dict[str, dict[str, Any]] = {}
        self._changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, listener: socket.socket, settings: dict[str, Any], on_used: Callable[[], None]
    ) -> AgentProcess:
        """`on_used` is called when somebody has logged in with the one-time token."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "dragoman.cli.dev_server",
                str(theirs.fileno()),
                str(listener.fileno()),
                pass_fds=(theirs.fileno(), listener.fileno()),
                # Python takes a file of the same second and size for unchanged if there is bytecode of it
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=16 << 20)
        child = cls(process, reader, writer, on_used)
        child.send(**settings)
        return child

    def send(self, **message: Any) -> None:
        with suppress(OSError):
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        """Read the messages of the process until it ends."""
        with suppress(OSError):
            while line := await self._reader.readline():
                message: dict[str, Any] = json.loads(line)
                self.error = message.get("message", self.error)
                self._messages[message["state"]] = message
                self._changed.set()
                if message["state"] == "used":
                    self._on_used()
        code = await self.ended
        self.error = self.error or f"the process of the agent ended ({describe_exit(code)})"
        self._changed.set()

    async def receive(self, state: str) -> dict[str, Any]:
        """Wait for the message `state` of the process. Returns the message; empty if the process failed."""
        while state not in self._messages and not self.error:
            self._changed.clear()
            await self._changed.wait()
        return self._messages.get(state, {})

    async def stop(self, seconds: float) -> None:
        if not self.ended.done():
            with suppress(ProcessLookupError):
                self._process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(self.ended)
        self.kill()
        await self.ended
        await self._reading  # there may be messages left
        self._writer.close()

    def kill(self) -> None:
        if not self.ended.done():
            with suppress(ProcessLookupError):
                self._process.kill()


def describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"


class Reloader:
    """Watches files, and replaces the process that serves."""

    def __init__(self, args: argparse.Namespace) -> None:
        from dragoman.server.address import is_loopback
        from dragoman.server.runtime import bind, free_port

        self._args = args
        sources = [split(name)[0] for name in args.files]
        sys.path.insert(0, os.getcwd())  # as the process of the agents does
        for source in sources:
            if why := missing(source):  # nothing that is saved later would change that
                raise SystemExit(why)
        extra = [Path(path) for path in args.watch]
        for path in extra:
            if not path.exists():
                raise SystemExit(f"--watch {path}: no such file or folder")
        folders = [folder for source in sources if (folder := folder_of(source)) is not None]
        self._watch = FileWatch(
            [*folders, *(path for path in extra if path.is_dir())],
            [
                *(Path(source) for source in sources if Path(source).is_file()),
                *(p for p in extra if p.is_file()),
            ],
        )
        if args.grpc_port is not None:
            args.grpc_port = free_port(args.host, args.grpc_port)  # the same one after every reload
        self._listener = bind(args.host, args.port)
        self._serving: AgentProcess | None = None
        self._changed, self._stop = asyncio.Event(), asyncio.Event()
        self._paths: list[Path] = []
        self._announced = False
        self._early_ends = 0
        self._token = secrets.token_urlsafe(24)
        """In the URL of the console, until somebody has used it."""
        self._operator = os.environ.get("DRAGOMAN_CONSOLE_TOKEN", "")
        if not self._operator and not args.store.startswith("sqlite:") and is_loopback(args.host):
            self._operator = secrets.token_urlsafe(32)  # or sessions would end at every reload

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(each, self._interrupt)
        watching = asyncio.create_task(self._watch_files())
        try:
            while not self._stop.is_set():
                self._changed.clear()
                loaded = await self._load()
                if loaded is not None:
                    await self._switch(loaded)
                await self._wait_for_change()
        finally:
            watching.cancel()
            if self._serving is not None:
                await self._serving.stop(self._args.drain + _STOP_SECONDS)
        return 0

    def _interrupt(self) -> None:
        if self._stop.is_set() and self._serving is not None:
            self._serving.kill()  # the second Ctrl-C: tasks are in the store
        self._stop.set()

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(self._watch.pause)
            if not (paths := self._watch.find_changes()):
                continue
            while more := await self._changed_since():
                paths += more
            self._paths = sorted(set(paths))
            self._changed.set()

    async def _changed_since(self) -> list[Path]:
        await asyncio.sleep(_SETTLE_SECONDS)
        return self._watch.find_changes()

    async def _load(self) -> AgentProcess | None:
        """A process that has loaded the agents. None if that failed, or if files changed meanwhile."""
        args = self._args
        child = await AgentProcess.start(
            self._listener,
            {
                "files": args.files,
                "serve": {name: getattr(args, name) for name in _SERVE_OPTIONS},
                "console": None
                if args.no_console
                else {"operator": self._operator, "allow_private": args.allow_private},
            },
            self._token_used,
        )
        receiving = asyncio.create_task(child.receive("loaded"))
        try:
            await self._wait_for_first(receiving, self._changed, self._stop)
            if not receiving.done():
                return None
            if notice := receiving.result():
                self._watch.add(Path(file) for file in notice["files"])
                loaded, child = child, None  # type: ignore[assignment]
                return loaded
            self._report(child.error)
            return None
        finally:
            receiving.cancel()
            if child is not None:
                child.kill()
                await child.stop(0)

    def _token_used(self) -> None:
        self._token = ""  # the next process makes one that nobody knows

    def _report(self, error: str) -> None:
        say(error)
        if self._serving is not None:
            say(f"{_now()} the new code has an error; the old code goes on serving")
            self._serving.send(reload={"state": "error", "message": error})
        else:
            say(f"{_now()} waiting for a file to change")

    async def _switch(self, loaded: AgentProcess) -> None:
        """Stop the process that serves, then let `loaded` serve."""
        if self._serving is not None:
            changed = ", ".join(_relative(path) for path in self._paths[:3]) or "a file"
            say(f"{_now()} {changed} changed: restarting")
            self._serving.send(reload={"state": "restarting", "message": f"{changed} changed"})
            with suppress(TimeoutError):
                async with asyncio.timeout(_NOTIFY_SECONDS):
                    await self._serving.receive("notified")
            await self._serving.stop(self._args.drain + _STOP_SECONDS)
        self._listener.listen(4096)
        self._serving = loaded
        loaded.began = time.monotonic()
        loaded.send(serve=True, token=self._token)
        receiving = asyncio.create_task(loaded.receive("serving"))
        await self._wait_for_first(receiving, self._stop)
        if not receiving.done():
            receiving.cancel()
            return
        if not (notice := receiving.result()):
            self._serving = None
            await loaded.stop(0)
            self._report(loaded.error)
            return
        if not self._announced:
            self._announced = True
            self._announce(notice)

    def _announce(self, notice: dict[str, Any]) -> None:
        for name, url in notice["agents"]:
            say(f"{name}: {url}")
        if self._args.grpc_port is not None:
            say(f"gRPC: {self._args.host}:{self._args.grpc_port}")
        if notice.get("console"):
            say(f"console: {notice['console']}")
        folders = ", ".join(_relative(folder) for folder in self._watch.folders) or "the agent's file"
        cut = " (the first of very many)" if self._watch.cut else ""
        files = "1 file" if len(self._watch) == 1 else f"{len(self._watch)} files"
        say(f"watching {files} in {folders}{cut}; Ctrl-C stops")

    async def _wait_for_change(self) -> None:
        """Until files change, or we are to stop, or the process that serves has ended."""
        serving = self._serving
        if serving is None:
            await self._wait_for_first(None, self._changed, self._stop)
            return
        await self._wait_for_first(serving.ended, self._changed, self._stop)
        if not serving.ended.done() or self._stop.is_set():
            return
        self._serving = None
        early = time.monotonic() - serving.began < _EARLY_SECONDS
        self._early_ends = self._early_ends + 1 if early else 0
        say(f"{_now()} the process of the agent ended ({describe_exit(serving.ended.result())})")
        if self._early_ends >= _MAX_EARLY_ENDS:
            self._early_ends = 0
            say(f"{_now()} it ended {_MAX_EARLY_ENDS} times in a row: waiting for a file to change")
            await self._wait_for_first(None, self._changed, self._stop)

    async def _wait_for_first(self, task: asyncio.Task[Any] | None, *events: asyncio.Event) -> None:
        """Wait for the first of these. The task is not canceled."""
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(
                [*waits, *([task] if task is not None else [])], return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waits:
                each.cancel()


def _now() -> str:
    return time.strftime("%H:%M:%S")


def _relative(path: Path) -> str:
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
