"""Names of services belong to the account that had them first."""

from __future__ import annotations

import pytest
from mqmesh.directory.client import ClientError
from support.directories import Directory

pytestmark = pytest.mark.process


def test_a_name_belongs_to_who_had_it_first_until_it_is_given_up(directory: Directory) -> None:
    alice, bob = directory.client("alice"), directory.client("bob")
    for client, mesh in ((alice, "hers"), (bob, "his")):
        client.put("mesh", mesh)
        client.put("service", "weather", mesh, addresses=["mqtt://h:1"])

    def owning() -> list[str]:
        return [one["mesh"] for one in directory.client().find("service", name="weather") if one["owns_name"]]

    assert owning() == ["hers"]
    alice.delete("service", "weather", "hers")
    bob.put("service", "weather", "his", addresses=["mqtt://h:2"])
    assert owning() == [], "a service that is gone for a moment keeps its name"
    alice.put("service", "weather", "hers")
    assert owning() == ["hers"]
    with pytest.raises(ClientError, match="not yours") as caught:
        bob.give_up("weather")
    assert caught.value.status == 404
    alice.give_up("weather")
    bob.put("service", "weather", "his", addresses=["mqtt://h:3"])
    assert owning() == ["his"]
