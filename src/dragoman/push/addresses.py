"""Which addresses are on the public internet.

Everything that IANA lists as special is not: private, loopback, link-local (where clouds keep their credentials),
carrier-grade NAT, documentation, benchmarking, multicast, reserved. IPv6 is looked at from the other side: what is not
global unicast is special. An IPv4 address inside an IPv6 one counts as what it is; the old tunnels (6to4, Teredo,
ISATAP), which lead wherever their last digits say, are special as a whole.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL_4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; a cloud's metadata is in it, too
        "127.0.0.0/8",
        "168.63.129.16/32",  # a public address that means the host's own machinery in a large cloud
        "169.254.0.0/16",  # link-local: the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
_GLOBAL_6 = IPv6Network("2000::/3")
_SPECIAL_6 = [
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
]
_WITH_IPV4 = [IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")]
"""Mapped, and translated by NAT64: the last 32 bits are the address that is meant."""
_ISATAP = (0x00005EFE, 0x02005EFE)


def meant(address: Address) -> Address:
    """The address that is reached in the end."""
    if isinstance(address, IPv6Address) and any(address in network for network in _WITH_IPV4):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def public(address: Address) -> bool:
    """Whether anybody on the internet would reach the same machine there."""
    address = meant(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    if address not in _GLOBAL_6 or (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return not any(address in network for network in _SPECIAL_6)


def within(address: Address, networks: list[Network]) -> bool:
    address = meant(address)
    return any(address.version == network.version and address in network for network in networks)


def read_address(text: str) -> Address | None:
    """An address in its usual form; None if it is something else. A zone (`%eth0`) is dropped: it is never public."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def read_network(text: str) -> Network:
    return ip_network(text, strict=False)
