"""`mqmesh interchange schema`: the rules of a service as a JSON Schema."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON Schema of the rules of a service, for editors and for programs that make rules.

    \b
      mqmesh interchange schema > rules.schema.json
    """
    from ...interchange.rules.schema import schema as made

    print(json.dumps(made(), indent=1))
