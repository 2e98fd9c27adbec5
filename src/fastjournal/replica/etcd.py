"""etcd as the arbiter, through its JSON gateway: HTTP is all that is needed.

Keys, below `<prefix>/<journal>/`: `set` and `epoch` for ever, `leader` under the node's lease. What
changes them is one transaction, so it is strictly serializable; etcd's own locks are not used.

Never 3.5.0 to 3.5.2, which lose data when killed; 3.4.22 or newer, or 3.5.6 or newer.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from fastjournal.errors import SettingError, Unavailable
from fastjournal.replica.arbiter import ChangeSet, Look, Question, Raise, Resign, Take, View
from fastjournal.replica.rules import MemberSet

__all__ = ["EtcdArbiter"]


class EtcdArbiter:
    """Blocking; each thread that asks has a connection of its own."""

    def __init__(
        self, endpoints: Sequence[str], *, prefix: str = "fastjournal", seconds: float = 2.0
    ) -> None:
        """`endpoints`: `http://host:2379`, tried in turn; `seconds`: how long one may take."""
        if not endpoints:
            raise SettingError("an etcd needs at least one address", name="arbiter")
        self._endpoints = [*endpoints]
        self._prefix = prefix
        self._seconds = seconds
        self._own = threading.local()

    def create(self, journal: str, members: MemberSet) -> None:
        """Make the keys of a journal, unless they are there."""
        key = self._key(journal, "set")
        absent = {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        puts = [_put(key, _members_text(members)), _put(self._key(journal, "epoch"), "0")]
        self._call("kv/txn", {"compare": [absent], "success": puts})

    def find_all(self) -> dict[str, MemberSet]:
        """All journals whose keys have been made, and the members of each."""
        ends = {"key": _coded(f"{self._prefix}/"), "range_end": _coded(f"{self._prefix}0")}
        found = {}
        for one in self._call("kv/range", ends).get("kvs", ()):
            name = base64.b64decode(one["key"]).decode().removeprefix(f"{self._prefix}/")
            journal, _, key = name.rpartition("/")
            if key == "set":
                found[journal] = _members_of(base64.b64decode(one["value"]).decode())
        return found

    def grant(self, ttl: int) -> int:
        """A new lease of so many ns."""
        seconds = max(1, ttl // 1_000_000_000)
        return int(self._call("lease/grant", {"TTL": str(seconds)})["ID"])

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease; False: it has ended."""
        answer = self._call("lease/keepalive", {"ID": str(lease)})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def ask(self, journal: str, node: str, question: Question) -> View | bool:
        """Answer one question, in one transaction; `Unavailable` if nobody knows."""
        key = {name: self._key(journal, name) for name in ("set", "epoch", "leader")}
        match question:
            case Look():
                return self._look(key)
            case Take(epoch, version, lease):
                view = self._look(key)
                if view.leader or (view.epoch, view.members.version) != (epoch, version):
                    return False
                return self._change(
                    [
                        _absent(key["leader"]),
                        _equals(key["epoch"], str(epoch)),
                        _equals(key["set"], _members_text(view.members)),
                    ],
                    [
                        _put(key["leader"], f"{epoch + 1} {node}", lease),
                        _put(key["epoch"], str(epoch + 1)),
                    ],
                )
            case Raise(epoch):
                while True:
                    known = self._look(key).epoch
                    if known >= epoch:
                        return True
                    same = [_equals(key["epoch"], str(known))]
                    self._change(same, [_put(key["epoch"], str(epoch))])
            case Resign(epoch):
                return self._change(
                    [_equals(key["leader"], f"{epoch} {node}")],
                    [{"requestDeleteRange": {"key": _coded(key["leader"])}}],
                )
            case ChangeSet(epoch, members):
                view = self._look(key)
                if view.members == members:
                    return True
                if view.members.version != members.version - 1:
                    return False
                return self._change(
                    [
                        _equals(key["leader"], f"{epoch} {node}"),
                        _equals(key["set"], _members_text(view.members)),
                    ],
                    [_put(key["set"], _members_text(members))],
                )

    def close(self) -> None:
        """Let go of this thread's connection."""
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        self._own.connection = None
        if connection is not None:
            connection.close()

    def _look(self, key: dict[str, str]) -> View:
        gets = [{"requestRange": {"key": _coded(name)}} for name in key.values()]
        answer = self._call("kv/txn", {"success": gets})
        texts = []
        for one in answer["responses"]:
            found = one["response_range"].get("kvs")
            texts.append(base64.b64decode(found[0]["value"]).decode() if found else "")
        members, epoch, leader = texts
        if not members:
            raise Unavailable("this journal has no set of members in etcd: make it first")
        leads, _, name = leader.partition(" ")
        return View(_members_of(members), int(epoch or 0), name, int(leads or 0))

    def _change(self, compare: list[Any], success: list[Any]) -> bool:
        answer = self._call("kv/txn", {"compare": compare, "success": success})
        return bool(answer.get("succeeded", False))

    def _key(self, journal: str, name: str) -> str:
        return f"{self._prefix}/{journal}/{name}"

    def _call(self, path: str, body: Any) -> Any:
        """One request; a node that does not answer is left for the next one, once around."""
        fault: Exception | None = None
        for _ in self._endpoints:
            try:
                return self._post(path, json.dumps(body).encode())
            except (OSError, http.client.HTTPException, ValueError) as error:
                fault = error
                self.close()
                self._endpoints = self._endpoints[1:] + self._endpoints[:1]
        raise Unavailable(f"etcd does not answer: {fault}") from fault

    def _post(self, path: str, body: bytes) -> Any:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            at = urlsplit(self._endpoints[0])
            safe = at.scheme == "https"
            kind = http.client.HTTPSConnection if safe else http.client.HTTPConnection
            connection = kind(at.hostname or "127.0.0.1", at.port or 2379, timeout=self._seconds)
            self._own.connection = connection
        connection.request("POST", f"/v3/{path}", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise http.client.HTTPException(f"{response.status} {content[:200]!r}")
        return json.loads(content)


def _members_text(members: MemberSet) -> str:
    return json.dumps([members.voters, members.version, members.joining])


def _members_of(text: str) -> MemberSet:
    voters, version, joining = json.loads(text)
    return MemberSet(tuple(voters), version, tuple(joining))


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _put(key: str, value: str, lease: int = 0) -> Any:
    put = {"key": _coded(key), "value": _coded(value)}
    return {"requestPut": put | ({"lease": str(lease)} if lease else {})}


def _equals(key: str, value: str) -> Any:
    return {"key": _coded(key), "target": "VALUE", "result": "EQUAL", "value": _coded(value)}


def _absent(key: str) -> Any:
    return {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
