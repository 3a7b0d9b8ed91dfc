"""`mqmesh interchange`: services that send each other requests."""

from __future__ import annotations

from ..option_groups import with_option_groups
from ..output import Command, command_group
from . import audit, registry
from .explain import explain
from .export import export
from .poll import poll
from .post import post
from .schema import schema
from .serve import serve
from .session import session

app = command_group(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Services that send each other requests: post, take what comes, and see what rules make of a message.

    \b
      mqmesh interchange post --as shop/orders --to bank/credit -m '{"amount": 100}' --wait 30
      mqmesh interchange poll bank/credit
      mqmesh interchange session --status failed
      mqmesh interchange register services.toml --account shop
      mqmesh interchange ls
      mqmesh interchange serve --broker mqtt://127.0.0.1:1883
      mqmesh interchange explain message.json --services services.toml
    """


app.command(cls=Command)(with_option_groups(post))
app.command(cls=Command)(with_option_groups(poll))
app.command(cls=Command)(with_option_groups(session))
app.command(cls=Command)(explain)
app.command(cls=Command)(serve)
app.command(cls=Command)(export)
app.command(cls=Command)(schema)
for _one in (registry.ls, registry.show, registry.register, registry.remove, registry.rules, registry.history):
    app.command(cls=Command)(_one)
app.command(cls=Command)(audit.erase)
app.add_typer(audit.app, name="audit")
