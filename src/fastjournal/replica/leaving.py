"""A copy of a replicated journal becomes a journal of its own.

Rules:

1. Nobody may have the copy open: the appender's lock is held meanwhile. That every other node has
   ended too, only its operator knows.
2. A copy that was being cut, or replaced by a snapshot, is finished by its node first. One that may
   lack what was acknowledged goes only if that loss is accepted.
3. `replica.meta` goes last: until then it is the copy that it was, and this can be done again.
"""

from __future__ import annotations

from fastjournal.errors import NotFound, SegmentError, write_failure
from fastjournal.log.commit_mark import COMMIT_POS, REPLICA_META
from fastjournal.log.files import read_file
from fastjournal.log.stream import Stream
from fastjournal.replica.disk import Meta

__all__ = ["leave_replication"]


def leave_replication(stream: Stream, *, accept_loss: bool = False) -> None:
    """Let nothing in the directory say that other nodes have a part in it."""
    files, meta_path = stream.files, stream.path / REPLICA_META
    if not files.exists(meta_path):
        raise NotFound(f"{stream.path} is no copy of a replicated journal")
    lock = stream.lock_appender(1.0)
    try:
        meta = Meta.decode(read_file(files, meta_path), meta_path)
        if meta.cutting is not None or meta.installing is not None:
            raise SegmentError(meta_path, "its node was interrupted: start it once more, alone")
        if not meta.sound and not accept_loss:
            raise SegmentError(meta_path, "it may lack what was acknowledged: take another node's")
        for path in (stream.path / COMMIT_POS, meta_path):
            if files.exists(path):
                files.remove(path)
            files.sync_directory(stream.path)
    except OSError as error:
        raise write_failure(error, meta_path) from error
    finally:
        lock.release()
