"""A hub as a process of its own, to be talked to, killed and started again."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dragoman.client.transport.network import HttpTransport
from dragoman.dialects.sse import Frame, SseReader
from dragoman.engine.records import Step
from dragoman.errors import A2AError
from dragoman.model.ops import ListTasks, Scope
from dragoman.stores import open_store
from tests.hub.house import ON_POSTGRES, store_of
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
ADMIN = "adm_" + "1" * 64


async def _is_healthy(http: HttpTransport, url: str) -> bool:
    with suppress(A2AError):
        response = await http.request("GET", f"{url}/v1/health", {})
        return await response.read() == b"ok\n"
    return False


class Process:
    """A hub as an operator runs it, with a model that plays `script`; without one, it repeats what it is told."""

    def __init__(
        self,
        folder: Path,
        script: dict[str, Any] | None = None,
        *flags: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: how to talk to a hub that speaks TLS."""
        self._folder, self._port, self._tls = folder, free_port(), tls
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._port}"
        model = "echo"
        if script is not None:
            file = folder / "script.json"
            file.write_bytes(msgspec.json.encode(script))
            model = f"scripted:{file}"
        self._command = [
            sys.executable,
            "-m",
            "dragoman.cli",
            "hub",
            "--data",
            str(folder),
            "--log-level",
            "warning",
        ]
        self._command += ["--port", str(self._port), "--model", model, *flags]
        self.environment = {"DRAGOMAN_APPROVE": "none"}

    async def start(self) -> None:
        environment = {**os.environ, "DRAGOMAN_ADMIN_TOKEN": ADMIN, "PYTHONPATH": str(ROOT / "src")}
        environment.pop("DRAGOMAN_STORE", None)
        if ON_POSTGRES:
            environment["DRAGOMAN_STORE"] = store_of(self._folder)
        environment |= {"DRAGOMAN_MODELS": "*", **self.environment}
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, env=environment, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(30):
                await self._ready()
        except BaseException:
            await self.kill()
            raise

    async def _ready(self) -> None:
        http = HttpTransport(tls=self._tls)
        try:
            await until(partial(_is_healthy, http, self.url), seconds=30)
        finally:
            await http.close()

    async def stop(self) -> int:
        """As an operator does it; the exit code."""
        self._process.terminate()
        return await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def call(
    url: str,
    token: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> Any:
    http = HttpTransport(tls=tls)
    try:
        raw = b"" if body is None else msgspec.json.encode(body)
        response = await http.request(method, url + path, {"Authorization": f"Bearer {token}"}, raw)
        return msgspec.json.decode(await response.read())
    finally:
        await http.close()


async def listen(
    url: str,
    token: str,
    method: str,
    path: str,
    body: Any,
    last: str,
    most: int,
    begun: asyncio.Event | None = None,
) -> list[Frame]:
    """The events of a stream, until `done`, or until `most` of them, or until it breaks. `begun` is set at the first of them.

    A hub that cannot do it at the moment, on a busy machine, is asked again.
    """
    headers = {"Authorization": f"Bearer {token}", **({"Last-Event-ID": last} if last else {})}
    http, reader, heard = HttpTransport(), SseReader(), []
    try:
        raw = b"" if body is None else msgspec.json.encode(body)
        ask = partial(http.request, method, url + path, headers, raw)
        response = await until(ask, lambda response: response.status != 503)
        assert response.status == 200, await response.read()
        async for chunk in response.chunks():
            heard += reader.feed(chunk)
            if begun is not None and heard:
                begun.set()
            if len(heard) >= most or any(frame.event == "done" for frame in heard):
                break
        await response.close()
    except A2AError:
        pass
    finally:
        await http.close()
    return heard


async def recorded(folder: Path, *agents: str) -> list[tuple[str, str]]:
    """Every step on record of the first tenant's agents: (task, key)."""
    store = open_store(store_of(folder))
    await store.open()
    out: list[tuple[str, str]] = []
    try:
        for agent in agents:
            log = store.scope(Scope("1", agent, "1"))
            for snapshot in (await log.find(ListTasks(), limit=100)).snapshots:
                for record in await log.read(snapshot.task_id):
                    if isinstance(record.body, Step):
                        out.append((snapshot.task_id, record.body.key))
    finally:
        await store.close()
    return out
