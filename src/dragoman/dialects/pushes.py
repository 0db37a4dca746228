"""Push configurations as the versions before 1.0 have them: one object inside another, and a list of auth schemes."""

from __future__ import annotations

from typing import Any

from dragoman.dialects.reading import (
    Malformed,
    an_object,
    identifier,
    mapping,
    needed_object,
    sequence,
    strings,
    text,
    under,
)
from dragoman.model.ops import AuthenticationInfo, PushConfig


def read_config(document: dict[str, Any], path: str, *, task_id: str = "") -> PushConfig:
    authentication = mapping(document, "authentication", path)
    schemes = strings(authentication, "schemes", under(path, "authentication"))
    scheme = schemes[0] if schemes else text(authentication, "scheme", under(path, "authentication"))
    credentials = text(authentication, "credentials", under(path, "authentication"))
    url = text(document, "url", path)
    if not url:
        raise Malformed(under(path, "url"), "is missing")
    return PushConfig(
        id=identifier(document, "id", path),
        task_id=task_id,
        url=url,
        token=text(document, "token", path),
        # A list of no schemes is how some say that there is nothing to show.
        authentication=AuthenticationInfo(scheme=scheme, credentials=credentials, others=schemes[1:])
        if scheme or credentials
        else None,
    )


def read_task_config(document: Any, path: str) -> PushConfig:
    """`{taskId, pushNotificationConfig}`; 0.1 and some later agents say `id`."""
    document = an_object(document, path)
    task_id = identifier(document, "taskId", path) or identifier(document, "id", path)
    config = needed_object(document, "pushNotificationConfig", path)
    return read_config(config, under(path, "pushNotificationConfig"), task_id=task_id)


def read_task_configs(document: Any, path: str) -> tuple[PushConfig, ...]:
    """A list of them, bare or under `configs`."""
    if type(document) is dict:
        document = sequence(document, "configs", path)
    if type(document) is not list:
        raise Malformed(path or "it", "must be a list")
    return tuple([read_task_config(each, f"{path}[{n}]") for n, each in enumerate(document)])


def write_config(config: PushConfig, *, named: bool = True, secrets: bool = True) -> dict[str, Any]:
    out: dict[str, Any] = {"url": config.url}
    if config.id and named:
        out["id"] = config.id
    if config.token:
        out["token"] = config.token
    if config.authentication is not None:
        out["authentication"] = {"schemes": [config.authentication.scheme, *config.authentication.others]}
        if config.authentication.credentials and secrets:
            out["authentication"]["credentials"] = config.authentication.credentials
    return out
