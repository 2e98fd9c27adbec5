"""Digests of keys and domains of resources (FJ-LST-3, SNAP-KIX-1)."""

from __future__ import annotations

import pytest

from fastjournal.errors import BadRequest, TooLarge
from fastjournal.keys import digest, domain


def test_the_digest_is_murmur3_x64_128_with_a_seed() -> None:
    # Published values of MurmurHash3_x64_128.
    assert digest(b"").hex() == "00" * 16
    assert digest(b"The quick brown fox jumps over the lazy dog").hex() == (
        "6c1b07bc7bbc4be347939ac4a93c437a"
    )
    assert digest(b"k", 1) != digest(b"k", 2)
    assert len(digest(b"k" * 1000, 7)) == 16


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (b"http://example.com/a/b?c", b"example.com"),
        (b"https://user:pw@Example.COM:8080/", b"example.com:8080"),
        (b"ftp://example.com?x", b"example.com"),
        (b"svn+ssh://host/repo", b"host"),
        (b"mail:someone@example.com", b"mail"),
        (b"images/1.png", b"images"),
        (b"plain", b"plain"),
        (b"resize\0http://example.com/a", b"example.com"),
    ],
)
def test_the_domain_is_the_authority_or_the_first_word(resource: bytes, name: bytes) -> None:
    assert domain(resource) == name


@pytest.mark.parametrize("resource", [b"", b"/path", b":x", b"http:///path"])
def test_a_resource_without_domain_needs_a_queue(resource: bytes) -> None:
    with pytest.raises(BadRequest):
        domain(resource)


def test_a_domain_longer_than_a_queue_name_is_refused() -> None:
    with pytest.raises(TooLarge):
        domain(b"x" * 256)
