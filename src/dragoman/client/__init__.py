"""The client: talk to any agent of any version.

connect, connect_sync   the way in
Client                  an agent you are connected to
Reply, Piece, Stream    what comes back
TaskFailed              what `agent(...)` raises when the agent could not do it
Policy                  how stubborn a client is
file                    a file to send
Bearer, Basic, ApiKey, Headers, ClientCredentials, RefreshToken, DeviceCode, ClientCertificate
                        proof of who you are
"""

from __future__ import annotations

from dragoman.client.client import Client, connect
from dragoman.client.content import file
from dragoman.client.credentials import ApiKey, Basic, Bearer, ClientCertificate, Headers
from dragoman.client.oauth import ClientCredentials, DeviceCode, RefreshToken
from dragoman.client.reply import Piece, Reply, Stream, TaskFailed
from dragoman.client.retry import Policy
from dragoman.client.sync import SyncClient, connect_sync

__all__ = [
    "ApiKey",
    "Basic",
    "Bearer",
    "Client",
    "ClientCertificate",
    "ClientCredentials",
    "DeviceCode",
    "Headers",
    "Piece",
    "Policy",
    "RefreshToken",
    "Reply",
    "Stream",
    "SyncClient",
    "TaskFailed",
    "connect",
    "connect_sync",
    "file",
]
