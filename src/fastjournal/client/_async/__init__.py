"""The client for asyncio, written by hand; the blocking one is made from it by `tools/unasync`.

client          what a user has: the methods of a journal
group           the same over several journals, by the keys of their jobs
entries         the key/value entries, `watch` their changes, `cache` keeps them here
pipeline        requests that go out together
subscription    events of queues
handles         what a caller holds: a leased job, a lock on a key
caller          does what `retry` says, on connections of the transport
"""
