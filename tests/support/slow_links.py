"""Passes bytes on, later: a program for nodes whose links are to be slow.

    python slow_links.py DELAY_FILE LISTEN=HOST:PORT ...

What comes to a port of loopback goes on to the other address, after as many seconds as the file
says at that moment. Order is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from functools import partial
from pathlib import Path

__all__ = ["serve"]


async def serve(delays: Path, links: list[tuple[int, str, int]]) -> None:
    """Pass on until the process ends."""
    for port, host, other in links:
        await asyncio.start_server(partial(_join, delays, host, other), "127.0.0.1", port)
    await asyncio.Event().wait()


async def _join(
    delays: Path, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with contextlib.suppress(OSError):
        far_reader, far_writer = await asyncio.open_connection(host, port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(delays, reader, far_writer))
                both.create_task(_copy(delays, far_reader, writer))
        except* OSError:
            pass
        finally:
            far_writer.close()
    writer.close()


async def _copy(delays: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        await asyncio.sleep(_seconds(delays))
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError  # the other direction ends too


def _seconds(delays: Path) -> float:
    return float(delays.read_text() or "0")


def _link(text: str) -> tuple[int, str, int]:
    port, _, address = text.partition("=")
    host, _, other = address.rpartition(":")
    return int(port), host, int(other)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), [_link(text) for text in sys.argv[2:]]))
