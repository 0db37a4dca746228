"""A2A as protobuf: the dialects of gRPC, 1.0 and 0.3. They need the extra `grpc`.

messages      the message types, from the .proto files beside it
values        Struct, Value and Timestamp
tasks, cards  what the versions have in common
v1_0, v0_3    each of them: wire message <-> model, both ways, so that client and server share it
codec         what they offer
status        errors
"""
