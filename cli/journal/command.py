"""`mqmesh journal`: look through what brokers have written down."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...base.extras import install
from ...base.plural import counted
from ..output import FAILED, WRONG_USE, command_group, fail
from .export import export
from .left_out import LeftOut

if TYPE_CHECKING:
    from ...broker.journal.reading import Journal, Wrong

SHOWN = 50  # lines of what is wrong
LOOK = 0.5  # seconds between two looks of `follow`
SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

app = command_group(no_args_is_help=True)
app.command()(export)

Where = Annotated[str | None, typer.Argument(help="The journal: a folder or a URL.", show_default=False)]
Config = Annotated[Path | None, typer.Option("--config", help="The broker's file, instead of the journal.", show_default=False)]
Brokers = Annotated[list[int] | None, typer.Option("--broker", help="Only of this broker, by number; may be repeated.", show_default=False)]
Since = Annotated[str | None, typer.Option("--since", help="From then on: 10m, 2h, 3d, or 2026-11-22T12:00.", show_default=False)]
Until = Annotated[str | None, typer.Option("--until", help="Before then, in the same forms.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object in each line.")]
Kinds = Annotated[list[str] | None, typer.Option("--kind", help="Only events of this kind; may be repeated.", show_default=False)]
Topic = Annotated[str | None, typer.Option("--topic", help="Only of topics that match this filter.", show_default=False)]
Client = Annotated[str | None, typer.Option("--client", help="Only of this client.", show_default=False)]
Message = Annotated[str | None, typer.Option("--message", help="Only of this message: origin.epoch.stream.sequence.", show_default=False)]
Expand = Annotated[bool, typer.Option("--expand", help="One line for each message of a run.")]


@app.callback()
def _group() -> None:
    """Look through what brokers have written down of messages, sessions and links.

    \b
      mqmesh journal ls data/journal
      mqmesh journal cat data/journal --since 10m --topic 'shop/#'
    """


@app.command("ls")
def list_(where: Where = None, config: Config = None, broker: Brokers = None, as_json: Json = False) -> None:
    """List the closed segments: whose, how many events, from when to when, how large.

    \b
      mqmesh journal ls data/journal
      mqmesh journal ls --config porto.toml --json
    """
    journal = _journal("ls", where, config, broker)
    try:
        manifest = journal.manifest()
        unfinished = journal.open_segments()
    except OSError as error:
        raise fail(f"journal ls: {journal.place.root}: {error}") from None
    if as_json:
        for one in manifest.segments:
            print(one.dumped().decode())
        return
    from rich.console import Console

    from ..tables import titled_table

    columns = ("broker", "epoch", "events", "rows", "from", "to", "KiB")
    table = titled_table(f"journal {journal.place.root}", *columns, left=("from", "to"))
    for one in manifest.segments:
        numbers = f"{one.first:,} - {one.last:,}"
        times = _moment(one.min_time), _moment(one.max_time)
        table.add_row(str(one.broker), str(one.epoch), numbers, f"{one.events:,}", *times, f"{one.bytes / 1024:,.1f}")
    Console().print(table)
    events, size = sum(one.events for one in manifest.segments), sum(one.bytes for one in manifest.segments)
    print(f"{counted(len(manifest.segments), 'segment')}, {counted(events, 'row')}, {size / 2**20:,.1f} MiB", end="")
    print(f"; {len(unfinished)} open", end="")
    print(f"; {len(manifest.repeated)} repeated, {len(manifest.replaced)} replaced, {len(manifest.rejected)} unreadable")


@app.command()
def cat(
    where: Where = None,
    config: Config = None,
    broker: Brokers = None,
    since: Since = None,
    until: Until = None,
    kind: Kinds = None,
    topic: Topic = None,
    client: Client = None,
    message: Message = None,
    expand: Expand = False,
    as_json: Json = False,
) -> None:
    """Print events, those that are still being written included.

    \b
      mqmesh journal cat data/journal --since 10m --topic 'shop/#'
      mqmesh journal cat data/journal --message 7.1763850000000.1.42 --json

    Status: 0 all is printed; 1 some file is damaged, and the rest is printed; 2 the command line or a file is wrong.
    """
    journal = _journal("cat", where, config, broker)
    wanted = _Wanted("cat", kind, topic, client, message, expand)
    low, high = _time("cat", "--since", since), _time("cat", "--until", until)
    wrong: Wrong = []
    try:
        names = {0: "", **journal.names(wrong)}
        for table in journal.tables(low, high, wrong=wrong):
            _print(wanted.rows(table), names, as_json)
    except OSError as error:
        raise fail(f"journal cat: {error}") from None
    left_out = LeftOut("journal cat")
    left_out.name(wrong)
    if left_out.named:
        raise typer.Exit(FAILED)


@app.command()
def follow(
    where: Where = None,
    config: Config = None,
    broker: Brokers = None,
    kind: Kinds = None,
    topic: Topic = None,
    client: Client = None,
    expand: Expand = False,
    as_json: Json = False,
    seconds: Annotated[float | None, typer.Option("--for", help="End after so many seconds.", show_default=False)] = None,
) -> None:
    """Print events as they are written, until Ctrl-C. Those of a broker appear with its next batch, a quarter of a second later.

    \b
      mqmesh journal follow data/journal --topic 'shop/#'
    """
    journal = _journal("follow", where, config, broker)
    wanted = _Wanted("follow", kind, topic, client, None, expand)
    ends = None if seconds is None else time.monotonic() + seconds
    from ...broker.journal.following import Follower

    follower = Follower(journal)
    wrong, left_out = follower.wrong, LeftOut("journal follow")
    try:
        follower.skip()
        names = {0: "", **journal.names(wrong)}
        while ends is None or time.monotonic() < ends:
            for table, _ in follower.read():
                names |= journal.names(wrong)
                _print(wanted.rows(table), names, as_json)
            left_out.name(wrong)
            sys.stdout.flush()
            time.sleep(LOOK)
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise fail(f"journal follow: {error}") from None


@app.command()
def check(
    where: Where = None,
    config: Config = None,
    broker: Brokers = None,
    ends: Annotated[bool, typer.Option("--ends", help="Look too whether each message has its end; all must fit into memory.")] = False,
    as_json: Json = False,
) -> None:
    """Read every segment and compare it with its manifest; nothing is changed, and brokers may be running.

    \b
      mqmesh journal check data/journal
      mqmesh journal check data/journal --ends

    Status: 0 all is whole; 1 something is damaged or missing; 2 the command line or a file is wrong.
    """
    journal = _journal("check", where, config, broker)
    try:
        problems, gaps, segments = _looked_through(journal)
        untold = _untold(journal) if ends else []
    except OSError as error:
        raise fail(f"journal check: {journal.place.root}: {error}") from None
    if as_json:
        print(json.dumps({"segments": segments, "problems": problems, "gaps": gaps, "without_end": untold}))
    else:
        for name, text in [*problems, *untold][:SHOWN]:
            print(f"{name}: {text}")
        if len(problems) + len(untold) > SHOWN:
            print(f"{len(problems) + len(untold) - SHOWN:,} more")
        for text in gaps[:SHOWN]:
            print(f"gap: {text}")
        end = f", {counted(len(untold), 'message')} without an end" if ends else ""
        print(f"{counted(segments, 'segment')}, {len(problems):,} damaged, {counted(len(gaps), 'gap')}{end}")
    if problems or untold:
        raise typer.Exit(FAILED)


def _looked_through(journal: Journal) -> tuple[list[tuple[str, str]], list[str], int]:
    """What is wrong, which gaps there are, and how many segments were read; with a bar where that takes long."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("reading segments", total=None)
        problems = journal.check(lambda done, total: progress.update(task, completed=done, total=total))
    damaged = {name for name, _ in problems}
    gaps = []
    for segment in journal.segments():
        if segment.path not in damaged:
            gaps += _gaps(journal.table(segment))
    return problems, gaps, len(journal.segments())


