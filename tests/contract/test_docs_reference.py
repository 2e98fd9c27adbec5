"""What is made from the code is up to date, and nothing of the code is left undocumented."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fastjournal
from fastjournal import errors
from fastjournal.config import Settings
from fastjournal.journal.language.codec import TYPE_NAMES
from fastjournal.journal.language.transitions import TRANSITIONS
from fastjournal.model import State
from fastjournal.spark.options import OPTIONS
from fastjournal.spark.schema import VIEW_COLUMNS
from fastjournal.spark.sink.writer import SINK_OPTIONS
from fastjournal.spark.stream.reader import STREAM_OPTIONS
from fastjournal.wire.fj.functions import FUNCTIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "fastjournal"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    """The program that makes the reference."""
    return runpy.run_path(str(ROOT / "tools" / "reference"), run_name="reference")


def page(name: str) -> str:
    return (DOCS / name).read_text()


@pytest.fixture(scope="module")
def made(tool: dict[str, Any]) -> dict[str, str]:
    """Every made file, as it should be."""
    files: dict[str, str] = tool["made"]()
    return files


def test_everything_made_from_the_code_is_up_to_date(
    tool: dict[str, Any], made: dict[str, str]
) -> None:
    assert not list(tool["stale"](made)), "run: make reference"


def test_a_page_that_is_changed_by_hand_is_noticed(
    tool: dict[str, Any], made: dict[str, str], tmp_path: Path
) -> None:
    for name, text in made.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert not tool["stale"](made, tmp_path)
    changed = tmp_path / "settings.md"
    changed.write_text(changed.read_text().replace("`1000`", "`2000`"))
    assert list(tool["stale"](made, tmp_path)) == ["settings.md"]


def test_every_setting_is_documented_under_its_table() -> None:
    text = page("settings.md")
    for field in msgspec.structs.fields(Settings):
        inner = field.default
        if not isinstance(inner, msgspec.Struct):
            assert f"| `{field.name}` |" in text.partition("## [")[0], field.name
            continue
        section = text.partition(f"## [{field.name}]")[2].partition("\n## ")[0]
        for name in inner.__struct_fields__:
            assert f"| `{name}` |" in section, (field.name, name)


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "JournalError"])
def test_every_error_is_documented_with_its_code(name: str) -> None:
    code = getattr(getattr(errors, name), "code", "")
    text = page("errors.md")
    assert f"| `{name}` | `{code}` |" in text if code else f"`{name}`" in text


def test_every_code_on_the_wire_is_documented() -> None:
    text = page("fj-protocol.md")
    for name in errors.__all__:
        if code := getattr(getattr(errors, name), "code", ""):
            assert f"| `{code}` |" in text, name


def test_every_function_of_the_protocol_is_documented() -> None:
    text = page("fj-protocol.md")
    for number, spec in FUNCTIONS.items():
        assert f"| {number} | {spec.function.name} |" in text


def test_every_option_and_column_of_spark_is_documented() -> None:
    text = page("reference-spark.md")
    for name in (*OPTIONS, *STREAM_OPTIONS, *SINK_OPTIONS):
        assert f"| `{name}` |" in text, name
    for view, (usual, asked) in VIEW_COLUMNS.items():
        section = text.partition(f"### {view}\n")[2].partition("\n#")[0]
        for name, kind in {**usual, **asked}.items():
            assert f"| `{name}` | {kind} |" in section, (view, name)


def test_every_record_type_is_documented_with_its_layout() -> None:
    text = page("log-format.md")
    for number, name in TYPE_NAMES.items():
        assert re.search(rf"^ +{number}  {name}\b", text, re.MULTILINE), name


def test_every_change_of_state_stands_on_its_page_and_in_the_picture() -> None:
    text, picture = page("transitions.md"), page("images/transitions.svg")
    for line in TRANSITIONS:
        assert f"| {line.number} | " in text
    for state in State:
        assert f"| {state.name} |" in text
        assert state.name in picture


def test_the_bytes_shown_are_read_by_the_real_reader(tmp_path: Path) -> None:
    """The segment on the page, put on disk, opens as a journal: its job came and went."""
    text = page("log-format.md").partition("<!-- table segment -->")[2].partition("<!-- end")[0]
    lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ?)+)", text, re.MULTILINE)
    data = bytes.fromhex("".join(lines))
    directory = tmp_path / "jobs"
    directory.mkdir()
    (directory / "000000001.log").write_bytes(data)
    with fastjournal.Journal(directory, background=False) as journal:
        assert journal.replayed.records == 3
        assert journal.jobs() == []


def test_every_public_name_stands_in_the_docs() -> None:
    text = "\n".join(each.read_text() for each in DOCS.glob("*.md"))
    for name in fastjournal.__all__:
        if name != "__version__":
            assert re.search(rf"\b{name}\b", text), name


def test_every_argument_of_a_journal_is_told_where_it_is_embedded() -> None:
    text = page("embed.md")
    (opening,) = (  # from the source: a compiled class does not tell its arguments
        member
        for thing in ast.parse((SOURCE / "journal" / "journal.py").read_text()).body
        if isinstance(thing, ast.ClassDef) and thing.name == "Journal"
        for member in thing.body
        if isinstance(member, ast.FunctionDef) and member.name == "__init__"
    )
    names = [each.arg for each in opening.args.kwonlyargs]
    assert "sync" in names
    for name in names:
        assert f"`{name}`" in text, name
