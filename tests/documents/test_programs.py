"""Programs in Python that the documents show run: as a file of examples/, or here, with what stands around them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.client import AsyncContext, ConnectionFactory
from mqmesh.client.metabroker.factory import MetabrokerConnectionFactory
from support.command import run, start
from support.directories import Directory
from support.documents import ROOT, Block, of
from support.services import free_port

EXAMPLES = {path.read_text() for path in (ROOT / "examples").glob("*.py")}
PARTS = [block for block in of("python") if block.text not in EXAMPLES]


def part(words: str) -> Block:
    """The only block with these words."""
    (found,) = [block for block in PARTS if words in block.text]
    return found


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A broker that watches recipients."""
    (tmp_path / "broker.toml").write_text('listen = ["mqtt://127.0.0.1:0"]\n[recipients]\n')
    broker = start("broker", "--config", tmp_path / "broker.toml")
    assert broker.stdout is not None
    yield broker.stdout.readline().split()[1]
    broker.terminate()
    broker.communicate()


def test_embedding() -> None:
    port = free_port()
    text = part("async with Broker(").text.replace("1883", str(port))
    program = text.replace("await asyncio.sleep(3600)", "print('serves', flush=True); await asyncio.sleep(3600)")
    assert program != text
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n"
        assert run("sub", "-h", f"mqtt://127.0.0.1:{port}", "-t", "site/notice", "-C", 1).stdout == b"hello\n"
    finally:
        process.kill()
        process.communicate()


def test_a_factory_with_a_directory(tmp_path: Path) -> None:
    """What the page registers through the factory stands in the directory."""
    database = f"sqlite:///{tmp_path}/directory.db"
    directory = Directory(database, tmp_path / "log")
    try:
        directory.accounts()
        account = next(iter(directory.secrets))
        directory.client(account).put("mesh", "sites", {})
        text = part("client.applications(").text.replace("http://127.0.0.1:8090", directory.url).replace("plant-a", account)
        names: dict[str, Any] = {"ConnectionFactory": ConnectionFactory, "URL": "mqtt://127.0.0.1:1", "secret": directory.secrets[account]}
        exec(text, names)
        assert isinstance(names["factory"], ConnectionFactory)
        text = part("zeep.Client(").text.replace("http://127.0.0.1:8090", directory.url)
        exec(text, names)
        assert names["found"] is not None
    finally:
        directory.kill()


def test_a_factory_through_a_metabroker() -> None:
    names: dict[str, Any] = {"MetabrokerConnectionFactory": MetabrokerConnectionFactory}
    exec(part("MetabrokerConnectionFactory(").text, names)
    assert isinstance(names["factory"], MetabrokerConnectionFactory)


class Done(Exception):
    """The program has done what the test waits for."""


def test_a_recipient(url: str) -> None:
    """It takes a message and works it off."""
    taken: list[str] = []

    def work_off(message: Any) -> None:
        taken.append(message.text)
        raise Done

    def publish() -> None:
        with ConnectionFactory(url).create_context() as context:
            context.create_producer().send(context.create_topic("app/orders/new"), "bolt")

    names: dict[str, Any] = {"ConnectionFactory": ConnectionFactory, "URL": url, "work_off": work_off}
    text = part("for message in orders:").text.replace("    for message in orders:", "    publish()\n    for message in orders:")
    with pytest.raises(Done):
        exec(text, {**names, "publish": publish})
    assert taken == ["bolt"]


def test_asyncio(url: str) -> None:
    """Whoever asks gets the answer that the page shows."""
    asyncio.run(answered(url))


async def answered(url: str) -> None:
    text = part("async with AsyncContext(").text.replace("mqtt://127.0.0.1:1883", url)
    names: dict[str, Any] = {"ConnectionFactory": ConnectionFactory, "AsyncContext": AsyncContext}
    exec("async def program():\n" + "".join(f"    {line}\n" for line in text.splitlines()), names)
    program = asyncio.create_task(names["program"]())
    try:
        assert await asyncio.to_thread(ask, url) == "thank you"
    finally:
        program.cancel()
        await asyncio.gather(program, return_exceptions=True)


def ask(url: str) -> str:
    """Order until the program is there, and return what it says."""
    with ConnectionFactory(url).create_context() as context:
        answers = context.create_temporary_topic()
        consumer = context.create_consumer(answers)
        while True:
            context.create_producer().set_reply_to(answers).send(context.create_topic("orders"), "bolt")
            answer = consumer.receive(timeout=0.5)
            if answer is not None:
                return str(answer.text)


def test_each_block_of_python_is_run_or_marked() -> None:
    here = ("async with Broker(", "client.applications(", "zeep.Client(", "MetabrokerConnectionFactory(", "for message in orders:")
    run = {str(part(words)) for words in (*here, "async with AsyncContext(")}
    assert [str(block) for block in PARTS if str(block) not in run] == []
