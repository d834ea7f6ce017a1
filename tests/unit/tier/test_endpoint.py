"""Endpoints that the store of a manifest may use."""

import ipaddress

import pytest

from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.endpoint import hands_out_credentials, parse_endpoint


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("http://minio:9000", "minio", 9000, "http://minio:9000"),
        ("https://s3.example.org/", "s3.example.org", 443, "https://s3.example.org"),
        ("http://[::1]:9000", "::1", 9000, "http://[::1]:9000"),
        ("HTTP://127.0.0.1", "127.0.0.1", 80, "http://127.0.0.1"),
    ],
)
def test_a_valid_endpoint_is_parsed(text: str, host: str, port: int, shown: str) -> None:
    endpoint = parse_endpoint(text)
    assert (endpoint.host, endpoint.port, str(endpoint)) == (host, port, shown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "minio:9000",
        "file:///etc/passwd",
        "http://",
        "http://:9000",
        # Credentials, paths and queries in an endpoint could redirect requests to another
        # service.
        "http://user:word@minio:9000",
        "http://minio@evil.example",
        "http://minio/../admin",
        "http://minio/path",
        "http://minio?x=1",
        "http://minio?",
        "http://minio#",
        "http://minio:0",
        "http://minio:99999",
        "http://minio:port",
        "http://mi nio",
        "http://minio\n",
        # Header injection, and characters that URL parsers read differently.
        "http://minio\r\nHost: evil",
        "http://-minio",
        "http://[::1",
        "http://[::zz]",
        "http://min%69o",
        "http://minio\\@evil",
    ],
)
def test_an_invalid_endpoint_is_rejected(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"s3\.endpoint must be"):
        parse_endpoint(text)


@pytest.mark.parametrize(
    ("text", "hands_out"),
    [
        ("169.254.169.254", True),
        ("169.254.0.1", True),
        ("fe80::1", True),
        ("fd00:ec2::254", True),
        # An IPv4 address mapped to IPv6 reaches the same service.
        ("::ffff:169.254.169.254", True),
        # Metadata address of Alibaba Cloud, outside the link-local ranges.
        ("100.100.100.200", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("2001:db8::1", False),
    ],
)
def test_metadata_services_of_clouds_are_recognized(text: str, hands_out: bool) -> None:
    assert hands_out_credentials(ipaddress.ip_address(text)) is hands_out


def test_a_numeric_address_is_normalized() -> None:
    """The resolver reads http://2852039166 as 169.254.169.254."""
    (address, *_) = parse_endpoint("http://2852039166").addresses()
    assert hands_out_credentials(address)
