"""The binary FJ protocol.

`functions` is the table: numbers, bits, types, what each function takes. A server reads `frames`
out of a stream, field by field, and answers with `replies`; `requests` makes the same frames for
sending, and keeps one as a value. `client` numbers a client's requests and matches the answers.

The values inside have one codec each: `job_codec` (a job as it is put, layouts 1 and 2; the message
of a spool has its bytes by `put_message`, for a bare interpreter), `lease_codec` (a job handed out,
layout 3), `entry_codec`, `bulk` (PUTS, LEASE, SETTLE and their outcomes), `forward` (jobs of a
spool), `hello`, `json_values` (INSPECT, LIST), and `error_text`: errors as the words that travel.
Those on the path of every job are compiled.
"""
