"""Fuzz the decoders of records and segments: any bytes give a value or our error, nothing else.

    python fuzz/fuzz_record.py                      every target, 10 s each
    python fuzz/fuzz_record.py segment --seconds 60
    python fuzz/fuzz_record.py record --seed 7      the same inputs again

With atheris installed the inputs are guided by coverage. Without it they come from a plain mutator:
bits flipped, ranges cut, copied and zeroed, checksums mended so that the changed bytes get past the
CRC. A finding is written to `crash-<target>-<digest>` and ends the run with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import google_crc32c
from targets import TARGETS, seeds

LARGEST = 64 * 1024


def main() -> int:
    """Run the targets named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--engine", choices=["atheris", "plain"], default=None)
    given = parser.parse_args()
    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"unknown target {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    engine = given.engine or ("atheris" if _has_atheris() else "plain")
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    names = given.targets or list(TARGETS)
    if engine == "atheris" and len(names) > 1:
        # libFuzzer ends the process that it ran in: one process a target.
        worst = 0
        for name in names:
            again = [sys.executable, __file__, name, f"--seconds={given.seconds}"]
            worst = max(worst, subprocess.run([*again, f"--seed={seed}"], check=False).returncode)
        return worst
    if engine == "atheris":
        _guided(TARGETS[names[0]], given.seconds, seed)
    return max([_plain(name, given.seconds, seed) for name in names], default=0)


def _has_atheris() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def _guided(target: Callable[[bytes], None], seconds: float, seed: int) -> None:
    import atheris

    atheris.instrument_all()
    options = [f"-max_total_time={int(seconds)}", f"-seed={seed}", f"-max_len={LARGEST}"]
    atheris.Setup([sys.argv[0], *options], target)
    atheris.Fuzz()


def _plain(name: str, seconds: float, seed: int) -> int:
    target, source, pool = TARGETS[name], random.Random(f"{name}{seed}"), seeds()
    runs, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutate(source, pool)
        try:
            target(data)
        except Exception:  # any exception that escapes is the finding
            traceback.print_exc()
            place = Path(f"crash-{name}-{hashlib.sha256(data).hexdigest()[:12]}")
            place.write_bytes(data)
            print(f"{name}: FOUND after {runs} inputs (seed {seed}); input kept in {place}")
            return 1
        runs += 1
    print(f"{name}: {runs} inputs in {seconds:g} s, nothing found (plain mutator, seed {seed})")
    return 0


def mutate(source: random.Random, pool: list[bytes]) -> bytes:
    """One input made from the pool by a few random changes."""
    data = bytearray(source.choice(pool))
    for _ in range(source.randint(0, 5)):
        size = len(data)
        a, b = sorted(source.randint(0, size) for _ in range(2))
        match source.randrange(8):
            case 0 if size:
                data[source.randrange(size)] ^= 1 << source.randrange(8)
            case 1:
                del data[a:b]
            case 2:
                data[a:a] = source.randbytes(source.randint(1, 32))
            case 3:
                data[a:b] = bytes(b - a)
            case 4:
                data[b:b] = data[a:b]
            case 5:
                data[a:a] = source.choice(pool)
            case 6 if size:
                data[source.randrange(size)] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
            case _:
                del data[a:]
    if len(data) > 24 and source.random() < 0.5:
        _mend(source, data)
    return bytes(data[:LARGEST])


def _mend(source: random.Random, data: bytearray) -> None:
    """Write a fitting checksum somewhere, so that what stands before it is read, not refused."""
    start = source.choice((0, 8))
    stop = source.choice((len(data) - 4, source.randint(start, len(data) - 4)))
    data[stop : stop + 4] = google_crc32c.value(bytes(data[start:stop])).to_bytes(4, "big")


if __name__ == "__main__":
    sys.exit(main())
