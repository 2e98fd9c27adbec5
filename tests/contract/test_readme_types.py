"""The programs of README.md pass mypy --strict, and what it says of types holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from docblocks import ROOT, blocks

MORE = """
number: int = add.put(1, 2).result(wait=30)
add.put("one", 2)  # type: ignore[arg-type]
"""


@pytest.mark.slow
def test_the_programs_of_the_readme_pass_mypy_strict(tmp_path: Path) -> None:
    from mypy import api

    programs = [block for block in blocks(ROOT / "README.md") if block.language == "python"]
    assert len(programs) >= 3
    for block in programs:
        more = MORE if block.file == "shop.py" else ""
        (tmp_path / f"line_{block.line}.py").write_text(block.code + more)
    files = [str(file) for file in tmp_path.glob("*.py")]
    said, errors, code = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), *files])
    assert code == 0, said + errors
