"""Contents of large files: one suite for a folder and for a bucket of S3, then the files of a hub on them."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from dragoman.cli import main
from dragoman.errors import InvalidParams, QuotaExceeded, Unavailable
from dragoman.hub.store import artifacts as files
from dragoman.hub.store.artifacts import INLINE_BYTES, Artifacts
from dragoman.hub.store.blobs import (
    KEEP_SECONDS,
    BlobMissing,
    Blobs,
    BlobSweeper,
    FileBlobs,
    new_key,
    open_blobs,
)
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.database import Database
from dragoman.hub.store.tenants import Tenants
from tests.hub.house import Caller, House, house, tables_of
from tests.ports import free_port
from tests.waiting import block_until, forever, until

HAS_S3 = find_spec("moto") is not None and find_spec("obstore") is not None
LARGE = os.urandom(INLINE_BYTES) * 100
"""More than one part of an upload."""
_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server that speaks S3's API, in a process of its own."""
    port = free_port()
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
    connection.request("PUT", "/files", headers=_SIGNED)
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


def _unfinished(url: str) -> int:
    """How many uploads of the bucket have begun, and have not ended."""
    import http.client

    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("GET", "/files?uploads", headers=_SIGNED)
    text = connection.getresponse().read()
    connection.close()
    return text.count(b"<Upload>")


@pytest.mark.parametrize("waits_for", ["the content", "the bucket"])
async def test_an_upload_that_is_canceled_leaves_no_parts_in_the_bucket(bucket: str, waits_for: str) -> None:
    url, halfway = os.environ["AWS_ENDPOINT_URL"], asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        async for piece in in_pieces(LARGE * 2, 1 << 20):
            yield piece
        halfway.set()
        if waits_for == "the content":
            await forever()
        while True:
            yield bytes(1 << 20)

    putting = asyncio.create_task(open_blobs(bucket, None).put(new_key(1), content()))
    await halfway.wait()
    await until(lambda: asyncio.to_thread(_unfinished, url))
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await asyncio.to_thread(_unfinished, url) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="names of open files are in /proc")
async def test_a_stored_content_is_on_disk_with_the_names_of_its_new_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = set[str](), os.fsync

    def sync_noticed(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(tmp_path)))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_noticed)
    key = new_key(1)
    await FileBlobs(tmp_path / "blobs").put(key, in_pieces(LARGE))
    name = key.removeprefix("t1/")
    assert synced == {"", "/blobs", "/blobs/t1", f"/blobs/t1/.{name}"}


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
        endpoint=f"http://127.0.0.1:{free_port()}",
        client_options={"allow_http": True, "connect_timeout": "1s"},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(Unavailable, match="bucket"):
        await S3Blobs(nowhere).put(new_key(1), in_pieces(b"x"))


