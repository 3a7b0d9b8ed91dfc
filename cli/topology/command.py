"""`mqmesh topology check|draw|simulate|split FILE`: judge a topology before a broker of it runs, and make of it a folder a machine.

The figures come from `mesh.analysis`, the pictures from `cli.drawing`, the folders from `cli.site`; here are the commands and their tables.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...base.settings import ConfigError
from ...mesh.topology.analysis import Analysis, Failure, analyse
from ...mesh.topology.borders import describe, parts_of
from ...mesh.topology.rehearsal import reach, rehearse
from ...mesh.topology.topology import Topology, load
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_topic
from ..output import FAILED, WRONG_USE, command_group, fail, note
from ..tables import titled_table
from . import drawing

app = command_group(
    no_args_is_help=True,
    help="""Check, draw or simulate a topology file, or split it into a folder for each machine.

    \b
      mqmesh topology check topologies/ring-of-five.toml
      mqmesh topology draw topologies/bow-tie.toml -o bow-tie.svg
      mqmesh topology simulate topologies/grid-3x3.toml
      mqmesh topology simulate topologies/two-companies.toml --topic orders/1
      mqmesh topology split sites.toml --out sites
    """,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A topology file, such as topologies/ring-of-five.toml.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of tables.")]
LARGEST_PLAYED = 32  # brokers, up to which the mesh nodes play a topology through. It takes about a second
WAYS = {"flood": "flood", "marked": "flood, sibling marks", "routed": "routed"}


@app.command()
def check(file: File, as_json: AsJson = False) -> None:
    """Read a topology, report every mistake and weakness.

    The exit status is 2 for a mistake and 0 for a good file, whatever its weaknesses.
    """
    topology, analysis = _read(file, as_json)
    if as_json:
        _write_json({"file": str(file), "warnings": topology.warnings, **_summary(analysis), **_borders(topology)})
        return
    console = _console()
    console.print(_checked_table(topology, analysis))
    if any(link.rules for link in topology.links):
        console.print(_policies_table(topology))
    for line in topology.warnings:
        console.print(f"[yellow]warning[/yellow] {line}")
    for line in _weaknesses(analysis):
        console.print(f"[yellow]weak[/yellow] {line}")
    if not topology.warnings and not _weaknesses(analysis):
        console.print("[green]good[/green] no single link or broker cuts anything off")


@app.command()
def draw(
    file: File,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FILE.svg or FILE.png; beside the topology as .svg when left out.")
    ] = None,
    scale: Annotated[float, typer.Option(help="PNG: pixels for each unit of the picture.", min=0.1, max=20)] = 2.0,
) -> None:
    """Draw a topology; what a single failure would cut is amber.

    SVG needs nothing else; PNG needs matplotlib, of the extra `plot`.
    """
    topology, analysis = _read(file)
    path = output or file.with_suffix(".svg")
    what = drawing.picture(topology, analysis)
    kind = path.suffix.lower()
    if kind not in (".svg", ".png"):
        raise fail(f"--output = {path}: give a name that ends in .svg or .png", WRONG_USE)
    try:
        if kind == ".svg":
            path.write_text(drawing.svg(what), encoding="utf-8")
        else:
            drawing.png(what, path, scale)
    except drawing.NoMatplotlib as error:
        raise fail(f"--output = {path}: {error}", WRONG_USE) from None
    except OSError as error:
        raise fail(f"--output = {path}: cannot be written: {error.strerror or error}", FAILED) from None
    print(path)


@app.command()
def simulate(
    file: File,
    topic: Annotated[
        list[str], typer.Option("--topic", help="Say where a message of this topic may go, by the links' policies; again for more.")
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Count copies for each message, and say what each broken link or broker does.

    One message from each broker, wanted by every other one, is sent by three rules: flooding (to each neighbour whose visited
    bit is not set), flooding that also marks the siblings it sends to, and routing (down the origin's shortest-path tree). Up to
    32 brokers, the latter two are played through by the brokers' own code, on perfect links. Copies are counted without policies;
    with --topic, one message from each broker keeps to them.
    """
    topology, analysis = _read(file, as_json)
    _check_topics(topic)
    reached = {one: reach(topology, one) for one in topic}
    played = analysis.brokers <= LARGEST_PLAYED
    if played:
        analysis = _played(topology, analysis)
    if as_json:
        more = {"topics": reached} if topic else {}
        _write_json(
            {"file": str(file), "warnings": topology.warnings, **_summary(analysis), "played": played, **_figures(analysis), **more}
        )
        return
    console = _console()
    for one, origins in reached.items():
        console.print(_reach_table(topology, one, origins))
    console.print(_origins_table(analysis))
    console.print(_failures_table(analysis))
    for line in (*topology.warnings, *_weaknesses(analysis)):
        console.print(f"[yellow]weak[/yellow] {line}")


