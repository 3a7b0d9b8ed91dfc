"""`MetabrokerConnectionFactory`: refusals, and what dies on the way. The client's other tests go through a metabroker as well."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.client import (
    AckMode,
    DeliveryMode,
    InvalidDestinationError,
    JMSError,
    JMSSecurityError,
    Message,
    MetabrokerConnectionFactory,
    ResourceAllocationError,
    Session,
    TextMessage,
    Topic,
)
from mqmesh.client.metabroker.bodies import RemoteLogin, community_name, parse_remote
from support.brokers import RunningBroker, running_broker
from support.command import start
from support.jms_client import PATIENCE, Collected, texts
from support.paho_client import Paho
from support.remotes import running_metabroker
from support.services import free_port, require, wait_for_port, wait_until

POLICY = """
[limits]
sessions = 6
body = 2000

[[allow]]
clients = ["*"]
remotes = ["mqtt://127.0.0.1:*", "weather", "gone", "nowhere"]
publish = ["open/#", "jms/temporary/#"]
subscribe = ["open/#", "jms/temporary/#"]
"""


class Metabroker:
    """A process that can be killed and started again."""

    def __init__(self, folder: Path, community: int, services: str, *options: str) -> None:
        (folder / "policy.toml").write_text(POLICY)
        (folder / "services.toml").write_text("[services]\n" + services)
        self.log = folder / "metabroker.log"
        files = ("--policy", folder / "policy.toml", "--services", folder / "services.toml")
        self._arguments = ("metabroker", "--community", f"mqtt://127.0.0.1:{community}", *files, *options)
        self.start()

    def start(self) -> None:
        self._process = start(*self._arguments, stderr=self.log)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready"), self.log.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Mosquitto:
    """A remote broker with a password that can be killed and started again; it keeps nothing."""

    def __init__(self, folder: Path, anonymous: bool = True) -> None:
        passwords = folder / "passwords"
        subprocess.run([require("mosquitto_passwd"), "-b", "-c", str(passwords), "ann", "right"], check=True, capture_output=True)
        passwords.chmod(0o644)
        self.port = free_port()
        config = folder / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous {str(anonymous).lower()}\npassword_file {passwords}\nuser root\n"
        )
        self._command = [require("mosquitto"), "-c", str(config)]
        self.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class World:
    """Our broker as the community's, a metabroker beside it, Mosquitto far away."""

    def __init__(self, community: RunningBroker, metabroker: Metabroker, remote: Mosquitto) -> None:
        self.community, self.metabroker, self.remote = community, metabroker, remote

    def factory(self, remote: str = "weather", **settings: object) -> MetabrokerConnectionFactory:
        return MetabrokerConnectionFactory(
            self.community.url, remote, **{"probe": 0.3, "retry_last": 0.5, "send_timeout": PATIENCE, **settings}
        )  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["mqmesh", "mosquitto"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    remote = Mosquitto(folder)
    services = f'weather = ["{remote.url}"]\ngone = ["mqtt://127.0.0.1:{free_port()}"]\n'
    with contextlib.ExitStack() as stack:
        stack.callback(remote.kill)
        (folder / "community").mkdir()
        community = stack.enter_context(running_broker(folder / "community", request.param))
        metabroker = Metabroker(folder, community.port, services)
        stack.callback(metabroker.kill)
        yield World(community, metabroker, remote)


pytestmark = pytest.mark.service


@pytest.mark.parametrize(
    ("remote", "error", "code"),
    [
        ("nowhere", InvalidDestinationError, "no_such_service"),
        ("mqtt://192.0.2.1", JMSSecurityError, "refused_by_policy"),
        ("gone", JMSError, "remote_unreachable"),
        ("mqtt://ann:wrong@", JMSSecurityError, "remote_refused_credentials"),
        ("gopher://127.0.0.1", JMSError, "malformed"),
    ],
)
def test_each_refusal_has_its_own_exception(world: World, remote: str, error: type[JMSError], code: str) -> None:
    if remote.endswith("@"):
        remote += f"127.0.0.1:{world.remote.port}"
    with pytest.raises(error) as caught:
        world.factory(remote).create_connection()
    assert type(caught.value) is error
    assert caught.value.error_code == code


def test_too_many_sessions(world: World) -> None:
    with contextlib.ExitStack() as stack:

        def another() -> bool:
            with contextlib.suppress(ResourceAllocationError):  # those of other tests may still be ending
                stack.enter_context(world.factory().create_connection())
                return True
            return False

        for _ in range(6):
            wait_until(another, PATIENCE, "room for a session")
        with pytest.raises(ResourceAllocationError) as caught:
            world.factory().create_connection()
    assert caught.value.error_code == "too_many_sessions"


def test_user_name_and_password_are_the_remotes(world: World) -> None:
    address = f"mqtt://127.0.0.1:{world.remote.port}"
    for factory, given in (
        (world.factory(address.replace("//", "//ann:right@")), ()),
        (world.factory(address, username="ann", password="right"), ()),
        (world.factory(address), ("ann", "right")),
    ):
        with factory.create_connection(*given) as connection:
            connection.create_session().create_producer(Topic("open/a")).send(Message())
    with pytest.raises(JMSSecurityError):
        world.factory().create_connection("ann", "wrong")


def test_what_policy_and_limits_refuse_does_not_end_the_connection(world: World, name: str) -> None:
    with world.factory().create_context() as context:
        producer = context.create_producer()
        with pytest.raises(JMSSecurityError, match="policy") as caught:
            producer.send(Topic("closed/a"), "x")
        assert caught.value.error_code == "refused_by_policy"
        with pytest.raises(JMSSecurityError, match="policy"):
            context.create_consumer(Topic("closed/#"))
        with pytest.raises(ResourceAllocationError, match="takes 2000 at most"):
            producer.send(Topic("open/a"), "x" * 2000)
        with pytest.raises(JMSError, match="shared subscriptions are not served") as refused:
            context.create_shared_consumer(Topic("open/a"), "pool")
        assert refused.value.error_code == "not_supported"
        consumer = context.create_consumer(Topic(f"open/{name}"))
        producer.send(Topic(f"open/{name}"), "fits")
        assert texts(consumer, 1) == ["fits"]


def test_without_a_metabroker_it_is_said_at_once(tmp_path: Path) -> None:
    for kind in ("mqmesh", "mosquitto"):
        with running_broker(tmp_path, kind) as broker, pytest.raises(JMSError, match="no metabroker") as caught:
            MetabrokerConnectionFactory(broker.url, "weather").create_connection()
        assert caught.value.error_code == "no_metabroker"


def test_retained_messages_are_not_asked_for(world: World, name: str) -> None:
    """As without a metabroker: a subscription gets what is sent after it."""
    far = Paho(world.remote.port).open()
    far.publish(f"open/{name}", b"kept", 1, retain=True)
    with world.factory().create_context() as context, world.factory().create_context() as other:
        consumers = [each.create_consumer(Topic(f"open/{name}")) for each in (context, other)]
        far.publish(f"open/{name}", b"new", 1)
        for consumer in consumers:
            message = consumer.receive(PATIENCE)
            assert message is not None
            assert message.body == b"new"
            assert consumer.receive_no_wait() is None
    far.publish(f"open/{name}", b"", 1, retain=True)
    far.close()


def test_the_remote_dies_and_comes_back(world: World, name: str) -> None:
    """Told to the exception listener; what is sent meanwhile at QoS 1 arrives, in order, once."""
    told, completed = Collected(), Collected()
    with world.factory().create_context() as context:
        context.exception_listener = told
        consumer = context.create_consumer(Topic(f"open/{name}"))
        producer = context.create_producer()
        producer.send(Topic(f"open/{name}"), "0")
        world.remote.kill()
        assert told.wait(1)[0].error_code == "remote_unreachable"
        with pytest.raises(JMSError, match="no connection"):
            context.create_producer().set_delivery_mode(1).send(Topic(f"open/{name}"), "lost")  # type: ignore[arg-type]
        producer.set_async(completed)
        for number in range(1, 400):  # more than may be without an answer
            producer.send(Topic(f"open/{name}"), str(number))
        assert consumer.receive(PATIENCE).body == "0"  # type: ignore[union-attr]
        world.remote.start()
        assert [message.body for message in completed.wait(399)] == [str(number) for number in range(1, 400)]
        producer.set_async(None).send(Topic(f"open/{name}"), "last")
        found = []
        while not found or found[-1] != "last":  # the subscription may be made anew behind the first of them
            found += texts(consumer, 1)
        assert found == [str(number) for number in range(400 - len(found) + 1, 400)] + ["last"]
        assert {error.error_code for error in told.items} == {"remote_unreachable"}


def test_messages_of_qos_0_go_without_an_answer_and_in_order(world: World, name: str) -> None:
    completed = Collected()
    with world.factory().create_context() as context, Paho(world.remote.port) as far:
        far.subscribe(f"open/{name}", 0)
        producer = context.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        with pytest.raises(JMSSecurityError, match="policy"):
            producer.send(Topic("closed/a"), "x")
        for number in range(500):
            producer.send(Topic(f"open/{name}"), str(number))
        producer.set_async(completed)
        for number in range(500, 1000):
            producer.send(Topic(f"open/{name}"), str(number))
        assert [message.body for message in completed.wait(500)] == [str(number) for number in range(500, 1000)]
        assert [far.next().payload.decode() for _ in range(1000)] == [str(number) for number in range(1000)]
        producer.set_async(None)
        with pytest.raises(JMSSecurityError, match="policy"):
            producer.send(Topic("closed/a"), "x")


def test_the_metabroker_dies_and_comes_back(world: World, name: str) -> None:
    """kill -9: the client connects again and subscribes again, and repeats what was not answered; nobody gets a message twice."""
    told, completed = Collected(), Collected()
    with world.factory().create_context() as context:
        context.exception_listener = told
        consumer = context.create_consumer(Topic(f"open/{name}"))
        producer = context.create_producer().set_async(completed)
        far = Paho(world.remote.port).open()
        far.subscribe(f"open/{name}", 1)
        for number in range(300):
            producer.send(Topic(f"open/{name}"), str(number))
        world.metabroker.kill()
        for number in range(300, 600):
            producer.send(Topic(f"open/{name}"), str(number))
        world.metabroker.start()
        assert [message.body for message in completed.wait(600)] == [str(number) for number in range(600)]
        seen = []
        while not seen or seen[-1] != "599":
            seen.append(far.next().payload.decode())
        assert list(dict.fromkeys(seen)) == [str(number) for number in range(600)]  # once here: the identifiers say which are repeats
        until(told, "session_lost")
        producer.set_async(None).send(Topic(f"open/{name}"), "last")
        found = []
        while not found or found[-1] != "last":
            found += texts(consumer, 1)
        assert len(found) == len(set(found))
        far.close()


def until(told: Collected, code: str) -> None:
    """Return once the exception listener was told of this."""
    count = 1
    while not any(error.error_code == code for error in told.wait(count)):
        count += 1


@pytest.mark.slow
def test_durable_consumers_survive_the_remote_and_the_metabroker(tmp_path: Path) -> None:
    """kill -9 of the remote broker and of the metabroker, in turn, under load: each message once and in order at every durable consumer."""
    with contextlib.ExitStack() as stack:
        community = stack.enter_context(running_broker(tmp_path, "mqmesh"))
        remote = Mortal(tmp_path)
        stack.callback(remote.kill)
        metabroker = Metabroker(tmp_path, community.port, f'weather = ["{remote.url}"]\n', "--data", str(tmp_path / "kept"))
        stack.callback(metabroker.kill)
        settings = {"probe": 0.5, "retry_last": 0.5, "send_timeout": 120}
        reading = MetabrokerConnectionFactory(community.url, "weather", client_id="reader", **settings)
        source = stack.enter_context(
            MetabrokerConnectionFactory(community.url, "weather", durable_sends=True, **settings).create_connection()
        )
        connection = stack.enter_context(reading.create_connection())
        seen = {mode: Collected() for mode in (AckMode.AUTO, AckMode.INDIVIDUAL, AckMode.SESSION_TRANSACTED)}
        for mode, collected in seen.items():
            session = connection.create_session(acknowledge_mode=mode)

            def consume(message: Message, session: Session = session, collected: Collected = collected) -> None:
                collected(message)
                message.acknowledge()
                if session.acknowledge_mode is AckMode.SESSION_TRANSACTED and int(message.body) % 3 == 0:
                    session.commit()

            session.create_durable_consumer(Topic("open/load"), mode.name).message_listener = consume
        connection.start()
        completed, sent = Collected(), 0
        producer = source.create_session().create_producer(Topic("open/load"))
        for death in range(4):
            for _ in range(150):
                producer.send(TextMessage(str(sent)), completion_listener=completed)
                sent += 1
                completed.wait(sent - 120)
            mortal = (remote, metabroker)[death % 2]
            mortal.kill()
            for _ in range(50):
                producer.send(TextMessage(str(sent)), completion_listener=completed)
                sent += 1
            mortal.start()
        expected = [str(number) for number in range(sent)]
        assert [message.body for message in completed.wait(sent)] == expected
        for mode, collected in seen.items():
            assert [message.body for message in collected.wait(sent)] == expected, mode


class Mortal:
    """Our broker with a folder for data, as the remote."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._arguments = ("broker", "--listen", self.url, "--data", str(folder / "remote"))
        self.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = start(*self._arguments)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_the_example_runs(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "examples" / "abroad.py"
    policy = program.read_text().partition("where it is:\n")[2].partition("\n\n")[0]
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    with running_broker(tmp_path / "here", "mqmesh") as here, running_broker(tmp_path / "there", "mqmesh") as there:
        services = f'weather = ["{there.url}"]\n'
        with running_metabroker(tmp_path, here.port, textwrap.dedent(policy), services):
            done = subprocess.run([sys.executable, str(program), here.url], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stderr == ""
    assert done.stdout == "rain/rhine: 7 mm\nrain/oder: 2 mm\nstocks: refused_by_policy\n"


def test_what_a_killed_program_leaves_ends_soon(world: World) -> None:
    program = """
        import sys, time
        from mqmesh.client import MetabrokerConnectionFactory, Topic
        settings = dict(client_id="killed", probe=0.2, session_keep=10)
        context = MetabrokerConnectionFactory(sys.argv[1], "weather", **settings).create_context()
        consumer = context.create_consumer(Topic("open/#"))
        context.create_producer().send(Topic("open/a"), "x")
        print(consumer.receive(90).text, flush=True)
        time.sleep(600)
    """

    def said(what: str) -> int:
        return world.metabroker.log.read_text().count(f"event=session-{what} client='killed")

    command = [sys.executable, "-c", textwrap.dedent(program), world.community.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "x\n"
            begun = said("begin")
            assert begun >= 2  # one that sends, one that consumes; probes keep both
        finally:
            process.kill()
    wait_until(lambda: said("end") == said("begin"), PATIENCE, "the end of its sessions")


@pytest.mark.parametrize("account", ['username = "ann"\npassword_file = "ann.password"\n', ""])
def test_the_metabrokers_own_account_at_a_remote(tmp_path: Path, account: str) -> None:
    """With one, clients need none; what they say does not count."""
    remote = Mosquitto(tmp_path, anonymous=False)
    try:
        (tmp_path / "ann.password").write_text("right\n")
        rule = '[[allow]]\nclients = ["*"]\nremotes = ["weather"]\npublish = ["#"]\n' + account
        with (
            running_broker(tmp_path, "mqmesh") as community,
            running_metabroker(tmp_path, community.port, rule, f'weather = ["{remote.url}"]\n'),
        ):
            factory = MetabrokerConnectionFactory(community.url, "weather", username="eve", password="wrong")
            if account:
                with factory.create_context() as context:
                    context.create_producer().send(Topic("a"), "x")
            else:
                with pytest.raises(JMSSecurityError):
                    factory.create_context()
    finally:
        remote.kill()


def test_names() -> None:
    assert community_name("meter-7") == "meter-7"
    assert community_name("a/b+c#") == "a%2Fb%2Bc%23"
    assert community_name("jms/meter-7/desk/main.0") == "meter-7:desk:main.0"
    assert parse_remote("plant/weather") == RemoteLogin("plant/weather")
    assert parse_remote("mqtts://u%40:p%3A@h:1/") == RemoteLogin("mqtts://h:1", "u@", "p:")
    assert parse_remote("amqp://[::1]:5672/site") == RemoteLogin("amqp://[::1]:5672/site")
    assert "secret" not in repr(parse_remote("mqtt://ann:secret@h"))
    for wrong in ("", " ", "mqtt://", "mqtt://a:b"):
        with pytest.raises(JMSError):
            parse_remote(wrong)
