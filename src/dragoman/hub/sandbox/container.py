"""Runs commands in Docker containers, one for each tenant: no network, and only the tenant's folder is writable.

A container starts with the first command of a tenant. It is removed when it is idle, when a command was killed, or when a command left
processes running, which no limit would stop. The folder stays.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from dragoman.errors import Unavailable
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.sandbox.child_process import RunAsUser, start
from dragoman.observe.logs import redact

log = logging.getLogger(__name__)

WORKSPACE = "/workspace"
_DOCKER_VARIABLES = (
    "PATH",
    "HOME",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
)
"""Variables for the docker command. None of them reaches a container."""


_BASE_PROCESSES = 2
"""Processes of a container in which no command runs: `--init`, and `sleep`."""
_TIMEOUT_SCRIPT = 'command -v timeout > /dev/null && exec timeout -s KILL "$1" sh -c "$2"; exec sh -c "$2"'
"""Ends a command even if the hub hangs: another hub may take over the folder then."""


class ContainerIsolation:
    """`image` must have `sh`, and should have `timeout`. `seconds` limits a command even if the hub hangs. `idle`: seconds after which an
    idle container is removed. `owner`: the user of commands, if the hub is root."""

    def __init__(
        self,
        image: str,
        *,
        seconds: float = 30.0,
        memory_mb: int = 512,
        idle: float = 1800.0,
        owner: RunAsUser | None = None,
        program: str = "docker",
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[str, float], None] | None = None,
    ) -> None:
        self._seconds = str(int(seconds) + 1)
        self._image, self._program, self._idle, self._clock = image, program, idle, clock
        user = owner or RunAsUser(os.getuid(), os.getgid())
        self._limits = [
            "--network=none",
            "--read-only",
            "--tmpfs=/tmp:size=64m",
            f"--memory={memory_mb}m",
            f"--memory-swap={memory_mb}m",
            "--cpus=1",
            "--pids-limit=256",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            f"--user={user.uid}:{user.gid}",
        ]
        self._count = count or (lambda what, by: None)
        self._names: dict[str, str] = {}
        self._last_used: dict[str, float] = {}
        """When each tenant's container was last used."""
        self.periodic = PeriodicWork("removing idle containers", self.remove_idle, retry=min(60.0, idle))

    async def prepare(self, tenant: str, folder: Path, command: str) -> tuple[list[str], dict[str, str]]:
        name = self._names.setdefault(tenant, _name(tenant, folder))
        if tenant not in self._last_used or not await self._runs(name):
            await self._start(tenant, name, folder)
        self._last_used[tenant] = self._clock()
        self.periodic.start()
        shell = ["sh", "-c", _TIMEOUT_SCRIPT, "sh", self._seconds, command]
        return [self._program, "exec", f"--workdir={WORKSPACE}", name, *shell], _environment()

    async def clean_up(self, tenant: str, *, killed: bool) -> None:
        """Killing `docker exec` does not kill the command, so the container is removed."""
        if killed or await self._has_leftovers(self._names[tenant]):
            await self._remove(tenant)

    async def close(self) -> None:
        await self.periodic.stop()
        for tenant in list(self._last_used):
            await self._remove(tenant)

    async def remove_idle(self) -> None:
        """Remove idle containers."""
        now = self._clock()
        for tenant, used in list(self._last_used.items()):
            if now - used >= self._idle:
                await self._remove(tenant)
                self._count("container_reaped", 1)

    async def _runs(self, name: str) -> bool:
        code, output = await self._docker("inspect", "--format={{.State.Running}}", name)
        return not code and output.strip() == "true"

    async def _has_leftovers(self, name: str) -> bool:
        """True if a command left processes running."""
        code, output = await self._docker("top", name)
        return bool(code) or len(output.strip().splitlines()) > 1 + _BASE_PROCESSES

    async def _start(self, tenant: str, name: str, folder: Path) -> None:
        await self._docker("rm", "--force", name)  # a killed hub may have left one
        mount = f"--mount=type=bind,source={folder},target={WORKSPACE}"
        named = [f"--name={name}", "--label=dragoman", "--init", f"--env=HOME={WORKSPACE}"]
        code, output = await self._docker(
            "run", "--detach", *named, *self._limits, mount, self._image, "sleep", "infinity"
        )
        if code:
            log.error("docker could not start %s: %s", name, redact(output.strip()[:500]))
            raise Unavailable("commands cannot run right now: the container does not start")
        self._count("container_started", 1)
        if tenant not in self._last_used:
            self._count("containers_running", 1)

    async def _remove(self, tenant: str) -> None:
        if self._last_used.pop(tenant, None) is not None:
            self._count("containers_running", -1)
            await self._docker("rm", "--force", self._names[tenant])

    async def _docker(self, *arguments: str) -> tuple[int, str]:
        try:
            process = await start([self._program, *arguments], environment=_environment())
        except OSError as error:
            log.error("docker cannot be run: %s", error)
            raise Unavailable("commands cannot run right now: the container does not start") from error
        assert process.output is not None
        output = await process.output.read()
        return await process.wait(), output.decode("utf-8", "replace")


def _name(tenant: str, folder: Path) -> str:
    """Unique among the hubs of a machine."""
    return f"dragoman-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}-t{tenant}"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _DOCKER_VARIABLES}
