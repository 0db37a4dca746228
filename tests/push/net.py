"""Fake names and addresses that lead to a server on loopback, or nowhere."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.push.guard import Guard

PUBLIC = "93.184.215.14"


class Pretending(socket.socket):
    """A socket that says it is connected to somewhere else."""

    there = ("", 0)

    def getpeername(self) -> Any:
        return self.there


class Net:
    """`names[host]` are the answers to each question for it, the last one for ever; `port` is where everybody lives."""

    def __init__(self, port: int = 0, names: Mapping[str, Sequence[Sequence[str]]] | None = None) -> None:
        self.port = port
        self.names = names or {}
        self.asked: list[str] = []
        self.dialled: list[str] = []
        self.elsewhere = ""
        """If set, connections end up there, whatever was dialled."""

    def guard(self, **options: Any) -> Guard:
        return Guard(resolve=self.resolve, connect=self.connect, **options)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            return [host] if host[:1].isdigit() or ":" in host else []
        return answers[min(self.asked.count(host), len(answers)) - 1]

    async def connect(self, address: str, port: int) -> socket.socket:
        self.dialled.append(address)
        if not self.port:
            raise ConnectionRefusedError
        real = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        real.setblocking(False)
        await asyncio.get_running_loop().sock_connect(real, ("127.0.0.1", self.port))
        pretending = Pretending(real.family, real.type, fileno=real.detach())
        pretending.there = (self.elsewhere or address, port)
        return pretending
