"""`/fetch`: read a web page, or look at a picture."""

from __future__ import annotations

from dragoman.errors import A2AError
from dragoman.hub.models.model import Image
from dragoman.hub.tools.fetcher import Fetcher
from dragoman.hub.tools.pictures import Pictures
from dragoman.hub.tools.tool import Command, Session, harmless


class FetchTool:
    names = ("/fetch",)
    bundle = "web"
    usage = "/fetch <url>   read a web page as text, or see a picture (3 in one reply)"
    repeatable = harmless

    def __init__(self, fetcher: Fetcher | None = None, pictures: Pictures | None = None) -> None:
        self._fetcher, self._pictures = fetcher, pictures

    def label(self, command: Command) -> str:
        return f"fetch:{command.args.partition(' ')[0]}"

    async def run(self, command: Command, session: Session) -> str:
        url = command.args.partition(" ")[0]
        if not url:
            return "ERR: usage: /fetch <url>"
        if self._fetcher is None:
            return "ERR: this hub does not read the web"
        try:
            page = await self._fetcher.fetch(url)
        except A2AError as error:
            return f"ERR: {error.message}"
        if page.status >= 400:
            return f"ERR: HTTP {page.status}"
        if page.content and self._pictures is not None:
            image = Image(media_type=page.media_type, content=page.content)
            return await self._pictures.show(session, image)
        return page.text or "(an empty page)"
