"""Contents of large files: one suite for a folder and for a bucket of S3, then the files of a hub on them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import InvalidParams, QuotaExceeded, Unavailable
from dragoman.hub.store import artifacts as files
from dragoman.hub.store.artifacts import INLINE_BYTES, Artifacts
from dragoman.hub.store.blobs import BlobMissing, Blobs, BlobSweeper, new_key, open_blobs
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.database import Database
from dragoman.hub.store.tenants import Tenants
from tests.hub.house import Caller, House, house, tables_of
from tests.serving import lasting_port
from tests.waiting import block_until

HAS_S3 = find_spec("moto") is not None and find_spec("obstore") is not None
LARGE = os.urandom(INLINE_BYTES) * 100
"""More than one part of an upload."""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server that speaks S3's API, in a process of its own."""
    port = lasting_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def listens() -> bool:
        assert process.poll() is None
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        block_until(listens, 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    if not HAS_S3:
        pytest.skip("the extra s3 or moto is not installed")
    url = request.getfixturevalue("s3")
    for name, value in (
        ("ENDPOINT_URL", url),
        ("ACCESS_KEY_ID", "k"),
        ("SECRET_ACCESS_KEY", "s"),
        ("REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    import http.client

    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request(
        "PUT",
        "/files",
        headers={"Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"},
    )
    assert connection.getresponse().status in (200, 409)
    connection.close()
    return "s3://files/hub"


@pytest.fixture(params=["folder", "s3"])
def blobs(request: Any, tmp_path: Path) -> Blobs:
    where = str(tmp_path / "blobs") if request.param == "folder" else request.getfixturevalue("bucket")
    return open_blobs(where, None)


async def in_pieces(content: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


async def whole(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


# -- the protocol ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", LARGE], ids=["empty", "small", "large"])
async def test_a_content_comes_back_as_it_was_stored(blobs: Blobs, content: bytes) -> None:
    key = new_key(1)
    await blobs.put(key, in_pieces(content))
    assert await whole(blobs.get(key)) == content


async def test_a_content_that_is_not_there_is_missing_and_can_be_deleted(blobs: Blobs) -> None:
    key = new_key(1)
    await blobs.delete(key)
    with pytest.raises(BlobMissing):
        await whole(blobs.get(key))
    await blobs.put(key, in_pieces(LARGE))
    await blobs.delete(key)
    with pytest.raises(BlobMissing):
        await whole(blobs.get(key))


async def test_a_content_that_breaks_off_is_not_stored(blobs: Blobs) -> None:
    async def broken() -> AsyncIterator[bytes]:
        async for piece in in_pieces(LARGE):
            yield piece
        raise QuotaExceeded("too much")

    key = new_key(1)
    with pytest.raises(QuotaExceeded, match="too much"):
        await blobs.put(key, broken())
    with pytest.raises(BlobMissing):
        await whole(blobs.get(key))


async def test_contents_are_stored_and_read_at_the_same_time(blobs: Blobs) -> None:
    keys = [new_key(n) for n in range(8)]
    await asyncio.gather(*(blobs.put(key, in_pieces(key.encode() * 9999)) for key in keys))
    assert await asyncio.gather(*(whole(blobs.get(key)) for key in keys)) == [k.encode() * 9999 for k in keys]


async def test_a_bucket_that_cannot_be_reached_is_unavailable(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from obstore.store import S3Store

    from dragoman.hub.store.s3_blobs import S3Blobs

    nowhere = S3Store.from_url(
        bucket,
        endpoint=f"http://127.0.0.1:{lasting_port()}",
        client_options={"allow_http": True, "connect_timeout": "1s"},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(Unavailable, match="bucket"):
        await S3Blobs(nowhere).put(new_key(1), in_pieces(b"x"))


def test_blobs_are_in_a_folder_or_in_s3() -> None:
    with pytest.raises(ValueError, match="s3://bucket/prefix"):
        open_blobs("ftp://host/x", None)


# -- the files of a hub on them ----------------------------------------------------------------------------------------


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await tables_of(tmp_path).open()
    await Tenants(opened).add("acme")
    await Conversations(opened).create(1)
    yield opened
    await opened.close()


async def unused(database: Database) -> list[str]:
    return [row[0] for row in await database.all("select key from unused_blobs")]


async def test_a_large_file_is_in_the_blobs_and_a_small_one_in_the_table(
    database: Database, blobs: Blobs
) -> None:
    artifacts = Artifacts(database, blobs)
    small = await artifacts.put(1, 1, "small", b"x" * INLINE_BYTES)
    large = await artifacts.put_pieces(1, 1, "large", in_pieces(LARGE))
    rows = await database.all("select length(content), blob <> '' from artifacts order by id")
    assert [tuple(row) for row in rows] == [(INLINE_BYTES, 0), (0, 1)]
    assert large.size == len(LARGE) and large.sha256 == sha256(LARGE).hexdigest()
    assert await artifacts.content(1, small.id) == b"x" * INLINE_BYTES
    assert await artifacts.content(1, large.id) == LARGE
    assert await artifacts.content(1, large.id, 10) == LARGE[:10]
    assert await artifacts.pieces(2, large.id) is None, "it is of another tenant"
    assert not await unused(database)


async def test_contents_of_replaced_and_deleted_files_are_deleted_later(
    database: Database, blobs: Blobs
) -> None:
    artifacts, sweeper = Artifacts(database, blobs), BlobSweeper(database, blobs)
    keys = []
    for name in ("a", "a", "b", "c"):
        await artifacts.put(1, 1, name, os.urandom(INLINE_BYTES + 1))
        row = await database.one("select blob from artifacts where path = ?", (name,))
        keys.append(row["blob"])
    assert await unused(database) == [keys[0]]
    found = await artifacts.by_path(1, 1, "b")
    assert found is not None
    reading = await artifacts.pieces(1, found.id)
    assert reading is not None
    await artifacts.delete(1, found.id)
    assert await sweeper.delete_unused() == 0, "somebody may be reading them"
    assert len(await whole(reading)) == INLINE_BYTES + 1
    await Conversations(database).delete(1, 1)
    assert sorted(await unused(database)) == sorted(keys)
    assert await sweeper.delete_unused(before=2**40) == 4 and not await unused(database)
    for key in keys:
        with pytest.raises(BlobMissing):
            await whole(blobs.get(key))


async def test_a_refused_file_leaves_no_content(database: Database, blobs: Blobs, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "UPLOAD_LIMIT", 1 << 20)
    artifacts = Artifacts(database, blobs, conversation_limit=700_000)
    kept: list[str] = []
    put = blobs.put

    async def remember(key: str, content: Any) -> None:
        kept.append(key)
        await put(key, content)

    monkeypatch.setattr(blobs, "put", remember)
    with pytest.raises(QuotaExceeded, match="more than 1048576"):
        await artifacts.put_pieces(1, 1, "x", in_pieces(LARGE))
    with pytest.raises(QuotaExceeded, match="no room"):
        await artifacts.put_pieces(1, 1, "x", in_pieces(LARGE[:900_000]))
    with pytest.raises(InvalidParams):
        await artifacts.put_pieces(1, 99, "x", in_pieces(LARGE[:100_000]))
    first = await artifacts.once("key").put(1, 1, "once", LARGE[:100_000])
    assert await artifacts.once("key").put(1, 1, "once", LARGE[:100_000]) == first
    assert len(kept) == 5 and not await unused(database)
    for key in (*kept[:3], kept[4]):
        with pytest.raises(BlobMissing):
            await whole(blobs.get(key))
    assert await artifacts.content(1, first.id) == LARGE[:100_000]


async def talk_of(hub: House) -> tuple[Caller, str]:
    acme = await hub.tenant("acme")
    id = (await acme("POST", "/v1/conversations", {})).json["id"]
    return acme, f"/v1/conversations/{id}/artifacts"


async def test_a_file_is_uploaded_and_downloaded_in_pieces(tmp_path: Path) -> None:
    async with house(folder=tmp_path) as hub:
        acme, path = await talk_of(hub)
        made = await acme("PUT", f"{path}?path=big.bin", LARGE, content_type="application/x-thing")
        assert made.status == 201 and made.json["size"] == len(LARGE)
        assert list((tmp_path / "blobs" / "t1").iterdir()), "it is a file"
        got = await acme("GET", f"/v1/artifacts/{made.json['id']}/raw")
        assert got.body == LARGE and got.headers["content-type"] == "application/x-thing"
        head = await acme("HEAD", f"/v1/artifacts/{made.json['id']}/raw")
        assert head.status == 200 and head.body == b"" and head.headers["content-length"] == str(len(LARGE))
        again = await acme("PUT", f"{path}?path=big.bin", b"small now")
        assert again.status == 200 and again.json["id"] == made.json["id"]
        assert (await acme("GET", f"/v1/artifacts/{made.json['id']}/raw")).body == b"small now"
        for query in ("", "?path=", "?path=../x"):
            assert (await acme("PUT", f"{path}{query}", b"x")).status == 400


async def test_a_file_whose_content_was_removed_is_an_error(tmp_path: Path) -> None:
    async with house(folder=tmp_path) as hub:
        acme, path = await talk_of(hub)
        made = await acme("PUT", f"{path}?path=big.bin", LARGE)
        for file in (tmp_path / "blobs" / "t1").iterdir():
            file.unlink()
        gone = await acme("GET", f"/v1/artifacts/{made.json['id']}/raw")
        assert gone.status == 500 and "is gone" in gone.json["error"]


async def test_an_agent_reads_the_beginning_of_a_large_file(tmp_path: Path) -> None:
    async with house(["/read big.txt", "Read."], folder=tmp_path) as hub:
        acme, path = await talk_of(hub)
        await acme("PUT", f"{path}?path=big.txt", b"y" * (3 << 20))
        received = await acme.ask("look", path.replace("artifacts", "messages"))
        assert received[-1][1]["ok"] and len(hub.model.prompts[-1].messages[-1].content) < 2 << 20
