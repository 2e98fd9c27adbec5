"""Options of the data source to frozen settings."""

from __future__ import annotations

import pickle

import pytest

from fastjournal.errors import SettingError
from fastjournal.spark.options import OPTIONS, Settings, instant, size_bytes


def test_an_unknown_option_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(SettingError) as caught:
        Settings.parse({"path": "/j", "colums": "time"})
    assert caught.value.name == "colums"
    assert all(name in str(caught.value) for name in OPTIONS)


def test_names_are_read_without_regard_to_case() -> None:
    settings = Settings.parse({"PATH": "/j", "ASOF": "2024-01-01", "View": "JOBS"})
    assert (settings.view, settings.as_of) == ("jobs", 1_704_067_200_000_000_000)


def test_every_option_finds_its_way_into_the_settings() -> None:
    settings = Settings.parse(
        {
            "path": "/j",
            "view": "records",
            "columns": "time, size",
            "since": "2024-01-01T00:00:00Z",
            "until": "1704067201000000000",
            "commands": "add,put, 7",
            "queue": "a,b",
            "fromSegment": "2",
            "toSegment": "9",
            "mode": "permissive",
            "maxPartitionBytes": "512m",
            "shards": "3",
        }
    )
    assert settings == Settings(
        paths=("/j",),
        columns=("time", "size"),
        since=1_704_067_200_000_000_000,
        until=1_704_067_201_000_000_000,
        commands=frozenset({1, 32, 7}),
        queues=frozenset({"a", "b"}),
        from_segment=2,
        to_segment=9,
        mode="PERMISSIVE",
        max_partition_bytes=512 << 20,
        shards=3,
    )
    assert (settings.after, settings.upto) == (settings.since - 1, settings.until - 1)  # type: ignore[operator]
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"view": "tables"}, "view"),
        ({"since": "yesterday"}, "since"),
        ({"commands": "add,fly"}, "commands"),
        ({"fromSegment": "-1"}, "fromSegment"),
        ({"toSegment": "x"}, "toSegment"),
        ({"mode": "LAX"}, "mode"),
        ({"maxPartitionBytes": "many"}, "maxPartitionBytes"),
        ({"maxPartitionBytes": "0"}, "maxPartitionBytes"),
        ({"shards": "0"}, "shards"),
        ({"asOf": "2024-01-01"}, "asOf"),
        ({"view": "jobs", "since": "2024-01-01"}, "since"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(
    options: dict[str, str], name: str
) -> None:
    with pytest.raises(SettingError) as caught:
        Settings.parse({"path": "/j", **options})
    assert caught.value.name == name


def test_several_directories_come_as_a_list_and_none_is_an_error() -> None:
    assert Settings.parse({"paths": '["/a", "/b c"]'}).paths == ("/a", "/b c")
    assert Settings.parse({"path": "file:///a"}).paths == ("/a",)
    with pytest.raises(SettingError, match="no path"):
        Settings.parse({})


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01 01:00:00.5+01:00", 500_000_000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("1700000000000000000", 1_700_000_000_000_000_000),
    ],
)
def test_an_instant_is_iso_8601_or_nanoseconds(text: str, nanos: int) -> None:
    assert instant(text) == nanos


def test_sizes_take_the_usual_letters() -> None:
    assert [size_bytes(t) for t in ("7", "1k", "64 MiB", "2GB")] == [7, 1024, 64 << 20, 2 << 30]


@pytest.mark.parametrize(("given", "since", "until"), [
    ({"startingTimestamp": "1700000000123"}, 1_700_000_000_123_000_000, None),
    ({"startingTimestamp": "2024-01-01"}, 1_704_067_200_000_000_000, None),
    ({"endingTimestamp": "1700000000123"}, None, 1_700_000_000_123_000_000),
    ({"startingOffsets": "earliest", "endingOffsets": "latest"}, None, None),
    ({"startingOffsets": '{"time": 5}', "endingOffsets": '{"time": 9}'}, 6, 10),
])  # fmt: skip
def test_the_names_that_other_sources_have_mean_the_same_here(
    given: dict[str, str], since: int | None, until: int | None
) -> None:
    settings = Settings.parse({"path": "/j", **given})
    assert (settings.since, settings.until) == (since, until)


def test_the_name_that_delta_has_for_an_instant_is_known() -> None:
    one = Settings.parse({"path": "/j", "view": "jobs", "timestampAsOf": "2024-01-01T00:00:00Z"})
    assert one.as_of == 1_704_067_200_000_000_000


@pytest.mark.parametrize("given", [
    {"since": "2024-01-01", "startingTimestamp": "2024-01-01"},
    {"startingOffsets": '{"time": -1}'}, {"endingOffsets": "soon"}, {"minPartitions": "0"},
    {"view": "jobs", "asOf": "2024-01-01", "timestampAsOf": "2024-01-01"},
])  # fmt: skip
def test_a_bound_given_twice_or_without_meaning_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(SettingError):
        Settings.parse({"path": "/j", **given})
