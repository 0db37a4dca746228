"""What callers of a hub do, on record in the task store (`dragoman audit`); and lines of the log that say whose they are."""

from __future__ import annotations

import time

from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Store
from dragoman.engine.records import Snapshot
from dragoman.errors import A2AError
from dragoman.hub.metrics import Metrics
from dragoman.model.ops import Call, SendMessage, Service
from dragoman.observe import watch
from dragoman.observe.request_log import log_request
from dragoman.observe.sparing import Sparing


class Record:
    """An `Observer` of the engine, and the way to it for whoever comes from outside."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._audit = Sparing(store.audit)
        self._watch = watch.Watch(metrics=None, audit=self._audit)
        self._metrics = metrics
        self.turn = self._watch.turn
        self.refused = self._watch.refused
        self.close = self._audit.close

    def settled(self, snapshot: Snapshot) -> None:
        self._watch.settled(snapshot)
        self._metrics.settled(snapshot)

    def around(self, engine: Engine) -> Service:
        return self._watch.service(engine)

    async def deliver(self, engine: Engine, call: Call, request: SendMessage) -> None:
        outcome, began = "INTERNAL_ERROR", time.perf_counter()
        try:
            await engine.deliver(call, request)
            outcome = "OK"
        except A2AError as error:
            outcome = error.reason
            raise
        finally:
            task = request.message.task_id
            log_request(call, "SendMessage", outcome, time.perf_counter() - began, task)
            self._watch.note(call, "SendMessage", request, task, outcome)
