"""Which IP addresses are on the public internet, and which texts are addresses or names."""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]  # host and port to all addresses of the host, as text

# Python's is_global follows the registries of special addresses, but older versions miss entries of them, and it has its own
# mind about addresses that carry another one inside.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 "
        "192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
        "168.63.129.16/32 "  # looks public, but is the metadata service inside Azure's machines
        "2001::/23 2001:db8::/32 2002::/16 3fff::/20"  # Teredo and others, documentation, 6to4
    ).split()
)
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


def is_public(address: Address) -> bool:
    """Whether packets to it leave for the internet, as far as the address tells."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:  # what a network without IPv4 makes of a public IPv4 address
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _NOT_PUBLIC)


def literal_address(host: str) -> Address | None:
    """The address that a host is written as, or None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_plain_name(host: str) -> bool:
    """Labels of letters, digits, - and _, the last of which is not a number.

    C libraries read 127.1, 0x7f.1 and 2130706433 as addresses; no name on the public internet ends in a number.
    """
    labels = host.split(".")
    plain = len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels)
    return plain and not _NUMBER.fullmatch(labels[-1])
