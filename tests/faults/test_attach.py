"""Mosquittos attached to a mesh: each part is killed or cut under load. Nothing acknowledged is lost, nothing comes back, QoS 2 comes once.

`MQMESH_ATTACH_FAULTS=50` makes so many faults, with three Mosquittos at a ring of five, and ten deaths of Mosquittos.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from support.attached_sites import Attached, Listener, Talker, die, each
from support.paho_client import Paho
from support.services import PATIENCE, require, wait_until

FAULTS = int(os.environ.get("MQMESH_ATTACH_FAULTS", "5"))
STATE = "$SYS/broker/attach/a/state"
DEATHS = max(1, FAULTS // 5)  # of Mosquittos, beside those faults


class Clients:
    """At each Mosquitto a listener to everything, and publishers: QoS 0, 1, 2, retained messages, wills. Each has a topic of its own."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        self.listeners = {name: Listener(port, f"listener-{name}") for name, port in ports.items()}
        self.talkers = {name: [Talker(port, f"{name}{qos}", qos) for qos in (0, 1, 2)] for name, port in ports.items()}
        for name, port in ports.items():
            self.talkers[name].append(Talker(port, f"{name}r", 1, retain=True))
        self.wills: set[tuple[str, bytes]] = set()
        self.excused: set[tuple[str, str, bytes]] = set()  # listener, topic, payload

    def load(self, names: Iterable[str] = ()) -> None:
        """Clients of all Mosquittos, or of these, go on, and one of each dies."""
        for name in names or self.ports:
            for talker in self.talkers[name]:
                talker.more()
            will = f"t/{name}w", b"%d" % len(self.wills)
            die(self.ports[name], *will)
            self.wills.add(will)

    def rest(self) -> None:
        """Until all that was begun is at each listener."""
        every = [one for some in self.talkers.values() for one in some]
        wait_until(lambda: all(one.sent == one.goal for one in every), PATIENCE, "acknowledgements of all")
        wanted = {(one.topic, b"%d" % number) for one in every if one.qos for number in range(one.sent)} | self.wills
        for listener in self.listeners.values():
            listener.wait_for(wanted)

    def excuse(self, dead: str) -> None:
        """A Mosquitto that is killed may send again what it had sent: to its clients, and into the mesh what they had published."""
        for name, listener in self.listeners.items():
            self.excused |= {(name, *key) for key in listener.seen if name == dead or key[0].startswith(f"t/{dead}")}

    def judge(self) -> None:
        sent = {one.topic: one.sent for some in self.talkers.values() for one in some}
        for name, listener in self.listeners.items():
            assert all(int(payload) < sent[topic] for topic, payload in listener.seen if topic in sent)
            twice = {key for key, count in listener.seen.items() if count > 1 and (name, *key) not in self.excused}
            echoes = {key for key in twice if key[0].startswith(f"t/{name}")}
            assert not echoes, f"echoes at {name}: {echoes}"  # what was published at this Mosquitto came there once
            assert not (found := {key for key in twice if key[0][-1] in "02"}), f"came twice to {name}: {found}"
            with Paho(self.ports[name]) as late:
                for other, some in self.talkers.items():
                    late.subscribe(f"t/{other}r", 1)
                    while late.next().payload != b"%d" % (some[-1].sent - 1):  # the last one comes to be retained everywhere
                        pass

    def close(self) -> None:
        for one in (*self.listeners.values(), *(one for some in self.talkers.values() for one in some)):
            one.stop() if isinstance(one, Talker) else None
            one.close()


def test_each_part_is_killed_or_cut_under_load(tmp_path: Path) -> None:
    """Brokers of the mesh and connections to Mosquittos under load. Then Mosquittos, while the clients of the others publish.

    A Mosquitto forgets what it has done since it saved, so it is killed when it has, and its own clients rest meanwhile.
    """
    require("mosquitto")
    fronts, members = ("ab", "abc") if FAULTS < 50 else ("ace", "abcde")
    with Attached(tmp_path, fronts, members=members) as site:
        clients = Clients({name: one.port for name, one in site.mosquittos.items()})

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

        kinds = [kill(name) for name in members] + [cut(name) for name in fronts]
        each([kinds[number % len(kinds)] for number in range(FAULTS)], clients.load)
        clients.rest()
        clients.judge()
        for number in range(DEATHS):
            name = fronts[number % len(fronts)]
            its = site.mosquittos[name]
            its.save()
            clients.excuse(name)
            its.stop(signal.SIGKILL)
            clients.load(set(fronts) - {name})
            its.start()
            clients.rest()
            for one in (clients.listeners[name], *clients.talkers[name]):
                one.await_connection()
            clients.judge()
        deliveries = sum(len(listener.seen) for listener in clients.listeners.values())
        print(f"{FAULTS} faults, {DEATHS} deaths of a Mosquitto: {deliveries} messages arrived, none lost, none came back")
        clients.close()


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
        first, other = _roles(site)
        site.fleet.kill(first)
        killed = time.monotonic()
        _wait(site, other, "up")
        took = time.monotonic() - killed
        talkers[0].more()
        site.fleet.restart(first)
        serving, other = _roles(site)  # a slow mesh: one that has not heard who serves tries by itself
        proxies = {"a": site.proxies["a"], "c": site.standby_proxy}
        proxies[serving].cut()
        _wait(site, other, "up")
        proxies[serving].mend()
        _roles(site)  # whose connection was cut stands by, or was quicker than the mesh and has the session again
        for talker in talkers:
            talker.more()
        sent = set[tuple[str, bytes]]().union(*(talker.stop() for talker in talkers))
        for one in (listener, far):
            one.wait_for(sent)
        assert all(count == 1 for (topic, _), count in listener.seen.items() if topic == "t/a1"), "an echo"
        print(f"the stand-by served after {took:.2f} s")
        for one in (listener, far, *talkers):
            one.close()


def _roles(site: Attached) -> tuple[str, str]:
    """Return once one broker serves and the other one stands by, in this order."""
    with Paho(site.port("a")) as at_a, Paho(site.port("c")) as at_c:
        found: dict[str, str] = {}
        for watch in (at_a, at_c):
            watch.subscribe(STATE, 0)
        while sorted(found.values()) != ["stand-by", "up"]:
            for name, watch in (("a", at_a), ("c", at_c)):
                if name not in found or not watch.messages.empty():
                    found[name] = watch.next().payload.decode()
        return ("a", "c") if found["a"] == "up" else ("c", "a")


def _wait(site: Attached, name: str, state: str) -> None:
    with Paho(site.port(name)) as watch:
        watch.subscribe(STATE, 0)
        while watch.next().payload != state.encode():
            pass
