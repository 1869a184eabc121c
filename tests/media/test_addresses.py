"""Which addresses are public, which texts are host names."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.media.addresses import is_plain_name, is_public, literal_address

PUBLIC = """
8.8.8.8 93.184.216.34 1.1.1.1 172.15.255.255 172.32.0.1 2606:4700:4700::1111 2a00:1450:4001:81b::200e ::ffff:8.8.8.8
64:ff9b::808:808
"""
NOT_PUBLIC = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.0.1 169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255
192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.51.100.7 203.0.113.9 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255
168.63.129.16
:: ::1 ::7f00:1 ::127.0.0.1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 2606:4700::1%1 fec0::1 ff02::1 ff0e::1 100::1 5f00::1
2001:db8::1 3fff::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2002:7f00:1:: 2002:808:808:: 64:ff9b:1::1
::ffff:127.0.0.1 ::ffff:10.1.2.3 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
"""


@pytest.mark.parametrize("text", PUBLIC.split())
def test_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


# Red if a range is forgotten, or if an address inside another one is not looked at.
@pytest.mark.parametrize("text", NOT_PUBLIC.split())
def test_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


# Red if wrapping an address in IPv6 changes what is said of it.
@given(st.ip_addresses(v=4))
def test_wrapped_addresses_are_what_they_wrap(address: ipaddress.IPv4Address) -> None:
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        wrapped = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(address))
        assert is_public(wrapped) == is_public(address)


@given(st.ip_addresses())
def test_public_is_never_more_than_pythons_view(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if is_public(address) and literal_address(str(address)) is not None and getattr(address, "ipv4_mapped", None) is None:
        assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96")


@pytest.mark.parametrize("name", ["localhost", "example.org", "a-b.c_d.xn--p1ai", "1.2.3.4.example", "0x7f.example", "x" * 63])
def test_plain_names(name: str) -> None:
    assert is_plain_name(name)


# Red if one of the spellings that C libraries take for an address passes as a name.
@pytest.mark.parametrize(
    "name",
    "127.1 2130706433 0x7f000001 0x7f.1 0177.0.0.1 0x 1 127.0.0.1. example.org. .example .. a..b a%2eb a\\b a:b a@b "
    "exa!mple -a.org a-.org bücher.example".split()
    + ["", "a b", "x" * 64, ".".join(["x" * 60] * 5)],
)
def test_odd_names(name: str) -> None:
    assert not is_plain_name(name)
