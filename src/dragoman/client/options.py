"""The options of `connect` and of sending, by name and type, so that an editor knows them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from dragoman.client.retry import Policy
from dragoman.client.transport.network import AddressGuard
from dragoman.client.transport.transport import Transport
from dragoman.model.ops import PushConfig
from dragoman.model.task import Task


class ConnectOptions(TypedDict, total=False):
    """See `connect`."""

    credentials: Any
    origin: str
    headers: Mapping[str, str]
    version: str
    binding: str
    policy: Policy
    tls: ssl.SSLContext | None
    proxy: str | None
    agents: Mapping[str, Any] | None
    transport: Transport | None
    url: str
    signed_by: Any
    guard: AddressGuard | None


class SendOptions(TypedDict, total=False):
    """See `Client.send`."""

    files: Any
    data: Any
    task: str | Task
    context: str | Task
    skill: str
    metadata: Mapping[str, Any] | None
    accept: str | Sequence[str]
    history: int | None
    wait: bool
    push: PushConfig | None
    key: str
    extensions: str | Sequence[str]
