"""A session made through one listener, after its broker was killed: the listener of its client's last connection judges it."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mqmesh.mqtt.packets import Connack, Connect
from mqmesh.mqtt.properties import Property
from support.broker_site import Client
from support.command import start_with_users

pytestmark = pytest.mark.slow
FILE = """
listen = [{{ address = "unix://{folder}/hall", name = "hall" }}, {{ address = "unix://{folder}/office", name = "office" }}]
[store]
kind = "{store}"
path = "{folder}/store"
[access]
users = "users"
anonymous = ["hall"]
on_overlap = "filter"
[[access.rule]]
listeners = ["hall"]
allow = ["publish", "subscribe"]
topics = ["lobby/#"]
[[access.rule]]
listeners = ["office"]
allow = ["publish", "subscribe"]
topics = ["#"]
"""


async def come(folder: Path, listener: str, user: str | None, name: str = "c", clean: bool = False) -> tuple[Client, Connack]:
    """What CONNECT is answered."""
    _, client = await asyncio.get_running_loop().create_unix_connection(Client, str(folder / listener))
    client.name = name
    properties: dict[int, Any] = {} if clean else {Property.SESSION_EXPIRY_INTERVAL: 1000}
    client.send(Connect(name, 5, clean, 0, user, None if user is None else b"pw", None, properties))
    return client, await client.expect(Connack)


async def topics(client: Client, when: str) -> set[str]:
    """What comes of a feed; what was acknowledged just before a kill may come again, and does not count."""
    found: set[str] = set()
    while f"lobby/end/{when}" not in found:
        found |= {one.topic for one in await client.messages(1) if one.topic.endswith(when)}
    return found - {f"lobby/end/{when}"}


async def feed(folder: Path, when: str) -> None:
    feeder, answer = await come(folder, "office", "ops", "feeder", clean=True)
    assert not answer.reason
    for topic in (f"safe/{when}", f"lobby/{when}", f"lobby/end/{when}"):
        assert await feeder.publish(topic, b"x", 1) < 0x80
    feeder.transport.abort()


async def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    await asyncio.to_thread(process.wait)


@pytest.mark.parametrize("store", ["sqlite", "lmdb"])
@pytest.mark.parametrize(("made", "back"), [("office", "hall"), ("hall", "office")])
def test_after_a_kill_the_last_listener_says_what_a_session_gets(tmp_path: Path, store: str, made: str, back: str) -> None:
    asyncio.run(story(tmp_path, store, made, back))


async def story(tmp_path: Path, store: str, made: str, back: str) -> None:
    lines = FILE.format(folder=tmp_path, store=store).splitlines()
    process = await asyncio.to_thread(start_with_users, tmp_path, *lines)
    alice, _ = await come(tmp_path, made, "alice")
    assert (await alice.subscribe("#", qos=1)).reasons == [1]
    await killed(process)

    process = await asyncio.to_thread(start_with_users, tmp_path, *lines)
    await feed(tmp_path, "1")
    await killed(process)

    process = await asyncio.to_thread(start_with_users, tmp_path, *lines)
    for listener, user in (
        ("hall", None),
        ("hall", "ops"),
        ("office", "ops"),
        ("office", None),
    ):  # nobody's, another's
        thief, answer = await come(tmp_path, listener, user)
        assert answer.reason == 0x87, (listener, user)
        await thief.closed()
    alice, answer = await come(tmp_path, back, "alice")
    assert (answer.reason, answer.session_present) == (0, True)
    assert await topics(alice, "1") == ({"safe/1", "lobby/1"} if made == "office" else {"lobby/1"})
    await killed(process)

    process = await asyncio.to_thread(start_with_users, tmp_path, *lines)
    await feed(tmp_path, "2")
    alice, answer = await come(tmp_path, back, "alice")
    assert answer.session_present
    assert await topics(alice, "2") == ({"safe/2", "lobby/2"} if back == "office" else {"lobby/2"})
    alice.transport.abort()
    await killed(process)