def _gaps(table: Any) -> list[str]:
    from ...broker.journal.kinds import Kind

    found = [row for row in table.select(["kind", "broker", "time", "value", "detail"]).to_pylist() if row["kind"] == Kind.GAP]
    missing = [row["value"] if row["value"] >= 0 else "some" for row in found]
    where = [f"broker {row['broker']} at {_moment(row['time'])}" for row in found]
    return [f"{at}: {count} events are missing: {row['detail']}" for at, count, row in zip(where, missing, found, strict=True)]


def _untold(journal: Journal) -> list[tuple[str, str]]:
    """Messages that have no end yet, and why."""
    from ...broker.journal.ends import stories

    return [(str(story.id), story.missing) for story in stories(journal.tables(wrong=[])).values() if story.missing]


class _Wanted:
    """Which events are printed. Raises typer.Exit for what cannot be understood."""

    def __init__(
        self, command: str, kinds: list[str] | None, topic: str | None, client: str | None, message: str | None, expand: bool
    ) -> None:
        from ...broker.journal.kinds import Kind, MessageId, name_id
        from ...mqtt.errors import MqttError
        from ...mqtt.topics import check_filter

        known = {one.name.lower(): int(one) for one in Kind}
        for name in kinds or ():
            if name.lower().replace("-", "_") not in known:
                raise fail(f"journal {command}: --kind {name}: give one of {', '.join(known)}", WRONG_USE)
        self._kinds = {known[name.lower().replace("-", "_")] for name in kinds or ()}
        self._topic = topic
        self._client = None if client is None else name_id(client)
        self._expand = expand or message is not None
        try:
            self._message = None if message is None else MessageId.parse(message)
            if topic is not None:
                check_filter(topic)
        except (ValueError, MqttError) as error:
            raise fail(f"journal {command}: {error}", WRONG_USE) from None

    def rows(self, table: Any) -> Any:
        """Those of a table, and the filter of topics, which needs names."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from ...broker.journal.schema import expand

        if self._kinds:
            table = table.filter(pc.is_in(table.column("kind"), pa.array(sorted(self._kinds), pa.int16())))
        if self._client is not None:
            table = table.filter(pc.equal(table.column("client"), self._client))
        if self._message is not None:
            origin, epoch, stream, sequence = self._message
            for name, value in (("origin", origin), ("origin_epoch", epoch), ("stream", stream)):
                table = table.filter(pc.equal(table.column(name), value))
            table = table.filter(pc.less_equal(table.column("sequence"), sequence))
        if self._expand:
            table = expand(table)
        if self._message is not None:
            table = table.filter(pc.equal(table.column("sequence"), self._message.sequence))
        return table.to_pylist(), self._topic


def _print(found: tuple[list[dict[str, Any]], str | None], names: dict[int, str], as_json: bool) -> None:
    """Events with names instead of ids; what is empty is left out."""
    from ...broker.journal.kinds import Kind, MessageId
    from ...mqtt.topics import matches

    rows, topic_filter = found
    for row in rows:
        for column in ("topic", "client", "account", "recipient", "reason"):
            row[column] = names.get(row[column], f"#{row[column]}")
        if topic_filter is not None and not (row["topic"] and matches(topic_filter, row["topic"])):
            continue
        kind = row["kind"]
        row["kind"] = Kind(kind).name.lower() if kind in iter(Kind) else str(kind)
        if row["origin"] >= 0:
            row["message"] = str(MessageId(row["origin"], row["origin_epoch"], row["stream"], row["sequence"]))
        if as_json:
            print(json.dumps(row))
        else:
            print(_line(row))


def _line(row: dict[str, Any]) -> str:
    parts = [_moment(row["time"]), f"broker={row['broker']}", row["kind"], row.get("message", "")]
    if row["count"] > 1:
        parts.append(f"x{row['count']}")
    for name in ("topic", "client", "account", "recipient", "reason"):
        if row[name]:
            parts.append(f"{name}={row[name]}")
    for name in ("from_broker", "to_broker"):
        if row[name] >= 0:
            parts.append(f"{name.partition('_')[0]}={row[name]}")
    if row["origin"] >= 0:
        parts += [f"qos={row['qos']}", f"bytes={row['bytes']}"]
    parts += [f"{name}={row[name]}" for name in ("value", "trace", "detail") if row[name]]
    return " ".join(part for part in parts if part)


def _moment(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time(command: str, option: str, text: str | None) -> int | None:
    """Microseconds since 1970 of `10m` (ago) or an ISO time (UTC unless it says otherwise)."""
    if text is None:
        return None
    try:
        if text[-1:] in SPANS and text[:-1].replace(".", "", 1).isdigit():
            moment = datetime.now(UTC) - timedelta(seconds=float(text[:-1]) * SPANS[text[-1]])
        else:
            moment = datetime.fromisoformat(text)
    except ValueError:
        raise fail(f"journal {command}: {option} {text}: give 10m, 2h, 3d, or a time as 2026-11-22T12:00", WRONG_USE) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)


def _journal(command: str, where: str | None, config: Path | None, brokers: list[int] | None) -> Journal:
    from ...base.settings import ConfigError
    from ...broker.config import load

    if (where is None) == (config is None):
        raise fail(f"journal {command}: give either the journal or --config", WRONG_USE)
    options: dict[str, Any] = {}
    try:
        if config is not None:
            settings = load(config).journal
            if settings is None:
                raise fail(f"journal {command}: {config}: this broker writes no journal: it has no [journal]", WRONG_USE)
            where, options = settings.root, dict(settings.options)
        assert where is not None
        import pyarrow  # noqa: F401

        from ...broker.journal.place import Place
        from ...broker.journal.reading import Journal

        place = Place(where, options)
        if not place.remote and not Path(place.root).is_dir():
            raise fail(f"journal {command}: {where}: there is no such folder", WRONG_USE)
        return Journal(place, brokers)
    except ImportError as error:
        raise fail(f"journal {command}: needs more packages: {install('journal')} ({error})", WRONG_USE) from None
    except (ConfigError, ValueError) as error:
        raise fail(f"journal {command}: {error}", WRONG_USE) from None
