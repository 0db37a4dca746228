"""The places we send to, each with its own room: one that is slow or dead keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

_LONGEST = 30.0
_KNOWN = 10_000


class Origin:
    """A host and a port. After a request that got no answer, nobody else tries for a while."""

    def __init__(self, slots: int, pause: float) -> None:
        self.slots = asyncio.Semaphore(slots)
        self._pause = pause
        self._failures = 0
        self._until = 0.0

    def resting(self) -> float:
        """For how many seconds it is not worth a try."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def answered(self) -> None:
        self._failures, self._until = 0, 0.0

    def silent(self) -> None:
        pause = min(_LONGEST, self._pause * 2 ** min(self._failures, 10))
        self._failures += 1
        self._until = asyncio.get_running_loop().time() + pause

    @property
    def idle(self) -> bool:
        return not self.slots.locked() and not self.resting()


class Origins:
    def __init__(self, *, slots: int, pause: float) -> None:
        self._slots, self._pause = slots, pause
        self._known: dict[str, Origin] = {}

    def of(self, url: str) -> Origin:
        name = urlsplit(url).netloc.lower()
        origin = self._known.get(name)
        if origin is None:
            if len(self._known) >= _KNOWN:
                self._known = {name: known for name, known in self._known.items() if not known.idle}
            origin = self._known[name] = Origin(self._slots, self._pause)
        return origin
