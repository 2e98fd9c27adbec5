"""The log against the bare cost of its bytes, and against sqlite3 in WAL mode.

Every row does the same work: records of 200 random bytes. *Bare* is the least that any program must
pay for the same bytes: a CRC of each record and a write, or a read and a CRC of each. No framing,
no times, no rotation, no locks, no checks, and the records stand ready made.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import google_crc32c

from fastjournal.log.care.check import verify
from fastjournal.log.record import decode_many
from fastjournal.log.scan.scan import Chunk, Scan, engines
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.stream import Stream
from harness import Bench, micros_per

SIZE = 200
BATCH = 1000
LENGTH = 15 + 2 + SIZE + 4  # of a record on disk: time, size, payload, CRC


class Workshop:
    """A fresh directory for every measure, removed afterwards; payloads that differ."""

    def __init__(self, root: Path, records: int) -> None:
        self.root = root
        self.records = records
        self.payloads = [os.urandom(SIZE) for _ in range(records)]
        self.bodies = [bytes(LENGTH - 4 - SIZE) + payload for payload in self.payloads]
        self._numbers = count()

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A new, empty directory."""
        path = self.root / str(next(self._numbers))
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def batches(self) -> list[list[bytes]]:
        """The payloads in lists of 1000."""
        return [self.payloads[at : at + BATCH] for at in range(0, self.records, BATCH)]


def main() -> None:
    """Measure every row."""
    bench = Bench("log", "the log, µs a record of 200 bytes")
    with tempfile.TemporaryDirectory(prefix="fastjournal-bench-") as temporary:
        many = Workshop(Path(temporary), 20_000 if bench.quick else 200_000)
        few = Workshop(Path(temporary, "few"), 500 if bench.quick else 2000)
        few.root.mkdir()
        bench.row(
            "append, sync=os",
            lambda: ours_append(many, "os"),
            {
                "bare crc + write": lambda: bare_append(many),
                "sqlite, insert, 1000 a commit": lambda: sqlite_insert(many, BATCH, "NORMAL"),
            },
            unit="µs/record",
        )
        bench.row(
            "append_many of 1000, sync=os",
            lambda: ours_append_many(many),
            {
                "bare crc, write of 1000": lambda: bare_append_many(many),
                "sqlite, insert, 1000 a commit": lambda: sqlite_insert(many, BATCH, "NORMAL"),
                "sqlite, executemany of 1000": lambda: sqlite_insert_many(many),
            },
            unit="µs/record",
        )
        bench.row(
            "append, sync=always",
            lambda: ours_append(few, "always"),
            {
                "bare write + fdatasync": lambda: bare_synced(few),
                "sqlite, commit each, FULL": lambda: sqlite_insert(few, 1, "FULL"),
            },
            unit="µs/record",
        )
        with reading(many) as (stream, database):
            peers: dict[str, Callable[[], float]] = {
                "bare read + crc": lambda: bare_read(stream, many.records),
                "sqlite, select": lambda: sqlite_select(database, many.records),
            }
            rows = {
                "cursor, record by record": lambda: ours_cursor(stream, many.records),
                "cursor, in batches": lambda: ours_batches(stream, many.records),
                "verify": lambda: ours_verify(stream, many.records),
            }
            if "numba" in engines():
                ours_scan(stream, many.records)  # loads compiled code: paid once a process
                rows["scan to columns, compiled"] = lambda: ours_scan(stream, many.records)
            else:
                bench.left_out("scan to columns, compiled", "numba is not installed")
            for row, measure in rows.items():
                bench.row(row, measure, peers, unit="µs/record")
        bench.row(
            "clean, every other record dropped",
            lambda: ours_clean(many),
            {
                "bare read + crc + write + sync": lambda: bare_clean(many),
                "sqlite, delete": lambda: sqlite_delete(many, vacuum=False),
                "sqlite, delete + vacuum": lambda: sqlite_delete(many, vacuum=True),
            },
            unit="µs/record",
        )
    bench.finish()


def ours_append(shop: Workshop, sync: str) -> float:
    with shop.place() as path, Stream(path).open_appender(sync=sync) as appender:
        append = appender.append

        def work() -> None:
            for payload in shop.payloads:
                append(payload)

        return micros_per(shop.records, work)


def ours_append_many(shop: Workshop) -> float:
    batches = shop.batches()
    with shop.place() as path, Stream(path).open_appender() as appender:
        append_many = appender.append_many

        def work() -> None:
            for batch in batches:
                append_many(batch)

        return micros_per(shop.records, work)


def bare_append(shop: Workshop) -> float:
    crc, write = google_crc32c.value, os.write
    with shop.place() as path, descriptor(path / "bare") as fd:

        def work() -> None:
            for body in shop.bodies:
                crc(body)
                write(fd, body)

        return micros_per(shop.records, work)


def bare_append_many(shop: Workshop) -> float:
    crc, write = google_crc32c.value, os.write
    with shop.place() as path, descriptor(path / "bare") as fd:

        def work() -> None:
            for at in range(0, shop.records, BATCH):
                batch = shop.bodies[at : at + BATCH]
                for body in batch:
                    crc(body)
                write(fd, b"".join(batch))

        return micros_per(shop.records, work)


def bare_synced(shop: Workshop) -> float:
    with shop.place() as path, descriptor(path / "bare") as fd:

        def work() -> None:
            for body in shop.bodies:
                os.write(fd, body)
                os.fdatasync(fd)

        return micros_per(shop.records, work)


