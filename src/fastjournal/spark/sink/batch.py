"""Which batch it is, and where its tasks leave their files until it is taken in.

    <staging>/<app>/<version>/part-<partition>-<uuid>.log  staged by a task
    <staging>/<app>/<version>/manifest.json                which of them are the batch

Rules:

1. A batch is (application, version), or a name that nobody has used before.
2. Once the manifest is on stable storage the batch is what it names: whoever comes again with the
   same batch goes on with those files, and what was staged anew is dropped. So rows computed in
   another order the second time do no harm.
3. A file goes into the manifest only after it was found here, whole (`written`).
4. What was staged and is not needed any more is removed: by the adoption, the abort, or the next
   batch of the same application. The manifest goes first: one that is there names files that are.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from fastjournal.log.files import DISK
from fastjournal.spark.sink.encode import Staged

__all__ = ["FIRST_MARK", "MAX_VERSION", "MAX_VERSION_SENT", "Batch", "begin", "discard"]

MANIFEST = "manifest.json"
MAX_VERSION = 2**63 - 3
"""The largest version: with `FIRST_MARK` it fits the eight bytes in which the log has marks."""
MAX_VERSION_SENT = 2**32 - 3
"""The same for a daemon: marks travel in four bytes."""
FIRST_MARK = 2
"""The mark of a batch's first row, and of version 0."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Which batch it is: an application's version, or a name that nobody has used before."""

    app: str
    version: int
    name: str = ""

    @property
    def sender(self) -> bytes:
        """The sender of its rows; it looks like the beginning of a UUID of version 8."""
        text = f"{self.app}\0{self.version}\0{self.name}"
        made = bytearray(blake2b(text.encode(), digest_size=12, person=b"fj-batch").digest())
        made[6] = made[6] & 0x0F | 0x80
        return bytes(made)

    @property
    def application(self) -> bytes:
        """The sender whose mark is the newest version."""
        text = self.app.encode()
        if len(text) > 200:
            text = blake2b(text, digest_size=16).hexdigest().encode()
        return b"spark-txn:" + text

    @property
    def mark(self) -> int:
        """The mark of this version."""
        return self.version + FIRST_MARK

    @property
    def group(self) -> str:
        """Name of the directory of its application."""
        return blake2b((self.app or self.name).encode(), digest_size=8).hexdigest()

    def folder(self, staging: Path) -> Path:
        """Where its tasks leave their files."""
        return staging / self.group / f"{self.version}"


def begin(staging: Path, batch: Batch, staged: Sequence[Staged]) -> list[Staged]:
    """Settle which files are the batch: those of an earlier attempt, if one got so far."""
    folder = batch.folder(staging)
    manifest = folder / MANIFEST
    if not manifest.exists():
        if not staged:
            return []
        for one in staged:
            one.check()
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{MANIFEST}.{os.getpid()}"
        files = [{**asdict(one), "queues": [q.hex() for q in one.queues]} for one in staged]
        with draft.open("w") as file:
            json.dump({"app": batch.app, "version": batch.version, "files": files}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(manifest)
        _sync(folder)
        _sync(folder.parent)
    return [
        Staged(
            one["path"],
            one["rows"],
            one["plain"],
            one.get("own_ids", not one["plain"]),  # unknown: the journal looks at each row
            tuple(map(bytes.fromhex, one["queues"])),
            one.get("size", -1),  # a manifest of 0.1.0 does not tell
            one.get("crc", 0),
        )
        for one in json.loads(manifest.read_text())["files"]
    ]


def discard(staging: Path, batch: Batch, *, all_of_app: bool = False) -> None:
    """Remove what was staged for a batch, or for its application; a manifest stays for a retry."""
    folder = batch.folder(staging)
    if all_of_app:
        for manifest in folder.parent.glob(f"*/{MANIFEST}"):
            manifest.unlink(missing_ok=True)
        shutil.rmtree(folder.parent, ignore_errors=True)
    elif not (folder / MANIFEST).exists():
        shutil.rmtree(folder, ignore_errors=True)
    for empty in (folder.parent, staging):
        with contextlib.suppress(OSError):
            empty.rmdir()


def _sync(directory: Path) -> None:
    DISK.sync_directory(directory)
