"""mosquitto_pub and mosquitto_sub, the clients that every operator has at hand."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.brokers import RunningBroker
from support.services import require

PATIENCE = 90


class Tools:
    """The two programs against one broker, for one MQTT version: "mqttv311" or "mqttv5"."""

    def __init__(self, broker: RunningBroker, version: str) -> None:
        self.broker, self.version = broker, version
        self.pub_path, self.sub_path = require("mosquitto_pub"), require("mosquitto_sub")

    def pub(self, *arguments: str, stdin: str = "") -> None:
        command = [self.pub_path, "-h", self.broker.host, "-p", str(self.broker.port), "-V", self.version, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr

    def sub(self, *arguments: str, wait: bool = True) -> subprocess.Popen[str]:
        """mosquitto_sub in the background, returned once its subscription is acknowledged (with `wait`)."""
        command = [
            self.sub_path,
            "-h",
            self.broker.host,
            "-p",
            str(self.broker.port),
            "-V",
            self.version,
            "-d",
            "-W",
            str(PATIENCE),
            *arguments,
        ]
        process = subprocess.Popen(["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not wait:
            return process
        for line in process.stdout:
            if line.startswith("Subscribed (mid"):
                return process
        raise AssertionError(f"no SUBACK; status {process.wait()}")

    @staticmethod
    def lines(process: subprocess.Popen[str]) -> list[str]:
        """What it printed until it ended, without its debug lines."""
        out = process.stdout.read()  # not communicate(): it would miss what reading lines has buffered
        process.wait(PATIENCE + 5)
        assert process.returncode == 0, f"status {process.returncode}: {out}"
        return [line for line in out.splitlines() if not line.startswith(("Client ", "Subscribed ", "mosq"))]


@pytest.fixture(params=["mqttv311", "mqttv5"])
def tools(broker: RunningBroker, request: pytest.FixtureRequest) -> Tools:
    return Tools(broker, request.param)


# mosquitto_sub 2.0.11 miscounts its own Receive Maximum of 20 with MQTT 5 and QoS 2, so that it is given fewer.
@pytest.mark.parametrize(("qos", "count"), [("0", 100), ("1", 100), ("2", 15)])
def test_every_qos(tools: Tools, name: str, qos: str, count: int) -> None:
    process = tools.sub("-t", f"{name}/#", "-q", qos, "-F", "%t %p %q", "-C", str(count))
    tools.pub("-t", f"{name}/x", "-q", qos, "-l", stdin="\n".join(map(str, range(count))))
    assert tools.lines(process) == [f"{name}/x {number} {qos}" for number in range(count)]


def test_retained_message_and_its_deletion(tools: Tools, name: str) -> None:
    tools.pub("-t", f"{name}/a", "-m", "kept", "-r", "-q", "1")
    tools.pub("-t", f"{name}/b", "-m", "gone", "-r", "-q", "1")
    tools.pub("-t", f"{name}/b", "-n", "-r", "-q", "1")
    process = tools.sub("-t", f"{name}/+", "-F", "%t %p %r", "-C", "2")
    tools.pub("-t", f"{name}/c", "-m", "new")
    assert tools.lines(process) == [f"{name}/a kept 1", f"{name}/c new 0"]


def test_persistent_session(tools: Tools, name: str) -> None:
    expiry = ["-x", "300"] if tools.version == "mqttv5" else []
    session = ["-i", name, "-c", *expiry, "-q", "1", "-t", f"{name}/q"]
    tools.lines(tools.sub(*session, "-E"))
    for number in range(3):
        tools.pub("-t", f"{name}/q", "-m", str(number), "-q", "1")
    assert tools.lines(tools.sub(*session, "-C", "3", wait=False)) == ["0", "1", "2"]


def test_will(tools: Tools, name: str) -> None:
    watcher = tools.sub("-t", f"{name}/will", "-C", "1", "-v")
    victim = tools.sub("-t", f"{name}/other", "--will-topic", f"{name}/will", "--will-payload", "gone", "--will-qos", "1")
    victim.kill()
    victim.communicate()
    assert tools.lines(watcher) == [f"{name}/will gone"]


def test_shared_subscription(broker: RunningBroker, name: str) -> None:
    tools = Tools(broker, "mqttv5")
    end = f"{name}/end"
    members = [tools.sub("-t", f"$share/g/{name}/job", "-t", end, "-q", "1", "-v", "-T", "none") for _ in range(2)]
    tools.pub("-t", f"{name}/job", "-q", "1", "-l", stdin="\n".join(map(str, range(40))))
    tools.pub("-t", end, "-m", "x", "-q", "1")
    got: list[int] = []
    for member in members:
        share = []
        while (line := member.stdout.readline()) != f"{end} x\n":  # type: ignore[union-attr]
            assert line, "it ended before the end"
            if line.startswith(f"{name}/job"):
                share.append(int(line.split()[1]))
        assert share
        got += share
        member.terminate()
        member.communicate()
    assert sorted(got) == list(range(40))


def test_v5_properties(broker: RunningBroker, name: str) -> None:
    tools = Tools(broker, "mqttv5")
    process = tools.sub("-t", name, "-F", "%J", "-C", "1", "-D", "SUBSCRIBE", "subscription-identifier", "9")
    given = {"content-type": "application/json", "response-topic": "answer", "correlation-data": "42", "message-expiry-interval": "100"}
    options = [word for key, value in given.items() for word in ("-D", "PUBLISH", key, value)]
    tools.pub(
        "-t", name, "-m", '{"a": 1}', *options, "-D", "PUBLISH", "user-property", "k", "v", "-D", "PUBLISH", "payload-format-indicator", "1"
    )
    [line] = tools.lines(process)
    record = json.loads(line)
    assert record["payload"] == {"a": 1}
    properties = record["properties"]
    assert properties["content-type"] == "application/json"
    assert properties["response-topic"] == "answer"
    assert properties["user-properties"] == {"k": "v"}
    assert properties["payload-format-indicator"] == 1


def test_no_local_and_a_large_message(broker: RunningBroker, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tools = Tools(broker, "mqttv5")
    file = tmp_path_factory.mktemp("payload") / "large"
    file.write_bytes(b"x" * 2_000_000)
    process = tools.sub("-t", name, "-C", "1", "-F", "%l")
    tools.pub("-t", name, "-f", str(file), "-q", "1")
    assert tools.lines(process) == ["2000000"]
