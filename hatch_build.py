"""Wheels hold the core compiled by mypyc; without a compiler they are pure Python.

`FASTJOURNAL_PURE=1` builds a pure wheel; with `FASTJOURNAL_COMPILED=1` a failed compilation is an
error. `FASTJOURNAL_OPTIMISE=0` compiles sooner, for trying things out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # tools/compile needs no hatchling
    BuildHookInterface = object


def load_core(root: Path) -> ModuleType:
    """`fastjournal.package.compiled`, without the package around it."""
    path = root / "src" / "fastjournal" / "package" / "compiled.py"
    spec = importlib.util.spec_from_file_location("fastjournal_compiled", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_core(root: Path, work: Path, objects: Path | None = None) -> dict[str, Path]:
    """Compile the core below `work`; returns the binaries by their place in a wheel.

    `objects`: a directory that keeps what the C compiler made, for files of C that stay the same.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    core = load_core(root)
    source = root / "src"
    files = [str(Path(core.source_of(name)).relative_to(source)) for name in core.CORE]
    options = [f"--config-file={root / 'pyproject.toml'}", f"--cache-dir={work / 'cache'}"]
    # Modules around the core use packages that need not be there when a wheel is built.
    options.append("--follow-imports=silent")
    with contextlib.chdir(source):
        extensions = mypycify(
            [*options, *files],
            multi_file=True,  # one file of C would take the compiler more than twice as long
            opt_level=os.environ.get("FASTJOURNAL_OPTIMISE", "3"),
            debug_level="0",
            group_name="fastjournal_core",
            strip_asserts=False,
            target_dir=str(work / "c"),
        )
        for extension in extensions:
            # Nobody else's functions stand in for ours: calls between modules are direct, and what
            # is small is made part of its caller.
            extension.extra_compile_args += ["-w", "-fvisibility=hidden"]
            extension.extra_link_args += ["-Wl,-Bsymbolic"]
        command: Any = Distribution({"name": "core", "ext_modules": extensions}).get_command_obj(
            "build_ext"
        )
        build_extensions = command.build_extensions

        def build_in_parallel() -> None:
            """A file of C for each processor at a time."""
            compile_files = command.compiler.compile
            headers = b"".join(sorted(path.read_bytes() for path in work.rglob("*.h")))

            def compile_one(source: str, given: tuple[Any, ...], how: dict[str, Any]) -> list[str]:
                if objects is None:
                    return list(compile_files([source], *given, **how))
                flags = repr((sys.version, how.get("extra_postargs"), how.get("macros")))
                state = sha256(headers + Path(source).read_bytes() + flags.encode()).hexdigest()
                kept = objects / f"{state}.o"
                if not kept.exists():
                    (made,) = compile_files([source], *given, **how)
                    fresh = kept.with_suffix(f".{os.getpid()}")
                    shutil.copy2(made, fresh)
                    fresh.replace(kept)
                return [str(kept)]

            def compile_each(sources: list[str], *given: Any, **how: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    made = pool.map(lambda source: compile_one(source, given, how), sources)
                    return [file for files in made for file in files]

            command.compiler.compile = compile_each
            build_extensions()

        command.build_extensions = build_in_parallel
        command.build_lib, command.build_temp = str(work / "lib"), str(work / "temp")
        command.ensure_finalized()
        command.run()
    lib = work / "lib"
    return {str(path.relative_to(lib)): path for path in lib.rglob("*.so")}


class Hook(BuildHookInterface):  # type: ignore[misc]
    """Puts the compiled core into wheels."""

    def dependencies(self) -> list[str]:
        """What building takes beyond hatchling."""
        return ["mypy>=2.4", "setuptools>=65"] if self._wanted("standard") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is put together."""
        if not self._wanted(version):
            return
        work = Path(tempfile.mkdtemp(prefix="fastjournal-core-"))
        try:
            found = compile_core(Path(self.root), work)
        except (Exception, SystemExit) as error:
            if os.environ.get("FASTJOURNAL_COMPILED"):
                raise
            print(f"the core is not compiled, the wheel is pure Python: {error!r}", file=sys.stderr)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(file): name for name, file in found.items()})

    def _wanted(self, version: str) -> bool:
        pure = os.environ.get("FASTJOURNAL_PURE", "0") not in ("", "0")
        return self.target_name == "wheel" and version != "editable" and not pure
