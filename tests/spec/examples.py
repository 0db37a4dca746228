"""The example exchanges of the specifications, as data.

Each is a JSON-RPC request and what came back: one response, or the events of a stream. Members and values are those of
the documents, also where a document breaks its own rules (`file.data`, a missing `kind`, a number for an id); long texts
are cut, comments left out, and placeholders for base64 are replaced by base64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAUA"


class Example(NamedTuple):
    dialect: str
    name: str
    request: dict[str, Any]
    responses: list[dict[str, Any]]
    version: str = ""
    """The `A2A-Version` header."""


def call(method: str, params: Any, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def answer(result: Any, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def typed(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def kinded(text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "text", "text": text, **more}


def user(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts), **more}


def agent(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": "agent", "parts": list(parts), **more}


# --- the draft of April 2025

TASK = "de38c76d-d54c-436c-8b9f-4c2703648d64"
SESSION = "c295ea44-7543-4f78-b524-7a38915ad6e4"
PUSH = {"url": "https://example.com/callback", "authentication": {"schemes": ["jwt"]}}
TICKETS = '[{"ticketNumber":"REQ12312","description":"request for VPN access"}]'
SCHEMA = {
    "mimeType": "application/json",
    "schema": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"ticketNumber": {"type": "string"}, "description": {"type": "string"}},
        },
    },
}


def _section(n: int, *, append: bool, last: bool, id: Any = 1) -> dict[str, Any]:
    artifact = {"parts": [typed(f"<section {n}...>")], "index": 0, "append": append, "lastChunk": last}
    return answer({"id": id, "artifact": artifact})


def _moment(state: str, second: int, *, final: bool) -> dict[str, Any]:
    status = {"state": state, "timestamp": f"2025-04-02T16:59:{second}.331844"}
    return answer({"id": 1, "status": status, "final": final})


DRAFT = [
    Example(
        "draft",
        "send a task",
        call("tasks/send", {"id": TASK, "message": user(typed("tell me a joke")), "metadata": {}}),
        [
            answer(
                {
                    "id": TASK,
                    "sessionId": SESSION,
                    "status": {"state": "completed"},
                    "artifacts": [{"name": "joke", "parts": [typed("To get to the other side!")]}],
                    "metadata": {},
                }
            )
        ],
    ),
    Example(
        "draft",
        "get a task",
        call("tasks/get", {"id": TASK, "historyLength": 10, "metadata": {}}),
        [
            answer(
                {
                    "id": TASK,
                    "sessionId": SESSION,
                    "status": {"state": "completed"},
                    "artifacts": [{"parts": [typed("To get to the other side!")]}],
                    "history": [user(typed("tell me a joke"))],
                    "metadata": {},
                }
            )
        ],
    ),
    Example(
        "draft",
        "cancel a task",
        call("tasks/cancel", {"id": TASK, "metadata": {}}),
        [answer({"id": 1, "sessionId": SESSION, "status": {"state": "canceled"}, "metadata": {}})],
    ),
    Example(
        "draft",
        "set push notifications",
        call("tasks/pushNotification/set", {"id": TASK, "pushNotificationConfig": PUSH}),
        [answer({"id": TASK, "pushNotificationConfig": PUSH})],
    ),
    Example(
        "draft",
        "get push notifications",
        call("tasks/pushNotification/get", {"id": TASK}),
        [answer({"id": TASK, "pushNotificationConfig": PUSH})],
    ),
    Example(
        "draft",
        "several turns: the question",
        call(
            "tasks/send", {"id": TASK, "message": user(typed("request a new phone for me")), "metadata": {}}
        ),
        [
            answer(
                {
                    "id": TASK,
                    "sessionId": SESSION,
                    "status": {
                        "state": "input-required",
                        "message": {"parts": [typed("Select a phone type (iPhone/Android)")]},
                    },
                    "metadata": {},
                }
            )
        ],
    ),
    Example(
        "draft",
        "several turns: the answer",
        call(
            "tasks/send",
            {"id": TASK, "sessionId": SESSION, "message": user(typed("Android")), "metadata": {}},
            2,
        ),
        [
            answer(
                {
                    "id": 1,
                    "sessionId": SESSION,
                    "status": {"state": "completed"},
                    "artifacts": [
                        {
                            "name": "order-confirmation",
                            "parts": [typed("Your number is R12443")],
                            "metadata": {},
                        }
                    ],
                    "metadata": {},
                },
                2,
            )
        ],
    ),
    Example(
        "draft",
        "a stream",
        {
            "method": "tasks/sendSubscribe",
            "params": {
                "id": TASK,
                "sessionId": SESSION,
                "message": user(
                    typed("write a long paper describing the attached pictures"),
                    {"type": "file", "file": {"mimeType": "image/png", "data": PNG}},
                ),
                "metadata": {},
            },
        },
        [
            _moment("working", 25, final=False),
            _section(1, append=False, last=False),
            _section(2, append=True, last=False),
            _section(3, append=True, last=True),
            _moment("completed", 35, final=True),
        ],
    ),
    Example(
        "draft",
        "resubscribe to a stream",
        {"method": "tasks/resubscribe", "params": {"id": TASK, "metadata": {}}},
        [
            _section(2, append=True, last=False, id=TASK),
            _section(3, append=True, last=True, id=TASK),
            _moment("completed", 35, final=True),
        ],
    ),
    Example(
        "draft",
        "media: the upload",
        call(
            "tasks/send",
            {
                "id": TASK,
                "sessionId": SESSION,
                "message": user(
                    typed("Analyze the attached report"),
                    {"type": "file", "file": {"mimeType": "application/pdf", "data": PNG}},
                ),
                "metadata": {},
            },
            9,
        ),
        [
            answer(
                {
                    "id": TASK,
                    "sessionId": SESSION,
                    "status": {
                        "state": "working",
                        "message": agent(typed("analysis in progress, please wait"), metadata={}),
                    },
                    "metadata": {},
                },
                9,
            )
        ],
    ),
    Example(
        "draft",
        "media: the result",
        call("tasks/get", {"id": TASK, "metadata": {}}, 10),
        [
            answer(
                {
                    "id": TASK,
                    "sessionId": SESSION,
                    "status": {"state": "completed"},
                    "artifacts": [{"parts": [typed("<generated analysis content>")], "metadata": {}}],
                    "metadata": {},
                },
                9,
            )
        ],
    ),
    Example(
        "draft",
        "structured output",
        call(
            "tasks/send",
            {
                "id": TASK,
                "sessionId": SESSION,
                "message": user(typed("Show me a list of my open IT tickets", metadata=SCHEMA)),
                "metadata": {},
            },
            9,
        ),
        [
            answer(
                {
                    "id": TASK,
                    "sessionId": SESSION,
                    "status": {"state": "working", "message": agent(typed(TICKETS), metadata={})},
                    "metadata": {},
                },
                9,
            )
        ],
    ),
]

# --- 0.1.0

STORY = "task-story-456"


def _chapter(text: str, **flags: bool) -> dict[str, Any]:
    artifact = {"name": "MarsStory.txt", "index": 0, **flags, "parts": [typed(text)]}
    return answer({"id": STORY, "artifact": artifact}, "req-002")


def _progress(state: str, text: str, second: int, *, final: bool) -> dict[str, Any]:
    status = {"state": state, "message": agent(typed(text)), "timestamp": f"2024-03-15T10:05:0{second}Z"}
    return answer({"id": STORY, "status": status, "final": final}, "req-002")


FLIGHT = {
    "confirmationId": "XYZ123",
    "from": "JFK",
    "to": "LHR",
    "departure": "2024-10-10T18:00:00Z",
    "arrival": "2024-10-11T06:00:00Z",
    "returnDeparture": "...",
}
WEBHOOK = {
    "url": "https://client.example.com/webhook/a2a-notifications",
    "token": "secure-client-token-for-task-aaa",
    "authentication": {"schemes": ["Bearer"]},
}
OUTPUT = {
    "name": "output.png",
    "mimeType": "image/png",
    "uri": "https://storage.example.com/processed/task-bbb/output.png?token=xyz",
}

V0_1 = [
    Example(
        "0.1",
        "a simple task",
        call(
            "tasks/send",
            {
                "id": "task-abc-123",
                "sessionId": "session-xyz-789",
                "message": user(typed("What is the capital of France?")),
            },
            "req-001",
        ),
        [
            answer(
                {
                    "id": "task-abc-123",
                    "sessionId": "session-xyz-789",
                    "status": {
                        "state": "completed",
                        "message": agent(typed("The capital of France is Paris.")),
                        "timestamp": "2024-03-15T10:00:05Z",
                    },
                    "artifacts": [
                        {"name": "Answer", "index": 0, "parts": [typed("The capital of France is Paris.")]}
                    ],
                },
                "req-001",
            )
        ],
    ),
    Example(
        "0.1",
        "a stream",
        call(
            "tasks/sendSubscribe",
            {"id": STORY, "message": user(typed("Write a very short story about a curious robot."))},
            "req-002",
        ),
        [
            _progress("working", "Okay, I'm starting ...", 1, final=False),
            _chapter("Unit 734 trundled across the ochre plains. "),
            _chapter("Its mission: to find the source of a signal. ", append=True),
            _chapter("Unit 734 beeped excitedly.", append=True, lastChunk=True),
            _progress("completed", "The story is complete!", 5, final=True),
        ],
    ),
    Example(
        "0.1",
        "several turns: the question",
        call(
            "tasks/send",
            {"id": "task-flightbook-789", "message": user(typed("I'd like to book a flight."))},
            "req-003",
        ),
        [
            answer(
                {
                    "id": "task-flightbook-789",
                    "status": {
                        "state": "input-required",
                        "message": agent(typed("Where would you like to fly to?")),
                        "timestamp": "2024-03-15T10:10:00Z",
                    },
                },
                "req-003",
            )
        ],
    ),
    Example(
        "0.1",
        "several turns: the answer",
        call(
            "tasks/send",
            {"id": "task-flightbook-789", "message": user(typed("From New York (JFK) to London (LHR)."))},
            "req-004",
        ),
        [
            answer(
                {
                    "id": "task-flightbook-789",
                    "status": {
                        "state": "completed",
                        "message": agent(typed("Confirmation XYZ123.")),
                        "timestamp": "2024-03-15T10:11:00Z",
                    },
                    "artifacts": [
                        {"name": "FlightItinerary.json", "parts": [{"type": "data", "data": FLIGHT}]}
                    ],
                },
                "req-004",
            )
        ],
    ),
    Example(
        "0.1",
        "push: the order",
        call(
            "tasks/send",
            {
                "id": "task-reportgen-aaa",
                "message": user(typed("Generate the Q1 sales report.")),
                "pushNotification": WEBHOOK,
            },
            "req-005",
        ),
        [
            answer(
                {
                    "id": "task-reportgen-aaa",
                    "status": {"state": "submitted", "timestamp": "2024-03-15T11:00:00Z"},
                },
                "req-005",
            )
        ],
    ),
    Example(
        "0.1",
        "push: the result",
        call("tasks/get", {"id": "task-reportgen-aaa"}, "req-006"),
        [
            answer(
                {
                    "id": "task-reportgen-aaa",
                    "status": {"state": "completed", "timestamp": "2024-03-15T18:30:00Z"},
                },
                "req-006",
            )
        ],
    ),
    Example(
        "0.1",
        "files",
        call(
            "tasks/send",
            {
                "id": "task-imageanalysis-bbb",
                "message": user(
                    typed("Analyze this image and highlight any faces."),
                    {
                        "type": "file",
                        "file": {"name": "input_image.png", "mimeType": "image/png", "bytes": PNG},
                    },
                ),
            },
            "req-007",
        ),
        [
            answer(
                {
                    "id": "task-imageanalysis-bbb",
                    "status": {"state": "completed", "timestamp": "2024-03-15T12:05:00Z"},
                    "artifacts": [
                        {
                            "name": "processed_image_with_faces.png",
                            "index": 0,
                            "parts": [{"type": "file", "file": OUTPUT}],
                        }
                    ],
                },
                "req-007",
            )
        ],
    ),
    Example(
        "0.1",
        "structured data",
        call(
            "tasks/send",
            {
                "id": "task-gettickets-ccc",
                "message": user(
                    typed(
                        "List my open IT support tickets created in the last week.",
                        metadata={
                            "desiredOutputMimeType": "application/json",
                            "desiredOutputSchemaRef": "https://schemas.example.com/supportTicketList_v1.json",
                        },
                    )
                ),
            },
            "req-008",
        ),
        [
            answer(
                {
                    "id": "task-gettickets-ccc",
                    "status": {"state": "completed", "timestamp": "2024-03-15T12:15:00Z"},
                    "artifacts": [
                        {
                            "name": "open_support_tickets.json",
                            "index": 0,
                            "parts": [
                                {
                                    "type": "data",
                                    "metadata": {"mimeType": "application/json"},
                                    "data": [
                                        {"ticketId": "IT00123", "summary": "VPN", "status": "Open"},
                                        {
                                            "ticketId": "IT00125",
                                            "summary": "Printer",
                                            "status": "In Progress",
                                        },
                                    ],
                                }
                            ],
                        }
                    ],
                },
                "req-008",
            )
        ],
    ),
]

# --- the Python quickstart of May 2025

_HELLO = {
    "message": {
        "role": "user",
        "parts": [typed("how much is 10 USD in INR?")],
        "messageId": "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    }
}
_WORLD = {"type": "message", "role": "agent", "parts": [typed("Hello World")], "messageId": "yyyyyyyy"}

TRANSITIONAL = [
    Example(
        "0.2-type", "hello world", call("message/send", _HELLO, "xxxxxxxx"), [answer(_WORLD, "xxxxxxxx")]
    ),
    Example(
        "0.2-type",
        "hello world, streamed",
        call("message/stream", _HELLO, "zzzzzzzz"),
        [answer({**_WORLD, "final": True}, "zzzzzzzz")],
    ),
]

# --- 0.2

JOKE = {"taskId": "363422be-b0f9-4692-a24d-278670e7c7f1", "contextId": SESSION}
PAPER = {
    "taskId": "225d6247-06ba-4cda-a08b-33ae35c8dcfa",
    "contextId": "05217e44-7e9f-473e-ab4f-2c2dde50a2b1",
}
BOOKING = {"taskId": "3f36680c-7f37-4a5f-945e-d78981fafd36", "contextId": SESSION}
REPORT = "43667960-d455-4453-b0cf-1bae4955270d"
ARTIFACT = "9b6934dd-37e3-4eb1-8766-962efaab63a1"
_PICTURE = {"kind": "file", "file": {"mimeType": "image/png", "data": PNG}}
_ASK_FOR_JOKE = call(
    "message/send",
    {
        "message": user(kinded("tell me a joke"), messageId="9229e770-767c-417b-a0b0-f0741243c589"),
        "metadata": {},
    },
)


def _piece(n: int, *, append: bool, last: bool) -> dict[str, Any]:
    return answer(
        {
            **PAPER,
            "artifact": {"artifactId": ARTIFACT, "parts": [typed(f"<section {n}...>")]},
            "append": append,
            "lastChunk": last,
            "kind": "artifact-update",
        }
    )


_QUESTION = agent(
    kinded("Where would you like to fly to?"), messageId="c2e1b2dd-f200-4b04-bc22-1b0c65a1aad2", **BOOKING
)
_WISH = user(
    kinded("I'd like to book a flight."), messageId="c53ba666-3f97-433c-a87b-6084276babe2", **BOOKING
)
_ROUTE = user(
    kinded("From New York (JFK) to London (LHR)."),
    messageId="0db1d6c4-3976-40ed-b9b8-0043ea7a03d3",
    **BOOKING,
)

V0_2 = [
    Example(
        "0.2",
        "a task",
        _ASK_FOR_JOKE,
        [
            answer(
                {
                    "id": JOKE["taskId"],
                    "contextId": SESSION,
                    "status": {"state": "completed"},
                    "artifacts": [
                        {
                            "artifactId": ARTIFACT,
                            "name": "joke",
                            "parts": [kinded("To get to the other side!")],
                        }
                    ],
                    "history": [
                        user(
                            kinded("tell me a joke"),
                            messageId="9229e770-767c-417b-a0b0-f0741243c589",
                            **JOKE,
                        )
                    ],
                    "kind": "task",
                    "metadata": {},
                }
            )
        ],
    ),
    Example(
        "0.2",
        "a message",
        _ASK_FOR_JOKE,
        [
            answer(
                {
                    "messageId": "363422be-b0f9-4692-a24d-278670e7c7f1",
                    "contextId": SESSION,
                    "parts": [kinded("To get to the other side!")],
                    "kind": "message",
                    "metadata": {},
                }
            )
        ],
    ),
    Example(
        "0.2",
        "a stream",
        {
            "method": "message/stream",
            "params": {
                "message": user(
                    kinded("write a long paper describing the attached pictures"),
                    _PICTURE,
                    messageId="bbb7dee1-cf5c-4683-8a6f-4114529da5eb",
                ),
                "metadata": {},
            },
        },
        [
            answer(
                {
                    "id": PAPER["taskId"],
                    "contextId": PAPER["contextId"],
                    "status": {"state": "submitted", "timestamp": "2025-04-02T16:59:25.331844"},
                    "history": [
                        user(
                            kinded("write a long paper describing the attached pictures"),
                            _PICTURE,
                            messageId="bbb7dee1-cf5c-4683-8a6f-4114529da5eb",
                            **PAPER,
                        )
                    ],
                    "kind": "task",
                    "metadata": {},
                }
            ),
            _piece(1, append=False, last=False),
            _piece(2, append=True, last=False),
            _piece(3, append=True, last=True),
            answer(
                {
                    **PAPER,
                    "status": {"state": "completed", "timestamp": "2025-04-02T16:59:35.331844"},
                    "final": True,
                    "kind": "status-update",
                }
            ),
        ],
    ),
    Example(
        "0.2",
        "several turns: the question",
        call(
            "message/send",
            {
                "message": user(kinded("I'd like to book a flight.")),
                "messageId": "c53ba666-3f97-433c-a87b-6084276babe2",
            },
            "req-003",
        ),
        [
            answer(
                {
                    "id": BOOKING["taskId"],
                    "contextId": SESSION,
                    "status": {
                        "state": "input-required",
                        "message": _QUESTION,
                        "timestamp": "2024-03-15T10:10:00Z",
                    },
                    "history": [_WISH],
                    "kind": "task",
                },
                "req-003",
            )
        ],
    ),
    Example(
        "0.2",
        "several turns: the answer",
        call("message/send", {"message": _ROUTE, "configuration": {"blocking": True}}, "req-004"),
        [
            answer(
                {
                    "id": BOOKING["taskId"],
                    "contextId": SESSION,
                    "status": {"state": "completed", "message": agent(kinded("Confirmation XYZ123."))},
                    "artifacts": [
                        {
                            "artifactId": ARTIFACT,
                            "name": "FlightItinerary.json",
                            "parts": [{"kind": "data", "data": FLIGHT}],
                        }
                    ],
                    "history": [_WISH, _QUESTION, _ROUTE],
                    "kind": "task",
                    "metadata": {},
                },
                "req-004",
            )
        ],
    ),
    Example(
        "0.2",
        "push: the order",
        call(
            "message/send",
            {
                "message": user(
                    kinded("Generate the Q1 sales report."), messageId="6dbc13b5-bd57-4c2b-b503-24e381b6c8d6"
                ),
                "configuration": {"pushNotificationConfig": WEBHOOK},
            },
            "req-005",
        ),
        [
            answer(
                {
                    "id": REPORT,
                    "contextId": SESSION,
                    "status": {"state": "submitted", "timestamp": "2024-03-15T11:00:00Z"},
                },
                "req-005",
            )
        ],
    ),
    Example(
        "0.2",
        "push: the result",
        call("tasks/get", {"id": REPORT}, "req-006"),
        [
            answer(
                {
                    "id": REPORT,
                    "contextId": SESSION,
                    "status": {"state": "completed", "timestamp": "2024-03-15T18:30:00Z"},
                    "kind": "task",
                },
                "req-006",
            )
        ],
    ),
    Example(
        "0.2",
        "files",
        call(
            "message/send",
            {
                "message": user(
                    kinded("Analyze this image and highlight any faces."),
                    {
                        "kind": "file",
                        "file": {"name": "input_image.png", "mimeType": "image/png", "bytes": PNG},
                    },
                    messageId="6dbc13b5-bd57-4c2b-b503-24e381b6c8d6",
                )
            },
            "req-007",
        ),
        [
            answer(
                {
                    "id": REPORT,
                    "contextId": SESSION,
                    "status": {"state": "completed", "timestamp": "2024-03-15T12:05:00Z"},
                    "artifacts": [
                        {
                            "artifactId": ARTIFACT,
                            "name": "processed_image_with_faces.png",
                            "parts": [{"kind": "file", "file": OUTPUT}],
                        }
                    ],
                    "kind": "task",
                },
                "req-007",
            )
        ],
    ),
    Example(
        "0.2",
        "structured data",
        call(
            "message/send",
            {
                "message": user(
                    kinded("Show me a list of my open IT tickets", metadata=SCHEMA),
                    messageId="85b26db5-ffbb-4278-a5da-a7b09dea1b47",
                ),
                "metadata": {},
            },
            9,
        ),
        [
            answer(
                {
                    "id": "d8c6243f-5f7a-4f6f-821d-957ce51e856c",
                    "contextId": SESSION,
                    "status": {"state": "completed", "timestamp": "2025-04-17T17:47:09.680794"},
                    "artifacts": [
                        {"artifactId": "c5e0382f-b57f-4da7-87d8-b85171fad17c", "parts": [kinded(TICKETS)]}
                    ],
                    "kind": "task",
                },
                9,
            )
        ],
    ),
]

# --- Arbiter

RFC = {"taskId": "f1a950de4f9b7d8d", "contextId": "c-42"}
_SUMMARIZE = user(kinded("summarize this RFC"), messageId="m-1", contextId="c-42")
_REPLY = agent(kinded("It says hello."), kind="message", messageId="f1a950de4f9b7d8d-r", **RFC)


def _words(text: str, *, append: bool, last: bool = False, **more: Any) -> dict[str, Any]:
    artifact = {"artifactId": "f1a950de4f9b7d8d-text-0", **more, "parts": [kinded(text)]}
    return answer(
        {"kind": "artifact-update", **RFC, "artifact": artifact, "append": append, "lastChunk": last}
    )


_DONE = {
    "kind": "task",
    "id": "f1a950de4f9b7d8d",
    "contextId": "c-42",
    "status": {"state": "completed", "message": _REPLY},
    "history": [user(kinded("summarize this RFC"), kind="message", messageId="m-1", **RFC), _REPLY],
    "metadata": {
        "x-arbiter.agent_id": "index",
        "x-arbiter.input_tokens": 142,
        "x-arbiter.output_tokens": 218,
    },
}
_WORKING = answer({"kind": "status-update", **RFC, "status": {"state": "working"}, "final": False})
_COMPLETED = answer(
    {"kind": "status-update", **RFC, "status": {"state": "completed", "message": _REPLY}, "final": True}
)

ARBITER = [
    Example("arbiter", "send", call("message/send", {"message": _SUMMARIZE}), [answer(_DONE)], "1.0"),
    Example(
        "arbiter",
        "stream",
        call("message/stream", {"message": _SUMMARIZE}),
        [
            _WORKING,
            _words("It says ", append=False, name="response"),
            _words("hello.", append=True),
            _words("", append=True, last=True),
            _COMPLETED,
        ],
        "1.0",
    ),
    Example("arbiter", "get", call("tasks/get", {"id": "f1a950de4f9b7d8d"}), [answer(_DONE)], "1.0"),
    Example(
        "arbiter",
        "cancel",
        call("tasks/cancel", {"id": "f1a950de4f9b7d8d"}),
        [
            answer(
                {
                    "kind": "task",
                    "id": "f1a950de4f9b7d8d",
                    "contextId": "c-42",
                    "status": {"state": "canceled"},
                }
            )
        ],
        "1",
    ),
    Example(
        "arbiter",
        "resubscribe to a finished task",
        call("tasks/resubscribe", {"id": "f1a950de4f9b7d8d"}),
        [_COMPLETED],
        "1.0",
    ),
]

# --- 1.0

_HI = {"messageId": "msg-1", "role": "ROLE_USER", "parts": [{"text": "What is the weather?"}]}
_SUNNY = {
    "id": "task-1",
    "contextId": "ctx-1",
    "status": {"state": "TASK_STATE_COMPLETED", "timestamp": "2025-10-28T10:30:00.000Z"},
    "artifacts": [{"artifactId": "artifact-1", "name": "Weather", "parts": [{"text": "Sunny."}]}],
}
_FLAT = {"taskId": "task-1", "url": "https://client.example.com/hook", "token": "secret"}

V1_0 = [
    Example("1.0", "send", call("SendMessage", {"message": _HI}), [answer({"task": _SUNNY})], "1.0"),
    Example(
        "1.0",
        "send, answered with a message",
        call("SendMessage", {"message": _HI}),
        [
            answer(
                {
                    "message": {
                        "messageId": "msg-2",
                        "contextId": "ctx-1",
                        "role": "ROLE_AGENT",
                        "parts": [{"text": "Sunny."}],
                    }
                }
            )
        ],
        "1.0",
    ),
    Example(
        "1.0",
        "stream",
        call("SendStreamingMessage", {"message": _HI}),
        [
            answer(
                {"task": {"id": "task-1", "contextId": "ctx-1", "status": {"state": "TASK_STATE_SUBMITTED"}}}
            ),
            answer(
                {
                    "artifactUpdate": {
                        "taskId": "task-1",
                        "contextId": "ctx-1",
                        "artifact": {"artifactId": "artifact-1", "parts": [{"text": "Sunny."}]},
                        "lastChunk": True,
                    }
                }
            ),
            answer(
                {
                    "statusUpdate": {
                        "taskId": "task-1",
                        "contextId": "ctx-1",
                        "status": {"state": "TASK_STATE_COMPLETED"},
                    }
                }
            ),
        ],
        "1.0",
    ),
    Example("1.0", "get", call("GetTask", {"id": "task-1", "historyLength": 10}), [answer(_SUNNY)], "1.0"),
    Example(
        "1.0",
        "list",
        call("ListTasks", {"contextId": "ctx-1", "status": "TASK_STATE_COMPLETED", "pageSize": 10}),
        [
            answer(
                {
                    "tasks": [
                        {"id": "task-1", "contextId": "ctx-1", "status": {"state": "TASK_STATE_COMPLETED"}}
                    ],
                    "nextPageToken": "",
                    "pageSize": 10,
                    "totalSize": 1,
                }
            )
        ],
        "1.0",
    ),
    Example(
        "1.0",
        "cancel",
        call("CancelTask", {"id": "task-1"}),
        [answer({"id": "task-1", "contextId": "ctx-1", "status": {"state": "TASK_STATE_CANCELED"}})],
        "1.0",
    ),
    Example(
        "1.0",
        "create a push config",
        call("CreateTaskPushNotificationConfig", _FLAT),
        [answer({**_FLAT, "id": "hook-1"})],
        "1.0",
    ),
    Example(
        "1.0",
        "delete a push config",
        call("DeleteTaskPushNotificationConfig", {"taskId": "task-1", "id": "hook-1"}),
        [answer(None)],
        "1.0",
    ),
]

EXAMPLES: list[Example] = [*DRAFT, *V0_1, *TRANSITIONAL, *V0_2, *ARBITER, *V1_0]


# --- agent cards

_ROUTES = {
    "id": "route-optimizer-traffic",
    "name": "Traffic-Aware Route Optimizer",
    "description": "Calculates the optimal driving route between two or more locations.",
    "tags": ["maps", "routing", "navigation", "directions", "traffic"],
    "examples": ["Plan a route to 'San Francisco International Airport' avoiding tolls."],
    "inputModes": ["application/json", "text/plain"],
    "outputModes": ["application/json", "application/vnd.geo+json", "text/html"],
}
_GEO = {
    "name": "GeoSpatial Route Planner Agent",
    "description": "Provides advanced route planning, traffic analysis, and custom map generation services.",
    "url": "https://georoute-agent.example.com/a2a/v1",
    "provider": {
        "organization": "Example Geo Services Inc.",
        "url": "https://www.examplegeoservices.com",
    },
    "version": "1.2.0",
    "documentationUrl": "https://docs.examplegeoservices.com/georoute-agent/api",
    "capabilities": {"streaming": True, "pushNotifications": True, "stateTransitionHistory": False},
    "defaultInputModes": ["application/json", "text/plain"],
    "defaultOutputModes": ["application/json", "image/png"],
    "skills": [_ROUTES],
}

CARDS: list[tuple[str, dict[str, Any]]] = [
    (
        "draft",
        {
            "name": "Google Maps Agent",
            "description": "Plan routes, remember places, and generate directions",
            "url": "https://maps-agent.google.com",
            "provider": {"organization": "Google", "url": "https://google.com"},
            "version": "1.0.0",
            "authentication": {"schemes": "OAuth2"},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain", "application/html"],
            "capabilities": {"streaming": True, "pushNotifications": False},
            "skills": [
                {
                    "id": "route-planner",
                    "name": "Route planning",
                    "description": "Helps plan routing between two locations",
                    "tags": ["maps", "routing", "navigation"],
                    "examples": ["plan my route from Sunnyvale to Mountain View"],
                    "outputModes": ["application/html", "video/mp4"],
                }
            ],
        },
    ),
    (
        "0.1",
        {
            **_GEO,
            "authentication": {
                "schemes": ["OAuth2"],
                "credentials": '{"authorizationUrl": "https://auth.example.com/authorize",'
                ' "tokenUrl": "https://auth.example.com/token", "scopes": {"route:plan": "Plan routes."}}',
            },
        },
    ),
    (
        "0.2",
        {
            **_GEO,
            "iconUrl": "https://georoute-agent.example.com/icon.png",
            "securitySchemes": {
                "google": {
                    "type": "openIdConnect",
                    "openIdConnectUrl": "https://accounts.google.com/.well-known/openid-configuration",
                }
            },
            "security": [{"google": ["openid", "profile", "email"]}],
            "supportsAuthenticatedExtendedCard": True,
        },
    ),
    (
        "arbiter",
        {
            "protocolVersion": "1.0",
            "name": "Researcher",
            "description": "research-analyst — answer one factual question",
            "url": "https://host.example/v1/a2a/agents/researcher",
            "version": "1777060001",
            "preferredTransport": "JSONRPC",
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain", "application/json"],
            "capabilities": {"streaming": True, "pushNotifications": False, "stateTransitionHistory": False},
            "skills": [
                {"id": "chat", "name": "chat", "description": "free-form text conversation", "tags": ["text"]}
            ],
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "security": [{"bearer": []}],
        },
    ),
]

NOTIFICATIONS: list[tuple[str, dict[str, Any]]] = [
    (
        "0.1",
        {
            "eventType": "taskUpdate",
            "taskId": "task-reportgen-aaa",
            "status": {"state": "completed", "timestamp": "2024-03-15T18:30:00Z"},
            "summary": "Q1 sales report generated successfully.",
        },
    ),
    (
        "0.2",
        {
            "id": REPORT,
            "contextId": SESSION,
            "status": {"state": "completed", "timestamp": "2024-03-15T18:30:00Z"},
            "kind": "task",
        },
    ),
]
