"""NATS accounts with keys: a credentials file in the policy, for servers whose users have JWTs, and a seed for plain keys."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest
from mqmesh.base.metabroker import Code
from support.brokers import running_broker
from support.remotes import Member, running_metabroker
from support.services import free_port, require, wait_for_port

pytestmark = pytest.mark.service


class Key:
    """A key pair of somebody."""

    def __init__(self, prefix: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), prefix).decode()
        self._prefix = prefix

    @property
    def public(self) -> str:
        """As a server's configuration has it."""
        key = nkeys.from_seed(bytearray(self.seed.encode()))
        data = bytes((self._prefix,)) + bytes(key._keys.verify_key)  # its own property knows users alone
        return base64.b32encode(data + bytes(nkeys.crc16_checksum(bytearray(data)))).rstrip(b"=").decode()

    def issue(self, to: Key, **claims: Any) -> str:
        """A JWT in NATS's dialect."""
        body = {"iat": 1_700_000_000, "iss": self.public, "sub": to.public, "name": "test", "nats": {"version": 2, **claims}}
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).rstrip(b"=").decode()
        parts = [encoded(json.dumps(one).encode()) for one in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
        signature = nkeys.from_seed(bytearray(self.seed.encode())).sign(".".join(parts).encode())
        return ".".join((*parts, encoded(signature)))


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@contextlib.contextmanager
def running(folder: Path, *lines: str) -> Iterator[int]:
    """A server with these lines in its configuration; its port."""
    port = free_port()
    (folder / "nats.conf").write_text("\n".join((f"listen: 127.0.0.1:{port}", *lines)) + "\n")
    with (folder / "nats.log").open("wb") as log:
        process = subprocess.Popen([require("nats-server"), "-c", str(folder / "nats.conf")], stdout=log, stderr=log)
    try:
        wait_for_port(port)
        yield port
    finally:
        process.kill()
        process.wait()


def plain(folder: Path, user: Key) -> tuple[str, list[str]]:
    """A seed for a file, and who it is to the server."""
    return user.seed + "\n", [f'authorization {{ users: [ {{ nkey: {user.public}, permissions: {{ publish: "mine.>" }} }} ] }}']


def with_jwt(folder: Path, user: Key) -> tuple[str, list[str]]:
    """A credentials file, and the operator and account that stand for it."""
    operator, account = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
    limit = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    granted = operator.issue(account, type="account", limits=limit)
    mine = account.issue(user, type="user", subs=-1, data=-1, payload=-1, pub={"allow": ["mine.>"]}, sub={})
    text = f"-----BEGIN NATS USER JWT-----\n{mine}\n------END NATS USER JWT------\n\n"
    text += f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    lines = [f"operator: {operator.issue(operator, type='operator')}", "resolver: MEMORY"]
    return text, [*lines, f"resolver_preload: {{ {account.public}: {granted} }}"]


@pytest.mark.parametrize("make", [plain, with_jwt])
def test_keys(tmp_path: Path, make: Any) -> None:
    """The server knows who we are by the file's key, and takes nobody with another one."""
    text, lines = make(tmp_path, Key(nkeys.PREFIX_BYTE_USER))
    (tmp_path / "right.creds").write_text(text)
    (tmp_path / "wrong.creds").write_text(make(tmp_path, Key(nkeys.PREFIX_BYTE_USER))[0])
    rule = '[[allow]]\nclients = ["{0}"]\nremotes = ["nats://*"]\npublish = ["#"]\nsubscribe = ["#"]\ncredentials_file = "{0}.creds"\n'
    with (
        running(tmp_path, *lines) as port,
        running_broker(tmp_path, "mqmesh") as community,
        running_metabroker(tmp_path, community.port, rule.format("right") + rule.format("wrong")),
    ):
        right, wrong = Member(community.port, "right"), Member(community.port, "wrong")
        assert right.connect(f"nats://127.0.0.1:{port}", username="ignored")["code"] == Code.OK
        assert right.ask("publish", message=1, topic="mine/1", payload=b"", qos=1)["code"] == Code.OK
        assert right.ask("publish", message=2, topic="other/1", payload=b"", qos=1)["code"] == Code.REMOTE_REFUSED
        assert wrong.connect(f"nats://127.0.0.1:{port}")["code"] == Code.REMOTE_REFUSED_CREDENTIALS
        right.close()
        wrong.close()
