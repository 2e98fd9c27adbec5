"""Stores: create if absent, get, range, list, delete; the same on every kind."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fastjournal.archive.store import (
    DirectoryStore,
    MemoryStore,
    ObjectStore,
    Store,
    join_address,
    open_store,
)
from fastjournal.errors import ArchiveError, NotFound, SettingError
from fastjournal.testing import Crash, MemoryFiles
from s3_server import environment


def test_an_object_is_made_once(any_store: Store) -> None:
    assert any_store.create("1/claim", b"first")
    assert not any_store.create("1/claim", b"second")
    assert any_store.get("1/claim") == b"first"


def test_of_many_who_create_one_object_one_wins(any_store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: any_store.create("1/claim", b"%d" % n), range(24)))
    assert made.count(True) == 1
    assert any_store.get("1/claim") == b"%d" % made.index(True)


def test_a_large_object_comes_back_in_stretches(any_store: Store) -> None:
    chunks = [bytes([n]) * 1_000_000 for n in range(20)]
    any_store.put("1/segments/000000001.log", iter(chunks))
    assert b"".join(any_store.stream("1/segments/000000001.log")) == b"".join(chunks)
    assert any_store.get_range("1/segments/000000001.log", 999_999, 2) == b"\x00\x01"


def test_a_small_object_is_one_request(
    s3_environment: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = ObjectStore(s3_environment)
    with caplog.at_level(logging.INFO, "werkzeug"):
        store.put("1/tail/5/0.part", [bytes(1000), bytes(1000)])
    assert len([one for one in caplog.messages if "/tail/5/" in one]) == 1
    assert store.get("1/tail/5/0.part") == bytes(2000)


def test_what_is_there_is_found_by_folder(any_store: Store) -> None:
    for name in ("000001/claim", "000001/tail/5/0.part", "000012/claim"):
        any_store.put(name, [b"abc"])
    assert any_store.folders("") == ["000001", "000012"]
    assert [tuple(one) for one in any_store.find("000001")] == [
        ("000001/claim", 3), ("000001/tail/5/0.part", 3),
    ]  # fmt: skip
    assert any_store.find("000099") == []
    assert any_store.folders("000099") == []


def test_what_is_not_there_is_an_error_and_may_be_deleted(any_store: Store) -> None:
    with pytest.raises(NotFound):
        any_store.get("1/none")
    with pytest.raises(NotFound):
        list(any_store.stream("1/none"))
    any_store.put("1/some", [b"x"])
    any_store.delete(["1/some", "1/none"])
    assert any_store.find("1") == []


def test_an_empty_object_is_an_object(any_store: Store) -> None:
    any_store.put("1/empty", [])
    assert any_store.get("1/empty") == b""


def test_a_directory_holds_an_object_whole_or_not_at_all_whatever_is_lost() -> None:
    files = MemoryFiles()
    files.make_directory(Path("/store"))
    DirectoryStore("/store/jobs", files).create("000001/claim", b"mine")
    total = len(files.operations)
    assert total >= 6
    for at in range(1, total + 1):
        files = MemoryFiles(crash_at=at)
        with contextlib.suppress(Crash):
            files.make_directory(Path("/store"))
            DirectoryStore("/store/jobs", files).create("000001/claim", b"mine")
        for image in files.images():
            left = DirectoryStore("/store/jobs", image)
            if left.find(""):
                assert left.get("000001/claim") == b"mine"


def test_a_disk_in_trouble_is_an_archive_error() -> None:
    files = MemoryFiles(capacity=10)
    files.make_directory(Path("/store"))
    store = DirectoryStore("/store", files)
    with pytest.raises(ArchiveError):
        store.put("1/large", [bytes(100)])
    assert store.find("1") == []


def test_an_address_says_which_store(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path), DirectoryStore)
    by_url = open_store(f"file://{tmp_path}/a%20b")
    assert isinstance(by_url, DirectoryStore) and by_url.path == tmp_path / "a b"
    assert isinstance(open_store("memory:x"), MemoryStore)
    assert open_store("memory:x") is open_store("memory:x")
    assert join_address("s3://bucket/", "jobs") == "s3://bucket/jobs"
    with pytest.raises(SettingError):
        open_store("")
    with pytest.raises(SettingError):
        open_store("nonsense://bucket/jobs")


def test_a_store_that_cannot_be_reached_is_an_archive_error() -> None:
    pytest.importorskip("obstore")
    store = ObjectStore(
        "s3://nowhere/jobs",
        config={
            "aws_endpoint": "http://127.0.0.1:1",
            "aws_region": "x",
            "aws_access_key_id": "x",
            "aws_secret_access_key": "x",
        },
        client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )
    with pytest.raises(ArchiveError):
        store.create("1/claim", b"")


class _Refusing(BaseHTTPRequestHandler):
    """Answers as a store does to keys that it does not know."""

    def do_GET(self) -> None:
        self.send_error(403)

    do_PUT = do_GET  # noqa: N815 - the server calls it so

    def log_message(self, *words: object) -> None:
        """Say nothing."""


def test_wrong_credentials_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            for name, value in environment(f"http://127.0.0.1:{server.server_port}").items():
                monkeypatch.setenv(name, value)
            store = open_store("s3://bucket/jobs")
            for work in (lambda: store.folders(""), lambda: store.create("1/claim", b"")):
                with pytest.raises(ArchiveError, match=r"s3://bucket/jobs.*right credentials"):
                    work()
        finally:
            server.shutdown()
            thread.join()


def test_a_bucket_that_is_not_there_is_told_as_such(s3_environment: str) -> None:
    store = ObjectStore("s3://nobucket/jobs")
    for work in (lambda: store.folders(""), lambda: store.create("1/claim", b"")):
        with pytest.raises(ArchiveError, match="is there such a bucket"):
            work()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("az://container/jobs", "Account must be specified"),
        ("s4://bucket/jobs", "Unable to recognise"),
        ("file://backup", "file:///path"),
        ("file:", "file:///path"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_in_words(
    address: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingError, match=told):
        open_store(address)


def test_a_key_of_google_that_makes_no_sense_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "none.json"))
    with pytest.raises(SettingError, match=r"gs://bucket/jobs.*none\.json"):
        open_store("gs://bucket/jobs")
