"""`mqmesh attach`: a broker of a mesh that brings in an existing broker, unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from .broker import BrokerOptions, serve
from .logs import LEVELS
from .option_groups import with_option_groups

ANY_PORT = "mqtt://127.0.0.1:0"
DEFAULT_NAME = "attached"


@dataclass(slots=True)
class CrossingOptions:
    """What crosses, and as whom: keys of `[[attach]]`."""

    attach_name: Annotated[str, typer.Option("--as", metavar="NAME", help="What the attached broker is called in $SYS and in the log.")] = (
        DEFAULT_NAME
    )
    into: Annotated[
        list[str],
        typer.Option("--in", metavar="FILTER", help="Topics that come in; all without this option; again for more.", show_default=False),
    ] = field(default_factory=list)
    into_wanted: Annotated[
        list[str],
        typer.Option(
            "--in-wanted", metavar="FILTER", help="Topics that come in only while the mesh subscribes to them.", show_default=False
        ),
    ] = field(default_factory=list)
    out: Annotated[
        list[str],
        typer.Option("--out", metavar="FILTER", help="Topics that go there; all without this option; again for more.", show_default=False),
    ] = field(default_factory=list)
    qos: Annotated[
        int | None, typer.Option("--qos", metavar="0|1|2", help="The highest QoS, in both directions; 2 without this option.")
    ] = None
    version: Annotated[str | None, typer.Option("-V", "--protocol", metavar="5|3.1.1", help="The MQTT version there.")] = None
    user: Annotated[str | None, typer.Option("-u", "--user", help="User name there.")] = None
    password_file: Annotated[Path | None, typer.Option("--password-file", help="File whose first line is the password there.")] = None
    cafile: Annotated[Path | None, typer.Option("--cafile", help="PEM file of trusted authorities (mqtts://).")] = None

    def table(self, url: str) -> dict[str, Any]:
        """The table `[[attach]]`."""
        values = {
            "name": self.attach_name,
            "address": url,
            "in": self.into or None,
            "in_wanted": self.into_wanted or None,
            "out": self.out or None,
            "qos": self.qos,
            "version": self.version,
            "user": self.user,
            "password_file": str(self.password_file.absolute()) if self.password_file is not None else None,
            "ca": str(self.cafile.absolute()) if self.cafile is not None else None,
        }
        return {key: value for key, value in values.items() if value is not None}


@with_option_groups
def attach(
    url: Annotated[str, typer.Argument(metavar="URL", help="The existing broker: mqtt[s]://[user:password@]host:port.")],
    *,
    crossing: CrossingOptions,
    options: BrokerOptions,
    config: Annotated[Path | None, typer.Option("-c", "--config", help="A TOML file of the broker in front; options override it.")] = None,
    log_level: Annotated[str, typer.Option("--log-level", metavar="|".join(LEVELS), help="What goes to stderr.")] = "info",
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True, help="End when stdin is closed.")] = False,
) -> None:
    """Bring an existing broker (Mosquitto, EMQX, ...) into a mesh, without a change to it.

    It runs one broker of the mesh, which prints one line that starts with 'ready' once it listens, and stands in front of the other one.
    Without --listen and --config it listens at any free port of this machine. See docs/attach.md.

    \b
      mqmesh attach mqtt://127.0.0.1:1883 --name gate --number 9 --mesh sites --peer mqtt://10.0.0.1:1883 --data data/gate

    Ends with SIGTERM or Ctrl-C. Status: 0 stopped; 2 it could not start, one line on stderr says why.
    """
    if not options.listen and config is None:
        options.listen = [ANY_PORT]
    serve("attach", options, config, log_level, {"attach": [crossing.table(url)]}, stop_with_stdin=stop_with_stdin)
