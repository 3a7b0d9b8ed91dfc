"""What the documents mention exists: files, folders, modules, classes, methods, limits, anchors; and the tour in CONTRIBUTING leads there.

A failure names the page, the line and the mention, and what has a similar name. Mend the page, not this test.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path

import pytest
from mqmesh.broker.config import Limits

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CONTRIBUTING, ARCHITECTURE = ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"
LONG = 250  # lines of a page that needs a table of contents
TOUR = "A tour"  # its heading in CONTRIBUTING.md
NAMING = [CONTRIBUTING, ARCHITECTURE, ROOT / "docs" / "embedding.md"]  # every name in these is of our code
LAYERS = ("base", "mqtt", "store", "mesh", "client", "broker", "directory", "metabroker", "interchange", "pipeline", "cli")
OTHERS = ("tests", "docs", "examples", "benchmarks", "packaging", "topologies")
FILE = re.compile(r"[\w.\-/]+\.(?:py|md|toml|svg|sh|html|json|service|lock)|[\w.\-/]*/")


@dataclass
class Definitions:
    """The names that a file defines: `name`, `Class` and `Class.member`."""

    names: set[str] = field(default_factory=set)
    bases: dict[str, list[str]] = field(default_factory=dict)


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    """The page without blocks of code, and without what is about other projects; lines keep their numbers."""
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.DOTALL)
    if page.name == "conformance.md":
        before, _, rest = text.partition("\n## Other suites\n")
        others, _, after = rest.partition("\n## ")
        text = before + "\n" * (others.count("\n") + 2) + after
    return text


def mentions(page: Path) -> Iterator[tuple[int, str]]:
    """Line and text of everything in backticks."""
    for number, line in enumerate(text_of(page).splitlines(), 1):
        for found in re.findall(r"`([^`]+)`", line):
            yield number, found


@cache
def sources() -> dict[str, str]:
    """The text of each file of the package, by its path."""
    files = [ROOT / "__init__.py", *(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}


@cache
def definitions() -> dict[str, Definitions]:
    """What each file of the package defines, by its path."""
    return {path: defined(ast.parse(text)) for path, text in sources().items()}


def defined(tree: ast.Module) -> Definitions:
    found = Definitions()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.names.add(node.name)
            found.names.update(f"{node.name}.{member}" for member in members(node))
            found.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.names.add(node.name)
        else:
            found.names.update(targets(node))
    return found


def members(node: ast.ClassDef) -> Iterator[str]:
    """Methods, class attributes, fields, and what methods assign to `self`."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            yield inner.attr
    for statement in node.body:
        yield from targets(statement)


def targets(node: ast.stmt) -> Iterator[str]:
    assigned = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in assigned:
        if isinstance(target, ast.Name):
            yield target.id


@cache
def everywhere() -> dict[str, list[str]]:
    """The files that define a name."""
    files: dict[str, list[str]] = defaultdict(list)
    for path, found in definitions().items():
        for name in found.names:
            files[name].append(path)
    return files


@cache
def all_members() -> set[str]:
    return {name.partition(".")[2] for name in everywhere()}


def is_defined(name: str) -> bool:
    """Whether some file defines the name; a member may be inherited, or stand without its class."""
    if name in everywhere() or name in all_members() or hasattr(builtins, name):
        return True
    owner, _, member = name.rpartition(".")
    bases = [base for found in definitions().values() for base in found.bases.get(owner, [])]
    return any(is_defined(f"{base}.{member}") for base in bases)


def similar(name: str, among: list[str]) -> str:
    """Advice: what has the same last part, else what looks alike."""
    cut = "/" if "/" in name else "."
    last = name.rstrip(cut).split(cut)[-1]
    close = [one for one in among if one.rstrip(cut).split(cut)[-1] == last] or difflib.get_close_matches(name, among, 3, 0.75)
    return f" Is it {' or '.join(f'`{one}`' for one in sorted(close)[:4])} now?" if close else " Nothing has a similar name."


def check(page: Path, wrong: list[tuple[int, str]]) -> None:
    lines = [f"{page_id(page)}:{number}: {text}" for number, text in wrong]
    assert not wrong, "\n" + "\n".join(lines) + "\nMend the page: name what is there now, or leave the mention out."


