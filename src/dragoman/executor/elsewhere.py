"""Names of the SDK that are not here, and what to write instead."""

from __future__ import annotations

_SERVED = "serve `ExecutorAgent(executor, card)`: `.run()`, or `.app()` for an ASGI server"
_GRPC = "gRPC is served beside all else: `ExecutorAgent(executor, card).run(grpc_port=50051)`, with the extra `grpc`"
_CALLED = "call agents with `dragoman.connect(url)`"
_STORED = (
    "tasks are kept in SQLite by themselves: `ExecutorAgent(executor, card).run(store='sqlite:///tasks.db')`,"
    " or `store='postgresql://host/database'`"
)
_TOLD = "push notifications are sent by the engine, which keeps their configurations, too: leave it out"
_ASKED = "what an executor is told comes from the engine: see `RequestContext`"
_PROVED = (
    "who may call is said with `auth=`, and the card follows: `ExecutorAgent(executor, card, auth=[Bearer(...)])`,"
    " with `Bearer`, `ApiKey`, `Basic`, `JWT`, `OIDC` and `MutualTLS` from `dragoman.auth`"
)
_QUEUE = "leave it out: the log is the queue"
_MEASURED = "leave it out: the server has metrics and spans of its own (`tracer=`)"

INSTEAD: dict[str, str] = {
    name: why
    for why, names in {
        _SERVED: "A2AServer A2AApplication JSONRPCApplication RESTHandler JSONRPCHandler RequestHandler RESTApplication"
        " JsonRpcDispatcher RestDispatcher",
        _GRPC: "GrpcHandler CompatGrpcHandler GrpcServerCallContextBuilder DefaultGrpcServerCallContextBuilder a2a_pb2"
        " a2a_pb2_grpc",
        _CALLED: "A2AClient Client ClientFactory ClientConfig A2ACardResolver create_client create_text_message_object"
        " minimal_agent_card MessageSendParams SendMessageRequest SendStreamingMessageRequest SendMessageResponse"
        " SendMessageSuccessResponse SendStreamingMessageResponse SendStreamingMessageSuccessResponse JSONRPCErrorResponse"
        " GetTaskRequest GetTaskResponse CancelTaskRequest TaskQueryParams TaskIdParams SendMessageConfiguration"
        " MessageSendConfiguration StreamResponse SubscribeToTaskRequest ListTasksRequest GetTaskSuccessResponse"
        " A2AClientHTTPError A2AClientJSONError A2AClientError AgentCardResolutionError",
        _STORED: "DatabaseTaskStore TaskStore TaskManager ResultAggregator VersionedTaskStore",
        _TOLD: "PushNotificationSender PushNotifier PushNotificationConfigStore DatabasePushNotificationConfigStore"
        " PushNotificationConfig TaskPushNotificationConfig PushNotificationEvent",
        _QUEUE: "InMemoryQueueManager QueueManager EventConsumer EventQueueLegacy NoTaskQueue TaskQueueExists",
        _ASKED: "RequestContextBuilder SimpleRequestContextBuilder UnauthenticatedUser",
        _PROVED: "CallContextBuilder ServerCallContextBuilder DefaultServerCallContextBuilder DefaultCallContextBuilder"
        " SecurityScheme HTTPAuthSecurityScheme APIKeySecurityScheme OAuth2SecurityScheme OpenIdConnectSecurityScheme"
        " MutualTLSSecurityScheme MutualTlsSecurityScheme OAuthFlows AuthorizationCodeOAuthFlow ClientCredentialsOAuthFlow"
        " ImplicitOAuthFlow PasswordOAuthFlow DeviceCodeOAuthFlow SecurityRequirement StringList In AuthenticationInfo",
        _MEASURED: "trace_class trace_function SpanKind",
    }.items()
    for name in names.split()
}


def instead(name: str) -> Exception:
    """What to raise for a name that is not here."""
    if name in INSTEAD:
        return ImportError(f"there is no {name} in dragoman.executor: {INSTEAD[name]}", name=name)
    return AttributeError(f"module 'dragoman.executor' has no attribute {name!r}")
