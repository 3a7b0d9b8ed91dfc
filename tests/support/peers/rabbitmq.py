"""RabbitMQ for tests: a node of its own in a folder, at free ports of 127.0.0.1. It takes some seconds to start; some more with MQTT.

Nothing is shared with an installed service, and nothing is left: the node has its own port mapper (epmd), cookie and files.
Accounts: guest/guest may do everything in the virtual hosts "/" and "site"; gauge/gauge, in "/" alone, may write to the topics
`allowed.*` of amq.topic and read `open.*`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from support.services import end_with_parent, free_port, missing, require, wait_for_port

PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # what is in PATH changes the user, and shares the cookie of the service
PATIENCE = 300.0  # seconds: where others use the machine its start has taken more than 120
EPMD = "/usr/bin/epmd"


class RabbitMQ:
    """One node. port: AMQP; mqtt_port: MQTT 3.1.1, with the plug-in; tls_port: AMQP over TLS, where certificates were given."""

    def __init__(self, folder: Path, certificate: Path | None = None, key: Path | None = None, mqtt: bool = False) -> None:
        self.folder = folder
        self.port, self.mqtt_port, self.tls_port = free_port(), free_port(), free_port()
        self.log = folder / "rabbitmq.log"
        self._epmd_port = free_port()
        self._node: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._listeners = (self.port, self.mqtt_port) if mqtt else (self.port,)
        (folder / "enabled_plugins").write_text("[rabbitmq_mqtt].\n" if mqtt else "[].\n")
        (folder / "definitions.json").write_text(json.dumps(_definitions()))
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            "max_message_size = 134217728",  # as before 4.0
            f"load_definitions = {folder / 'definitions.json'}",
            "log.file = false",
            "log.console = true",
            "log.console.level = info",
            "disk_free_limit.absolute = 1MB",
        ]
        if mqtt:
            lines += [f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.mqtt_port}", "mqtt.allow_anonymous = true"]
        if certificate is not None:
            lines += [
                f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
                f"ssl_options.certfile = {certificate}",
                f"ssl_options.keyfile = {key}",
            ]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        folder = self.folder
        return kept | {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",  # one scheduler that does not spin: other tests run here too
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, instead of standing beside it
            "LC_ALL": "C.UTF-8",
        }

    def start(self) -> None:
        """Return once it is served."""
        environment = self._environment()
        with self.log.open("ab") as log:
            how: dict[str, Any] = {
                "env": environment,
                "stdout": log,
                "stderr": log,
                "stdin": subprocess.DEVNULL,
                "preexec_fn": end_with_parent,
            }
            if self._epmd is None:
                self._epmd = subprocess.Popen([EPMD, "-port", str(self._epmd_port), "-address", "127.0.0.1"], **how)
                wait_for_port(self._epmd_port)
            self._node = subprocess.Popen([str(PROGRAMS / "rabbitmq-server")], start_new_session=True, cwd=self.folder, **how)
        end = time.monotonic() + PATIENCE
        for port in self._listeners:
            while True:
                assert self._node.poll() is None, f"rabbitmq did not start: {self.log.read_text()[-3000:]}"
                assert time.monotonic() < end, f"rabbitmq does not listen: {self.log.read_text()[-3000:]}"
                with contextlib.suppress(AssertionError):
                    wait_for_port(port, 1.0)
                    break

    def kill(self) -> None:
        """SIGKILL, to everything of the node but its port mapper."""
        if self._node is None:
            return
        node, self._node = self._node, None
        helpers = psutil.Process(node.pid).children(recursive=True) if node.poll() is None else []
        node.kill()
        node.wait()
        _, left = psutil.wait_procs(helpers, 10)  # they end when they see that the node is gone
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def stop(self) -> None:
        """End everything."""
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None


def _definitions() -> dict[str, object]:
    guest, gauge = "guest", "gauge"
    return {
        "users": [
            {"name": guest, "password_hash": _hash(guest), "tags": ["administrator"]},
            {"name": gauge, "password_hash": _hash(gauge), "tags": []},
        ],
        "vhosts": [{"name": "/"}, {"name": "site"}],
        "permissions": [
            *({"user": guest, "vhost": host, "configure": ".*", "write": ".*", "read": ".*"} for host in ("/", "site")),
            {"user": gauge, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        ],
        "topic_permissions": [{"user": gauge, "vhost": "/", "exchange": "amq.topic", "write": r"^allowed\.", "read": r"^open\."}],
    }


def _hash(password: str) -> str:
    salt = b"salt"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


@contextlib.contextmanager
def running_rabbitmq(folder: Path, certificate: Path | None = None, key: Path | None = None, mqtt: bool = False) -> Iterator[RabbitMQ]:
    """A node that is up; it and all that belongs to it are gone afterwards. mqtt: with that plug-in."""
    require("rabbitmq-server")
    if not (PROGRAMS / "rabbitmq-server").exists() or not Path(EPMD).exists():
        missing("rabbitmq-server is not where Debian's package has it")
    node = RabbitMQ(folder, certificate, key, mqtt)
    try:
        node.start()
        yield node
    finally:
        node.stop()
