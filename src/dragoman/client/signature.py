"""What is known of the signature of a card, by the keys that its own host publishes."""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.client.discover import AgentCache, FoundCard
from dragoman.client.fetch import Fetcher
from dragoman.client.transport.transport import Transport
from dragoman.errors import A2AError

VALID, INVALID, UNSIGNED, UNKNOWN = "valid", "invalid", "unsigned", "unknown"


class SignatureCheck(Struct, frozen=True, kw_only=True, omit_defaults=True):
    state: str
    """`valid`, `invalid`, `unsigned`, or `unknown`: there is a signature, and no key to check it with."""
    message: str
    kid: str = ""
    algorithm: str = ""
    form: str = ""
    keys: str = ""
    """The URL of the keys."""


async def check_signature(
    found: FoundCard, transport: Transport, keys: Transport | None = None
) -> SignatureCheck:
    """Whether the card is signed, and by a key that its own host publishes. `keys`: fetches those, without credentials.

    A signature covers the 1.0 form of a card, so a server that has one for each version is asked for that one.
    """
    from dragoman.auth.signing import Trust  # imports cryptography, which is slow

    document = found.document
    if found.url and not document.get("signatures"):
        try:
            other = await AgentCache().get_card(transport, found.url, version="1.0", private=True)
            document = other.document
        except A2AError:
            pass
    if not document.get("signatures"):
        return SignatureCheck(state=UNSIGNED, message="The card is not signed.")
    parts = urlsplit(found.url)
    if not parts.netloc:
        return SignatureCheck(
            state=UNKNOWN, message="The card has no address, so there is no host whose keys to trust."
        )
    published = f"{parts.scheme}://{parts.netloc}/.well-known/jwks.json"
    trust = Trust(jwks_url=published, jku_hosts=[parts.netloc])
    try:
        verified = await trust.verify(document, Fetcher(keys or transport))
    except A2AError as error:
        differs = "does not match" in error.message  # else the key is not known
        return SignatureCheck(state=INVALID if differs else UNKNOWN, keys=published, message=error.message)
    return SignatureCheck(
        state=VALID,
        kid=verified.kid,
        algorithm=verified.algorithm,
        form=verified.form,
        keys=published,
        message="A key of the agent's own host has signed the card.",
    )
