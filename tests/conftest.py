"""Markers that the Makefile selects by, and the fixtures that several folders of tests share."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from mqmesh.cli.demo import ring
from support import examples, jvms, quick, schedule, warm_starts
from support.brokers import RunningBroker, running_broker
from support.hashes import cheap_hashes
from support.peers.rabbitmq import RabbitMQ, running_rabbitmq
from support.services import part_of

HERE = Path(__file__).parent

# No deadline, nor one for making examples: a busy machine is no reason to fail. The blob repeats a failure elsewhere. The examples are the
# same in each run, so that it says something about the last change; `make nightly` tries others each time.
settings.register_profile(
    "mqmesh",
    max_examples=examples.examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=examples.FACTOR == 1,
)
settings.load_profile("mqmesh")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of the processes that tests start would compile the package anew
    cheap_hashes()
    jvms.begin_fast()
    warm_starts.install()
    if examples.QUICK:
        quick.forbid_processes()
    ring.PORTS = part_of(range(15_000, 20_000))  # the demo, which runs as a process, has those above
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, whose children would not hear it either
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "slow: takes more than a few seconds; left out of `make quick`")
    config.addinivalue_line("markers", "direct(reason): of the client's tests, not through a metabroker")
    config.addinivalue_line("markers", "service: talks to a real third-party broker or client; left out of `make quick`")
    config.addinivalue_line("markers", "process: starts a process; left out of `make quick`")
    config.addinivalue_line("markers", "cold: what it starts has a true start of the interpreter (support/warm_starts.py)")
    config.addinivalue_line("markers", "keeps: looks for what is lost, repeated or out of order; its first failure counts")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A quick run does not even read what it leaves out."""
    return True if examples.QUICK and not quick.may_have(collection_path.relative_to(HERE)) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In one of several processes: the files that take longest come first."""
    if examples.QUICK:
        config.hook.pytest_deselected(items=[item for item in items if not quick.has(item)])
        items[:] = filter(quick.has, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: -schedule.seconds(item.path.relative_to(HERE).as_posix()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """While tests are read nearly all that is made stays: to look for garbage is a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What is there by now is never garbage. Half a million objects need not be visited at each full collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`: files that belong together run in one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return schedule.group(nodeid.split("::", 1)[0].removeprefix("tests/"))

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


COLD = {"benchmarks", "documents", "packaging", "walks"}  # folders: of figures, and of what a user installs and types


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Processes of `mqmesh` that the test and its fixtures start are clones, unless it wants true starts."""
    folder = item.path.relative_to(HERE).parts[0]
    quick.watch(folder)
    warm_starts.enabled = folder not in COLD and item.get_closest_marker("cold") is None
    return (yield)


FIRST_COUNTS = {"contract", "faults", "fuzz", "mesh", "mqtt", "simulation"}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In a second run (.ci/tests) nothing passes that looks for what happens rarely, or that a busy machine cannot spoil."""
    if os.environ.get("MQMESH_SECOND_RUN"):
        folder = item.path.relative_to(HERE).parts[0]
        of_chance = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if folder in FIRST_COUNTS or of_chance or item.get_closest_marker("keeps"):
            pytest.fail("no second run: the first failure of this test counts", pytrace=False)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for the tests of a module: mqmesh, or what MQMESH_TEST_BROKER names."""
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """One RabbitMQ for all tests, because it takes long to start: use names of your own, and do not stop it."""
    with running_rabbitmq(tmp_path_factory.mktemp("rabbitmq"), mqtt=True) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def _settings_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs keep for their user stays in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


_names = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A word that no other test uses: for topics, client identifiers, groups."""
    return f"t{next(_names)}-{request.node.name.partition('[')[0]}"
