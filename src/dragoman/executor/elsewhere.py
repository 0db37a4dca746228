"""Names of the SDK that are not here, and what to write instead."""

from __future__ import annotations

_SERVED = "serve `ExecutorAgent(executor, card)`: `.run()`, or `.app()` for an ASGI server"
_MOUNTED = "the app has all routes: `ExecutorAgent(executor, card).app()`, mounted where you want it"
_CALLED = "call agents with `dragoman.connect(url)`"
_STORED = (
    "tasks are kept in SQLite by themselves: `ExecutorAgent(executor, card).run(store='sqlite:///tasks.db')`"
)
_TOLD = "push notifications are sent by the engine, which keeps their configurations, too: leave it out"
_ASKED = "what an executor is told comes from the engine: see `RequestContext`"
_PROVED = "who may call is said with `auth=`: `ExecutorAgent(executor, card, auth=[Bearer(...)])`"

INSTEAD = {
    **dict.fromkeys(
        ("A2AServer", "A2AApplication", "JSONRPCApplication", "GrpcHandler", "RESTHandler"), _SERVED
    ),
    **dict.fromkeys(("JSONRPCHandler", "RequestHandler", "LegacyRequestHandler"), _SERVED),
    **dict.fromkeys(("create_jsonrpc_routes", "create_rest_routes", "create_agent_card_routes"), _MOUNTED),
    **dict.fromkeys(("add_a2a_routes_to_fastapi",), _MOUNTED),
    **dict.fromkeys(("A2AClient", "Client", "ClientFactory", "ClientConfig", "A2ACardResolver"), _CALLED),
    **dict.fromkeys(("create_client", "create_text_message_object", "minimal_agent_card"), _CALLED),
    **dict.fromkeys(("MessageSendParams", "SendMessageRequest", "SendStreamingMessageRequest"), _CALLED),
    **dict.fromkeys(("DatabaseTaskStore", "TaskStore", "TaskManager", "ResultAggregator"), _STORED),
    **dict.fromkeys(("InMemoryPushNotifier", "PushNotificationSender"), _TOLD),
    "TransportProtocol": "leave it out: the card says what the server speaks",
    **dict.fromkeys(("PushNotificationConfigStore", "DatabasePushNotificationConfigStore"), _TOLD),
    **dict.fromkeys(
        ("InMemoryQueueManager", "QueueManager", "EventConsumer"), "leave it out: the log is the queue"
    ),
    **dict.fromkeys(("RequestContextBuilder", "SimpleRequestContextBuilder"), _ASKED),
    **dict.fromkeys(("CallContextBuilder", "ServerCallContextBuilder"), _PROVED),
    **dict.fromkeys(("SecurityScheme", "HTTPAuthSecurityScheme", "APIKeySecurityScheme"), _PROVED),
    **dict.fromkeys(("OAuth2SecurityScheme", "OpenIdConnectSecurityScheme"), _PROVED),
}


def instead(name: str) -> Exception:
    """What to raise for a name that is not here."""
    if name in INSTEAD:
        return ImportError(f"there is no {name} in dragoman.executor: {INSTEAD[name]}", name=name)
    return AttributeError(f"module 'dragoman.executor' has no attribute {name!r}")
