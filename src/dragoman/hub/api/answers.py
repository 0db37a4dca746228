"""What the operations of the native API answer with, for the OpenAPI document.

The types describe the JSON that the routes build; the tests hold every answer to them. A route may also name its type itself
(`returns=`). `str` and `bytes` are answers that are not JSON: text, and the content of a file.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dragoman.hub.agents.constitution import Constitution
from dragoman.hub.store.artifacts import StoredFile
from dragoman.hub.store.memory_search import MemoryEntry, Relation
from dragoman.hub.store.schedules import RunInfo, ScheduleFields
from dragoman.hub.store.spending import DailyUsage, UsedToday
from dragoman.hub.store.todos import Todo
from dragoman.hub.tenants.policy import Policy


class FieldError(Struct):
    """One member of a request that is wrong."""

    field: str
    reason: str


class Error(Struct, omit_defaults=True):
    """Every refusal of the native API. The status says its kind, `error` the rest, in a sentence."""

    error: str
    fields: list[FieldError] = []
    reason: str = ""
    """A word for programs, such as `rate_limit`."""
    retry_after_seconds: int = 0
    existing: Any = None
    """What is there already."""
    existing_id: int = 0


class RequestState(Struct, omit_defaults=True):
    request_id: str
    agent_id: str
    conversation_id: int
    via: str
    state: str
    """`running`, `input-required`, `auth-required`, `completed`, `failed` or `canceled`."""
    started_at: int
    completed_at: int
    error_message: str
    last_seq: int
    question: str = ""
    """What a request that waits asks."""
    approval: bool = False
    """It asks for yes or no."""
    details: Any = None
    """What it asks about. Of a command: `agent`, `command`, `arguments`, and its `body` if it has one."""


class RequestResponse(Struct):
    request: RequestState


class RequestList(Struct):
    requests: list[RequestState]


class AcceptedAnswer(Struct):
    request_id: str
    since_seq: int
    """The events after the answer follow this one."""


class CancelResult(Struct):
    request_id: str
    cancelled: bool


class GateVerdict(Struct):
    signal: str
    """`CONTINUE`, `REDIRECT` or `HALT`."""
    text: str
    malformed: bool


class ConversationInfo(Struct, omit_defaults=True):
    id: int
    tenant_id: int
    title: str
    agent_id: str
    archived: bool
    created_at: int
    updated_at: int
    message_count: int
    agent_def: dict[str, Any] = {}


class MessageInfo(Struct):
    id: int
    conversation_id: int
    role: str
    content: str
    input_tokens: int
    output_tokens: int
    created_at: int
    request_id: str | None = None


class AgentInfo(Constitution, kw_only=True, omit_defaults=True):  # type: ignore[misc]
    """A constitution as it is stored. An agent that is code has `id`, `name`, `goal`, `skills` and `code`."""

    created_at: int = 0
    updated_at: int = 0
    version: int = 0
    code: bool = False
    skills: list[dict[str, Any]] = []


class VersionInfo(Struct):
    version: int
    created_at: int


class Validation(Struct, omit_defaults=True):
    ok: bool
    agent: dict[str, Any] = {}
    error: str = ""
    fields: list[FieldError] = []


class ScratchpadInfo(Struct):
    agent_id: str
    size: int
    updated_at: int


class ScratchpadList(Struct):
    scratchpads: list[ScratchpadInfo]


class Scratchpad(Struct):
    agent_id: str
    content: str


class MemoryEntryWithFile(MemoryEntry, frozen=True, kw_only=True):
    artifact: StoredFile | None = None


class MemoryGraph(Struct):
    tenant_id: int
    entries: list[MemoryEntry]
    relations: list[Relation]


class ScheduleInfo(ScheduleFields, frozen=True, kw_only=True):
    timezone: str
    next_run: str


class ScheduleResponse(Struct):
    scheduled_task: ScheduleInfo


class CreatedSchedule(ScheduleResponse):
    normalized: str


class Deleted(Struct):
    deleted: bool


class RunResponse(Struct):
    run: RunInfo


class TenantInfo(Struct):
    id: int
    name: str
    disabled: bool
    created_at: int
    last_used_at: int
    max_concurrent: int | None
    rate_per_min: int | None


class TenantResponse(Struct):
    tenant: TenantInfo


class TenantList(Struct):
    tenants: list[TenantInfo]


class ChangedTenant(TenantResponse):
    cancelled: int
    """Tasks that were stopped."""


class TenantWithToken(TenantResponse, kw_only=True):
    token: str
    """It is shown only here."""
    cancelled: int = 0


class TokenInfo(Struct):
    id: int
    kind: str
    name: str
    scope: str
    """`read`, `run` or `admin`."""
    expires_at: int | None
    replaced: bool
    revoked: bool
    created_at: int
    created_by: str
    last_used_at: int


class TokenResponse(Struct):
    token: TokenInfo


class RevokedToken(TokenResponse):
    cancelled: int
    """Tasks that were stopped."""


class TokenWithSecret(TokenResponse, kw_only=True):
    secret: str
    """It is shown only here."""
    cancelled: int = 0


class AdminToken(Struct):
    token: str
    """It is shown only here."""


class TenantName(Struct):
    id: int
    name: str


class CallerInfo(Struct):
    tenant: TenantName
    kind: str
    name: str
    scope: str
    expires_at: int | None


class StartedDeletion(Struct):
    tenant: int
    deleting: bool


class Deletion(Struct):
    """A tenant that is deleted; `done_at` is null until everything is gone."""

    tenant: int
    at: int
    done_at: int | None


class HubPolicy(Struct):
    policy: Policy


class TenantPolicy(HubPolicy):
    """What a tenant may use and store, what it used today, and how much it stores."""

    today: UsedToday
    stored: dict[str, int]


class TenantPolicyDetails(TenantPolicy):
    own: dict[str, Any]
    """What differs from the policy of the hub."""


class AuditEntry(Struct):
    id: int
    at: int
    actor: str
    action: str
    tenant_id: int | None
    detail: str


class ModelInfo(Struct, frozen=True, kw_only=True):
    id: str
    provider: str
    context_window: int = 0


class ModelList(Struct):
    models: list[ModelInfo]


JsonObject = dict[str, Any]


def _page(name: str, member: str, of: Any) -> Any:
    """A page of a list: how many, and which."""
    return msgspec.defstruct(name, [("count", int), (member, list[of])], module=__name__)


_CONVERSATIONS = _page("ConversationList", "conversations", ConversationInfo)
_MESSAGES = _page("MessageList", "messages", MessageInfo)
_FILES = _page("FileList", "artifacts", StoredFile)
_AGENTS = _page("AgentList", "agents", JsonObject)
_VERSIONS = _page("VersionList", "versions", VersionInfo)
_USAGE = _page("DailyUsageList", "usage", DailyUsage)
_ENTRIES = _page("MemoryEntryList", "entries", MemoryEntry)
_RELATIONS = _page("RelationList", "relations", Relation)
_TODOS = _page("TodoList", "todos", Todo)
_SCHEDULES = _page("ScheduleList", "schedules", ScheduleInfo)
_RUNS = _page("RunList", "runs", RunInfo)
_TOKENS = _page("TokenList", "tokens", TokenInfo)
_DELETIONS = _page("DeletionList", "deletions", Deletion)
_AUDIT = _page("AuditEntryList", "entries", AuditEntry)

_FILE = "/v1/conversations/{id}/artifacts/{aid}"
ANSWERS: dict[str, Any] = {
    "GET /v1/requests": RequestList,
    "GET /v1/requests/{id}": RequestResponse,
    "POST /v1/requests/{id}/answer": AcceptedAnswer,
    "POST /v1/requests/{id}/cancel": CancelResult,
    "POST /v1/advise/gate": GateVerdict,
    "POST /v1/conversations": ConversationInfo,
    "GET /v1/conversations": _CONVERSATIONS,
    "GET /v1/conversations/{id}": ConversationInfo,
    "PATCH /v1/conversations/{id}": ConversationInfo,
    "GET /v1/conversations/{id}/messages": _MESSAGES,
    "POST /v1/conversations/{id}/artifacts": StoredFile,
    "PUT /v1/conversations/{id}/artifacts": StoredFile,
    "GET /v1/conversations/{id}/artifacts": _FILES,
    "GET /v1/artifacts": _FILES,
    f"GET {_FILE}": StoredFile,
    f"GET {_FILE}/raw": bytes,
    "GET /v1/artifacts/{aid}": StoredFile,
    "GET /v1/artifacts/{aid}/raw": bytes,
    "GET /v1/agents": _AGENTS,
    "POST /v1/agents": AgentInfo,
    "GET /v1/agents/{id}": AgentInfo,
    "PATCH /v1/agents/{id}": AgentInfo,
    "PUT /v1/agents/{id}": AgentInfo,
    "GET /v1/agents/{id}/versions": _VERSIONS,
    "GET /v1/agents/{id}/versions/{version}": AgentInfo,
    "POST /v1/constitutions/validate": Validation,
    "GET /v1/usage": _USAGE,
    "GET /v1/constitution.schema.json": JsonObject,
    "GET /v1/memory": ScratchpadList,
    "GET /v1/memory/{agent_id}": Scratchpad,
    "POST /v1/memory/entries": MemoryEntry,
    "GET /v1/memory/entries": _ENTRIES,
    "GET /v1/memory/entries/{id}": MemoryEntryWithFile,
    "PATCH /v1/memory/entries/{id}": MemoryEntry,
    "POST /v1/memory/entries/{id}/invalidate": MemoryEntry,
    "POST /v1/memory/relations": Relation,
    "GET /v1/memory/relations": _RELATIONS,
    "GET /v1/memory/graph": MemoryGraph,
    "GET /v1/todos": _TODOS,
    "POST /v1/todos": Todo,
    "GET /v1/todos/{id}": Todo,
    "PATCH /v1/todos/{id}": Todo,
    "POST /v1/schedules": CreatedSchedule,
    "GET /v1/schedules": _SCHEDULES,
    "GET /v1/schedules/{id}": ScheduleResponse,
    "PATCH /v1/schedules/{id}": ScheduleResponse,
    "DELETE /v1/schedules/{id}": Deleted,
    "GET /v1/schedules/{id}/runs": _RUNS,
    "GET /v1/runs": _RUNS,
    "GET /v1/runs/{id}": RunResponse,
    "GET /v1/admin/tenants": TenantList,
    "POST /v1/admin/tenants": TenantWithToken,
    "GET /v1/admin/tenants/{id}": TenantResponse,
    "PATCH /v1/admin/tenants/{id}": ChangedTenant,
    "DELETE /v1/admin/tenants/{id}": StartedDeletion,
    "GET /v1/admin/deletions": _DELETIONS,
    "GET /v1/export": bytes,
    "GET /v1/admin/tenants/{tenant}/export": bytes,
    "POST /v1/admin/tenants/{id}/rotate-token": TenantWithToken,
    "GET /v1/admin/usage": _USAGE,
    "GET /v1/admin/audit": _AUDIT,
    "GET /v1/whoami": CallerInfo,
    "POST /v1/admin/rotate-token": AdminToken,
    "GET /v1/policy": TenantPolicy,
    "GET /v1/admin/policy": HubPolicy,
    "GET /v1/admin/tenants/{id}/policy": TenantPolicyDetails,
    "PATCH /v1/admin/tenants/{id}/policy": TenantPolicyDetails,
    "GET /v1/health": str,
    "GET /v1/metrics": str,
    "GET /.well-known/agent-card.json": JsonObject,
    "GET /v1/openapi.json": JsonObject,
    "GET /v1/models": ModelList,
}
for _path in ("/v1/tokens", "/v1/admin/tenants/{tenant}/tokens"):
    ANSWERS |= {
        f"GET {_path}": _TOKENS,
        f"POST {_path}": TokenWithSecret,
        f"GET {_path}/{{id}}": TokenResponse,
        f"PATCH {_path}/{{id}}": TokenResponse,
        f"DELETE {_path}/{{id}}": RevokedToken,
        f"POST {_path}/{{id}}/rotate": TokenWithSecret,
    }
ALSO: dict[str, tuple[int, ...]] = {
    "PUT /v1/agents/{id}": (201,),
    "POST /v1/conversations/{id}/artifacts": (200,),
    "PUT /v1/conversations/{id}/artifacts": (200,),
}
"""Other statuses of success, with the same body: 200 for what was there, 201 for what is new."""
TAKES_BYTES = ("PUT /v1/conversations/{id}/artifacts",)
"""Operations whose body is the content of a file, as it is."""
UNCHANGED = (f"GET {_FILE}/raw", "GET /v1/artifacts/{aid}/raw")
"""Operations that answer 304 to `If-None-Match`."""
