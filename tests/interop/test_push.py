"""Our client keeps push configs on servers of a2a-sdk 0.3.26, over every binding, as far as those have the operation."""

from __future__ import annotations

import pytest

from dragoman import connect
from dragoman.errors import A2AError
from tests.interop.running import BINDINGS, serving

pytestmark = pytest.mark.interop

HOOK = "http://127.0.0.1:1/hook"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_push_configs_are_created_on_a_server_of_0_3(binding: str) -> None:
    with serving("a2a-sdk-0.3.26") as url:
        async with connect(url, binding=binding, version="0.3") as agent:
            reply = await agent("hello")
            created = await agent.create_push(reply, HOOK, token="t")
            assert (created.url, created.token, created.task_id) == (HOOK, "t", reply.id)
            assert created.id
            assert (await agent.get_push(reply, created.id)).id == created.id
            named = await agent.create_push(reply, HOOK, id="mine", scheme="Bearer", credentials="c")
            assert (named.id, named.authentication and named.authentication.scheme) == ("mine", "Bearer")


async def test_a_push_config_is_deleted_on_a_server_of_0_3() -> None:
    """Over JSON-RPC, the one binding in which that server has it. Its answer has no result."""
    with serving("a2a-sdk-0.3.26") as url:
        async with connect(url, binding="JSONRPC", version="0.3") as agent:
            reply = await agent("hello")
            for id in ("one", "two"):
                await agent.create_push(reply, HOOK, id=id)
            await agent.delete_push(reply, "one")
            assert [config.id for config in await agent.list_push(reply)] == ["two"]
            with pytest.raises(A2AError):
                await agent.delete_push("no-such-task", "one")
