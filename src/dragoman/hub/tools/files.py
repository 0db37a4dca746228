"""`/write`, `/read`, `/list` and `/exec`: files, images, and shell commands.

A file is always sent to the caller. `--persist` also stores it with the conversation, if there is one (a call over A2A has
none). If commands are allowed, the tenant has a workspace: `/write` writes there too, and `/read` and `/list` show its files.
An image goes into the model's next prompt. The log has its key, and the database its bytes, for a turn that runs again.
"""

from __future__ import annotations

import mimetypes
import re

from dragoman.engine.turn import record_of
from dragoman.errors import A2AError, InvalidParams, StoreUnavailable, Unavailable
from dragoman.hub.models import Image, Model
from dragoman.hub.quote import flatten
from dragoman.hub.sandbox import Sandbox
from dragoman.hub.sandbox.workspace import MAX_READ_BYTES
from dragoman.hub.store.artifacts import Artifacts, StoredPictures, clean_path
from dragoman.hub.store.database import Database
from dragoman.hub.store.memories import Memories
from dragoman.hub.tools import Command, Session, Tool


class Pictures:
    """`model` knows which models take images."""

    def __init__(self, database: Database, model: Model) -> None:
        self._stored, self._model = StoredPictures(database), model
        self.find = self._stored.find

    async def show(self, session: Session, image: Image) -> str:
        """Put an image into the model's next prompt, if it takes images. Returns the result of the command."""
        if not self._model.traits(session.constitution.model).sees:
            return f"({image.title}: a picture, and your model cannot see pictures)"
        await self._stored.put(session.tenant, session.write_key, image)
        session.pictures.append(session.write_key)
        return f"(picture {len(session.pictures)}: {image.title}; it is attached to this message)"


MAX_RESPONSE_BYTES = 10 * 1024 * 1024
NO_CONVERSATION = "files are stored with a conversation, and this request has none"


class WriteTool(Tool):
    names = ("/write",)
    usage = "/write [--persist] <path>\n<content>\n/endwrite   make a file for the user; --persist keeps it for later /read"

    def __init__(self, artifacts: Artifacts, sandbox: Sandbox | None = None) -> None:
        self._artifacts, self._sandbox = artifacts, sandbox

    def label(self, command: Command) -> str:
        return f"write:{_parse_write(command.args)[1]}"

    async def run(self, command: Command, session: Session) -> str:
        persist, path = _parse_write(command.args)
        path = clean_path(path)
        content = command.body or ""
        size, counts = len(content.encode()), session.writer.counts
        if counts.get("file_bytes", 0) + size > MAX_RESPONSE_BYTES:
            return f"ERR: the files of one response may have {MAX_RESPONSE_BYTES} bytes in all; {path} was not written"
        if self._sandbox is not None:
            try:
                await self._sandbox.write(session.tenant, path, content.encode())
            except StoreUnavailable:
                raise
            except A2AError as error:
                return f"ERR: {path} was not written: {error.message}"
        counts["file_bytes"] = counts.get("file_bytes", 0) + size
        await session.writer.emit("file", path=path, size=size, encoding="utf-8", content=content)
        if not persist:
            return f"OK: captured {size} bytes for '{path}' (streamed to client, not persisted)"
        return f"OK: captured {size} bytes for '{path}'\n{await self._store_file(session, path, content)}"

    async def _store_file(self, session: Session, path: str, content: str) -> str:
        if not session.conversation:
            return f"WARN: --persist requested but artifact store is unavailable: {NO_CONVERSATION}"
        try:
            artifacts = self._artifacts.once(session.write_key)
            stored = await artifacts.put(session.tenant, session.conversation, path, content.encode())
        except StoreUnavailable:
            raise
        except A2AError as error:
            return f"ERR: not persisted: {error.message}"
        return f"OK: persisted {stored.size} bytes (artifact #{stored.id})"