class Bucket:
    """Answers requests for one content of a bucket, as S3 does, and keeps what was asked. `answers`: False is silence, `works`: False is 500."""

    def __init__(self, content: bytes = b"", *, answers: bool = True, works: bool = True) -> None:
        self._content, self._answers, self._works = content, answers, works
        self.asked: list[tuple[str, str]] = []
        """Methods and ranges."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                headers = dict(line.split(": ", 1) for line in lines[1:] if line)
                await reader.readexactly(int(headers.get("content-length", "0")))
                self.asked.append((lines[0].split()[0], headers.get("range", "")))
                if self._answers:
                    writer.write(self._answer(*self.asked[-1]))
                    await writer.drain()

    def _answer(self, method: str, range: str) -> bytes:
        status, headers, body = "200 ok", "", self._content
        if not self._works:
            status, body = "500 no", b"<Error>\n</Error>"
        elif range:
            first, last = map(int, range.removeprefix("bytes=").split("-"))
            status, body = "206 part", body[first : last + 1]
            headers = f"content-range: bytes {first}-{last}/{len(self._content)}\r\n"
        headers += (
            f'content-length: {len(body)}\r\netag: "1"\r\nlast-modified: Thu, 19 Nov 2026 10:00:00 GMT\r\n'
        )
        return f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + (b"" if method == "head" else body)


@asynccontextmanager
async def serving(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Blobs]:
    if not HAS_S3:
        pytest.skip("the extra s3 is not installed")
    server = await asyncio.start_server(bucket.serve, "127.0.0.1", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    try:
        yield open_blobs("s3://files/hub", None)
    finally:
        server.close()


async def test_a_reader_that_is_slow_holds_no_request_to_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom((5 << 20) + 1)
    bucket = Bucket(content)
    async with serving(bucket, monkeypatch) as blobs:
        pieces = blobs.get(new_key(1))
        read = await anext(pieces)
        assert bucket.asked == [("head", ""), ("get", f"bytes=0-{len(read) - 1}")] and len(read) <= 1 << 20
        assert read + await whole(pieces) == content


async def test_a_bucket_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.hub.store.s3_blobs._ANSWER_SECONDS", 0.1)
    async with serving(Bucket(answers=False), monkeypatch) as blobs, asyncio.timeout(20):
        with pytest.raises(Unavailable, match="bucket"):
            await whole(blobs.get(new_key(1)))
        with pytest.raises(Unavailable, match="bucket"):
            await blobs.delete(new_key(1))


async def test_an_error_of_a_bucket_is_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Bucket(works=False), monkeypatch) as blobs:
        with pytest.raises(Unavailable, match="bucket"):
            await whole(blobs.get(new_key(1)))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "500" in line and "\n" not in line and "Debug" not in line


async def test_an_upload_that_is_canceled_while_the_bucket_fails_reports_nothing_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    bucket = Bucket(works=False)
    async with serving(bucket, monkeypatch) as blobs:
        putting = asyncio.create_task(blobs.put(new_key(1), in_pieces(LARGE * 2)))
        await until(lambda: bucket.asked)
        putting.cancel()
        await asyncio.wait((putting,))
        assert putting.cancelled()
        del putting
        gc.collect()
    assert reported == []


def test_doctor_says_whether_large_files_can_be_stored_in_the_bucket(
    bucket: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["doctor", "--model", "echo", "--data", str(tmp_path), "--blobs"]
    assert main([*options, bucket]) == 0 and f"ok     {bucket}\n" in capsys.readouterr().out
    assert main([*options, "s3://nobody-has-this-bucket/hub"]) == 0
    assert "note   s3://nobody-has-this-bucket/hub: " in capsys.readouterr().out


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


async def exists(blobs: Blobs, key: str) -> bool:
    with suppress(BlobMissing):
        await whole(blobs.get(key))
        return True
    return False


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


async def test_replaced_and_deleted_contents_have_as_much_room_as_the_files_of_a_tenant(
    database: Database, blobs: Blobs
) -> None:
    database.policy = replace(database.policy, max_artifact_mb=1)
    artifacts, keys = Artifacts(database, blobs), []
    for n in range(7):
        await artifacts.put(1, 1, f"{n % 2}", os.urandom(400_000))
        keys.append((await database.one("select blob from artifacts where path = ?", (f"{n % 2}",)))["blob"])
        if n % 3 == 2:
            found = await artifacts.by_path(1, 1, f"{n % 2}")
            assert found is not None
            await artifacts.delete(1, found.id)
    left = [key for key in keys if await exists(blobs, key)]
    assert len(left) == 3 and keys[-1] in left, "one is of a file, and two others fit into a megabyte"
    assert {*await unused(database), keys[-1]} == set(left)


async def test_uploads_at_the_same_time_have_as_much_room_as_the_files_of_a_tenant(
    database: Database, blobs: Blobs
) -> None:
    database.policy = replace(database.policy, max_artifact_mb=1)
    artifacts, arrived, go = Artifacts(database, blobs), asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LARGE[:100_000]
        arrived.set()
        await go.wait()
        yield LARGE[100_000:800_000]

    first = asyncio.create_task(artifacts.put_pieces(1, 1, "first", slow(), size=800_000))
    await arrived.wait()
    for size in (800_000, None):
        with pytest.raises(QuotaExceeded, match="are being uploaded") as refused:
            await artifacts.put_pieces(1, 1, "second", in_pieces(LARGE[:800_000]), size=size)
        assert refused.value.metadata["reason"] == "storage_limit"
    second = await artifacts.put_pieces(1, 1, "second", in_pieces(LARGE[:100_000]), size=100_000)
    await Conversations(database).create(other := (await Tenants(database).add("other"))[0].id)
    await artifacts.put_pieces(other, 2, "other", in_pieces(LARGE[:800_000]))
    go.set()
    assert (await first).size == 800_000 and second.size == 100_000
    assert not await unused(database)


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


async def test_what_a_killed_hub_has_stored_of_a_content_is_deleted_later(
    database: Database, tmp_path: Path
) -> None:
    folder = tmp_path / "blobs"
    blobs = open_blobs(str(folder), None)
    artifacts, killed = Artifacts(database, blobs), asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        yield LARGE
        killed.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(artifacts.put_pieces(1, 1, "x", hanging()))
    await killed.wait()
    left = [path for path in folder.rglob("*") if path.is_file()]
    content = [path.read_bytes() for path in left]
    keys = await unused(database)
    upload.cancel()
    await asyncio.wait((upload,))
    for path, data in zip(left, content, strict=True):  # a killed hub deletes nothing
        path.write_bytes(data)
    for key in keys:
        await database.change(
            "insert into unused_blobs (key, tenant_id, size, arriving, at) values (?, 1, 0, 1, 0)", (key,)
        )
    assert left and await BlobSweeper(database, blobs).delete_unused() == 1
    assert not [path for path in folder.rglob("*") if path.is_file()]


async def test_a_content_that_may_be_deleted_becomes_no_file_any_more(
    database: Database, blobs: Blobs
) -> None:
    artifacts, sweeper = Artifacts(database, blobs), BlobSweeper(database, blobs)

    async def slow() -> AsyncIterator[bytes]:
        yield LARGE[:100_000]
        await database.change("update unused_blobs set at = at - ?", (KEEP_SECONDS - 1,))

    with pytest.raises(Unavailable, match="took too long"):
        await artifacts.put_pieces(1, 1, "x", slow())
    assert await artifacts.by_path(1, 1, "x") is None
    assert await sweeper.delete_unused(before=2**40) == 0, "a refused content is deleted at once"


async def test_a_hub_that_is_killed_while_it_deletes_a_refused_content_leaves_its_key(
    database: Database, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = Artifacts(database, blobs, conversation_limit=1)
    change = database.change

    async def only_once(statement: str, values: Any = ()) -> int:
        if statement.startswith("delete from unused_blobs"):
            await change(statement, values)
            raise Unavailable("killed")
        return await change(statement, values)

    monkeypatch.setattr(database, "change", only_once)
    monkeypatch.setattr(blobs, "delete", AsyncMock(side_effect=Unavailable("killed")))
    with pytest.raises(QuotaExceeded):
        await artifacts.put(1, 1, "x", LARGE[:100_000])
    assert len(await unused(database)) == 1


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
