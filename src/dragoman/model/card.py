"""The agent card, in the 1.0 shape."""

from __future__ import annotations

from typing import Any

from dragoman.model.content import Wire

JSONRPC, HTTP_JSON, GRPC = "JSONRPC", "HTTP+JSON", "GRPC"


class Interface(Wire, frozen=True, kw_only=True):
    """One way to reach an agent: a URL, a binding, a version."""

    url: str
    protocol_binding: str
    protocol_version: str
    tenant: str = ""


class Provider(Wire, frozen=True, kw_only=True):
    organization: str
    url: str = ""


class Extension(Wire, frozen=True, kw_only=True):
    uri: str
    description: str = ""
    required: bool = False
    params: dict[str, Any] = {}


class Capabilities(Wire, frozen=True, kw_only=True):
    streaming: bool | None = None
    push_notifications: bool | None = None
    extensions: tuple[Extension, ...] = ()
    extended_agent_card: bool | None = None


class StringList(Wire, frozen=True, kw_only=True):
    list: tuple[str, ...] = ()


class SecurityRequirement(Wire, frozen=True, kw_only=True):
    """All of these schemes together; several requirements are alternatives."""

    schemes: dict[str, StringList] = {}


class ApiKeyScheme(Wire, frozen=True, kw_only=True):
    location: str
    name: str
    description: str = ""


class HttpAuthScheme(Wire, frozen=True, kw_only=True):
    scheme: str
    bearer_format: str = ""
    description: str = ""


class OAuthFlow(Wire, frozen=True, kw_only=True):
    """The members of every kind of flow; each kind uses its own."""

    authorization_url: str = ""
    device_authorization_url: str = ""
    token_url: str = ""
    refresh_url: str = ""
    scopes: dict[str, str] = {}
    pkce_required: bool = False


class OAuthFlows(Wire, frozen=True, kw_only=True):
    authorization_code: OAuthFlow | None = None
    client_credentials: OAuthFlow | None = None
    implicit: OAuthFlow | None = None
    password: OAuthFlow | None = None
    device_code: OAuthFlow | None = None


class OAuth2Scheme(Wire, frozen=True, kw_only=True):
    flows: OAuthFlows
    oauth2_metadata_url: str = ""
    description: str = ""


class OpenIdConnectScheme(Wire, frozen=True, kw_only=True):
    open_id_connect_url: str
    description: str = ""


class MutualTlsScheme(Wire, frozen=True, kw_only=True):
    description: str = ""


class SecurityScheme(Wire, frozen=True, kw_only=True):
    """Exactly one of these."""

    api_key_security_scheme: ApiKeyScheme | None = None
    http_auth_security_scheme: HttpAuthScheme | None = None
    oauth2_security_scheme: OAuth2Scheme | None = None
    open_id_connect_security_scheme: OpenIdConnectScheme | None = None
    mtls_security_scheme: MutualTlsScheme | None = None


SCHEME_MEMBERS = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
"""The member of a `SecurityScheme`, by the `type` that the versions before 1.0 have in its place."""


class Skill(Wire, frozen=True, kw_only=True):
    id: str
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    security_requirements: tuple[SecurityRequirement, ...] = ()


class Signature(Wire, frozen=True, kw_only=True):
    protected: str
    signature: str
    header: dict[str, Any] = {}


class AgentCard(Wire, frozen=True, kw_only=True):
    """Who an agent is, what it can do, and how to talk to it."""

    name: str
    description: str = ""
    supported_interfaces: tuple[Interface, ...] = ()
    provider: Provider | None = None
    version: str = ""
    documentation_url: str = ""
    icon_url: str = ""
    capabilities: Capabilities = Capabilities()
    security_schemes: dict[str, SecurityScheme] = {}
    security_requirements: tuple[SecurityRequirement, ...] = ()
    default_input_modes: tuple[str, ...] = ()
    default_output_modes: tuple[str, ...] = ()
    skills: tuple[Skill, ...] = ()
    signatures: tuple[Signature, ...] = ()
