"""`mqmesh audit`: check the audit trail, and read it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ...pipeline.audit.chain import Broken, Head
from ...pipeline.audit.trail import Trail
from ...pipeline.errors import PipelineError
from ...pipeline.run import place_of
from ..output import FAILED, WRONG_USE, command_group, fail

app = command_group(
    no_args_is_help=True,
    help="""Check the audit trail, and read it. The job `audit` of mqmesh pipeline run writes it.

    \b
      mqmesh audit verify --out data/tables
      mqmesh audit verify --out data/tables --head 1204:9f2c...
      mqmesh audit show --out data/tables --what managed --account ops
    """,
)

Out = Annotated[str, typer.Option("--out", metavar="URL", help="The folder or URL of the pipeline's output.", show_default=False)]


@app.command()
def verify(
    out: Out,
    head: Annotated[
        str | None, typer.Option("--head", metavar="NUMBER:HASH", help="A head that was noted earlier.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
) -> None:
    """Check every record and its hash. Prints the head: note it somewhere else.

    Status: 0 nothing was changed; 1 something was, which is named; 2 wrong use.
    """
    try:
        noted = Head.parse(head) if head is not None else None
        found = Trail(place_of(out)).verify(noted)
    except Broken as error:
        if as_json:
            print(json.dumps({"whole": False, "error": str(error)}))
        raise fail(f"audit: {error}", FAILED) from None
    except (PipelineError, ValueError) as error:
        raise fail(str(error), WRONG_USE) from None
    except OSError as error:
        raise fail(f"{error.filename or out}: {error.strerror or error}", FAILED) from None
    print(json.dumps({"whole": True, "records": found.number, "head": str(found)}) if as_json else found)


@app.command()
def show(
    out: Out,
    what: Annotated[str | None, typer.Option(help="Only this, such as managed or refused.", show_default=False)] = None,
    account: Annotated[str | None, typer.Option(help="Only of this account.", show_default=False)] = None,
    client: Annotated[str | None, typer.Option(help="Only of this client.", show_default=False)] = None,
) -> None:
    """Print the records as JSON lines, in the order of the trail."""
    wanted = {key: value for key, value in (("what", what), ("account", account), ("client", client)) if value is not None}
    try:
        for line in Trail(place_of(out)).lines():
            record = json.loads(line)
            if all(record.get(key) == value for key, value in wanted.items()):
                print(line)
    except PipelineError as error:
        raise fail(str(error), WRONG_USE) from None
    except (OSError, ValueError) as error:
        raise fail(f"audit: {error}", FAILED) from None