@app.command()
def split(
    file: File,
    out: Annotated[Path, typer.Option("--out", help="Folder in which each broker gets one of its own.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Write a folder for each broker, to be copied to its machine and started there.

    \b
      mqmesh topology split sites.toml --out sites
      scp -r sites/porto root@porto.example.com:

    A folder holds the broker's file, certificates, key pair, systemd unit and a README.md with the commands to run there. Files that the
    topology names by relative paths are copied. Certificates that are missing are made as mqmesh cert makes them. Called again, it writes
    all anew except keys and certificates.

    Status: 0 done; 1 files cannot be read or written; 2 the topology is wrong.
    """
    topology, _ = _read(file)
    from ..authority import AuthorityError
    from ..site.folder import FILE
    from ..site.split import split as split_into_folders
    from ..site.split import weaknesses

    there = [out / one.name for one in topology.brokers if (out / one.name / FILE).exists()]
    try:
        folders = split_into_folders(topology, out)
    except ConfigError as error:
        raise fail(f"topology split: {error}", WRONG_USE) from None
    except (AuthorityError, OSError, ValueError) as error:
        raise fail(f"topology split: {error}", FAILED) from None
    weak = weaknesses(topology)
    if as_json:
        brokers = {broker.name: str(folder) for broker, folder in zip(topology.brokers, folders, strict=True)}
        _write_json({"file": str(file), "folders": brokers, "weaknesses": weak})
        return
    for folder in folders:
        print(folder)
    for line in weak:
        note(f"weak: {line}")
    if there:
        note(f"written anew, except keys and certificates: {', '.join(map(str, there))}")
    note("copy each folder to its machine; its README.md says what to run there")


# what the commands show


def _read(file: Path, as_json: bool = False) -> tuple[Topology, Analysis]:
    from ...broker.config import of_topology

    try:
        topology = load(file)
        for broker in topology.brokers:
            of_topology(topology, broker.name, Path(topology.mesh.name))
    except ConfigError as error:
        if as_json:
            _write_json({"file": error.file, "error": {"key": error.key, "text": error.text, "line": str(error)}})
        raise fail(str(error), WRONG_USE) from None
    return topology, analyse(topology)


def _check_topics(topics: list[str]) -> None:
    for topic in topics:
        try:
            check_topic(topic.encode())
        except MqttError as error:
            raise fail(f"--topic = {topic}: {error}", WRONG_USE) from None
        if topic.startswith("$"):
            raise fail(f"--topic = {topic}: topics that begin with $ never leave a broker", WRONG_USE)


def _borders(topology: Topology) -> dict[str, Any]:
    """The parts into which policies divide a topology, and the policies. Empty without policies."""
    if not any(link.rules for link in topology.links):
        return {}
    rules = [
        {
            "link": [link.listener, link.dialler],
            "at": name,
            "policy": describe(one.policy),
            "rate_out": one.bytes_out,
            "messages_out": one.messages_out,
        }
        for link in topology.links
        for name, one in link.rules.items()
    ]
    return {"policy_parts": parts_of(topology), "policies": rules}


def _policies_table(topology: Topology) -> Table:
    parts = "; ".join(", ".join(part) for part in parts_of(topology))
    table = titled_table(f"policies; parts: {parts}", "at", "towards", "topics, as they are called there", "rate out")
    for link in topology.links:
        for name, rules in link.rules.items():
            (other,) = link.ends - {name}
            rates = [f"{rules.bytes_out} bytes/s"] * (rules.bytes_out is not None)
            rates += [f"{rules.messages_out} messages/s"] * (rules.messages_out is not None)
            table.add_row(name, other, escape("\n".join(describe(rules.policy))), ", ".join(rates) or "-")
    return table


def _reach_table(topology: Topology, topic: str, origins: dict[str, dict[str, str]]) -> Table:
    table = titled_table(escape(f"{topic}: where it arrives, and what it is called there"), "published at", "called", "at")
    for origin, names in origins.items():
        called: dict[str, list[str]] = {}
        for broker in topology.brokers:
            if broker.name in names:
                called.setdefault(names[broker.name], []).append(broker.name)
        for index, (name, brokers) in enumerate(called.items()):
            table.add_row("" if index else origin, escape(name), ", ".join(brokers))
        if not called:
            table.add_row(origin, "-", "nowhere else")
    return table


def _played(topology: Topology, analysis: Analysis) -> Analysis:
    """The analysis, with the frames that the nodes really sent."""
    frames = rehearse(topology)
    origins = (replace(one, marked=frames[one.name][0], routed=frames[one.name][1]) for one in analysis.origins)
    return replace(analysis, origins=tuple(origins))


def _console() -> Console:
    return Console(highlight=False, soft_wrap=False)


def _write_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def _summary(analysis: Analysis) -> dict[str, Any]:
    return {
        "mesh": analysis.name,
        "brokers": analysis.brokers,
        "links": analysis.links,
        "parts": analysis.parts,
        "diameter": analysis.diameter,
        "cut_brokers": list(analysis.cut_brokers),
        "cut_links": [list(ends) for ends in analysis.cut_links],
    }


def _figures(analysis: Analysis) -> dict[str, Any]:
    return {
        "copies_per_broker_reached": {way: analysis.copies(way) for way in WAYS},
        "origins": [asdict(origin) for origin in analysis.origins],
        "failures": [asdict(failure) for failure in analysis.failures],
    }


def _weaknesses(analysis: Analysis) -> list[str]:
    broken = {(failure.kind, failure.ends): failure for failure in analysis.failures}
    lines = [f"broker {name} is a cut vertex; without it are cut off: {_cut(broken['broker', (name,)])}" for name in analysis.cut_brokers]
    for failure in analysis.failures:
        if failure.kind == "link" and tuple(sorted(failure.ends)) in analysis.cut_links:
            lines.append(f"link {' - '.join(failure.ends)} is a bridge; without it are cut off: {_cut(failure)}")
    return lines


def _cut(failure: Failure) -> str:
    return "; ".join(", ".join(group) for group in failure.cut_off)


def _checked_table(topology: Topology, analysis: Analysis) -> Table:
    graph = topology.graph()
    title = f"{analysis.name}: {drawing.size_of(analysis)}"
    table = titled_table(title, "number", "broker", "listens at", "links to", right=("number",))
    for broker in sorted(topology.brokers, key=lambda broker: broker.number):
        near = sorted(graph[broker.name], key=lambda name: topology.broker(name).number)
        costs = (graph.edges[broker.name, name]["cost"] for name in near)
        links = ", ".join(name if cost == 1 else f"{name} (cost {cost})" for name, cost in zip(near, costs, strict=True))
        weak = broker.name in analysis.cut_brokers
        table.add_row(str(broker.number), f"[yellow]{broker.name}[/yellow]" if weak else broker.name, " ".join(broker.listen), links or "-")
    return table


def _origins_table(analysis: Analysis) -> Table:
    headings = ("from", "reaches", *WAYS.values(), "tree: hops", "cost")
    table = titled_table(f"{analysis.name}: copies of one message that all want", *headings, left=("from",), show_footer=True)
    copies = [f"{analysis.copies(way):.2f}" for way in WAYS]
    largest_cost = max(origin.cost for origin in analysis.origins)
    for column, footer in zip(table.columns, ("for each broker reached", "", *copies, analysis.diameter, largest_cost), strict=True):
        column.footer = str(footer)
    for one in analysis.origins:
        table.add_row(one.name, *map(str, (one.reached, one.flood, one.marked, one.routed, one.depth, one.cost)))
    return table


def _failures_table(analysis: Analysis) -> Table:
    headings = ("broken", "cut off", "tree: hops", "flood, sibling marks", "routed")
    table = titled_table("what each failure does", *headings, left=("broken", "cut off"))
    for failure in analysis.failures:
        cut_off = _cut(failure)
        deeper = failure.depth > analysis.diameter
        copies = "-" if failure.copies is None else f"{failure.copies:.2f}"
        hops = f"[yellow]{failure.depth}[/yellow]" if deeper else str(failure.depth)
        table.add_row(str(failure), f"[yellow]{cut_off}[/yellow]" if cut_off else "nobody", hops, copies, "1.00" if failure.depth else "-")
    return table
