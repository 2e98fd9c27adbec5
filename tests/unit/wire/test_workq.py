"""The Workq text protocol: requests well and badly formed, exact answers, ranges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    NoSpace,
    NotFound,
    Stopped,
    TimedOut,
)
from fastjournal.wire.workq import replies
from fastjournal.wire.workq.requests import (
    MAX_PAYLOAD,
    MAX_REQUEST,
    Add,
    Command,
    Complete,
    Delete,
    Fail,
    InspectJob,
    InspectJobs,
    InspectQueue,
    InspectQueues,
    InspectServer,
    Lease,
    Refused,
    Result,
    Run,
    Schedule,
    WorkqParser,
)
from workq_bytes import encode

TEXT = b"c0ffee12-3456-4abc-9def-0123456789ab"
ID = bytes.fromhex("c0ffee1234564abc9def0123456789ab")
V1 = b"c0ffee12-3456-1abc-9def-0123456789ab"
T = 1_465_826_898 * 10**9  # 2016-06-13T14:08:18Z
WHEN = b"2016-06-13T14:08:18Z"
CLOSED = "closed"


def feed(data: bytes) -> list[Command | Refused]:
    return WorkqParser().feed(data)


def texts(data: bytes) -> list[str]:
    parser = WorkqParser()
    found = [
        item.text if isinstance(item, Refused) else type(item).__name__
        for item in parser.feed(data)
    ]
    return [*found, CLOSED] if parser.closed else found


# Each command with sound arguments; those in SIZED end in a size and are followed by a payload.
SOUND: dict[bytes, list[bytes]] = {
    b"add": [b"ID", b"mail.out", b"2500", b"90000", b"SIZE"],
    b"schedule": [b"ID", b"mail.out", b"2500", b"90000", b"WHEN", b"SIZE"],
    b"run": [b"ID", b"mail.out", b"2500", b"750", b"SIZE"],
    b"complete": [b"ID", b"SIZE"],
    b"fail": [b"ID", b"SIZE"],
    b"result": [b"ID", b"750"],
    b"delete": [b"ID"],
}
SIZED = (b"add", b"schedule", b"run", b"complete", b"fail")


def line(verb: bytes, words: list[bytes], payload: bytes | None = None, size: bytes = b"") -> bytes:
    """A request of these words; a sized one with its payload."""
    if payload is not None:
        size = size or b"%d" % len(payload)
    text = b" ".join([verb, *words]).replace(b"SIZE", size) + b"\r\n"
    return text if payload is None else text + payload + b"\r\n"


def made(verb: bytes, payload: bytes) -> Command:
    """The command that the sound arguments stand for."""
    return {
        b"add": Add(ID, "mail.out", 2500, 90_000, payload),
        b"schedule": Schedule(ID, "mail.out", 2500, 90_000, T, payload),
        b"run": Run(ID, "mail.out", 2500, 750, payload),
        b"complete": Complete(ID, payload),
        b"fail": Fail(ID, payload),
        b"result": Result(ID, 750),
        b"delete": Delete(ID),
    }[verb]


ADD = SOUND[b"add"]
PLAIN = made(b"add", b"hi")
assert isinstance(PLAIN, Add)
VALID: list[tuple[bytes, Command]] = [
    *[
        (line(verb, SOUND[verb], payload), made(verb, payload))
        for verb in SIZED
        for payload in (b"", b"\x00", b"\r\n", b"lease x 1\r\n", bytes(range(256)))
    ],
    *[(line(verb, SOUND[verb]), made(verb, b"")) for verb in (b"result", b"delete")],
    # F.1: spaces, flags in any place, unknown flags, a second `=`, signs and zeros of numbers.
    (line(b"add", [b"", *ADD, b"", b""], b"hi"), PLAIN),
    *[
        (line(b"add", [*ADD[:n], b"-priority=-3", *ADD[n:]], b"hi"), replace(PLAIN, priority=-3))
        for n in range(6)
    ],
    (
        line(b"add", [b"-max-fails=9", *ADD, b"-max-attempts=8", b"-priority=+7=1"], b"hi"),
        replace(PLAIN, priority=7, max_attempts=8, max_fails=9),
    ),
    (line(b"add", [*ADD, b"-colour=red"], b"hi"), PLAIN),
    (line(b"run", [*SOUND[b"run"], b"-priority=4"], b""), Run(ID, "mail.out", 2500, 750, b"", 4)),
    (line(b"add", [*ADD[:2], b"002500", b"0090000", ADD[4]], b"hi", b"+02"), PLAIN),
    (line(b"add", ADD, b"", b"-0"), replace(PLAIN, payload=b"")),
    *[
        (
            line(b"schedule", [*ADD[:4], b"2016-06-13T14:08:18%bZ" % fraction, ADD[4]], b""),
            Schedule(ID, "mail.out", 2500, 90_000, T + more, b""),
        )
        for fraction, more in (
            (b".25", 250_000_000),
            (b",000000007", 7),
            (b".123456789", 123456789),
        )
    ],
    *[
        (
            b"lease %b %d\r\n" % (b" ".join(names), wait),
            Lease(tuple(map(bytes.decode, names)), wait),
        )
        for names in ([b"mail.out"], [b"b", b"a", b"b"], [b"-dash", b"-9"])
        for wait in (0, 1, 86_400_000)
    ],
    (b"inspect job ID\r\n", InspectJob(ID)),
    (b"inspect jobs mail.out 7 100\r\n", InspectJobs("mail.out", 7, 100)),
    (b"inspect scheduled-jobs b 4294967295 1\r\n", InspectJobs("b", 4_294_967_295, 1, True)),
    (b"inspect queue mail.out\r\n", InspectQueue("mail.out")),
    (b"inspect queues 3 20\r\n", InspectQueues(3, 20)),
    (b"inspect server\r\n", InspectServer()),
]


def fill(data: bytes) -> bytes:
    return data.replace(b"ID", TEXT).replace(b"WHEN", WHEN)


@pytest.mark.parametrize(("data", "command"), VALID, ids=lambda v: str(v)[:60])
def test_a_well_formed_request_is_read(data: bytes, command: Command) -> None:
    assert feed(fill(data)) == [command]


@pytest.mark.parametrize(("data", "command"), VALID, ids=lambda v: str(v)[:60])
def test_a_request_may_come_byte_by_byte(data: bytes, command: Command) -> None:
    """F.4, H.2 9: CR and LF may come in different reads."""
    parser = WorkqParser()
    found = []
    for n in range(len(fill(data))):
        found += parser.feed(fill(data)[n : n + 1])
    assert found == [command]
    assert parser.pending == 0


ARGS, FLAGS, UNKNOWN = "Invalid command args", "Invalid command flags", "Unknown command"
SIZE, RESULT, WAIT = "Invalid payload size", "Invalid result size", "Invalid wait timeout"
NEXT = b"inspect server\r\n"  # shows whether the stream is still in step
STEP = "InspectServer"


def size_fault(verb: bytes) -> str:
    return RESULT if verb == b"fail" else SIZE


def changed(verb: bytes, place: int, word: bytes, *more: bytes) -> bytes:
    """The sound request with one word replaced and some added, then `NEXT`."""
    words = list(SOUND[verb])
    words[place] = word
    return line(verb, [*words, *more], b"hi" if verb in SIZED else None) + NEXT


MALFORMED: list[tuple[bytes, list[str]]] = [
    # Every wrong number of words; where a payload follows, nobody knows how long it is.
    *[
        (line(verb, words, size=b"2") + NEXT, [ARGS, CLOSED if verb in SIZED else STEP])
        for verb, sound in SOUND.items()
        for words in (*[sound[:n] for n in range(len(sound))], [*sound, b"5"])
    ],
    *[
        (b"%b\r\n" % text + NEXT, [ARGS, STEP])
        for text in (
            b"lease", b"lease mail.out", b"lease b 5 -k=v", b"inspect", b"inspect -k=v",
            b"inspect server x", b"inspect server -k=v", b"inspect job", b"inspect job ID x",
            b"inspect queue", b"inspect queue a b", b"inspect queues", b"inspect queues 1",
            b"inspect queues 1 1 1", b"inspect jobs b 0", b"inspect scheduled-jobs b 0 1 1",
        )
    ],
    # Every bad size: the refusal is the last answer.
    *[
        (line(verb, SOUND[verb], payload, size), [size_fault(verb), CLOSED])
        for verb in SIZED
        for size in (b"*", b"-2", b"2.0", b"0x2", b"1048577", b"9" * 30, b"9" * 5000)
        for payload in (b"hi", b"inspect server")
    ],
    # A payload longer than its size, and one that is not followed by CR LF.
    *[
        (line(verb, SOUND[verb], payload, b"1"), [size_fault(verb), CLOSED])
        for verb in SIZED
        for payload in (b"hi", b"h..inspect server", b"h\n\rinspect server")
    ],
    *[
        (line(verb, SOUND[verb], size=b"2") + b"hi" + ending + NEXT, [size_fault(verb), CLOSED])
        for verb in SIZED
        for ending in (b"\n\r", b"..", b"\r\r")
    ],
    # Flags: empty key, empty value, twice; a payload of known length is passed over.
    *[
        (data + NEXT, [FLAGS, STEP])
        for flags in ([b"-priority="], [b"-=4"], [b"-="], [b"-k=1", b"-k=2"])
        for data in (
            line(b"add", [*ADD, *flags], b"inspect server"),
            line(b"delete", [b"ID", *flags]),
            line(b"lease", [b"q", b"1", *flags]),
        )
    ],
    (line(b"add", [*ADD, b"-k="], b"hi", b"1") + NEXT, [FLAGS, CLOSED]),
    (line(b"add", [*ADD, b"-k="], b"hi", b"*") + NEXT, [FLAGS, CLOSED]),
    (line(b"add", [*ADD, b"-priority"], size=b"2") + NEXT, [ARGS, CLOSED]),
    # Whatever begins with no word of Workq.
    *[
        (text + b"\r\n" + NEXT, [UNKNOWN, CLOSED])
        for text in (
            b"", b" ", b" inspect server", b"Lease b 1", b"nop", b"\xff", b"-priority=4 add",
            b"no-such-command -k=", b"completely", b"add\r x",
        )
    ],
    (b"inspect jib x\r\n" + NEXT, [UNKNOWN, STEP]),
    *[
        (method + b" / HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, [CLOSED])
        for method in (b"GET", b"POST", b"PUT", b"OPTIONS", b"CONNECT")
    ],
    # Too many flags and bad values are found behind the payload: the stream stays in step.
    (changed(b"add", 0, b"ID", b"-a=1", b"-b=1", b"-c=1", b"-d=1"), [ARGS, STEP]),
    (changed(b"run", 0, b"ID", b"-priority=1", b"-b=1"), [ARGS, STEP]),
    (changed(b"complete", 0, b"ID", b"-b=1"), [ARGS, STEP]),
    *[(changed(verb, 0, b"zz"), ["Invalid ID", STEP]) for verb in SOUND],
    *[
        (changed(verb, 1, name), ["Invalid Name", STEP])
        for verb in (b"add", b"schedule", b"run")
        for name in (b"a/b", b"n" * 256, b"\xc3\xa9")
    ],
    *[
        (changed(verb, 2, ttr), ["Invalid TTR", STEP])
        for verb in (b"add", b"schedule", b"run")
        for ttr in (b"0", b"-1", b"+1", b"86400001", b"4294967296", b"1e3")
    ],
    *[
        (changed(verb, 3, ttl), ["Invalid TTL", STEP])
        for verb in (b"add", b"schedule")
        for ttl in (b"0", b"-1", b"2592000001", b"18446744073709551616", b"ten")
    ],
    *[
        (changed(verb, place, wait), [WAIT, STEP])
        for verb, place in ((b"run", 3), (b"result", 1))
        for wait in (b"-1", b"+1", b"86400001", b"soon")
    ],
    *[(b"lease b %b\r\n" % wait, [WAIT]) for wait in (b"-1", b"+1", b"86400001", b"soon")],
    (b"lease b c:d 1\r\n", ["Invalid Name"]),
    *[
        (changed(verb, 0, b"ID", b"-%b=%b" % (key, value)), [fault, STEP])
        for verb in (b"add", b"schedule")
        for key, fault, values in (
            (b"priority", "Invalid Priority", (b"hi", b"2147483648", b"-2147483649")),
            (b"max-attempts", "Invalid Max Attempts", (b"256", b"-1", b"+1", b"many")),
            (b"max-fails", "Invalid Max Fails", (b"256", b"-1", b"+1", b"many")),
        )
        for value in values
    ],
    *[
        (changed(b"schedule", 4, when), ["Invalid Time", STEP])
        for when in (
            b"2016-06-13", b"2016-02-30T00:00:00Z", b"2016-06-13t14:08:18Z",
            b"2016-06-13T14:08:18z",
            b"2016-06-13T24:00:00Z", b"2016-06-13T14:08:18+00:00", b"2016-6-13T14:08:18Z",
            b"2016-06-13T14:08:18.Z", b"2016-06-13T14:08:18.1234567890Z", b"2300-01-01T00:00:00Z",
            b"0000-01-01T00:00:00Z", b"1969-12-31T23:59:59Z", b"2262-04-11T23:47:16Z",
        )
    ],
    *[
        (b"inspect %b\r\n" % text, [fault])
        for text, fault in (
            (b"queue a+b", "Invalid Name"), (b"jobs a+b 0 1", "Invalid Name"),
            (b"queues -1 1", "Invalid cursor offset"), (b"jobs b x 1", "Invalid cursor offset"),
            (b"queues 4294967296 1", "Invalid cursor offset"), (b"queues 0 0", "Invalid limit"),
            (b"queues 0 101", "Invalid limit"), (b"scheduled-jobs b 0 x", "Invalid limit"),
        )
    ],
    # Several faults: words that cannot be read come first, then ranges, in Workq's order.
    (line(b"add", [b"V1", b"a/b", b"0", b"0", b"SIZE"], b"hi"), ["Invalid ID"]),
    (line(b"add", [b"V1", b"a/b", b"ten", b"0", b"SIZE"], b"hi"), ["Invalid TTR"]),
    (line(b"add", [b"ID", b"a/b", b"0", b"ten", b"SIZE"], b"hi"), ["Invalid TTL"]),
    (line(b"add", [*ADD, b"-max-fails=x", b"-max-attempts=x"], b"hi"), ["Invalid Max Attempts"]),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), MALFORMED, ids=lambda v: str(v)[:70])
def test_a_malformed_request_is_refused_with_workq_s_text(data: bytes, expected: list[str]) -> None:
    data = fill(data).replace(b"V1", V1)
    assert texts(data) == expected


@pytest.mark.parametrize(
    "data",
    [b"add\n", b"lease q1 1\n", b"inspect server\r\r \n", b"inspect server\r\nlease q1 1\n"],
)
def test_a_line_without_cr_closes_without_an_answer(data: bytes) -> None:
    parser = WorkqParser()
    assert all(not isinstance(item, Refused) for item in parser.feed(data))
    assert parser.closed
    assert parser.feed(b"inspect server\r\n") == []


@pytest.mark.parametrize(
    ("data", "known", "expected"),
    [
        (b"POST ", 5, []), (b"nop x", 4, [UNKNOWN]), (b"\x16\x03\x01" + bytes(20), 10, [UNKNOWN]),
        (b"completely wrong", 10, [UNKNOWN]),
    ],
)  # fmt: skip
def test_a_line_that_begins_with_no_word_of_workq_is_not_waited_for(
    data: bytes, known: int, expected: list[str]
) -> None:
    parser = WorkqParser()
    found: list[Command | Refused] = []
    for n in range(known):
        assert not parser.closed
        found += parser.feed(data[n : n + 1])
    assert parser.closed
    assert [item.text for item in found if isinstance(item, Refused)] == expected
    for word in (b"complete\r", b"inspect s", b"schedule"):
        waiting = WorkqParser()
        assert waiting.feed(word) == []
        assert not waiting.closed
        assert waiting.unfinished


def test_a_request_beyond_the_limit_closes_without_an_answer() -> None:
    """F.1."""
    parser = WorkqParser()
    assert parser.feed(b"lease " + b"q" * MAX_REQUEST) == []
    assert parser.closed
    assert parser.pending == 0


def test_a_line_and_payload_beyond_the_limit_close_before_the_payload_is_kept() -> None:
    parser = WorkqParser()
    head = fill(b"add ID mail.out 2500 90000 %d%b\r\n" % (MAX_PAYLOAD, b" " * 10_000))
    assert parser.feed(head) == []
    assert parser.closed


def test_the_largest_payload_is_taken() -> None:
    data = fill(b"add ID mail.out 2500 90000 %d\r\n%b\r\n" % (MAX_PAYLOAD, b"x" * MAX_PAYLOAD))
    (command,) = feed(data)
    assert isinstance(command, Add)
    assert len(command.payload) == MAX_PAYLOAD


def test_the_limit_counts_each_request_by_itself() -> None:
    """I: the read limit resets per command."""
    data = fill(b"add ID mail.out 2500 90000 700000\r\n%b\r\n" % (b"x" * 700_000))
    assert texts(data * 3) == ["Add"] * 3


@pytest.mark.parametrize("size", [1, 241, 256, 4096])
def test_pipelined_commands_of_any_length_are_read(size: int) -> None:
    """F.4."""
    one = fill(b"add ID mail.out 2500 90000 %d\r\n%b\r\n" % (size, b"x" * size))
    parser = WorkqParser()
    found = []
    stream = one * 40
    for n in range(0, len(stream), 4096):
        found += parser.feed(stream[n : n + 4096])
    assert [type(item) for item in found] == [Add] * 40


@pytest.mark.parametrize(
    ("data", "text"),
    [
        *[
            (line(verb, SOUND[verb], size=b"2") + sent, size_fault(verb))
            for verb in SIZED
            for sent in (b"", b"h", b"hi", b"hi\r")
        ],
    ],
)
def test_a_payload_cut_off_by_the_end_is_refused(data: bytes, text: str) -> None:
    parser = WorkqParser()
    assert parser.feed(fill(data)) == []
    assert parser.finish() == [Refused(text)]
    assert parser.closed


@pytest.mark.parametrize("data", [b"", b"add", b"inspect server\r"])
def test_a_line_cut_off_by_the_end_is_nothing(data: bytes) -> None:
    parser = WorkqParser()
    assert parser.feed(data) == []
    assert parser.finish() == []


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.upper(),
        TEXT.replace(b"-", b""),
        b"{" + TEXT + b"}",
        b"{" + TEXT,
        b"urn:uuid:" + TEXT,
        TEXT + b"anything",
        b"-" + TEXT,
        b"c0ffee12-34564abc9def-0123456789ab",
    ],
)
def test_ids_are_read_as_laxly_as_workq_reads_them(text: bytes) -> None:
    """F.2."""
    assert feed(b"complete %b 0\r\n\r\n" % text) == [Complete(ID, b"")]


@pytest.mark.parametrize(
    "text",
    [
        b"x",
        b"urn:uuid:" + TEXT[:23],
        b"urn:uuid:",
        TEXT[:-1],
        TEXT.replace(b"c", b"g"),
        b"{" + TEXT[:31],
        TEXT[:8] + b"--" + TEXT[9:],
        b"c0ffee12_34564abc9def0123456789ab",
        b"urn:uuid:" + b"\xff" * 40,
    ],
)
def test_an_id_that_cannot_be_read_is_invalid_and_brings_nothing_down(text: bytes) -> None:
    """H.2 8."""
    for verb in (b"inspect job %b\r\n", b"delete %b\r\n", b"result %b 1\r\n"):
        assert texts(verb % text) == ["Invalid ID"]


def test_only_version_4_ids_are_taken_except_by_delete_and_inspect() -> None:
    """F.3."""
    for other in (V1, b"0" * 32, b"c0ffee12-3456-4abc-cdef-0123456789ab"):
        assert texts(b"complete %b 0\r\n\r\n" % other) == ["Invalid ID"]
        assert texts(b"result %b 1\r\n" % other) == ["Invalid ID"]
        (delete,) = feed(b"delete %b\r\n" % other)
        assert isinstance(delete, Delete)
        assert not delete.is_possible
        assert texts(b"inspect job %b\r\n" % other) == ["InspectJob"]
    (delete,) = feed(b"delete %b\r\n" % TEXT)
    assert isinstance(delete, Delete)
    assert delete.is_possible


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "q" * 255])
def test_names_of_the_allowed_letters_are_taken(name: str) -> None:
    assert feed(b"inspect queue %b\r\n" % name.encode()) == [InspectQueue(name)]


@pytest.mark.parametrize("name", [b"q" * 256, b"a/b", b"\xc3\xa4", b"a\tb", b"a\n"[:1] + b":"])
def test_other_names_are_invalid(name: bytes) -> None:
    assert texts(b"inspect queue %b\r\n" % name) == ["Invalid Name"]


def test_priorities_become_ranks_smaller_first() -> None:
    """D-10."""
    (low,) = feed(fill(b"add ID q 1 1 0 -priority=-2147483648\r\n\r\n"))
    (high,) = feed(fill(b"run ID q 1 1 0 -priority=2147483647\r\n\r\n"))
    assert isinstance(low, Add) and isinstance(high, Run)
    assert high.rank < low.rank


def test_a_scheduled_job_is_past_when_its_life_is_over() -> None:
    """D-34: life counts from the scheduled time."""
    (command,) = feed(fill(b"schedule ID mail.out 2500 90000 WHEN 0\r\n\r\n"))
    assert isinstance(command, Schedule)
    assert not command.is_past(T + 90 * 10**9)
    assert command.is_past(T + 90 * 10**9 + 1)


# Answers.


def test_answers_are_byte_exact() -> None:
    """F.2, F.3."""
    assert replies.OK == b"+OK\r\n"
    assert replies.TIMEOUT == b"-TIMEOUT\r\n"
    assert replies.NOT_FOUND == b"-NOT-FOUND\r\n"
    assert Refused("Invalid ID").reply == b"-CLIENT-ERROR Invalid ID\r\n"
    assert (
        replies.leased(ID, "q1", 1000, b"p\r\nq") == b"+OK 1\r\n%b q1 1000 4\r\np\r\nq\r\n" % TEXT
    )
    assert replies.result(ID, True, b"r") == b"+OK 1\r\n%b 1 1\r\nr\r\n" % TEXT
    assert replies.result(ID, False, b"") == b"+OK 1\r\n%b 0 0\r\n\r\n" % TEXT
    assert replies.inspect_server(3, 4, T + 999) == (
        b"+OK 1\r\nserver 2\r\nactive-clients 3\r\nevicted-jobs 4\r\nstarted %b\r\n" % WHEN
    )
    assert replies.inspect_queues([replies.QueueView("q1", 1, 2)]) == (
        b"+OK 1\r\nq1 2\r\nready-len 1\r\nscheduled-len 2\r\n"
    )
    assert replies.inspect_queues([]) == replies.inspect_jobs([]) == b"+OK 0\r\n"


JOB = replies.JobView(ID, "q1", 10, 100, b"pay\r\nload", 1, 2, 3, 4, -5, 4, T)


def test_an_inspected_job_is_byte_exact() -> None:
    """F.2: twelve keys, thirteen with a time."""
    block = (
        b"%b 12\r\nname q1\r\nttr 10\r\nttl 100\r\npayload-size 9\r\npayload pay\r\nload\r\n"
        b"max-attempts 1\r\nattempts 2\r\nmax-fails 3\r\nfails 4\r\npriority -5\r\nstate 4\r\n"
        b"created %b\r\n" % (TEXT, WHEN)
    )
    assert replies.inspect_jobs([JOB]) == b"+OK 1\r\n" + block
    timed = replies.inspect_jobs([JOB._replace(time=T + 10**9)])
    assert timed == (
        b"+OK 1\r\n" + block.replace(b" 12\r\n", b" 13\r\n") + b"time 2016-06-13T14:08:19Z\r\n"
    )


@pytest.mark.parametrize(
    ("fault", "reply"),
    [
        (NotFound(), b"-NOT-FOUND\r\n"),
        (TimedOut(), b"-TIMEOUT\r\n"),
        (AlreadyExists("key k"), b"-CLIENT-ERROR Duplicate job\r\n"),
        (BadRequest("Invalid Time"), b"-CLIENT-ERROR Invalid Time\r\n"),
        (BadRequest("two\r\nlines"), b"-CLIENT-ERROR two lines\r\n"),
        (Stopped(), b"-SERVER-ERROR Server is read-only\r\n"),
        (NoSpace("disk full"), b"-SERVER-ERROR disk full\r\n"),
        (ValueError("secret"), b"-SERVER-ERROR ValueError\r\n"),
    ],
)
def test_errors_become_workq_s_answers(fault: Exception, reply: bytes) -> None:
    assert replies.error(fault) == reply


@pytest.mark.parametrize("command", [command for _, command in VALID], ids=str)
def test_what_a_client_writes_the_server_reads(command: Command) -> None:
    assert feed(encode(command)) == [command]
