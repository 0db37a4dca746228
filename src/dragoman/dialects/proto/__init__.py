"""A2A as protobuf: the dialects of gRPC, 1.0 and 0.3. They need the extra `grpc`.

messages      the message types, from the .proto files beside it
values        Struct, Value and Timestamp
documents     a message as the document of its JSON form, and back
codec         a version on gRPC; v1_0 and v0_3 are those that there are
status        errors
"""
