"""The compiled and the interpreted wire are one: the same of every message, sound or damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.package.compiled import describe_core

SUPPORT = Path(__file__).parents[1] / "support"


def lines(seed: int, *, pure: bool) -> list[str]:
    environment = {**os.environ, "FASTJOURNAL_PURE": "1" if pure else "0"}
    done = subprocess.run(
        [sys.executable, "-m", "wire_corpus", str(seed), "300"],
        cwd=SUPPORT, env=environment, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.skipif(describe_core() == "pure", reason="the core is not compiled here")
@pytest.mark.parametrize("seed", range(3))
def test_both_builds_make_the_same_of_mutated_messages(seed: int) -> None:
    (build, *compiled), (other, *pure) = lines(seed, pure=False), lines(seed, pure=True)
    assert (build, other) == ("compiled", "pure")
    assert compiled == pure
    told = "\n".join(pure)  # or nothing was compared
    for word in ("OutOfRange", "BAD-FLAGS", "TOO-LARGE", "PutRequest", "Lease(", "BadRequest"):
        assert word in told
