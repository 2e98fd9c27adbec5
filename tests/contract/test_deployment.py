"""What lies in deploy/ fits the program: its commands, options, settings, ports and paths exist."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
import yaml

from fastjournal import __version__
from fastjournal.cli.app import app
from fastjournal.config import load
from fastjournal.daemon.auth import check_exposure
from fastjournal.daemon.replicated.sets import node_options

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
HARDENING = re.compile(
    r"^(NoNewPrivileges|Protect\w+|Private\w+|Restrict\w+|LockPersonality|SystemCall\w+)=(.+)$",
    re.MULTILINE,
)


def command_of(words: list[str]) -> None:
    """Fails unless the words are a command of ours with options that it has."""
    command: Any = typer.main.get_command(app)
    known = {option for one in command.commands[words[0]].params for option in one.opts}
    used = [word for word in words[1:] if word.startswith("--")]
    assert used, words
    assert set(used) <= known, words


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    text = unit.read_text()
    started = re.findall(r"^ExecStart=/usr/bin/fastjournal (.*)$", text, re.MULTILINE)
    assert len(started) == 1
    command_of(started[0].split())


def test_every_unit_is_hardened_like_the_daemons() -> None:
    found = {
        unit.name: {name: set(value.split()) for name, value in HARDENING.findall(unit.read_text())}
        for unit in UNITS
    }
    wanted = found["fastjournal.service"]
    assert len(wanted) >= 11
    for name, settings in found.items():
        assert settings == wanted, name


def test_there_is_a_unit_for_the_daemon_the_forwarder_and_the_worker() -> None:
    assert [path.name for path in UNITS] == [
        "fastjournal-forward@.service", "fastjournal-worker@.service", "fastjournal.service",
    ]  # fmt: skip


def test_the_settings_for_systemd_are_taken_by_the_program() -> None:
    settings = load(DEPLOY / "systemd" / "fastjournal.toml", environment={})
    check_exposure(settings)
    assert settings.data == "/var/lib/fastjournal"


@pytest.fixture(scope="module")
def kinds() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "fastjournal.yaml").read_text())
    return {one["kind"]: one for one in documents}


def test_the_settings_for_kubernetes_are_taken_and_want_tokens_and_tls(
    kinds: dict[str, Any], tmp_path: Path
) -> None:
    text = kinds["ConfigMap"]["data"]["fastjournal.toml"]
    path = tmp_path / "fastjournal.toml"
    path.write_text(text)
    settings = load(path, environment={})
    assert settings.tokens
    assert settings.tls.certificate
    assert settings.tls.key
    given = tomllib.loads(text)
    assert given["journal"]["sync"] == "always"
    check_exposure(settings)


def test_the_pod_mounts_what_the_settings_name_and_opens_their_ports(
    kinds: dict[str, Any],
) -> None:
    given = tomllib.loads(kinds["ConfigMap"]["data"]["fastjournal.toml"])
    pod = kinds["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {Path(one["mountPath"]) for one in container["volumeMounts"]}
    named = [given["data"], given["tokens"], given["tls"]["certificate"], given["tls"]["key"]]
    for path in map(Path, named):
        assert path in mounts or path.parent in mounts, path
    assert Path(container["args"][2]) in mounts
    command_of(container["args"])
    ports = {one["containerPort"] for one in container["ports"]}
    wanted = {int(one.rpartition(":")[2]) for one in [*given["listen"], given["http"]]}
    assert ports == wanted
    assert {one["port"] for one in kinds["Service"]["spec"]["ports"]} == wanted


def test_the_pod_is_one_is_not_root_and_may_write_only_to_its_volumes(
    kinds: dict[str, Any],
) -> None:
    spec = kinds["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 1  # a journal has one writer
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["image"] == f"fastjournal:{__version__}"
    user = f"USER {pod['securityContext']['runAsUser']}:"
    assert user in (DEPLOY / "docker" / "Dockerfile").read_text()


def test_the_settings_of_a_node_for_systemd_are_taken_by_the_program(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "replicated.toml").read_text()
    path, secret = tmp_path / "node.toml", tmp_path / "secret"
    secret.write_text("among us")
    path.write_text(text.replace("/etc/fastjournal/nodes.secret", str(secret)))
    settings = load(path, environment={})
    check_exposure(settings)
    options = node_options(settings.replica, settings.listen)
    assert set(options.peers) == {"b", "c"}
    assert options.clients == "a.example:17994"
    etcd = (DEPLOY / "systemd" / "etcd.default").read_text()
    for url in settings.replica.arbiter:
        host = url.removeprefix("http://").partition(":")[0]
        assert f"http://{host}:2380" in etcd
    assert f'ETCD_LISTEN_CLIENT_URLS="{settings.replica.arbiter[0]}"' in etcd


@pytest.fixture(scope="module")
def three() -> dict[tuple[str, str], Any]:
    """What `kubernetes/replicated.yaml` makes, by kind and name."""
    text = (DEPLOY / "kubernetes" / "replicated.yaml").read_text()
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def test_each_of_three_pods_is_a_node_that_knows_the_others_and_etcd(
    three: dict[tuple[str, str], Any], tmp_path: Path
) -> None:
    nodes, etcds = (three["StatefulSet", name]["spec"] for name in ("fastjournal",
                    "fastjournal-etcd"))  # fmt: skip
    assert nodes["replicas"] == etcds["replicas"] == 3
    (container,) = nodes["template"]["spec"]["containers"]
    told = {one["name"]: one for one in container["env"]}
    assert told["FASTJOURNAL_REPLICA_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    path, secret = tmp_path / "fastjournal.toml", tmp_path / "secret"
    secret.write_text("among us")
    text = three["ConfigMap", "fastjournal"]["data"]["fastjournal.toml"]
    path.write_text(text.replace("/etc/fastjournal/nodes/secret", str(secret)))
    names = {f"fastjournal-{n}" for n in range(nodes["replicas"])}
    for name in names:
        clients = told["FASTJOURNAL_REPLICA_CLIENTS"]["value"]
        environment = {
            "FASTJOURNAL_REPLICA_NAME": name,
            "FASTJOURNAL_REPLICA_CLIENTS": clients.replace("$(FASTJOURNAL_REPLICA_NAME)", name),
        }
        settings = load(path, environment=environment)
        check_exposure(settings)
        options = node_options(settings.replica, settings.listen)
        assert set(options.peers) == names - {name}
        assert all(host == f"{one}.fastjournal" for one, (host, _) in options.peers.items())
        assert options.clients == f"{name}.fastjournal:17994"
    (etcd,) = etcds["template"]["spec"]["containers"]
    members = next(one for one in etcd["command"] if one.startswith("--initial-cluster="))
    for n, url in enumerate(settings.replica.arbiter):
        assert url == f"http://fastjournal-etcd-{n}.fastjournal-etcd:2379"
        assert f"http://fastjournal-etcd-{n}.fastjournal-etcd:2380" in members


def test_pods_that_follow_are_ready_and_found_else_a_rollout_would_never_end(
    three: dict[tuple[str, str], Any],
) -> None:
    spec = three["StatefulSet", "fastjournal"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"
    assert spec["podManagementPolicy"] == "Parallel"
    assert three["Service", "fastjournal"]["spec"]["publishNotReadyAddresses"] is True
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {one["port"] for one in three["Service", "fastjournal"]["spec"]["ports"]} == set(
        ports.values()
    )
    rules = three["NetworkPolicy", "fastjournal"]["spec"]["ingress"]
    (inner,) = [rule for rule in rules if {"port": "nodes"} in rule["ports"]]
    assert inner["from"] == [{"podSelector": {"matchLabels": {"app": "fastjournal"}}}]
    assert container["image"] == f"fastjournal:{__version__}"
    mounts = {one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"] for one in spec["template"]["spec"]["volumes"]}
    assert mounts == volumes | {"data"}


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    loader = SourceFileLoader("replay", str(DEPLOY / "docker" / "replay"))
    spec = importlib.util.spec_from_loader("replay", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_dockerfile_keeps_its_rules(replay: ModuleType) -> None:
    found = replay.steps((DEPLOY / "docker" / "Dockerfile").read_text())
    assert replay.faults(found) == []
    copied = [rest.split()[:-1] for word, rest in found if word == "COPY"]
    root = DEPLOY.parent
    for name in [name for names in copied for name in names if not name.startswith(("--", "$"))]:
        assert (root / name).exists(), name


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("FROM python", "no version"),
        ("FROM python:latest", "no version"),
        ("ADD x y", "use COPY"),
        ("COPY . .", "names nothing"),
        ("CMD fastjournal serve", "in a shell"),
        ("USER root", "not a number"),
        ("USER 0", "not a number"),
    ],
)
def test_the_rules_find_a_dockerfile_that_breaks_them(
    replay: ModuleType, line: str, fault: str
) -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text() + "\n" + line + "\n"
    assert any(fault in one for one in replay.faults(replay.steps(text)))


@pytest.mark.slow
def test_the_steps_of_the_dockerfile_give_a_daemon_that_answers(
    replay: ModuleType, tmp_path: Path
) -> None:
    replay.main(tmp_path / "image")
    assert (tmp_path / "image" / "last" / "opt" / "fastjournal" / "bin" / "fastjournal").is_file()
