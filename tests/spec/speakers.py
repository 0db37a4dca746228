"""1.0 spoken by hand over each binding, from the words of its specification, without our client.

Paths and JSON are written here by hand. gRPC takes its message types from the compiled .proto files that we ship.

An operation is called by its name, with the JSON of its request. What comes back is the JSON of its result, whatever
carried it; what is refused is a `Refusal` with all that was said.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from google.protobuf.json_format import MessageToDict, ParseDict
from grpc import aio

from dragoman.dialects.proto import v1_0
from dragoman.dialects.proto.messages import RPC
from tests import raw

Document = dict[str, Any]


class Refusal(Exception):
    def __init__(self, status: Any, code: int, message: str, details: list[Document]) -> None:
        super().__init__(status, code, message, details)
        self.status, self.code, self.message, self.details = status, code, message, details
        """The status of HTTP or gRPC, and the code that the binding has for it."""

    @property
    def reason(self) -> str:
        """What the ErrorInfo of A2A says."""
        return next((each["reason"] for each in self.details if "ErrorInfo" in each["@type"]), "")


class Speaker(Protocol):
    binding: str

    async def call(self, method: str, params: Document, **headers: str) -> Any: ...

    def stream(self, method: str, params: Document, **headers: str) -> AsyncIterator[Document]: ...


class JsonRpc:
    binding = "JSONRPC"

    def __init__(self, url: str) -> None:
        self.url = url

    async def call(self, method: str, params: Document, **headers: str) -> Any:
        try:
            said = await raw.call(self.url, method, params, **headers)
        except raw.Refused as refused:
            raise _of_rpc(refused.status, refused.error) from None
        assert said["jsonrpc"] == "2.0" and said["id"] == 1 and ("result" in said) != ("error" in said)
        if "error" in said:
            raise _of_rpc(200, said["error"])
        return said["result"]

    async def stream(self, method: str, params: Document, **headers: str) -> AsyncIterator[Document]:
        try:
            async for heard in raw.stream(self.url, method, params, **headers):
                assert heard.document["id"] == 1
                yield heard.result
        except raw.Refused as refused:
            raise _of_rpc(refused.status, refused.error) from None


def _of_rpc(status: int, error: Document) -> Refusal:
    return Refusal(status, error["code"], error["message"], error.get("data", []))


class Rest:
    binding = "HTTP+JSON"

    PATHS = {
        "SendMessage": ("POST", "/message:send"),
        "SendStreamingMessage": ("POST", "/message:stream"),
        "GetTask": ("GET", "/tasks/{id}"),
        "ListTasks": ("GET", "/tasks"),
        "CancelTask": ("POST", "/tasks/{id}:cancel"),
        "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
        "CreateTaskPushNotificationConfig": ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
        "GetTaskPushNotificationConfig": ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
        "ListTaskPushNotificationConfigs": ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
        "DeleteTaskPushNotificationConfig": ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
        "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
    }

    def __init__(self, url: str) -> None:
        self.url = url

    def _request(self, method: str, params: Document) -> tuple[str, str, bytes]:
        verb, path = self.PATHS[method]
        rest = dict(params)
        for name in ("taskId", "id"):
            if "{" + name + "}" in path:
                path = path.replace("{" + name + "}", quote(str(rest.pop(name)), safe=""))
        if verb == "POST":
            return verb, self.url + path, json.dumps(rest).encode()
        if tenant := rest.pop("tenant", ""):
            path = f"/{tenant}{path}"
        query = urlencode({n: str(v).lower() if isinstance(v, bool) else v for n, v in rest.items()})
        return verb, f"{self.url}{path}{'?' + query if query else ''}", b""

    async def call(self, method: str, params: Document, **headers: str) -> Any:
        verb, url, body = self._request(method, params)
        async with raw.post(url, body, raw.spelled(headers), method=verb) as response:
            said = json.loads(await raw.read(response))
            if response.status != 200:
                raise _of_http(response.status, said)
            return said

    async def stream(self, method: str, params: Document, **headers: str) -> AsyncIterator[Document]:
        verb, url, body = self._request(method, params)
        async with raw.post(url, body, raw.spelled(headers), method=verb) as response:
            if response.status != 200:
                raise _of_http(response.status, json.loads(await raw.read(response)))
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in raw.lines(response.reader):
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])


def _of_http(status: int, said: Document) -> Refusal:
    error = said["error"]
    assert error["code"] == status
    return Refusal(status, status, error["message"], error.get("details", []))


class Grpc:
    binding = "GRPC"

    def __init__(self, address: str) -> None:
        self._channel = aio.insecure_channel(address)

    async def close(self) -> None:
        await self._channel.close()

    def _method(self, kind: str, method: str, answer: Any) -> Any:
        return getattr(self._channel, kind)(
            f"/lf.a2a.v1.A2AService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    async def call(self, method: str, params: Document, **headers: str) -> Any:
        request, answer = _messages(method)
        invoke = self._method("unary_unary", method, answer)
        try:
            said = await invoke(ParseDict(params, request()), metadata=_pairs(headers))
        except aio.AioRpcError as error:
            raise _of_grpc(error) from None
        unset = MessageToDict(answer(), always_print_fields_with_no_presence=True)
        return {**(unset if method == "ListTasks" else {}), **MessageToDict(said)}

    async def stream(self, method: str, params: Document, **headers: str) -> AsyncIterator[Document]:
        request, answer = _messages(method)
        call = self._method("unary_stream", method, answer)(
            ParseDict(params, request()), metadata=_pairs(headers)
        )
        try:
            async for event in call:
                yield MessageToDict(event)
        except aio.AioRpcError as error:
            raise _of_grpc(error) from None
        finally:
            call.cancel()


def _messages(method: str) -> tuple[Any, Any]:
    codec = v1_0.CODEC
    op = next(op for op, name in codec.methods.items() if name == method)
    return codec.requests[op], codec.results[op]


def _pairs(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(raw.spelled(headers).items())


def _of_grpc(error: aio.AioRpcError) -> Refusal:
    trailers = dict(error.trailing_metadata() or ())
    details = []
    if packed := trailers.get("grpc-status-details-bin"):
        for each in RPC.Status.FromString(packed).details:
            kind = each.type_url.rpartition(".")[2]
            details.append(
                {"@type": each.type_url, **MessageToDict(getattr(RPC, kind).FromString(each.value))}
            )
    return Refusal(error.code().name, error.code().value[0], error.details() or "", details)
