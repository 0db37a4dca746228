"""Names of the SDK that `dragoman.executor` does not have, and what to write instead."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

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
_VERSIONS = "leave it out: the server speaks every version, and converts between them"
_TABLES = "leave it out: the store has its own tables, and makes them when it is opened"
_JSON = "use `msgspec.json.encode(value)`: metadata and data are JSON as they are"

INSTEAD: dict[str, str] = {
    name: why
    for why, names in {
        _SERVING: "A2AServer A2AApplication JSONRPCApplication RESTHandler JSONRPCHandler RequestHandler RESTApplication"
        " JsonRpcDispatcher RestDispatcher A2AFastAPI RESTAdapter",
        _GRPC: "GrpcHandler CompatGrpcHandler GrpcServerCallContextBuilder DefaultGrpcServerCallContextBuilder a2a_pb2"
        " a2a_pb2_grpc A2AService A2AServiceServicer A2AServiceStub add_A2AServiceServicer_to_server",
        _VERSIONS: "FromProto ToProto is_legacy_version add_legacy_extension_header LEGACY_HTTP_EXTENSION_HEADER RequestHandler03"
        " REST03Adapter REST03Handler V03GrpcServerCallContextBuilder V03ServerCallContextBuilder validate_version",
        _TABLES: "Base PydanticListType PydanticType create_push_notification_config_model create_task_event_model"
        " create_task_model create_task_version_model add_column add_index column_exists drop_column drop_index index_exists"
        " table_exists run_migrations create_parser",
        _JSON: "dict_to_struct dumps make_dict_serializable normalize_large_integers_to_strings parse_string_integers_in_dict",
        _CLIENT: "A2AClient A2AGrpcClient AfterArgs BeforeArgs Consumer ServiceParametersFactory TenantTransportDecorator"
        " get_http_args handle_http_exceptions parse_agent_card parse_sse_stream send_http_request"
        " send_http_stream_request major_minor with_a2a_extensions Client ClientFactory ClientConfig A2ACardResolver create_client create_text_message_object"
        " minimal_agent_card MessageSendParams SendMessageRequest SendStreamingMessageRequest SendMessageConfiguration"
        " MessageSendConfiguration StreamResponse"
        " A2AClientHTTPError A2AClientJSONError A2AClientError AgentCardResolutionError AuthInterceptor BaseClient"
        " CredentialService InMemoryContextCredentialStore display_agent_card",
        _STORES: "DatabaseTaskStore TaskStore TaskManager ResultAggregator VersionedTaskStore append_artifact_to_task"
        " create_task_obj VersionedDatabaseTaskStore CopyingTaskStoreAdapter LegacyTaskStoreAdapter StoredTask VertexTaskStore"
        " ConcurrentTaskModificationError TaskVersion ActiveTask ActiveTaskRegistry",
        _PUSH: "PushNotificationSender PushNotifier PushNotificationConfigStore DatabasePushNotificationConfigStore"
        " PushNotificationConfig TaskPushNotificationConfig PushNotificationEvent PushNotificationAuthenticationInfo"
        " normalize_push_notification_config validate_push_notification_url",
        _QUEUE: "InMemoryQueueManager QueueManager EventConsumer EventQueueLegacy NoTaskQueue TaskQueueExists"
        " EventQueueSink EventQueueSource TaskEventStream DatabaseTaskEventStream VersionedEvent stream_response_to_event"
        " DEFAULT_MAX_QUEUE_SIZE",
        _CONTEXT: "RequestContextBuilder SimpleRequestContextBuilder UnauthenticatedUser A2AUser StarletteUser"
        " StarletteUserProxy",
        _AUTH: "CallContextBuilder ServerCallContextBuilder DefaultServerCallContextBuilder DefaultCallContextBuilder"
        " SecurityScheme HTTPAuthSecurityScheme APIKeySecurityScheme OAuth2SecurityScheme OpenIdConnectSecurityScheme"
        " MutualTLSSecurityScheme MutualTlsSecurityScheme OAuthFlows AuthorizationCodeOAuthFlow ClientCredentialsOAuthFlow"
        " ImplicitOAuthFlow PasswordOAuthFlow DeviceCodeOAuthFlow SecurityRequirement StringList In AuthenticationInfo"
        " SecuritySchemeBase resolve_user_scope",
        _SIGNING: "create_agent_card_signer create_signature_verifier AgentCardSignature SignatureVerificationError"
        " NoSignatureError InvalidSignaturesError ProtectedHeader"
        " canonicalize_agent_card",
        _WIRE: "proto_utils to_stream_response build_error_response prepare_response_object validate_request_params"
        " get_stream_response_text A2A_ERROR_MAPPING A2A_ERROR_REASONS A2A_REASON_TO_ERROR A2A_REST_ERROR_MAPPING"
        " JSON_RPC_ERROR_CODE_MAP ErrorMapping JSONRPC_PARSE_ERROR_CODE JSONRPCError A2AError rest_error_handler"
        " rest_stream_error_handler validate validate_async_generator A2AServerError MethodNotImplementedError"
        " agent_card_to_dict update_extension_header DEFAULT_LIST_TASKS_PAGE_SIZE MAX_LIST_TASKS_PAGE_SIZE A2A_JSON_MEDIA_TYPE"
        " A2A A2AErrorToHttpStatus A2A_DOMAIN BAD_REQUEST_TYPE ERROR_INFO_TYPE EXCEPTION_MAP FileBase PartBase"
        " GRPC_STATUS_DETAILS_BIN_KEY GrpcStatus HTTP_413_CONTENT_TOO_LARGE HTTP_413_REQUEST_ENTITY_TOO_LARGE HistoryLengthConfig"
        " INTERNAL_ERROR_CODE JSONRPCBaseModel JSONRPCMessage ListTasksCursor REST_BODY_TYPES ValidationDetail"
        " apply_history_length bad_request_to_validation_errors build_error_details build_rest_error_payload"
        " create_event_source_response decode_list_tasks_cursor decode_page_token encode_list_tasks_cursor encode_page_token"
        " maybe_await parse_lenient parse_params serialize_list_tasks_response status_from_call status_to_grpc"
        " validate_history_length validate_input_modes validate_page_size validate_proto_required_fields"
        " validation_errors_to_bad_request warn_on_missing_required_fields",
        _IDS: "IDGenerator IDGeneratorContext UUIDGenerator",
        _TELEMETRY: "trace_class trace_function SpanKind",
    }.items()
    for name in names.split()
}


_SHAPES = (
    (re.compile(r"[A-Z]\w+(Request|Response|Params|Result)"), _WIRE),
    (re.compile(r"(A2A)?Client[A-Z]\w+|[A-Z]\w+Transport"), _CLIENT),
    (re.compile(r"to_(core|compat)_\w+|\w*compat_\w+"), _VERSIONS),
    (re.compile(r"to_(sdk|stored)_\w+"), _STORES),
    (re.compile(r"[A-Z]\w+(Model|Mixin)"), _TABLES),
)
"""Names by their form, because there are too many to list."""


def error_for(name: str) -> Exception:
    """The error for a name that `dragoman.executor` does not have, with what to write instead."""
    why = INSTEAD.get(name) or next((why for shape, why in _SHAPES if shape.fullmatch(name)), "")
    if why:
        return ImportError(f"there is no {name} in dragoman.executor: {why}", name=name)
    return AttributeError(f"module 'dragoman.executor' has no attribute {name!r}")


def find_in_package(name: str) -> Any:
    """`__getattr__` of the modules of this package: the name may be in another one. Raises the error of `error_for`."""
    package = import_module("dragoman.executor")
    if name in package.__all__:
        return getattr(package, name)
    raise error_for(name)
