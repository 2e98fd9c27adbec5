"""Domains of resources."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.daemon.main import use_domain_of
from fastjournal.errors import BadRequest, SettingError, TooLarge
from fastjournal.keys import digest, domain, use_domain


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
    """FJ-LST-3."""
    assert domain(resource) == name


@pytest.mark.parametrize("resource", [b"", b"/path", b":x", b"http:///path"])
def test_a_resource_without_domain_needs_a_queue(resource: bytes) -> None:
    with pytest.raises(BadRequest):
        domain(resource)


def test_a_domain_longer_than_a_queue_name_is_refused() -> None:
    with pytest.raises(TooLarge):
        domain(b"x" * 256)


def test_a_program_may_have_its_own_rule(tmp_path: Path) -> None:
    """FJ-LST-3: it holds for every door of the process, and its answers are checked alike."""
    use_domain(lambda key: key.rpartition(b"#")[2])
    try:
        with Journal(tmp_path, sync="os", background=False) as journal:
            journal.put(b"x", key="http://example.com/a#blue")
            assert [queue.name for queue in journal.queues()] == ["blue"]
            assert journal.job(key="http://example.com/a#blue").queue == "blue"
        with pytest.raises(BadRequest):
            domain(b"a#")
        with pytest.raises(TooLarge):
            domain(b"#" + b"x" * 256)
    finally:
        use_domain(None)
    assert domain(b"http://example.com/a#blue") == b"example.com"


def test_a_daemon_is_told_the_rule_by_name(tmp_path: Path) -> None:
    """FJ-LST-3."""
    with pytest.raises(SettingError, match="domain"):
        use_domain_of("no.such.module:name")
    with pytest.raises(SettingError, match="domain"):
        use_domain_of("os:sep")
    try:
        use_domain_of("os.path:basename")
        assert domain(b"images/1.png") == b"1.png"
    finally:
        use_domain_of("")
    assert domain(b"images/1.png") == b"images"


def test_the_digest_of_0_1_0_is_the_same_and_says_what_to_use() -> None:
    with pytest.warns(DeprecationWarning, match="murmur128"):
        assert digest(b"").hex() == "00" * 16
    with pytest.warns(DeprecationWarning, match="murmur128"):
        assert digest(b"The quick brown fox jumps over the lazy dog").hex() == (
            "6c1b07bc7bbc4be347939ac4a93c437a"
        )
