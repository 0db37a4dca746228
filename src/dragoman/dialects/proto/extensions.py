"""Methods of extensions over gRPC: `dragoman.v1.Extensions/Call` takes and returns a `google.protobuf.Struct`.

The request has `method`, `params` and, where one port has several agents, `tenant`. The answer has `result`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

from dragoman.dialects.proto.messages import document_type
from dragoman.dialects.proto.values import json_for_protobuf, read_struct, write_struct
from dragoman.errors import InvalidParams, InvalidRequest
from dragoman.model.ops import EXTENSION, ExtensionCall, Op

SERVICE, METHOD = "dragoman.v1.Extensions", "Call"
_Struct = document_type(struct_pb2.Struct)


class ExtensionCodec:
    """What the gRPC binding needs of a `Codec`, for this one method."""

    version = "1.0"
    service = SERVICE
    methods = {EXTENSION: METHOD}

    def parsed(self, op: Op, body: bytes) -> Any:
        try:
            return _Struct.FromString(body)
        except DecodeError:
            raise InvalidRequest("the request is no google.protobuf.Struct") from None

    def tenant_of(self, message: Any) -> str:
        named = [entry.value.stringValue for entry in message.fields if entry.key == "tenant"]
        return named[-1] if named else ""

    def read_message(self, op: Op, message: Any, *, max_nodes: int) -> ExtensionCall:
        document = read_struct(message)
        method, params = document.get("method"), document.get("params", {})
        if not isinstance(method, str) or not isinstance(params, dict):
            raise InvalidParams("method must be a text, and params an object")
        return ExtensionCall(method=method, params=params)

    def write_result(self, op: Op, result: Any) -> bytes:
        return write_body({"result": result})


def write_body(document: dict[str, Any]) -> bytes:
    written: bytes = _Struct(**write_struct(json_for_protobuf(document))).SerializeToString()
    return written


def read_body(body: bytes) -> dict[str, Any]:
    return read_struct(_Struct.FromString(body))
