"""Stock UDDI clients: zeep with the WSDL that OASIS published, or with the one that a directory serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zeep
from mqmesh.directory.storage.errors import CODES

OASIS = Path(__file__).parents[2] / "directory" / "oasis" / "uddi_v3_service.wsdl"


def uddi_client(url: str, source: str) -> SimpleNamespace:
    """The three ports of a WSDL at a directory's URL."""
    if source == "own":
        client = zeep.Client(f"{url}/uddi?wsdl")
        ports = (client.bind("UDDI_Service", f"UDDI_{port}_Port") for port in ("Inquiry", "Publication", "Security"))
    else:
        client = zeep.Client(str(OASIS))
        known = client.wsdl.services["UDDI_Service"].ports
        bindings = [known[f"UDDI_{port}_Port"].binding for port in ("Inquiry", "Publication", "Security")]
        ports = (zeep.proxy.ServiceProxy(client, binding, address=f"{url}/uddi") for binding in bindings)
    find, publish, security = ports
    return SimpleNamespace(find=find, publish=publish, security=security, client=client)


def fault(code: str, call: Callable[..., Any], **arguments: Any) -> None:
    """The call is refused with this code, in the fault and in its dispositionReport."""
    with pytest.raises(zeep.exceptions.Fault) as caught:
        call(**arguments)
    [result] = caught.value.detail.iterfind(".//{*}result")
    assert (int(result.get("errno")), result[0].get("errCode")) == (CODES[code][0], code), result[0].text
