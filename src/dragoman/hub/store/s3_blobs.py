"""Contents of files in a bucket of S3, or of anything that has its API (MinIO, Ceph, R2). Needs the extra `s3`.

Address and credentials are those of AWS's tools: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, or the role of
the machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from dragoman.errors import Unavailable
from dragoman.hub.store.blobs import BlobMissing

log = logging.getLogger(__name__)

T = TypeVar("T")

_PART_BYTES = 5 << 20
"""The smallest part of an upload that S3 takes. Two are in memory at a time."""
_READ_BYTES = 1 << 20
"""What a request reads of a content."""
_ANSWER_SECONDS = 30.0
"""How long a request may take with its repetitions, if it reads or deletes."""
_ABORT_SECONDS = 10.0
"""How long a canceled upload may take to delete its parts."""


def open_bucket(url: str) -> S3Blobs:
    """Raises `ValueError`."""
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    try:
        return S3Blobs(S3Store.from_url(url, client_options={"allow_http": plain}))
    except BaseError as error:
        raise ValueError(f"{url} cannot be used: {error}") from None


class S3Blobs:
    def __init__(self, bucket: S3Store) -> None:
        self._bucket = bucket

    async def put(self, key: str, content: AsyncIterable[bytes]) -> None:
        source = _Source(content)
        upload = asyncio.ensure_future(
            obstore.put_async(
                self._bucket, key, source, use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=2
            )
        )
        try:
            with _translate_errors():
                await asyncio.shield(upload)
        except asyncio.CancelledError:
            source.stop()  # its error makes the library delete the parts that are uploaded
            upload.add_done_callback(_ignore_error)
            await asyncio.wait((upload,), timeout=_ABORT_SECONDS)
            raise
        except Exception:
            if source.error is not None:
                raise source.error from None
            raise

    async def get(self, key: str) -> AsyncIterator[bytes]:
        # In several requests: the library ends one that takes longer than half a minute, and a client may read for hours.
        size, at = (await _answer(obstore.head_async(self._bucket, key)))["size"], 0
        while at < size:
            end = min(size, at + _READ_BYTES)
            yield bytes(await _answer(obstore.get_range_async(self._bucket, key, start=at, end=end)))
            at = end

    async def delete(self, key: str) -> None:
        await _answer(obstore.delete_async(self._bucket, key))


async def _answer(request: Awaitable[T]) -> T:
    with _translate_errors():
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await request


def _ignore_error(upload: asyncio.Future[Any]) -> None:
    """Nobody waits for the result any more."""
    if not upload.cancelled():
        upload.exception()


class _Source:
    """The pieces of a content. It stores the error that they raise, because the library raises another one. `stop` ends it."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = aiter(content)
        self._reading: asyncio.Task[object] | None = None
        self._stopped = False
        self.error: BaseException | None = None

    def __aiter__(self) -> _Source:
        return self

    async def __anext__(self) -> bytes:
        self._reading = asyncio.current_task()
        try:
            if self._stopped:
                raise Unavailable("nobody waits for this upload any more")
            return await anext(self._content)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._reading = None

    def stop(self) -> None:
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BlobMissing("the content of this file is gone") from None
    except (BaseError, OSError) as error:  # a `TimeoutError` is an `OSError`
        log.error("the bucket of files: %s", _describe(error))
        raise Unavailable("the bucket of files cannot be used right now") from error


def _describe(error: Exception) -> str:
    """The error in one line. The library adds thirty lines of its own data, and the answer of the bucket may have lines, too."""
    text = str(error).partition("\n\nDebug source:")[0] or f"it did not answer within {_ANSWER_SECONDS:g} s"
    return " ".join(text.split())
