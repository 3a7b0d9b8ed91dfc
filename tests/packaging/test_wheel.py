"""The wheel: every sub-package is in it, and it works in another environment, away from this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from support.services import PATIENCE

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-spark.lock", "requirements-test.lock")  # each goes on where the one before ends
NOT_SHIPPED = {"tests", "benchmarks", "examples", "docs", "build", "out"}


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_on_disk() -> set[str]:
    found = {"mqmesh"}
    for init in ROOT.rglob("__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts and not parts[0].startswith(".") and parts[0] not in NOT_SHIPPED:
            found.add(".".join(("mqmesh", *parts)))
    return found


def test_each_sub_package_is_listed() -> None:
    listed = project()["tool"]["setuptools"]["packages"]  # type: ignore[index]
    assert set(listed) == packages_on_disk()


def test_the_version_is_one() -> None:
    import mqmesh

    assert project()["project"]["version"] == mqmesh.__version__  # type: ignore[index]


def test_the_lock_files_satisfy_the_project_and_are_complete() -> None:
    from packaging.requirements import Requirement

    lines = [line for file in LOCKS for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line and "://" not in line and "/" not in line for line in lines), "only NAME==VERSION"
    locked = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
    assert len(locked) == len(lines), "a package is in two lock files"
    table = project()["project"]
    wanted = [*table["dependencies"], *(one for extra in table["optional-dependencies"].values() for one in extra)]  # type: ignore[index]
    for text in wanted:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            version = locked.get(requirement.name.lower().replace("_", "-"))
            assert version is not None, f"{requirement.name} is in none of {LOCKS}: make lock"
            assert requirement.specifier.contains(version), (
                f"the lock files have {requirement.name} {version}, pyproject wants {requirement}"
            )


def test_the_lock_files_have_what_the_packages_need_in_their_turn() -> None:
    """They are installed with --no-deps: what is in none of them is not there."""
    from importlib.metadata import distribution

    from packaging.requirements import Requirement

    lines = [line for file in LOCKS for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    locked = {_plain(line.partition("==")[0]) for line in lines}
    table = project()["project"]
    extras = table["optional-dependencies"]  # type: ignore[index]
    pending = [("mqmesh", text, "") for text in (*table["dependencies"], *(one for extra in extras.values() for one in extra))]  # type: ignore[index]
    seen: set[tuple[str, str]] = set()
    while pending:
        who, text, extra = pending.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = _plain(requirement.name)
        assert name in locked, f"{who} needs {name}, which is in none of {LOCKS}: make lock"
        for wanted in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, wanted))
            pending += [(name, one, wanted) for one in distribution(name).requires or ()]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what belongs to the package, so that nothing is left behind here."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "__init__.py"):
        shutil.copy(ROOT / name, source)
    for package in packages_on_disk() - {"mqmesh"}:
        folder = package.split(".")[1]
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = out.glob("mqmesh-*.whl")
    return made


def test_the_wheel_holds_every_module_and_no_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {f"mqmesh/{path.relative_to(ROOT)}" for package in packages_on_disk() for path in _modules(package)}
    assert expected <= names
    assert not any("tests/" in name or "benchmarks/" in name for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def _modules(package: str) -> list[Path]:
    return list(ROOT.joinpath(*package.split(".")[1:]).glob("*.py"))


def test_a_wheel_installed_elsewhere_works(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own that borrows the dependencies, from a folder that is not this checkout."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    site = Path(subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True).strip())
    # Dependencies only: a plain path in a .pth file runs no .pth files there, so the editable install stays invisible.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", str(wheel)]
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        finished = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=PATIENCE)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    assert Path(run(python, "-c", "import mqmesh; print(mqmesh.__file__)").strip()).is_relative_to(site)
    assert run(environment / "bin" / "mqmesh", "--version").startswith("mqmesh ")
    broker = subprocess.Popen(
        [environment / "bin" / "mqmesh", "broker", "--listen", "mqtt://127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env=env,
    )
    try:
        address = broker.stdout.readline().split()[1]
        run(environment / "bin" / "mqmesh", "pub", "-h", address, "-t", "a", "-m", "from the wheel", "-r", "-q", "1")
        assert run(environment / "bin" / "mqmesh", "sub", "-h", address, "-t", "a", "-C", "1", "-W", "90") == "from the wheel\n"
    finally:
        broker.terminate()
        broker.communicate()
