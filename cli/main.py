"""The command `mqmesh`: a table of commands. The module of a command is imported when the command is called.

`python -m mqmesh.cli.main` does the same.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..base.extras import missing
from ..base.process.collector import spare_start_and_end
from ..base.process.descriptors import open_standard_files
from .output import FAILED, HELP, WRONG_USE, Command, Group, command_group, note

# command -> (module in this package, function or group in it, first line of its help)
COMMANDS = {
    "broker": ("broker", "broker", "Run one broker; it prints one line that starts with 'ready' once it listens."),
    "init": (
        "site.init",
        "init",
        "Write a folder for one broker: its file, users, certificates, systemd unit, and the commands that install it.",
    ),
    "attach": ("attach", "attach", "Bring an existing broker (Mosquitto, EMQX, ...) into a mesh, without a change to it."),
    "up": (
        "fleet.command",
        "up",
        "Run every broker of a topology; one line starts with 'ready' once all links are up and interest has settled.",
    ),
    "demo": ("demo.command", "demo", "Run the main job on this machine and count every message."),
    "topology": (
        "topology.command",
        "app",
        "Check, draw or simulate a topology file, or split it into a folder for each machine.",
    ),
    "migrate": ("migrate.command", "migrate", "Turn a mosquitto.conf into a broker's file, and those of bridged hosts into a topology."),
    "cert": ("cert", "cert", "Make an authority and certificates, for tests, first steps, and meshes without another authority."),
    "passwd": ("passwd", "passwd", "Give a user a password, or remove the user."),
    "status": (
        "status.command",
        "status",
        "Show how a running broker and its mesh are: who can be reached, over which links, and what waits.",
    ),
    "store": ("store.command", "app", "Look through a broker's store, or save the intact rows of a damaged one."),
    "journal": ("journal.command", "app", "Look through what brokers have written down of messages, sessions and links."),
    "mesh": ("mesh.command", "app", "Change a mesh while it runs."),
    "trace": ("trace.command", "trace", "Show where a message went: each step at each broker, with times, and whether it is complete."),
    "sessions": ("sessions", "sessions", "Show the sessions that a broker keeps for clients, or end some."),
    "clients": ("management.command", "clients", "Show the clients that are connected, at any site."),
    "subscriptions": ("management.command", "subscriptions", "Show subscriptions, at any site."),
    "groups": ("management.command", "groups", "Show shared subscriptions and their members, at any site."),
    "retained": ("management.command", "retained", "Show retained messages, at any site."),
    "routes": ("management.command", "routes", "Show who gets the messages of a topic, who does not, and why."),
    "links": ("management.command", "links", "Show links with what passed each way, at any site."),
    "brokers": ("management.command", "brokers", "Show the brokers of the mesh, as a site sees them."),
    "custody": ("management.command", "custody", "Show what sites hold for others, by destination."),
    "configuration": ("management.command", "configuration", "Show what a broker goes by, key by key, without secrets."),
    "manage": ("management.command", "app", "Look at sites and change them, from any one of them: actions, other lists, roles."),
    "recipients": (
        "recipients.command",
        "recipients",
        "Show the recipients that brokers watch, and hold, give up or move one.",
    ),
    "queue": (
        "queue.command",
        "queue",
        "Show queues, what is in them and what became of a message; redrive, purge, pause, declare, delete; here or at other sites.",
    ),
    "identity": ("mesh.identity", "identity", "Decide which of two brokers with one data folder holds its identity."),
    "acl": ("acl", "acl", "Look at a broker's rules of access."),
    "directory": ("directory.command", "app", "A directory of brokers, services and applications: serve one, register there, find."),
    "metabroker": ("metabroker", "app", "Let the clients of one broker reach other brokers through it."),
    "interchange": (
        "interchange.command",
        "app",
        "Services that send each other requests: post, take what comes, and see what rules make of a message.",
    ),
    "pipeline": ("pipeline.command", "app", "Make tables from journals with Spark: messages, calls, latency, traffic, faults, usage."),
    "billing": ("billing.command", "app", "Check tariffs, list invoices, note payments, and say who has paid."),
    "audit": ("billing.audit", "app", "Check the audit trail, and read it."),
    "pub": ("messages.pub", "pub", "Publish messages to an MQTT broker."),
    "sub": ("messages.sub", "sub", "Subscribe at an MQTT broker and print the messages, until Ctrl-C or SIGTERM."),
}


class Commands(Group):
    """The commands of the table above, for typer."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True  # the first lines of the table are enough, so no module is imported
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, attribute, summary = COMMANDS[cmd_name]
        if self._listing:
            return TyperCommand(cmd_name, help=summary)
        target = getattr(import_module(f".{module}", __package__), attribute)
        if not isinstance(target, typer.Typer):
            single = command_group()
            single.command(cmd_name, cls=Command)(target)
            target = single
        command = typer.main.get_command(target)
        command.name = cmd_name
        return command


app = typer.Typer(cls=Commands, context_settings=HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        print(f"mqmesh {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")] = False,
) -> None:
    """A mesh of MQTT site brokers with redundant links: each subscriber gets each message once.

    \b
    See it work: five sites, a cut link, a killed broker
      mqmesh demo --for 30
    Every broker of a topology, or one broker
      mqmesh up topologies/ring-of-five.toml
      mqmesh broker -p 1883
    How they are
      mqmesh status -h mqtt://127.0.0.1:18301 --picture
    A client of any MQTT broker
      mqmesh sub -t '#' -v
      mqmesh pub -t plant/3/state -m running
    """


def program() -> None:
    """The process of a command."""
    open_standard_files()
    spare_start_and_end()
    try:
        app()
    except ModuleNotFoundError as error:
        if (text := missing(error)) is None:
            raise
        note(text)
        sys.exit(WRONG_USE)
    except OSError as error:  # of a file or of the network: no command fails to say so in one line
        note(f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror or str(error))
        sys.exit(FAILED)


if __name__ == "__main__":
    program()
