"""The places we send to, each with its own room: one that is slow or dead keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

_KNOWN = 10_000


class Origin:
    """A host and a port. After a request that got no answer, nobody else tries for a while."""

    def __init__(self, slots: int, pause: float, longest: float) -> None:
        self.slots = asyncio.Semaphore(slots)
        self._pause, self._longest = pause, longest
        self._failures = 0
        self._failed = 0.0
        self._until = 0.0

    def resting(self) -> float:
        """For how many seconds it is not worth a try."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def answered(self) -> None:
        self._failures, self._until = 0, 0.0

    def silent(self, began: float) -> None:
        """A request that began at `began` got no answer. Several that began together fail together, which counts once."""
        if began < self._failed:
            return
        self._failed = asyncio.get_running_loop().time()
        self._until = self._failed + min(self._longest, self._pause * 2 ** min(self._failures, 10))
        self._failures += 1

    @property
    def idle(self) -> bool:
        return not self.slots.locked() and not self.resting()


class Origins:
    def __init__(self, *, slots: int, pause: float, longest: float) -> None:
        self._slots, self._pause, self._longest = slots, pause, longest
        self._known: dict[str, Origin] = {}

    def of(self, url: str) -> Origin:
        name = urlsplit(url).netloc.lower()
        origin = self._known.get(name)
        if origin is None:
            if len(self._known) >= _KNOWN:
                self._known = {name: known for name, known in self._known.items() if not known.idle}
            origin = self._known[name] = Origin(self._slots, self._pause, self._longest)
        return origin
