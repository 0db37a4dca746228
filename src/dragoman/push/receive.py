"""Receive push notifications: verify sender, audience, age and content, and read the event.

    verifier = Verifier(token="...")                                   the token of the push config
    verifier = Verifier(secrets=("whsec_...",))                        HMAC, as in the Standard Webhooks specification
    verifier = Verifier(keys=FetchedKeys("https://agent.example/.well-known/jwks.json"),
                        issuer="https://agent.example", audience="https://us.example/webhook")
    received = await verifier.verify(headers, body)

Everything that is configured must be right. Notifications of all versions are read.
"""

from __future__ import annotations

import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct, field

from dragoman.auth.jose import ASYMMETRIC
from dragoman.auth.jwks import Keys
from dragoman.auth.jwt import TokenCheck
from dragoman.auth.schemes import Fetch
from dragoman.client.fetch import Fetcher
from dragoman.dialects.select import DIALECTS
from dragoman.errors import InvalidAgentResponse, InvalidParams, Unauthenticated
from dragoman.model.ops import STREAM, Principal
from dragoman.model.task import Event, Task
from dragoman.push.notification import JWT_HEADER, TOKEN_HEADER, hash_body, sign_hmac

_WRAPPERS = {"task", "message", "statusUpdate", "artifactUpdate", "status_update", "artifact_update", "msg"}
_SEEN_SECONDS = 90_000.0
_MAX_SEEN_DELIVERIES = 100_000


class Received(Struct, frozen=True):
    """A verified notification."""

    event: Event
    task_id: str
    delivery: str = ""
    """The id of the notification: the same each time it is sent. Empty if the sender sends none."""
    duplicate: bool = False
    """It was received before. Acknowledge it, and do nothing."""


class Seen(Protocol):
    """Remembers which deliveries were received."""

    def add(self, delivery: str) -> bool:
        """False if it was received before."""
        ...

    def forget(self, delivery: str) -> None: ...


