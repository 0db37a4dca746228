"""A `Service` over HTTP+JSON, 1.0 and 0.3.

`dialects/paths.py` has the path of each operation, and says which members of a request it contains. The others go into the
query or the body. As over JSON-RPC, nothing is repeated or resumed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace

from dragoman.client.transport.http_exchange import (
    UNARY,
    HttpBinding,
    read_document,
    write_headers,
)
from dragoman.client.transport.transport import NOT_JSON, Response, Transport, decode_json, retry_after
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.errors import error_in, read_rest_error
from dragoman.dialects.paths import Path, path_of
from dragoman.dialects.sse import Frame
from dragoman.errors import A2AError, InvalidParams, Unreachable, UnsupportedOperation
from dragoman.model.ops import (
    PUSH_DELETE,
    Call,
    ExtensionCall,
    Op,
    Request,
    SubscribeToTask,
)
from dragoman.model.task import Event

_encode = msgspec.json.Encoder().encode
_WRONG_VERB = (404, 405, 501)
"""Statuses that can mean that a path does not take a verb."""


class Rest(HttpBinding):
    def __init__(
        self, transport: Transport, url: str, dialect: Dialect, *, silence: float | None = None
    ) -> None:
        address, _, self._query = url.partition("?")
        super().__init__(transport, address.rstrip("/"), dialect, silence=silence)
        self._version = dialect.rest_version
        self._verbs: dict[Op, str] = {}
        """Verbs that worked, for operations with a choice."""

    async def call(self, call: Call, request: Request) -> Any:
        if isinstance(request, ExtensionCall):
            return await self._call_method(call, request)
        op = UNARY[type(request)]
        response = await self._ask(call, op, request, "application/json")
        body = await response.read()
        return None if op is PUSH_DELETE else self.dialect.read_result(op, read_document(body, self.url))

    def _read_single(self, document: dict[str, Any], http: int, request: Request) -> Event:
        return self.dialect.read_event(document)

    def _read_frame(self, request: Request, frame: Frame) -> Sequence[Event]:
        document = read_document(frame.data, self.url)
        if frame.event == "error" or "error" in document:
            raise self._read_error(document, 200, isinstance(request, SubscribeToTask))
        return (self.dialect.read_event(document),) if document else ()

    async def _call_method(self, call: Call, request: ExtensionCall) -> Any:
        """Call a method that an extension of the agent adds."""
        target = f"{self.url}/extensions/{quote(request.method, safe='/')}"
        headers, body = write_headers(call, self.dialect, "application/json"), _encode(request.params)
        response = await self.transport.request("POST", target, headers, body)
        answer = await response.read()
        if not 200 <= response.status < 300:
            document = _document(answer)
            if not isinstance(document, dict):
                document = {"message": f"{target} answered HTTP {response.status}"}
            raise self._read_error(document, response.status, False)
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError as error:
            raise Unreachable(f"{target} did not answer with JSON: {error}") from error

    async def _ask(self, call: Call, op: Op, request: Request, accept: str) -> Response:
        path = path_of(self._version, op)
        if path is None:
            raise UnsupportedOperation(f"this agent speaks A2A {self._version}, which has no {op.name}")
        tenant, headers = request.tenant, write_headers(call, self.dialect, accept)
        if tenant:
            request = replace(request, tenant="")
        params = self.dialect.write_request(op, request)
        verbs = [self._verbs[op]] if op in self._verbs else list(path.verbs)
        while True:
            verb = verbs.pop(0)
            target, body = self._url_and_body(path, verb, params, tenant)
            sent = headers if verb == "POST" else {k: v for k, v in headers.items() if k != "Content-Type"}
            response = await self._send(verb, target, sent, body)
            if 200 <= response.status < 300:
                self._verbs[op] = verb
                return response
            document = _document(await response.read())
            if not verbs or response.status not in _WRONG_VERB or error_in(document, self.dialect.name):
                raise self._to_error(response, document, path)

    def _url_and_body(self, path: Path, verb: str, params: bytes, tenant: str) -> tuple[str, bytes]:
        """The URL and the body of a request."""
        base = f"{self.url}/{quote(tenant, safe='')}" if tenant and self._version == "1.0" else self.url
        variables, own = path.variables, f"?{self._query}" if self._query else ""
        if verb == "POST" and not variables:
            return base + path.template + own, params
        members = msgspec.json.decode(params)
        try:
            target = base + path.fill_template(members)
        except ValueError as error:
            raise InvalidParams(str(error)) from None
        rest = {n: value for n, value in members.items() if n not in variables or n in path.repeated}
        if verb == "POST":
            return target + own, _encode(rest)
        asked = "&".join(filter(None, (self._query, _query(rest))))
        return (f"{target}?{asked}" if asked else target), b""

    def _to_error(self, response: Response, document: Any, path: Path) -> A2AError:
        if not isinstance(document, dict):
            document = {"message": f"{self.url} answered HTTP {response.status}"}
        error = self._read_error(document, response.status, bool(path.variables))
        error.retry_after = retry_after(response.headers.get("retry-after", ""))
        return error

    def _read_error(self, document: dict[str, Any], http: int, of_task: bool) -> A2AError:
        return read_rest_error(document, self.dialect.name, http=http, of_task=of_task)


def _document(body: bytes) -> Any:
    try:
        return decode_json(body)
    except NOT_JSON:
        return None


def _query(members: Mapping[str, Any]) -> str:
    return urlencode(
        {name: str(value).lower() if isinstance(value, bool) else value for name, value in members.items()}
    )
