"""Declared queues and journals: a file of TOML or INI, or a dict, made true.

    [queues.mail]                       a queue of the journal it is applied to
    kind = "list"
    lease = "30s"

    [journals.web]                      a journal of a daemon, and how it is kept
    sync = "always"
    [journals.web.queues."example.com"]
    max_wait = "10m"

In INI the same sections stand as `[queues.mail]`, `[journals.web]`, `[journals.web.queues.mail]`.

Rules:

1. Only what is named changes: what an operator has set besides, a pause say, stays. So applying
   a declaration twice changes nothing the second time.
2. All of a declaration is read and checked before any of it is applied.
3. `kind` says what a queue begins with: `journal` nothing, `list` a lease of a day, `workq` that
   larger priorities go first. What is named beside it wins.
4. `period`, `file_management` and `secure` hold for the journal whose queue declares them.
5. `replicas` may be 1: a journal has one writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as IniError
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastjournal.arguments import length, queue_bytes, seconds_of
from fastjournal.errors import NotFound, RequestError, SettingError
from fastjournal.model import DEFAULT_SETTINGS, SETTING_LENGTHS, SETTING_NAMES, QueueSettings

if TYPE_CHECKING:
    from fastjournal.model import QueueStatus

__all__ = ["KINDS", "Change", "JournalTables", "Tables", "apply_tables", "changes", "read_tables"]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "journal": {},
    "list": {"lease": 86_400},
    "workq": {"priority_order": "larger"},
}
"""What a queue of each kind begins with; lengths in seconds."""
_WORDS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}

Queues = dict[str, dict[str, Any]]
"""By the name of the queue what is to hold, as `configure` takes it."""


class JournalTables(NamedTuple):
    """What is declared of one journal of a daemon."""

    settings: dict[str, Any]
    """Those of `[journal]` that differ from what the daemon says for all."""
    queues: Queues


class Tables(NamedTuple):
    """A declaration that has been read."""

    queues: Queues
    journals: dict[str, JournalTables]


class Change(NamedTuple):
    """One setting of a queue that is not as declared."""

    queue: str
    setting: str
    was: Any
    becomes: Any
    """Lengths in ns, as in `QueueSettings`."""


class Shown(Protocol):
    """A journal that may be looked at."""

    def queue(self, name: str) -> QueueStatus: ...


class Configurable(Shown, Protocol):
    """A journal, or a client of one."""

    def configure(self, queue: str, **settings: Any) -> QueueSettings: ...


def read_tables(source: str | Path | Mapping[str, Any]) -> Tables:
    """Read and check a declaration: a file ending in `.toml` or `.ini`, or a dict like it."""
    declared = source if isinstance(source, Mapping) else _read_file(Path(source))
    unknown = sorted(set(declared) - {"queues", "journals"})
    if unknown:
        raise SettingError(f"a declaration has queues and journals, not {unknown[0]!r}", name="")
    journals = {}
    for name, table in _tables(declared.get("journals", {}), "journals"):
        settings = {key: value for key, value in table.items() if key != "queues"}
        journals[name] = JournalTables(settings, _queues(table.get("queues", {}), f"{name}."))
    return Tables(_queues(declared.get("queues", {}), ""), journals)


def changes(journal: Shown, queues: Queues) -> list[Change]:
    """What would become different; nothing is changed, and a journal may be in use."""
    found = []
    for name, wanted in queues.items():
        try:
            current = journal.queue(name).settings
        except NotFound:
            current = DEFAULT_SETTINGS
        declared = current.changed(_inside(wanted))
        found += [
            Change(name, setting, getattr(current, setting), getattr(declared, setting))
            for setting in wanted
            if getattr(current, setting) != getattr(declared, setting)
        ]
    return found


def apply_tables(journal: Configurable, queues: Queues) -> list[Change]:
    """Make the queues of a journal what is declared; returns what was not so before."""
    found = changes(journal, queues)
    for name in dict.fromkeys(change.queue for change in found):
        journal.configure(name, **queues[name])
    return found


def _inside(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with their lengths in ns."""
    return {
        name: length(value, name) if name in SETTING_LENGTHS else value
        for name, value in wanted.items()
    }


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise SettingError(f"{path}: {why}", name="tables") from error
    if path.suffix == ".ini":
        return _read_ini(path, text)
    import tomllib  # whoever declares nothing does not pay for it

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: {error}", name="tables") from error


def _read_ini(path: Path, text: str) -> Mapping[str, Any]:
    parser = ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except IniError as error:
        raise SettingError(f"{path}: {error}".replace("\n", " "), name="tables") from error
    declared: dict[str, Any] = {"queues": {}, "journals": {}}
    for section in parser.sections():
        values = dict(parser[section])
        first, _, name = section.partition(".")
        journal, found, queue = name.partition(".queues.")
        if first == "queues" and name:
            declared["queues"][name] = values
        elif first == "journals" and found:
            declared["journals"].setdefault(journal, {}).setdefault("queues", {})[queue] = values
        elif first == "journals" and name:
            declared["journals"].setdefault(name, {}).update(values)
        else:
            raise SettingError(
                f"{path}: [{section}] is neither [queues.NAME] nor [journals.NAME]", name=section
            )
    return declared


def _tables(declared: object, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(declared, Mapping):
        raise SettingError(f"{where} is a table of names", name=where)
    for name, table in declared.items():
        if not isinstance(table, Mapping):
            raise SettingError(f"{where}.{name} is a table, not {table!r}", name=f"{where}.{name}")
        yield name, table


def _queues(declared: object, journal: str) -> Queues:
    where = f"journals.{journal}queues" if journal else "queues"
    return {name: _queue(f"{where}.{name}", name, t) for name, t in _tables(declared, where)}


def _queue(where: str, name: str, declared: Mapping[str, Any]) -> dict[str, Any]:
    """One queue: what `configure` is to be told of it."""
    given = dict(declared)
    kind = given.pop("kind", "journal")
    if kind not in KINDS:
        raise SettingError(f"{where}: kind is one of {', '.join(KINDS)}, not {kind!r}", name="kind")
    if str(given.pop("name", name)) != name:
        raise SettingError(f"{where} is named by its table", name="name")
    if str(given.pop("replicas", 1)) != "1":
        raise SettingError(f"{where}: a journal has one writer, replicas is 1", name="replicas")
    try:
        queue_bytes(name)
        wanted = dict(KINDS[kind])
        for setting, value in given.items():
            if isinstance(value, Mapping):
                raise SettingError(
                    f'a name with dots stands in quotes: ["{setting}"]', name=setting
                )
            wanted[setting] = _value(setting, value)
        DEFAULT_SETTINGS.changed(_inside(wanted))
    except SettingError as error:
        raise SettingError(f"{where}: {error}", name=error.name) from None
    except RequestError as error:
        raise SettingError(f"{where}: {error}", name=where) from None
    return wanted


def _value(setting: str, value: Any) -> Any:
    """A setting as `configure` takes it: text of INI is what it means."""
    if setting not in SETTING_NAMES or not isinstance(value, str):
        return value
    default = getattr(DEFAULT_SETTINGS, setting)
    meant: Any = value
    if isinstance(default, bool):
        meant = _WORDS.get(value.strip().lower())
    elif setting in SETTING_LENGTHS:
        meant = seconds_of(value)
    elif isinstance(default, (int, float)):
        try:
            meant = type(default)(value)
        except ValueError:
            meant = None
    if meant is None:
        raise SettingError(f"queue setting {setting!r} cannot be {value!r}", name=setting)
    return meant