@cache
def paths() -> list[str]:
    """Files of the repository, and folders with a slash behind them."""
    found = []
    for top in (*LAYERS, *OTHERS):
        for path in (ROOT / top).rglob("*"):
            if "node_modules" not in path.parts and "__pycache__" not in path.parts:
                found.append(path.relative_to(ROOT).as_posix() + "/" * path.is_dir())
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_and_folders_exist(page: Path) -> None:
    """`broker/server.py`, `mesh/wire/`, `tests/faults`. A topic such as `metabroker/request/connect` has no ending and is none."""
    wrong = []
    for number, text in mentions(page):
        top = text.partition("/")[0]
        ours = FILE.fullmatch(text) if top in LAYERS else top in OTHERS and re.fullmatch(r"[\w.\-/]+", text)
        bare = re.fullmatch(r"\w+\.py", text)
        if ours and "..." not in text and not (ROOT / text).exists():
            wrong.append((number, f"`{text}` is no file or folder.{similar(text, paths())}"))
        elif bare and not any(path.endswith(f"/{text}") for path in paths()):
            wrong.append((number, f"no file is called `{text}`.{similar(text, [path.split('/')[-1] for path in paths()])}"))
    check(page, wrong)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_modules_exist(page: Path) -> None:
    """`mqmesh.directory.client`, `python -m benchmarks.stores`: a module, or a name that one of the package defines."""
    wrong = []
    for number, text in mentions(page):
        for name in re.findall(r"(?:^|python -m )((?:mqmesh|benchmarks|tests)(?:\.\w+)*)(?=$| )", text):
            place = ROOT.joinpath(*name.removeprefix("mqmesh").strip(".").split("."))
            of_package = name.startswith("mqmesh.") and place.name in everywhere()
            if not (place.is_dir() or place.with_suffix(".py").exists() or of_package):
                wrong.append((number, f"`{name}` is no module.{similar(name.replace('.', '/') + '.py', paths())}"))
    check(page, wrong)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_classes_and_their_members_exist(page: Path) -> None:
    """`Class.member` and `CamelCase` are of the package; in the pages about the code a `Word` and a `call()`, too."""
    words = "\n".join(sources().values())
    wrong = []
    for number, text in mentions(page):
        name = re.sub(r"\(.*\)$", "", text)
        strict = page in NAMING and (re.fullmatch(r"[A-Z][a-z]\w+", name) or re.fullmatch(r"[a-z_]+\(.*\)", text))
        if re.fullmatch(r"[A-Z]\w+\.[a-z_]+|AckMode\.[A-Z_]+", name) or strict:
            if not is_defined(name):
                wrong.append((number, f"no code defines `{name}`.{similar(name, list(everywhere()))}"))
        elif name.endswith("Exception"):
            continue  # a name of Java, beside ours
        elif re.fullmatch(r"[A-Z]+[a-z]+[A-Z]\w+", name) and not re.search(rf"\b{name}\b", words):
            wrong.append((number, f"`{name}` does not occur in the code.{similar(name, list(everywhere()))}"))
    check(page, wrong)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_limits_exist(page: Path) -> None:
    known = {one.name for one in fields(Limits)}
    wrong = [
        (number, f"`limits.{key}` is no key of [limits].{similar(key, sorted(known))}")
        for number, text in mentions(page)
        for key in re.findall(r"^limits\.([a-z_]+)$", text)
        if key not in known
    ]
    check(page, wrong)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_of_commands_exist(page: Path) -> None:
    """`--durability` in a line that shows `mqmesh broker`."""
    known = set(re.findall(r"--[a-z][a-z0-9-]*", "".join(text for path, text in sources().items() if path.startswith("cli/"))))
    wrong = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for command in re.findall(r"\bmqmesh [a-z]+ [^`|#]*", line):
            options = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", command)
            wrong += [(number, f"no command has {option}.{similar(option, sorted(known))}") for option in options if option not in known]
    check(page, wrong)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_long_pages_have_a_table_of_contents(page: Path) -> None:
    """Above its first section: `On this page: [Heading](#heading), ...`."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.DOTALL | re.MULTILINE)
    begin, *sections = text.split("\n## ")
    if text.count("\n") > LONG:
        named = set(re.findall(r"\]\(#([^)]+)\)", begin))
        wanted = {re.sub(r"[^\w\- ]", "", one.partition("\n")[0].lower()).replace(" ", "-") for one in sections}
        assert wanted <= named, f"{page_id(page)} lacks in the line `On this page:` {sorted(wanted - named)}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_headings(page: Path) -> None:
    wrong = []
    for number, line in enumerate(text_of(page).splitlines(), 1):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", line):
            there = (page.parent / target).resolve() if target else page
            if there.suffix == ".md" and anchor not in anchors(there):
                wrong.append((number, f"{page_id(there)} has no heading for #{anchor}.{similar(anchor, sorted(anchors(there)))}"))
    check(page, wrong)


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=page_id)
def test_files_in_pictures_exist(picture: Path) -> None:
    for name in re.findall(r">([\w./]+(?:\.py|/))<", picture.read_text()):
        assert (ROOT / name).exists(), f"{page_id(picture)}: {name} is no file or folder.{similar(name, paths())} Mend the picture."


def table(page: Path, heading: str) -> list[list[str]]:
    """The cells of the rows of the first table below a heading."""
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_tour_leads_to_code() -> None:
    """Each question names a room that architecture.md lists, a file in it, and what to read there, which that file defines."""
    listed = set(re.findall(r"`(\w+(?:/\w+)*/)`", ARCHITECTURE.read_text()))
    wrong = []
    for question, room, way in table(CONTRIBUTING, TOUR):
        folder, (path, *names) = room.strip("`"), re.findall(r"`([^`]+)`", way)
        code = definitions().get(path)
        if folder not in listed:
            wrong.append(f"{question}: docs/architecture.md lists no room `{folder}`.{similar(folder, sorted(listed))}")
        elif code is None or not path.startswith(folder):
            wrong.append(f"{question}: `{path}` is no file of `{folder}`.{similar(path, list(sources()))}")
        for name in names if code else ():
            if name not in code.names:
                elsewhere = [f"{file} ({name})" for file in everywhere().get(name, [])] or sorted(code.names)
                wrong.append(f"{question}: `{path}` does not define `{name}`.{similar(name, elsewhere) if elsewhere else ''}")
    assert len(table(CONTRIBUTING, TOUR)) >= 20
    assert not wrong, "\n" + "\n".join(wrong) + f"\nMend the table of '{TOUR}' in CONTRIBUTING.md."


def test_architecture_lists_every_room() -> None:
    text = ARCHITECTURE.read_text()
    rooms = [path.parent.relative_to(ROOT).as_posix() + "/" for layer in LAYERS for path in (ROOT / layer).glob("*/__init__.py")]
    missing = [room for room in sorted(rooms) if f"`{room}`" not in text]
    assert not missing, f"docs/architecture.md: no row for {', '.join(missing)}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, f"list docs/{page.name} in docs/README.md"
