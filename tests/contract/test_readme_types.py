"""The first program of README.md passes mypy --strict, and what it says of types holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from docblocks import ROOT, blocks

MORE = """
number: int = add.put(1, 2).result(wait=30)
add.put("one", 2)  # type: ignore[arg-type]
"""


@pytest.mark.slow
def test_the_first_program_of_the_readme_passes_mypy_strict(tmp_path: Path) -> None:
    from mypy import api

    program = next(block for block in blocks(ROOT / "README.md") if block.file == "shop.py")
    (tmp_path / "shop.py").write_text(program.code + MORE)
    said, errors, code = api.run(
        ["--strict", "--cache-dir", str(tmp_path), str(tmp_path / "shop.py")]
    )
    assert code == 0, said + errors
