"""The options of `spark.read`, `readStream`, `write` and `writeStream` with the format "mqmesh", checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.address import CLIENT, AddressError, parse_address
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter
from ..errors import PipelineError

if TYPE_CHECKING:
    from ...base.address import Address

MOST = 65_535  # messages of a batch: so many can be unacknowledged [MQTT 5: 3.1.2.11.3]
FEW = 10_000
TIMEOUT = 30.0  # seconds to wait for a broker
NEVER = 0xFFFFFFFF


def whole(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A number. Raises PipelineError."""
    text = str(options.get(name, default)).strip()
    if not text.isdigit() or not low <= int(text) <= high:
        raise PipelineError(f'option {name} = "{text}": give {low} to {high}')
    return int(text)


def flag(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    """true or false. Raises PipelineError."""
    text = str(options.get(name, default)).strip().lower()
    if text not in ("true", "false"):
        raise PipelineError(f'option {name} = "{text}": give true or false')
    return text == "true"


@dataclass(frozen=True)
class BrokerOptions:
    """How to reach a broker. address: with user name and password. cafile, certfile, keyfile: for TLS. timeout: seconds to wait for it."""

    address: str
    user: str | None = None
    password: str | None = None
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    timeout: float = TIMEOUT

    @classmethod
    def of(cls, options: Mapping[str, str]) -> BrokerOptions:
        """Raises PipelineError."""
        address = options.get("broker")
        if not address:
            raise PipelineError('option broker is missing: give the address of a broker, such as "mqtt://localhost:1883"')
        made = cls(
            address,
            options.get("username"),
            options.get("password"),
            options.get("cafile"),
            options.get("certfile"),
            options.get("keyfile"),
            float(whole(options, "timeout", int(TIMEOUT), 1, 3600)),
        )
        made.parsed()
        return made

    def parsed(self) -> Address:
        """Raises PipelineError."""
        try:
            return parse_address(self.address, CLIENT)
        except AddressError as error:
            raise PipelineError(f'option broker = "{self.address}": {error}') from None


@dataclass(frozen=True)
class TopicOptions:
    """What is read from a topic. client: the identifier of the durable session. rows: of a batch, at most. partitions: of a batch.

    fence: a topic below which the source publishes to itself, to know that everything before has come.
    """

    broker: BrokerOptions
    topic: str
    client: str
    rows: int = FEW
    partitions: int = 1
    fence: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TopicOptions:
        """Raises PipelineError."""
        topic = str(options.get("topic", ""))
        try:
            check_filter(topic)
        except MqttError as error:
            raise PipelineError(f'option topic = "{topic}": {error}: give a topic or a topic filter, such as "shop/#"') from None
        client = options.get("client")
        if not client:
            raise PipelineError('option client is missing: give the identifier of the durable session, such as "spark-orders"')
        return cls(
            BrokerOptions.of(options),
            topic,
            client,
            whole(options, "maxrows", FEW, 1, MOST),
            whole(options, "partitions", 1, 1, 1000),
            str(options.get("fence", f"mqmesh-fence/{client}")),
        )
