"""The client: talk to any agent of any version.

connect, connect_sync   make a client
Client                  an agent you are connected to
Reply, Piece, Stream    the answers
TaskFailed              raised by `agent(...)` if the task did not complete
Policy                  how often a client tries again
file                    a file to send
ClientExtension         what a client does for an extension; TimestampClient
AgentCache              cards and dialects that clients remember
Bearer, Basic, ApiKey, Headers, ClientCredentials, AuthorizationCode, RefreshToken, DeviceCode,
TokenExchange, ClientCertificate
                        credentials
"""

from __future__ import annotations

from dragoman.client.client import Client, connect
from dragoman.client.content import file
from dragoman.client.credentials import ApiKey, Basic, Bearer, ClientCertificate, Headers
from dragoman.client.discover import AgentCache
from dragoman.client.extensions import ClientExtension, TimestampClient
from dragoman.client.oauth import (
    AuthorizationCode,
    ClientCredentials,
    DeviceCode,
    RefreshToken,
    TokenExchange,
)
from dragoman.client.reply import Piece, Reply, Stream, TaskFailed
from dragoman.client.retry import Policy
from dragoman.client.sync import SyncClient, connect_sync

__all__ = [
    "AgentCache",
    "ApiKey",
    "AuthorizationCode",
    "Basic",
    "Bearer",
    "Client",
    "ClientCertificate",
    "ClientCredentials",
    "ClientExtension",
    "DeviceCode",
    "Headers",
    "Piece",
    "Policy",
    "RefreshToken",
    "Reply",
    "Stream",
    "SyncClient",
    "TaskFailed",
    "TimestampClient",
    "TokenExchange",
    "connect",
    "connect_sync",
    "file",
]