class Verifier:
    """`token`: the one in our push config, or a function that returns it by the id of the task (None: unknown task).

    `tolerance`: how old, or how far ahead of our clock, a signature may be, in seconds. `seen`: where deliveries are
    remembered; in memory, for a day, unless given. `insecure`: nothing is checked, if nothing is configured.
    """

    def __init__(
        self,
        *,
        token: str | Callable[[str], str | None] = "",
        secrets: Sequence[str] = (),
        keys: Keys | None = None,
        issuer: str = "",
        audience: str = "",
        tolerance: float = 300.0,
        seen: Seen | None = None,
        fetch: Fetch | None = None,
        insecure: bool = False,
    ) -> None:
        if not (token or secrets or keys or insecure):
            raise ValueError("give a token, secrets or keys: otherwise anybody could send notifications")
        self._token, self._secrets, self._tolerance = token, tuple(secrets), tolerance
        self._check = None
        if keys is not None:
            self._check = TokenCheck(
                issuer, audience, keys, algorithms=ASYMMETRIC, skew=60.0, tenant_claim="", identify=_claims
            )
        self.seen = seen or _SeenInMemory()
        self._fetch = fetch or Fetcher()

    async def verify(self, headers: Mapping[str, str], body: bytes) -> Received:
        """Raises `Unauthenticated` if a check fails, `InvalidParams` if the body is not a notification."""
        headers = _lower(headers)
        self.check_headers(headers)
        delivery = headers.get("webhook-id", "")
        if self._secrets:
            self._check_signature(headers, delivery, body)
        claims = await self._check_token(headers, body) if self._check else {}
        if callable(self._token):
            self._check_named_tasks(headers, body)
        event = read_notification(body)
        task = _task_of(event)
        self._check_shared_token(headers, task)
        if claims:
            if "task_id" in claims and claims["task_id"] != task:
                raise Unauthenticated("the token is for another task")
            delivery = str(claims.get("jti") or delivery)
        new = not delivery or self.seen.add(delivery)
        return Received(event, task, delivery, duplicate=not new)

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Check that the headers have every credential, before the body is read. Raises `Unauthenticated`."""
        headers = _lower(headers)
        if self._secrets and not (headers.get("webhook-id") and headers.get("webhook-signature")):
            raise Unauthenticated("it is not signed")
        if self._check and not _signed_token(headers):
            raise Unauthenticated("it has no signed token")
        if callable(self._token):
            if not headers.get(TOKEN_HEADER.lower()):
                raise Unauthenticated("its token is not ours")
        else:
            self._check_shared_token(headers, "")

    def _check_named_tasks(self, headers: Mapping[str, str], body: bytes) -> None:
        """Check, before the body is decoded, that the token belongs to one of the tasks that it names."""
        for task in _named_tasks(body):
            with suppress(Unauthenticated):
                self._check_shared_token(headers, task)
                return
        raise Unauthenticated("its token is not ours")

    def _check_signature(self, headers: Mapping[str, str], delivery: str, body: bytes) -> None:
        stated = headers.get("webhook-timestamp", "")
        if not delivery or not (stated.isascii() and stated.isdigit() and len(stated) < 12):
            raise Unauthenticated("it is not signed")
        self._check_age(int(stated))
        given = headers.get("webhook-signature", "").split(" ")[:10]
        good = sign_hmac(self._secrets, delivery, int(stated), body).split(" ")
        if not any(hmac.compare_digest(a.encode(), b.encode()) for a in given for b in good):
            raise Unauthenticated("its signature is wrong")

    async def _check_token(self, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        assert self._check is not None
        claims = (await self._check(_signed_token(headers), self._fetch)).claims
        self._check_age(claims.get("iat") or 0)
        if claims.get("request_body_sha256") not in (hash_body(body), _compact_hash(body)):
            raise Unauthenticated("its token is for another body")
        return claims

    def _check_shared_token(self, headers: Mapping[str, str], task: str) -> None:
        if not self._token:
            return
        expected = self._token(task) if callable(self._token) else self._token
        given = headers.get(TOKEN_HEADER.lower(), "")
        if not expected or not hmac.compare_digest(given.encode(), expected.encode()):
            raise Unauthenticated("its token is not ours")

    def _check_age(self, timestamp: float) -> None:
        if abs(time.time() - timestamp) > self._tolerance:
            raise Unauthenticated("it is too old, or its time is in the future")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _signed_token(headers: Mapping[str, str]) -> str:
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return headers.get(JWT_HEADER.lower()) or (bearer.strip() if scheme.lower() == "bearer" else "")


class _Names(Struct, rename="camel"):
    """Where a notification names its task, in any version. Other members are skipped, not decoded."""

    id: Raw = Raw()
    task_id: Raw = Raw()
    result: Raw = Raw()
    task: Raw = Raw()
    message: Raw = Raw()
    msg: Raw = Raw()
    status_update: Raw = Raw()
    artifact_update: Raw = Raw()
    other_task_id: Raw = field(name="task_id", default=Raw())
    other_status_update: Raw = field(name="status_update", default=Raw())
    other_artifact_update: Raw = field(name="artifact_update", default=Raw())


_NAMES = msgspec.json.Decoder(_Names)
_NAME = msgspec.json.Decoder(str)


def _named_tasks(body: bytes) -> set[str]:
    """The tasks that a notification may be about."""
    found: set[str] = set()
    inside: list[bytes | Raw] = [body]
    for _ in range(3):  # the notification, the result in it, the event in that
        deeper: list[bytes | Raw] = []
        for document in inside:
            try:
                names = _NAMES.decode(document)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            for name in (names.id, names.task_id, names.other_task_id):
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    found.add(_NAME.decode(name))
            deeper += filter(
                None,
                (
                    names.result,
                    names.task,
                    names.message,
                    names.msg,
                    names.status_update,
                    names.artifact_update,
                    names.other_status_update,
                    names.other_artifact_update,
                ),
            )
        inside = deeper
    return found


def read_notification(body: bytes) -> Event:
    """The event of a notification of any version. Raises `InvalidParams`."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidParams("the notification is not JSON") from None
    if isinstance(document, dict) and isinstance(document.get("result"), dict) and "jsonrpc" in document:
        document = document["result"]
    if not isinstance(document, dict):
        raise InvalidParams("the notification is not an object")
    dialect = _dialect_of(document)
    if dialect == "0.1" and "id" in document:
        document.pop("taskId", None)  # a task has both members; an update has only this one
    try:
        event: Event = DIALECTS[dialect].read_result(STREAM, document)
        return event
    except InvalidAgentResponse as error:
        raise InvalidParams(f"the notification cannot be read: {error.message}") from None


def _dialect_of(document: Mapping[str, Any]) -> str:
    if any(isinstance(document.get(name), dict) for name in _WRAPPERS):
        return "1.0"
    if isinstance(document.get("kind"), str):
        return "0.3"
    return "0.2-type" if isinstance(document.get("type"), str) else "0.1"


def _task_of(event: Event) -> str:
    return event.id if isinstance(event, Task) else event.task_id


def _claims(claims: Mapping[str, Any]) -> Principal:
    return Principal(claims=dict(claims))


def _compact_hash(body: bytes) -> str:
    """The hash of the JSON without blanks: the samples of the first draft sign this."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return hash_body(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


class _SeenInMemory:
    """The last deliveries, for longer than a sender keeps trying."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, float] = OrderedDict()

    def add(self, delivery: str) -> bool:
        now = time.time()
        while self._at and (
            len(self._at) >= _MAX_SEEN_DELIVERIES or next(iter(self._at.values())) < now - _SEEN_SECONDS
        ):
            self._at.popitem(last=False)
        if delivery in self._at:
            return False
        self._at[delivery] = now
        return True

    def forget(self, delivery: str) -> None:
        self._at.pop(delivery, None)
