"""The table `[catalogue]` of `dragoman.toml`.

[catalogue]
url = "https://agents.example.com"     # where `dragoman find` searches
name = "Example Inc."                  # who operates the catalogue that this server publishes
interval = 300                         # seconds between two checks of a registered agent
allow_private = true                   # registered agents may be at private addresses

[catalogue.agents]                     # agents elsewhere that are registered when the server starts
money = "https://money.example.com"
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dragoman.catalogue import AgentCatalogue
from dragoman.catalogue.registered_agents import CHECK_INTERVAL_SECONDS, MAX_REGISTERED, check_name, check_url
from dragoman.client.config import CONFIG, explain_setting, place_of, read_settings
from dragoman.errors import InvalidParams


class CatalogueSettings(Struct, frozen=True, kw_only=True):
    url: str = ""
    name: str = ""
    interval: Annotated[float, Meta(ge=1, le=86_400)] = CHECK_INTERVAL_SECONDS
    allow_private: bool = False
    agents: dict[str, str] | None = None
    """None: there is no such table, so what it registered before stays."""


def read_catalogue(config: str = CONFIG) -> CatalogueSettings:
    """The settings, or the defaults where there is no file. Raises `ValueError`."""
    table = read_settings("catalogue", CatalogueSettings.__struct_fields__, config)
    try:
        settings = msgspec.convert(table, CatalogueSettings, strict=False)
    except msgspec.ValidationError as error:
        path = str(error).partition(" - at ")[2].strip("`$.").replace("[...]", "").split(".")
        place = place_of(["catalogue", *path], config)
        inside = "a value in " if len(path) > 1 or "[" in str(error) else ""
        raise ValueError(f"{place}: {inside}{path[0] or 'a value'} {explain_setting(error)}") from None
    agents = settings.agents or {}
    if len(agents) > MAX_REGISTERED:
        raise ValueError(
            f"{place_of(['catalogue', 'agents'], config)}: there are more than {MAX_REGISTERED} agents"
        )
    for name, url in agents.items():
        try:
            check_name(name)
            check_url(url)
        except InvalidParams as error:
            raise ValueError(f"{place_of(['catalogue', 'agents', name], config)}: {name}: {error}") from None
    return settings


def configured_catalogue(*, allow_private: bool) -> AgentCatalogue:
    """The catalogue that this server publishes, of `dragoman.toml` in this folder. `allow_private` adds to that of the file.

    Raises `ValueError`.
    """
    settings = read_catalogue()
    return AgentCatalogue(
        name=settings.name,
        agents=settings.agents,
        allow_private=settings.allow_private or allow_private,
        interval=settings.interval,
    )
