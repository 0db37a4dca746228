"""Where commands run: a confined process for each.

`LocalSandbox` is for a hub that trusts its tenants to be clumsy, not malicious: a folder per tenant, a bare environment,
limits on time, memory, files and processes, and no network where the kernel lets us take it away. Against malice, give
the hub a `Sandbox` that is a container or a machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct

OUTPUT_LIMIT = 32 * 1024


class Ran(Struct, frozen=True, kw_only=True):
    output: str
    code: int
    timed_out: bool = False
    seconds: float = 0.0


class Sandbox(Protocol):
    async def run(self, tenant: str, command: str) -> Ran:
        """Run a shell command for a tenant, to its end or the end of its time. Cancelling kills it."""
        ...


class LocalSandbox:
    def __init__(
        self,
        folder: Path,
        *,
        seconds: float = 30.0,
        memory_mb: int = 512,
        file_mb: int = 64,
        network: bool = False,
    ) -> None:
        self._folder, self._seconds, self._network = folder, seconds, network
        self._limits = (
            f"ulimit -v {memory_mb * 1024}; ulimit -f {file_mb * 2048}; "
            f"ulimit -t {int(seconds) + 1}; ulimit -c 0; ulimit -n 256"
        )
        self._apart: list[str] | None = None

    async def run(self, tenant: str, command: str) -> Ran:
        home = self._folder / f"t{tenant}"
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        process = await asyncio.create_subprocess_exec(
            *await self._prefix(),
            "sh",
            "-c",
            f'{self._limits}; exec sh -c "$1"',
            "sh",
            command,
            cwd=home,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        reading = asyncio.create_task(_read(process.stdout))
        late = False
        try:
            async with asyncio.timeout(self._seconds):
                await process.wait()
        except TimeoutError:
            late = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            output = await reading
        return Ran(output=output, code=process.returncode or 0, timed_out=late, seconds=self._seconds)

    async def _prefix(self) -> list[str]:
        """`unshare`, if it can take the network away here."""
        if self._network:
            return []
        if self._apart is None:
            self._apart = []
            if found := shutil.which("unshare"):
                trial = await asyncio.create_subprocess_exec(
                    found,
                    "-rn",
                    "true",
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                if await trial.wait() == 0:
                    self._apart = [found, "-rn"]
        return self._apart


async def _read(stream: asyncio.StreamReader) -> str:
    """All of it, of which the first part is kept."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        kept += chunk[: max(0, OUTPUT_LIMIT - len(kept))]
    text = bytes(kept).decode("utf-8", "replace")
    return text + "\n[output cut]" if len(kept) >= OUTPUT_LIMIT else text
