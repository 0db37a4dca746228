"""Values of the model, as far as a dialect can express them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dragoman.model import ops
from dragoman.model.card import (
    AgentCard,
    ApiKeyScheme,
    Capabilities,
    Extension,
    HttpAuthScheme,
    Interface,
    MutualTlsScheme,
    OAuth2Scheme,
    OAuthFlow,
    OAuthFlows,
    OpenIdConnectScheme,
    Provider,
    SecurityRequirement,
    SecurityScheme,
    Signature,
    Skill,
    StringList,
)
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ids import timestamp
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus

words = st.text(max_size=12)
names = st.text(min_size=1, max_size=12)
keys = st.sampled_from(["a", "task_id", "contextId", "role", "state", "kind", "type", "data", "ключ"])
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(keys, json_values, max_size=3)
moments = st.integers(0, 4_000_000_000_000).map(lambda ms: timestamp(ms / 1000))
states = st.sampled_from([state for state in TaskState if state is not TaskState.UNSPECIFIED])
lists = st.lists(names, max_size=2).map(tuple)
modest = st.one_of(st.none(), st.integers(0, 50))


def history_lengths(dialect: str) -> st.SearchStrategy[int | None]:
    """0.1 knows no absence, and in the protobuf of 0.3 nought is absence."""
    if dialect in ("0.1", "draft"):
        return st.integers(0, 9)
    return st.none() | st.integers(1, 9) if dialect == "0.3-proto" else modest


def parts(dialect: str) -> st.SearchStrategy[Part]:
    """1.0 labels everything; before it only files have a media type and a name, and the rest has them in its metadata."""
    label: dict[str, Any] = {"media_type": words, "filename": words}
    file = {"media_type": st.sampled_from(["", "image/png"]), "filename": words}
    raw = st.binary(max_size=20)
    return st.one_of(
        st.builds(Part, text=words, metadata=objects, **label),
        st.builds(Part, raw=raw, metadata=objects, **file),
        st.builds(Part, raw=words.map(str.encode), media_type=st.just("text/plain"), metadata=objects),
        st.builds(Part, url=words, metadata=objects, **file),
        st.builds(Part, data=json_values, metadata=objects, **label),
    )


def messages(dialect: str, role: Role | None = None) -> st.SearchStrategy[Message]:
    roles = st.sampled_from([Role.USER, Role.AGENT]) if role is None else st.just(role)
    some = st.lists(parts(dialect), min_size=1, max_size=3).map(tuple)
    if dialect in ("0.1", "draft"):
        return st.builds(
            Message,
            message_id=st.just(""),
            role=roles,
            parts=some,
            metadata=objects,
            extensions=lists,
            reference_task_ids=lists,
        )
    return st.builds(
        Message,
        message_id=names,
        role=roles,
        parts=some,
        context_id=words,
        task_id=words,
        metadata=objects,
        extensions=lists,
        reference_task_ids=lists,
    )


def _is_plain(part: Part) -> bool:
    return part == Part(text=part.text)


@st.composite
def artifacts(draw: st.DrawFn, dialect: str, index: int = 0) -> Artifact:
    old = dialect in ("0.1", "draft")
    some = draw(st.lists(parts(dialect), min_size=1, max_size=3))
    if dialect == "arbiter":  # joins texts that follow each other
        some = [part for n, part in enumerate(some) if not (n and _is_plain(part) and _is_plain(some[n - 1]))]
    return Artifact(
        artifact_id=f"artifact-{index}" if old else draw(names),
        parts=tuple(some),
        name=draw(words),
        description=draw(words),
        metadata=draw(objects),
        extensions=draw(lists),
    )


@st.composite
def statuses(draw: st.DrawFn, dialect: str) -> TaskStatus:
    speaks = dialect == "arbiter" or draw(st.booleans())  # Arbiter makes silence speak
    return TaskStatus(
        state=draw(states),
        message=draw(messages(dialect, Role.AGENT)) if speaks else None,
        timestamp=draw(moments | st.just("")),
    )


@st.composite
def tasks(draw: st.DrawFn, dialect: str) -> Task:
    count = draw(st.integers(0, 2))
    status = draw(statuses(dialect))
    # Arbiter's history has the answer, too.
    received = dialect == "arbiter" and status.state.terminal
    last_word = (status.message,) if received and status.message is not None else ()
    return Task(
        id=draw(names),
        context_id=draw(names),
        status=status,
        artifacts=tuple(draw(artifacts(dialect, n)) for n in range(count)),
        history=tuple(draw(st.lists(messages(dialect), max_size=2))) + last_word,
        metadata=draw(objects),
    )


def updates(dialect: str) -> st.SearchStrategy[StatusUpdate | ArtifactUpdate]:
    context = st.just("") if dialect in ("0.1", "draft") else names
    return st.one_of(
        st.builds(
            StatusUpdate, task_id=names, context_id=context, status=statuses(dialect), metadata=objects
        ),
        st.builds(
            ArtifactUpdate,
            task_id=names,
            context_id=context,
            artifact=artifacts(dialect),
            append=st.booleans(),
            last_chunk=st.booleans(),
            metadata=objects,
        ),
    )


def events(dialect: str) -> st.SearchStrategy[Any]:
    return st.one_of(updates(dialect), tasks(dialect), messages(dialect, Role.AGENT))


# --- requests


def authentications(dialect: str) -> st.SearchStrategy[ops.AuthenticationInfo]:
    others = st.just(()) if dialect == "1.0" else st.lists(names, max_size=2).map(tuple)
    return st.builds(ops.AuthenticationInfo, scheme=names, credentials=words, others=others)


@st.composite
def configs(draw: st.DrawFn, dialect: str, *, task_id: bool = True) -> ops.PushConfig:
    tenant = draw(words) if dialect == "1.0" else ""
    return ops.PushConfig(
        url=draw(names),
        id="default" if dialect in ("0.1", "draft") else draw(words),
        task_id=draw(names) if task_id else "",
        token=draw(words),
        authentication=draw(st.none() | authentications(dialect)),
        tenant=tenant if task_id else "",
    )


@st.composite
def sends(draw: st.DrawFn, dialect: str) -> ops.SendMessage:
    old = dialect in ("0.1", "draft")
    message = draw(messages(dialect))
    if old:
        message = Message(
            message_id="",
            role=message.role,
            parts=message.parts,
            metadata=message.metadata,
            extensions=message.extensions,
            reference_task_ids=message.reference_task_ids,
            task_id=draw(names),
            context_id=draw(words),
        )
    return ops.SendMessage(
        message=message,
        configuration=ops.Configuration(
            accepted_output_modes=draw(lists),
            task_push_notification_config=draw(st.none() | configs(dialect, task_id=False)),
            history_length=draw(history_lengths(dialect)),
            return_immediately=False if old else draw(st.booleans()),
        ),
        metadata=draw(objects),
        tenant=draw(words) if dialect == "1.0" else "",
    )


def requests(dialect: str) -> st.SearchStrategy[tuple[ops.Op, ops.Request]]:
    newest, old = dialect == "1.0", dialect in ("0.1", "draft")
    more: dict[str, Any] = {"tenant": words} if newest else {}
    history = history_lengths(dialect)
    said = st.just({}) if dialect == "0.3-proto" else objects
    choices: list[st.SearchStrategy[Any]] = [
        st.tuples(st.sampled_from([ops.SEND, ops.STREAM]), sends(dialect)),
        st.tuples(st.just(ops.GET), st.builds(ops.GetTask, id=names, history_length=history, **more)),
        st.tuples(st.just(ops.CANCEL), st.builds(ops.CancelTask, id=names, metadata=said, **more)),
        st.tuples(st.just(ops.SUBSCRIBE), st.builds(ops.SubscribeToTask, id=names, **more)),
    ]
    if dialect != "arbiter":
        choices.append(
            st.tuples(
                st.just(ops.PUSH_CREATE),
                configs(dialect).map(lambda c: ops.CreatePushConfig(config=c, tenant=c.tenant)),
            )
        )
        one = st.just("") if old else names
        choices.append(
            st.tuples(st.just(ops.PUSH_GET), st.builds(ops.GetPushConfig, task_id=names, id=one, **more))
        )
    if dialect in ("1.0", "0.3", "0.3-proto", "0.2", "0.2-type"):
        paging: dict[str, Any] = {"page_size": modest, "page_token": words, **more} if newest else {}
        choices.append(
            st.tuples(st.just(ops.PUSH_LIST), st.builds(ops.ListPushConfigs, task_id=names, **paging))
        )
        choices.append(
            st.tuples(
                st.just(ops.PUSH_DELETE), st.builds(ops.DeletePushConfig, task_id=names, id=names, **more)
            )
        )
    if newest:
        choices.append(
            st.tuples(
                st.just(ops.LIST),
                st.builds(
                    ops.ListTasks,
                    context_id=words,
                    status=st.sampled_from(TaskState),
                    page_size=st.none() | st.integers(1, 100),
                    page_token=words,
                    history_length=modest,
                    status_timestamp_after=moments | st.just(""),
                    include_artifacts=st.booleans(),
                    tenant=words,
                ),
            )
        )
    if dialect in ("1.0", "0.3", "0.3-proto"):
        choices.append(st.tuples(st.just(ops.EXTENDED_CARD), st.builds(ops.GetExtendedCard, **more)))
    return st.one_of(choices)


def results(dialect: str) -> st.SearchStrategy[tuple[ops.Op, Any]]:
    choices: list[st.SearchStrategy[Any]] = [
        st.tuples(st.sampled_from([ops.SEND, ops.GET, ops.CANCEL]), tasks(dialect))
    ]
    if dialect not in ("0.1", "draft", "arbiter"):
        choices.append(st.tuples(st.just(ops.SEND), messages(dialect, Role.AGENT)))
        pages = st.lists(configs(dialect), max_size=2).map(lambda c: ops.PushConfigPage(configs=tuple(c)))
        choices.append(st.tuples(st.just(ops.PUSH_LIST), pages))
        choices.append(st.tuples(st.just(ops.PUSH_DELETE), st.none()))
    if dialect != "arbiter":
        choices.append(st.tuples(st.sampled_from([ops.PUSH_CREATE, ops.PUSH_GET]), configs(dialect)))
    if dialect == "1.0":
        found = st.builds(
            ops.TaskPage,
            tasks=st.lists(tasks(dialect), max_size=2).map(tuple),
            next_page_token=words,
            page_size=st.integers(1, 100),
            total_size=st.integers(0, 1000),
        )
        choices.append(st.tuples(st.just(ops.LIST), found))
    return st.one_of(choices)


# --- cards

scopes = st.dictionaries(words, words, max_size=2)
flow = st.builds(OAuthFlow, token_url=names, refresh_url=words, scopes=scopes)
coded = st.builds(OAuthFlow, authorization_url=names, token_url=names, scopes=scopes)
flows = st.one_of(
    st.builds(OAuthFlows, authorization_code=coded),
    st.builds(OAuthFlows, client_credentials=flow),
    st.builds(OAuthFlows, password=flow),
)
new_flows = st.one_of(
    flows,
    st.builds(
        OAuthFlows,
        device_code=st.builds(OAuthFlow, device_authorization_url=names, token_url=names, scopes=scopes),
    ),
)


def schemes(dialect: str) -> st.SearchStrategy[SecurityScheme]:
    some = new_flows if dialect == "1.0" else flows
    return st.one_of(
        st.builds(
            SecurityScheme,
            api_key_security_scheme=st.builds(
                ApiKeyScheme, location=st.sampled_from(["header", "query"]), name=names, description=words
            ),
        ),
        st.builds(
            SecurityScheme,
            http_auth_security_scheme=st.builds(HttpAuthScheme, scheme=names, bearer_format=words),
        ),
        st.builds(
            SecurityScheme,
            oauth2_security_scheme=st.builds(OAuth2Scheme, flows=some, oauth2_metadata_url=words),
        ),
        st.builds(
            SecurityScheme,
            open_id_connect_security_scheme=st.builds(OpenIdConnectScheme, open_id_connect_url=names),
        ),
        st.builds(SecurityScheme, mtls_security_scheme=st.builds(MutualTlsScheme, description=words)),
    )


requirements = st.lists(
    st.builds(
        SecurityRequirement,
        schemes=st.dictionaries(
            st.sampled_from(["bearer", "api_key", "task_id"]),
            st.builds(StringList, list=lists),
            min_size=1,
            max_size=2,
        ),
    ),
    max_size=2,
).map(tuple)


@st.composite
def cards(draw: st.DrawFn, dialect: str) -> AgentCard:
    newest, old = dialect == "1.0", dialect in ("0.1", "draft")
    one_url = old or dialect == "arbiter"
    version = {"0.2-type": "0.2", "draft": "0.1", "0.3-proto": "0.3"}.get(dialect, dialect)
    if newest:
        interface = st.builds(
            Interface,
            url=names,
            protocol_binding=st.sampled_from(["JSONRPC", "GRPC", "HTTP+JSON"]),
            protocol_version=st.sampled_from(["1.0", "0.3"]),
            tenant=words,
        )
    else:
        binding = st.just("JSONRPC") if one_url else st.sampled_from(["JSONRPC", "GRPC", "HTTP+JSON"])
        interface = st.builds(
            Interface, url=names, protocol_binding=binding, protocol_version=st.just(version)
        )
    listed = draw(st.lists(interface, min_size=1, max_size=1 if one_url else 3, unique=True))
    extension = st.builds(Extension, uri=names, description=words, required=st.booleans(), params=objects)
    skill = st.builds(
        Skill,
        id=names,
        name=names,
        description=words,
        tags=lists,
        examples=lists,
        input_modes=lists,
        output_modes=lists,
        security_requirements=requirements if dialect in ("1.0", "0.3", "0.3-proto") else st.just(()),
    )
    maybe = st.none() | st.booleans()
    stated = st.booleans() if dialect == "arbiter" else maybe
    modes = st.lists(names, min_size=1, max_size=2).map(tuple)
    signed = newest or version == "0.3"
    return AgentCard(
        name=draw(names),
        description=draw(words),
        supported_interfaces=tuple(listed),
        provider=draw(st.none() | st.builds(Provider, organization=names, url=words)),
        version=draw(words),
        documentation_url=draw(words),
        icon_url="" if old else draw(words),
        capabilities=Capabilities(
            streaming=draw(stated),
            push_notifications=draw(stated),
            extensions=() if one_url else tuple(draw(st.lists(extension, max_size=2))),
            extended_agent_card=None if one_url else draw(maybe),
        ),
        security_schemes={}
        if old
        else draw(
            st.dictionaries(st.sampled_from(["bearer", "api_key", "task_id"]), schemes(dialect), max_size=2)
        ),
        security_requirements=() if old else draw(requirements),
        default_input_modes=draw(modes),
        default_output_modes=draw(modes),
        skills=tuple(draw(st.lists(skill, min_size=1, max_size=2))),
        signatures=tuple(
            draw(st.lists(st.builds(Signature, protected=names, signature=names, header=objects), max_size=1))
        )
        if signed
        else (),
    )
