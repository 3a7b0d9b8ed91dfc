"""A base installation, without any extra: what lacks a package says in one line how to install it, and nothing ends in a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from mqmesh.base.extras import EXTRAS, install
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.command import run

pytestmark = pytest.mark.process

HIDING = """
import sys
HIDDEN = {hidden!r}
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nowhere())
"""
LISTEN = 'listen = ["mqtt://127.0.0.1:0"]\ndata = "data"\n'
FILES = {
    "users.toml": LISTEN + '[access]\nusers = "users"\n',
    "tokens.toml": LISTEN + '[access.tokens]\nkeys = "keys"\n',
    "lmdb.toml": LISTEN + '[store]\nkind = "lmdb"\n',
    "postgresql.toml": LISTEN + '[store]\nkind = "postgresql"\nurl = "postgresql://user@host/database"\n',
    "redis.toml": LISTEN + '[queues]\n[[queues.queue]]\nname = "orders"\nstore = "redis://host"\n',
    "nats.toml": LISTEN + '[queues]\n[[queues.queue]]\nname = "orders"\nstore = "nats://host"\n',
    "amqp.toml": LISTEN + '[queues]\n[[queues.queue]]\nname = "orders"\nstore = "amqp://host"\n',
    "archive.toml": LISTEN + '[queues]\narchive = "archive"\n[[queues.queue]]\nname = "orders"\n',
    "policy.toml": '[[allow]]\nclients = ["*"]\nremotes = ["nats://host"]\n',
    "users": "",
}
LACKING = [
    ("passwd users alice --stdin", "access"),
    ("passwd users alice --delete", "access"),
    ("broker --config users.toml", "access"),
    ("broker --config lmdb.toml", "lmdb"),
    ("broker --config postgresql.toml", "postgresql"),
    ("broker --listen mqtt://127.0.0.1:0 --http http://127.0.0.1:0", "http"),
    ("broker --listen mqtt://127.0.0.1:0 --journal journal", "journal"),
    ("directory serve", "directory"),
    ("directory account plant-a --organisation acme", "directory"),
    ("topology draw pair.toml -o picture.png", "plot"),
    ("journal ls .", "journal"),
    ("trace 7.1763850000000.1.42 --journal .", "journal"),
    ("store check lmdb:///nowhere", "lmdb"),
    ("store check postgresql://user@host/database", "postgresql"),
]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose commands find only the packages that a base installation has."""
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "sitecustomize.py").write_text(HIDING.format(hidden=hidden()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "hiding"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    topology = Path(__file__).parents[2] / "topologies" / "pair.toml"
    (tmp_path / "pair.toml").write_text(topology.read_text())
    return tmp_path


@cache  # it reads the files of all installed packages, which takes seconds
def hidden() -> set[str]:
    """The modules that come with an extra only."""
    base = kept()
    return {module for module, owners in packages_distributions().items() if not base & {canonicalize_name(one) for one in owners}}


def kept() -> set[str]:
    """The distributions of a base installation: ours, and what it needs without extras."""
    found: set[str] = set()
    waiting = ["mqmesh"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            wanted = [Requirement(text) for text in requires(name) or ()]
            waiting += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


@pytest.mark.parametrize(("command", "extra"), LACKING)
def test_what_lacks_an_extra_says_so_in_one_line(base: Path, command: str, extra: str) -> None:
    done = run(*command.split(), stdin=b"secret\n")
    errors = [line for line in done.stderr.decode().splitlines() if "level=info" not in line]
    assert done.returncode in (1, 2), done.stderr
    assert len(errors) == 1, errors
    assert install(extra) in errors[0]


@pytest.mark.usefixtures("base")
def test_what_needs_no_extra_works() -> None:
    for command in ("topology check pair.toml", "topology draw pair.toml", "cert pair.toml --out tls", "pipeline jobs", "--help"):
        done = run(*command.split())
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.usefixtures("base")
def test_the_modules_that_programs_import_are_there(base: Path) -> None:
    """Those of the documents; only `mqmesh.pipeline.source` needs an extra."""
    root = Path(__file__).parents[2]
    texts = [path.read_text() for path in (root / "README.md", *root.glob("docs/*.md"), *root.glob("examples/*.py"))]
    lines = {
        line for text in texts for line in re.findall(r"^(?:from mqmesh[\w.]* import [\w, ]+|import mqmesh[\w.]*)$", text, re.MULTILINE)
    }
    assert len(lines) > 5
    program = base / "program.py"
    program.write_text("import mqmesh.directory\n" + "\n".join(sorted(line for line in lines if "pipeline.source" not in line)) + "\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_module_is_of_the_extra_that_is_named() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    owners = packages_distributions()
    for module, extra in EXTRAS.items():
        stated = {canonicalize_name(Requirement(text).name) for text in extras[extra]}
        wanted = stated | {canonicalize_name(text) for owner in stated for text in named(owner)}
        assert module not in owners or {canonicalize_name(one) for one in owners[module]} & wanted, (module, extra)


def named(owner: str) -> list[str]:
    """What a distribution needs itself, its extras included."""
    try:
        return [Requirement(text).name for text in requires(owner) or ()]
    except ModuleNotFoundError:
        return []
