"""Third-party clients as processes of their own, which SIGSTOP can hang: paho, mosquitto_sub and mosquitto_pub, amqtt's client, MQTT.js.

All speak MQTT 3.1.1 with a persistent session. Each prints `ready` once it has subscribed and then a line for each message, topic and
payload. What it reads on its standard input, topic and payload in a line, it publishes at QoS 1.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from support.services import PATIENCE, missing, require

HERE = Path(__file__).resolve().parent
MQTT_JS = HERE.parents[1] / "browser" / "node_modules" / "mqtt"
KINDS = ("paho", "mosquitto", "amqtt", "mqttjs")


class TalkingClient:
    """A client of a kind. got: (topic, payload) of what it has printed. Use it with `with`."""

    def __init__(self, kind: str, port: int, name: str, *filters: str) -> None:
        self.kind, self.port, self.name = kind, port, name
        self.got: list[tuple[str, str]] = []
        self._ready = False
        self._changed = threading.Condition()
        command, environment = _command(kind, port, name, filters)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=os.environ | environment
        )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> TalkingClient:
        self._wait(lambda: self._ready, f"{self.kind} {self.name} that is ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.wake()
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            with self._changed:
                if words == ["ready"] or (self.kind == "mosquitto" and "SUBACK" in words):
                    self._ready = True
                elif len(words) == 2:
                    self.got.append((words[0], words[1]))
                self._changed.notify_all()

    def _wait(self, condition, what: str) -> None:  # type: ignore[no-untyped-def]
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), f"no {what}; it has {self.got}"

    def expect(self, body: str, topic: str | None = None) -> None:
        """Wait until it has a message with this payload."""
        self._wait(lambda: any(one[1] == body and topic in (None, one[0]) for one in self.got), f"{body} at {self.kind} {self.name}")

    def publish(self, topic: str, body: str) -> None:
        """Publish at QoS 1."""
        if self.kind == "mosquitto":
            command = [require("mosquitto_pub"), "-h", "127.0.0.1", "-p", str(self.port), "-i", f"{self.name}-pub"]
            subprocess.run([*command, "-q", "1", "-t", topic, "-m", body], check=True, timeout=PATIENCE)
            return
        assert self._process.stdin is not None
        self._process.stdin.write(f"{topic} {body}\n")
        self._process.stdin.flush()

    def hang(self) -> None:
        """SIGSTOP."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL, also while it hangs."""
        self._process.kill()

    def wake(self) -> None:
        """SIGCONT."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGCONT)


def originator(kind: str, name: str) -> str:
    """The client identifier with which a client publishes."""
    return f"{name}-pub" if kind == "mosquitto" else name


def _command(kind: str, port: int, name: str, filters: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    words = [str(port), name, *filters]
    if kind == "mosquitto":
        topics = [word for one in filters for word in ("-t", one)]
        command = [require("mosquitto_sub"), "-h", "127.0.0.1", "-p", str(port), "-i", name, "-c", "-q", "1", "-d", "-F", "%t %p", *topics]
        buffered = shutil.which("stdbuf")  # what it says of SUBACK would wait in a buffer
        return ([buffered, "-oL", *command] if buffered else command), {}
    if kind == "mqttjs":
        node = require("node")
        if not MQTT_JS.exists():
            missing("MQTT.js is not installed: make services")
        return [node, str(HERE / "mqttjs_process.js"), *words], {"MODULE": str(MQTT_JS)}
    return [sys.executable, str(HERE / f"{kind}_process.py"), *words], {}
