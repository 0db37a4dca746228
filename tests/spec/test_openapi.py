"""The OpenAPI document against the server it describes: whatever is sent, no 5xx, and every answer is as described.

(0.3 says 501 where 1.0 says 400: something this agent does not do.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dragoman import connect
from dragoman.dialects.paths import PATHS
from dragoman.server import openapi
from dragoman.server.app import App
from dragoman.server.mount import Mount
from dragoman.server.runtime import running
from tests.serving import in_thread
from tests.spec.test_matrix import Everything, agent_of

CHECKS = [
    response_schema_conformance,
    status_code_conformance,
    content_type_conformance,
]
EXAMPLES = 10
"""For each operation and each way of making them up; together they take some seconds."""

SCHEMA = schemathesis.openapi.from_dict(openapi.document(agent_of().card, "http://localhost", PATHS))
OPERATIONS: list[Any] = [each.ok() for each in SCHEMA.get_all_operations()]  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    service = Everything(agent_of())
    mount = Mount(service=service, card=lambda: service.agent.card, agent=service.agent.id)
    start, stop = service.engine.start, lambda: service.engine.stop(drain=0)
    with in_thread(running(App([mount], on_startup=[start], on_shutdown=[stop]))) as url:
        yield url


@pytest.fixture(scope="module")
def task(url: str) -> str:
    """A task that is there, because ids that are made up find nothing."""

    async def send() -> str:
        async with connect(url) as agent:
            reply = await agent.send("one two")
            await agent.create_push(reply.id, "https://hook.example", id="p1")
            return reply.id

    return asyncio.run(send())


@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_the_server_is_as_described(url: str, task: str, operation: Any, mode: GenerationMode) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    def hold(case: Any, real: bool) -> None:
        if real and case.path_parameters:
            known = {"id": "p1" if "taskId" in case.path_parameters else task, "taskId": task}
            case.path_parameters.update({name: known[name] for name in case.path_parameters})
        response = case.call(base_url=url, timeout=10)
        assert response.status_code < 500 or (
            response.status_code == 501 and operation.path.startswith("/v1")
        )
        case.validate_response(response, checks=CHECKS)

    try:
        hold()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # there is nothing to get wrong


def test_the_document_served_is_the_one_described() -> None:
    document = openapi.document(agent_of().card, "http://localhost", PATHS)
    assert msgspec.json.decode(msgspec.json.encode(document)) == SCHEMA.raw_schema
