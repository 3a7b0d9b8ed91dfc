"""Mosquittos attached to a mesh: each part is killed or cut under load. Nothing acknowledged is lost, nothing comes back, QoS 2 comes once.

`MQMESH_ATTACH_FAULTS=50` makes so many faults, with three Mosquittos at a ring of five.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from support.attached_sites import Attached, Listener, Talker, each
from support.paho_client import Paho
from support.services import require

FAULTS = int(os.environ.get("MQMESH_ATTACH_FAULTS", "5"))


def test_each_part_is_killed_or_cut_under_load(tmp_path: Path) -> None:
    require("mosquitto")
    fronts, members = ("ab", "abc") if FAULTS < 50 else ("ace", "abcde")
    with Attached(tmp_path, fronts, members=members) as site:
        ports = {name: one.port for name, one in site.mosquittos.items()}
        listeners = {name: Listener(port, f"listener-{name}") for name, port in ports.items()}
        talkers = [Talker(port, f"{name}{qos}", qos) for name, port in ports.items() for qos in (1, 2)]

        def kill(name: str) -> Callable[[], None]:
            def fault() -> None:
                site.fleet.kill(name)
                site.fleet.restart(name)

            return fault

        def cut(name: str) -> Callable[[], None]:
            def fault() -> None:
                site.proxies[name].cut()
                site.proxies[name].mend()

            return fault

        def load() -> None:
            for talker in talkers:
                talker.more()

        kinds = [kill(name) for name in members] + [cut(name) for name in fronts]
        each([kinds[number % len(kinds)] for number in range(FAULTS)], load)
        sent = set[tuple[str, bytes]]().union(*(talker.stop() for talker in talkers))
        for listener in listeners.values():
            listener.wait_for(sent)
        for name, listener in listeners.items():
            assert set(listener.seen) <= sent
            own = {key: count for key, count in listener.seen.items() if key[0].startswith(f"t/{name}") and count > 1}
            assert not own, f"echoes: {own}"  # what was published at this Mosquitto came there once
            twice = {key: count for key, count in listener.seen.items() if key[0].endswith("2") and count > 1}
            assert not twice, f"QoS 2 came twice: {twice}"
        for one in (*listeners.values(), *talkers):
            one.close()


def test_a_mosquitto_that_is_killed_comes_back_with_its_session(tmp_path: Path) -> None:
    """It keeps what it has acknowledged up to its last autosave, so what is judged is published in the mesh."""
    with Attached(tmp_path, saves=True) as site, Paho(site.port("c")) as ours:
        listener = Listener(site.mosquittos["b"].port, "listener")
        ours.publish("t/x", b"before", 2)
        listener.wait_for({("t/x", b"before")})
        site.mosquittos["b"].stop(signal.SIGKILL)
        for number in range(50):
            ours.publish("t/x", b"%d" % number, 1 + number % 2)
        site.mosquittos["b"].start()
        listener.wait_for({("t/x", b"%d" % number) for number in range(50)})
        listener.close()


def test_a_stand_by_takes_over(tmp_path: Path) -> None:
    """The serving broker is killed, comes back, and stands by; then the other one loses its connection and hands the session back."""
    with Attached(tmp_path, standby=True) as site:
        listener = Listener(site.mosquittos["a"].port, "listener-a")
        far = Listener(site.mosquittos["b"].port, "listener-b")
        talkers = [Talker(site.mosquittos["b"].port, "b1", 1), Talker(site.mosquittos["a"].port, "a1", 1)]
        for talker in talkers:
            talker.more()
        serving = _state(site, {"a": "up", "c": "stand-by"}, {"c": "up", "a": "stand-by"})
        first = "a" if serving["a"] == "up" else "c"
        other = "c" if first == "a" else "a"
        site.fleet.kill(first)
        killed = time.monotonic()
        _wait(site, other, "up")
        took = time.monotonic() - killed
        talkers[0].more()
        site.fleet.restart(first)
        _wait(site, first, "stand-by")
        proxies = {"a": site.proxies["a"], "c": site.standby_proxy}
        proxies[other].cut()
        _wait(site, first, "up")
        proxies[other].mend()
        _wait(site, other, "stand-by")
        for talker in talkers:
            talker.more()
        sent = set[tuple[str, bytes]]().union(*(talker.stop() for talker in talkers))
        for one in (listener, far):
            one.wait_for(sent)
        assert all(count == 1 for (topic, _), count in listener.seen.items() if topic == "t/a1"), "an echo"
        print(f"the stand-by served after {took:.2f} s")
        for one in (listener, far, *talkers):
            one.close()


def _state(site: Attached, *wanted: dict[str, str]) -> dict[str, str]:
    """Return once the states are one of these."""
    with Paho(site.port("a")) as at_a, Paho(site.port("c")) as at_c:
        found: dict[str, str] = {}
        for watch in (at_a, at_c):
            watch.subscribe("$SYS/broker/attach/a/state", 0)
        while found not in wanted:
            for name, watch in (("a", at_a), ("c", at_c)):
                if name not in found or not watch.messages.empty():
                    found[name] = watch.next().payload.decode()
        return found


def _wait(site: Attached, name: str, state: str) -> None:
    with Paho(site.port(name)) as watch:
        watch.subscribe("$SYS/broker/attach/a/state", 0)
        while watch.next().payload != state.encode():
            pass