class ReadTool(Tool):
    names = ("/read",)
    usage = "/read <path> | /read #<id> [via=mem:<entry>]   read a file that was kept"

    def __init__(
        self, artifacts: Artifacts, memories: Memories, pictures: Pictures, sandbox: Sandbox | None = None
    ) -> None:
        self._artifacts, self._memories, self._pictures = artifacts, memories, pictures
        self._sandbox = sandbox

    def label(self, command: Command) -> str:
        return f"read:{command.args}"

    async def run(self, command: Command, session: Session) -> str:
        workspace_content = None
        if self._sandbox is not None and not command.args.startswith("#"):
            workspace_content = await self._sandbox.read(session.tenant, command.args)
        if session.conversation:
            return await self._read_stored(command, session, workspace_content)
        if self._sandbox is None:
            return f"ERR: artifact store unavailable: {NO_CONVERSATION}"
        if workspace_content is None:
            return f"ERR: there is no file {command.args!r} in the workspace (try /list)"
        return await self._show(session, workspace_content, mimetypes.guess_type(command.args)[0] or "")

    async def _read_stored(self, command: Command, session: Session, workspace_content: bytes | None) -> str:
        """A file of the conversation, or else `workspace_content`, the file of the workspace."""
        named = re.fullmatch(r"#(\d{1,15})(?:\s+via=mem:#?(\d{1,15}))?", command.args)
        if named is None:
            found = await self._artifacts.by_path(session.tenant, session.conversation, command.args)
        else:
            found = await self._artifacts.get(session.tenant, int(named[1]))
            if found is not None and found.conversation_id != session.conversation:
                # A file of another conversation needs a memory entry that links it.
                entry = await self._memories.get(session.tenant, int(named[2])) if named[2] else None
                if entry is None or entry.artifact_id != found.id:
                    return f"ERR: #{named[1]} is of another conversation; name the memory that links it: via=mem:<entry>"
        if found is None and workspace_content is not None:
            return await self._show(session, workspace_content, mimetypes.guess_type(command.args)[0] or "")
        if found is None:
            return f"ERR: there is no file {command.args!r} (try /list)"
        content = await self._artifacts.content(session.tenant, found.id, MAX_READ_BYTES + 1) or b""
        return await self._show(session, content, found.mime)

    async def _show(self, session: Session, content: bytes, mime: str) -> str:
        if mime.startswith("image/") and not mime.endswith("xml"):
            if len(content) > MAX_READ_BYTES:
                return f"ERR: a picture may have {MAX_READ_BYTES} bytes here"
            return await self._pictures.show(session, Image(media_type=mime, content=content))
        text = content[:MAX_READ_BYTES].decode("utf-8", "replace")
        return f"{text}\n[the file goes on: this is its first MiB]" if len(content) > MAX_READ_BYTES else text


class ListTool(Tool):
    names = ("/list",)
    usage = "/list   the files kept with this conversation, and those of the workspace"

    def __init__(self, artifacts: Artifacts, sandbox: Sandbox | None = None) -> None:
        self._artifacts, self._sandbox = artifacts, sandbox

    async def run(self, command: Command, session: Session) -> str:
        lines = []
        if session.conversation:
            files = await self._artifacts.of_conversation(session.tenant, session.conversation)
            lines = [f"#{file.id}  {flatten(file.path)}  ({file.size} bytes)" for file in files] or [
                "(no files)"
            ]
        elif self._sandbox is None:
            return f"ERR: artifact store unavailable: {NO_CONVERSATION}"
        if self._sandbox is not None:
            paths = await self._sandbox.list(session.tenant)
            lines += ["[sandbox workspace]", *(f"{flatten(path)}  ({size} bytes)" for path, size in paths)]
        return "\n".join(lines)


def _parse_write(args: str) -> tuple[bool, str]:
    """Whether `--persist` is there, and the path."""
    words = args.split()
    return "--persist" in words, " ".join(word for word in words if word != "--persist")


EXEC_DISABLED = "commands are disabled on this hub"


class ExecTool(Tool):
    names = ("/exec",)
    usage = "/exec <command>   run a shell command in a sandbox"

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox

    def label(self, command: Command) -> str:
        return f"exec:{command.args[:80]}"

    async def repeatable(self, command: Command, session: Session) -> bool:
        return not session.was_interrupted and (self._sandbox is None or not command.args)

    async def check(self, command: Command, session: Session) -> None:
        if self._sandbox is None:
            raise Unavailable(EXEC_DISABLED)
        if not command.args:
            raise InvalidParams("usage: /exec <command>")

    async def run(self, command: Command, session: Session) -> str:
        await self.check(command, session)
        assert self._sandbox is not None
        try:
            result = await self._sandbox.run(session.tenant, command.args, record_of(session.turn).may_begin)
        except Unavailable as error:
            return f"ERR: {error.message}"
        status = f"[timed out after {result.seconds:g}s]" if result.timed_out else f"[exit {result.code}]"
        return f"{result.output.rstrip()}\n{status}".lstrip("\n")
