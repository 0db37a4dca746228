"""Names of the SDK that are not here, and what to write instead."""

from __future__ import annotations

import re

_SERVING = "serve `ExecutorAgent(executor, card)`: `.run()`, or `.app()` for an ASGI server"
_GRPC = "gRPC is served beside all else: `ExecutorAgent(executor, card).run(grpc_port=50051)`, with the extra `grpc`"
_CLIENT = "call agents with `dragoman.connect(url)`"
_STORES = (
    "tasks are kept in SQLite by themselves: `ExecutorAgent(executor, card).run(store='sqlite:///tasks.db')`,"
    " or `store='postgresql://host/database'`"
)
_PUSH = "push notifications are sent by the engine, which keeps their configurations, too: leave it out"
_CONTEXT = "what an executor is told comes from the engine: see `RequestContext`"
_AUTH = (
    "who may call is said with `auth=`, and the card follows: `ExecutorAgent(executor, card, auth=[Bearer(...)])`,"
    " with `Bearer`, `ApiKey`, `Basic`, `JWT`, `OIDC` and `MutualTLS` from `dragoman.auth`"
)
_WIRE = "leave it out: requests, answers and errors are read and written by the server"
_IDS = "leave it out: the engine makes ids"
_QUEUE = "leave it out: the log is the queue"
_SIGNING = (
    "cards are signed by the server: `.run(keys='keys', public_url='https://...')`, with `dragoman keys new`"
)
_TELEMETRY = "leave it out: the server has metrics and spans of its own (`tracer=`)"

INSTEAD: dict[str, str] = {
    name: why
    for why, names in {
        _SERVING: "A2AServer A2AApplication JSONRPCApplication RESTHandler JSONRPCHandler RequestHandler RESTApplication"
        " JsonRpcDispatcher RestDispatcher",
        _GRPC: "GrpcHandler CompatGrpcHandler GrpcServerCallContextBuilder DefaultGrpcServerCallContextBuilder a2a_pb2"
        " a2a_pb2_grpc A2AService A2AServiceServicer A2AServiceStub add_A2AServiceServicer_to_server",
        _CLIENT: "A2AClient Client ClientFactory ClientConfig A2ACardResolver create_client create_text_message_object"
        " minimal_agent_card MessageSendParams SendMessageRequest SendStreamingMessageRequest SendMessageConfiguration"
        " MessageSendConfiguration StreamResponse"
        " A2AClientHTTPError A2AClientJSONError A2AClientError AgentCardResolutionError AuthInterceptor BaseClient"
        " CredentialService InMemoryContextCredentialStore display_agent_card",
        _STORES: "DatabaseTaskStore TaskStore TaskManager ResultAggregator VersionedTaskStore append_artifact_to_task"
        " create_task_obj VersionedDatabaseTaskStore",
        _PUSH: "PushNotificationSender PushNotifier PushNotificationConfigStore DatabasePushNotificationConfigStore"
        " PushNotificationConfig TaskPushNotificationConfig PushNotificationEvent PushNotificationAuthenticationInfo",
        _QUEUE: "InMemoryQueueManager QueueManager EventConsumer EventQueueLegacy NoTaskQueue TaskQueueExists",
        _CONTEXT: "RequestContextBuilder SimpleRequestContextBuilder UnauthenticatedUser A2AUser StarletteUser"
        " StarletteUserProxy",
        _AUTH: "CallContextBuilder ServerCallContextBuilder DefaultServerCallContextBuilder DefaultCallContextBuilder"
        " SecurityScheme HTTPAuthSecurityScheme APIKeySecurityScheme OAuth2SecurityScheme OpenIdConnectSecurityScheme"
        " MutualTLSSecurityScheme MutualTlsSecurityScheme OAuthFlows AuthorizationCodeOAuthFlow ClientCredentialsOAuthFlow"
        " ImplicitOAuthFlow PasswordOAuthFlow DeviceCodeOAuthFlow SecurityRequirement StringList In AuthenticationInfo",
        _SIGNING: "create_agent_card_signer create_signature_verifier AgentCardSignature SignatureVerificationError"
        " NoSignatureError InvalidSignaturesError ProtectedHeader",
        _WIRE: "proto_utils to_stream_response build_error_response prepare_response_object validate_request_params"
        " get_stream_response_text A2A_ERROR_MAPPING A2A_ERROR_REASONS A2A_REASON_TO_ERROR A2A_REST_ERROR_MAPPING"
        " JSON_RPC_ERROR_CODE_MAP ErrorMapping JSONRPC_PARSE_ERROR_CODE JSONRPCError A2AError rest_error_handler"
        " rest_stream_error_handler validate validate_async_generator A2AServerError MethodNotImplementedError"
        " agent_card_to_dict update_extension_header DEFAULT_LIST_TASKS_PAGE_SIZE MAX_LIST_TASKS_PAGE_SIZE A2A_JSON_MEDIA_TYPE",
        _IDS: "IDGenerator IDGeneratorContext UUIDGenerator",
        _TELEMETRY: "trace_class trace_function SpanKind",
    }.items()
    for name in names.split()
}


_SHAPES = (
    (re.compile(r"[A-Z]\w+(Request|Response|Params|Result)"), _WIRE),
    (re.compile(r"(A2A)?Client[A-Z]\w+"), _CLIENT),
)
"""Names of which there are too many to list."""


def error_for(name: str) -> Exception:
    """The error for a name that is not here, with what to write instead."""
    why = INSTEAD.get(name) or next((why for shape, why in _SHAPES if shape.fullmatch(name)), "")
    if why:
        return ImportError(f"there is no {name} in dragoman.executor: {why}", name=name)
    return AttributeError(f"module 'dragoman.executor' has no attribute {name!r}")
