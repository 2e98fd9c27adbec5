"""The blocking client is what the tool makes of the asyncio one, and a stale one is found out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, root / "tools" / "unasync", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )


def copied(tmp_path: Path) -> Path:
    """What the tool needs of the project."""
    for part in ("tools/unasync", "src/fastjournal/client"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for part in ("pyproject.toml", "src/fastjournal/handles.py"):
        shutil.copy(ROOT / part, tmp_path / part)
    return tmp_path


def test_the_twins_are_fresh() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_change_of_one_twin_alone_is_found_out(tmp_path: Path) -> None:
    root = copied(tmp_path)
    written = root / "src/fastjournal/client/_async/watch.py"
    written.write_text(written.read_text().replace("_ROUNDS = 64", "_ROUNDS = 65"))
    done = check(root)
    assert done.returncode == 1
    assert "_sync/watch.py is stale" in done.stdout


def test_a_change_by_hand_and_a_file_left_over_are_found_out(tmp_path: Path) -> None:
    root = copied(tmp_path)
    made = root / "src/fastjournal/handles.py"
    made.write_text(made.read_text() + "\n")
    (root / "src/fastjournal/client/_sync/old.py").write_text("")
    done = check(root)
    assert done.returncode == 1
    assert "handles.py is stale" in done.stdout
    assert "_sync/old.py is stale" in done.stdout


def test_no_word_of_asyncio_is_left_in_the_blocking_client() -> None:
    made = [
        *(ROOT / "src/fastjournal/client/_sync").glob("*.py"),
        ROOT / "src/fastjournal/handles.py",
    ]
    for file in made:
        text = file.read_text().partition("\n")[2]  # behind the note of where it comes from
        for word in ("await", "async def", "asyncio.", "Async", "__aenter__"):
            assert word not in text, (file.name, word)
