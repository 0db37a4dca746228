"""Methods of extensions over gRPC: `dragoman.v1.Extensions/Call` takes and returns a `google.protobuf.Struct`.

The request has `method`, `params` and, where one port has several agents, `tenant`. The answer has `result`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from dragoman.dialects.proto.values import json_for_protobuf, read_struct, write_struct
from dragoman.errors import InvalidParams, InvalidRequest
from dragoman.model.ops import EXTENSION, ExtensionCall, Op

SERVICE, METHOD = "dragoman.v1.Extensions", "Call"


class ExtensionCodec:
    """What the gRPC binding needs of a `Codec`, for this one method."""

    version = "1.0"
    service = SERVICE
    methods = {EXTENSION: METHOD}

    def parsed(self, op: Op, body: bytes) -> Struct:
        message = Struct()
        try:
            message.ParseFromString(body)
        except DecodeError:
            raise InvalidRequest("the request is no google.protobuf.Struct") from None
        return message

    def tenant_of(self, message: Struct) -> str:
        return message.fields["tenant"].string_value if "tenant" in message.fields else ""

    def read_message(self, op: Op, message: Struct, *, max_nodes: int) -> ExtensionCall:
        document = read_struct(message)
        method, params = document.get("method"), document.get("params", {})
        if not isinstance(method, str) or not isinstance(params, dict):
            raise InvalidParams("method must be a text, and params an object")
        return ExtensionCall(method=method, params=params)

    def write_result(self, op: Op, result: Any) -> bytes:
        return write_body({"result": result})


def write_body(document: dict[str, Any]) -> bytes:
    message = Struct()
    write_struct(message, json_for_protobuf(document))
    written: bytes = message.SerializeToString()
    return written


def read_body(body: bytes) -> dict[str, Any]:
    message = Struct()
    message.ParseFromString(body)
    return read_struct(message)
