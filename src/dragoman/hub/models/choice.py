"""Several models as one: by the provider's name in front of the slash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from dragoman.hub.models.model import About, Model, ModelError, ModelEvent, Prompt, about


class ChosenModel:
    """`models` by provider; `""` takes prompts that name no model, `*` those of every other provider."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = dict(models)
        self.plain = all(getattr(model, "plain", False) for model in self._models.values())

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        model = self._find(prompt.model)
        if model is None:
            raise ModelError("not_found", f"there is no model {prompt.model[:80]!r} here")
        async for event in model.respond(prompt):
            yield event

    def about(self, name: str) -> About:
        model = self._find(name)
        return about(model, name) if model is not None else About(name=name, known=False)

    def _find(self, name: str) -> Model | None:
        provider = name.partition("/")[0] if "/" in name else ""
        return self._models.get(provider) or self._models.get("*") or self._models.get("")
