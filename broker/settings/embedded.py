"""The part of the table `[metabroker]` of a broker's file that runs a metabroker in the broker's process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...mqtt.errors import MqttError
from ...mqtt.topics import check_topic

if TYPE_CHECKING:
    from ...base.settings import Section

POLICY = "give the path of the policy file of the metabroker that is to run inside this broker"
KEYS = ("services", "directory", "data", "data_key_file", "status_topic")  # that mean nothing without a policy


@dataclass(slots=True)
class EmbeddedSettings:
    """The part of the table `[metabroker]` that makes it run inside. See docs/metabroker.md.

    file: the broker's file, for errors.
    policy: the policy file.
    services: a file with names of services and their addresses.
    directory: the URL of a directory.
    data: a folder where sessions are kept, or the URL of a database that several metabrokers share; None: they are not kept.
    data_key_file: with the key of passwords there; None: a file in the folder.
    status_topic: where its status is published. None: the usual topic; empty: nowhere.
    """

    file: str
    policy: Path
    services: Path | None = None
    directory: str | None = None
    data: Path | str | None = None
    data_key_file: Path | None = None
    status_topic: str | None = None

    @classmethod
    def of(cls, section: Section, folder: Path | None) -> EmbeddedSettings | None:
        """Read these keys; None: no metabroker runs inside. The files that they name are not read yet. Raises ConfigError."""
        if not section.has("policy"):
            for key in KEYS:
                if section.has(key):
                    raise section.error(key, f"it means nothing without metabroker.policy: {POLICY}")
            return None
        settings = cls(section.file, section.path_of("policy", folder, POLICY))
        if section.has("services"):
            settings.services = section.path_of("services", folder, "give the path of a file with names of services and their addresses")
        if section.has("directory"):
            right = "give http://HOST:PORT of a directory, or the WSDL of a UDDI registry"
            settings.directory = section.string("directory", right=right)
        if section.has("data"):
            right = "give the path of a folder where sessions are kept, or postgresql://... that several metabrokers share"
            text = section.string("data", right=right)
            shared = text.startswith(("postgresql://", "postgres://"))
            settings.data = text if shared else section.path_of("data", folder, right)
        if section.has("data_key_file"):
            settings.data_key_file = section.path_of("data_key_file", folder, "give the path of a file whose first line is a key")
        if section.has("status_topic"):
            settings.status_topic = _topic(section)
        return settings


def _topic(section: Section) -> str:
    """A topic that can be published to, or nothing."""
    topic = section.table["status_topic"]
    right = 'give a topic without wildcards, or "" for nowhere'
    if not isinstance(topic, str):
        raise section.error("status_topic", right)
    if topic:
        try:
            check_topic(topic.encode())
        except (MqttError, UnicodeEncodeError):
            raise section.error("status_topic", right) from None
    return topic