def ours_cursor(stream: Stream, records: int) -> float:
    def work() -> None:
        with stream.open_cursor() as cursor:
            assert sum(1 for _ in cursor) == records

    return micros_per(records, work)


def ours_batches(stream: Stream, records: int) -> float:
    def work() -> None:
        with stream.open_cursor() as cursor:
            assert sum(map(len, cursor.batches())) == records

    return micros_per(records, work)


def ours_verify(stream: Stream, records: int) -> float:
    def work() -> None:
        assert sum(check.records for check in verify(stream)) == records

    return micros_per(records, work)


def ours_scan(stream: Stream, records: int) -> float:
    def work() -> None:
        found = 0
        for number in stream.segments():
            scan = Scan(stream.segment_path(number).read_bytes(), engine="numba")
            found += sum(len(chunk) for chunk in scan if isinstance(chunk, Chunk))
        assert found == records

    return micros_per(records, work)


def bare_read(stream: Stream, records: int) -> float:
    crc, length = google_crc32c.value, LENGTH

    def work() -> None:
        for number in stream.segments():
            data = stream.segment_path(number).read_bytes()
            for at in range(HEADER_SIZE, len(data), length):
                crc(data[at : at + length - 4])

    return micros_per(records, work)


def ours_clean(shop: Workshop) -> float:
    with shop.place() as path:
        stream = filled(path, shop)
        with stream.open_appender() as appender:
            appender.rotate()
            appender.append(b"the newest segment is never cleaned")
        with stream.open_cleaner() as cleaner:
            turn = count()
            took = micros_per(
                shop.records, lambda: cleaner.clean(lambda _path, _record: next(turn) % 2 == 0)
            )
        left = sum(1 for _ in stream.open_cursor())
        assert left == shop.records // 2 + 1
        return took


def bare_clean(shop: Workshop) -> float:
    crc, length = google_crc32c.value, LENGTH
    with shop.place() as path:
        stream = filled(path, shop)

        def work() -> None:
            for number in stream.segments():
                source = stream.segment_path(number)
                data = source.read_bytes()
                kept = []
                for turn, at in enumerate(range(HEADER_SIZE, len(data), length)):
                    crc(data[at : at + length - 4])
                    if turn % 2:
                        kept.append(data[at : at + length])
                target = source.with_suffix(".new")
                with target.open("wb") as file:
                    file.write(b"".join(kept))
                    file.flush()
                    os.fdatasync(file.fileno())
                target.replace(source)

        return micros_per(shop.records, work)


def sqlite_insert(shop: Workshop, commit_every: int, synchronous: str) -> float:
    with shop.place() as path, database_at(path / "db", synchronous) as database:
        insert = database.execute

        def work() -> None:
            for at in range(0, shop.records, commit_every):
                insert("BEGIN")
                for payload in shop.payloads[at : at + commit_every]:
                    insert("INSERT INTO log (payload) VALUES (?)", (payload,))
                insert("COMMIT")

        return micros_per(shop.records, work)


def sqlite_insert_many(shop: Workshop) -> float:
    batches = shop.batches()
    with shop.place() as path, database_at(path / "db", "NORMAL") as database:

        def work() -> None:
            for batch in batches:
                database.execute("BEGIN")
                database.executemany(
                    "INSERT INTO log (payload) VALUES (?)", ((payload,) for payload in batch)
                )
                database.execute("COMMIT")

        return micros_per(shop.records, work)


def sqlite_select(database: sqlite3.Connection, records: int) -> float:
    def work() -> None:
        found = database.execute("SELECT id, payload FROM log ORDER BY id")
        assert sum(1 for _ in found) == records

    return micros_per(records, work)


def sqlite_delete(shop: Workshop, *, vacuum: bool) -> float:
    with shop.place() as path, database_at(path / "db", "FULL") as database:
        fill_database(database, shop)

        def work() -> None:
            database.execute("DELETE FROM log WHERE id % 2 = 1")
            if vacuum:
                database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        return micros_per(shop.records, work)


@contextmanager
def reading(shop: Workshop) -> Iterator[tuple[Stream, sqlite3.Connection]]:
    """The same records as a log and as a database, warm in the page cache."""
    with shop.place() as path, database_at(path / "db", "NORMAL") as database:
        (path / "log").mkdir()
        stream = filled(path / "log", shop)
        data = stream.segment_path(1).read_bytes()
        first = decode_many(data, HEADER_SIZE, HEADER_SIZE + LENGTH, 1, 0)[0]
        assert len(first) == 1
        fill_database(database, shop)
        yield stream, database


def filled(path: Path, shop: Workshop) -> Stream:
    stream = Stream(path)
    with stream.open_appender() as appender:
        for batch in shop.batches():
            appender.append_many(batch)
    return stream


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def database_at(path: Path, synchronous: str) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(f"PRAGMA synchronous={synchronous}")
        database.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, payload BLOB)")
        yield database
    finally:
        database.close()


def fill_database(database: sqlite3.Connection, shop: Workshop) -> None:
    database.execute("BEGIN")
    database.executemany(
        "INSERT INTO log (payload) VALUES (?)", ((payload,) for payload in shop.payloads)
    )
    database.execute("COMMIT")


if __name__ == "__main__":
    main()
