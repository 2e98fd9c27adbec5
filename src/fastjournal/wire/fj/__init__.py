"""The binary FJ protocol.

`functions` is the table: numbers, bits, types, what each function takes; `fields` are the pieces of
a message. A server reads `requests` out of a stream, field by field, and answers with `replies`,
errors among them; `client` numbers a client's requests and matches the answers.

The values inside have one codec each: `job_codec` (a job as it is put and handed out; the message
of a spool has its bytes by `put_message`, for a bare interpreter), `entry_codec`, `bulk` (PUTS,
LEASE, SETTLE, FORWARD and their outcomes), `hello`, `json_values` (INSPECT, LIST). Those on the
path of every job are compiled.
"""
