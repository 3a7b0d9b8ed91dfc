"""What one end of a link lets out and in, and under which names: the policy of a link, and the filter that applies it.

Two names of one message: the one that it has at this end ("here") and the one that it has on the link ("there"). Filters speak of
names here. A prefix of a name here may be another one there: ``here = "site-a/", there = "partner/site-a/"``. Both ends may have a policy;
what one of them writes on the link is what the other one reads from it, so each end needs to know its own names only.

Names are translated one to one: `PolicyFilter.outwards` and `PolicyFilter.inwards` are each other's reverse, whatever the prefixes are. A
name that would break that, because another one is translated to it, does not pass. So no two topics become one beyond a link. A message
that passes out and in again through the same filter has its own name again.

Invariants
- ``inwards(outwards(t)) == t`` wherever `outwards` and the filters let both pass, and the other way round;
- no name that begins with `$` passes in either direction; no name that is empty or too long passes out.

It does not know links, trees, messages or rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...mqtt.errors import PeerError
from ...mqtt.topics import check_filter, matches

CACHED = 20_000  # topics whose answer is kept, for each direction
LONGEST_CACHED = 512  # bytes of such a topic: whoever publishes chooses them
LONGEST_NAME = 65_535  # bytes of a topic
LONGEST = 16_384  # characters of one policy: it travels in link state
Prefix = tuple[str, str]  # here, there


class Policy(NamedTuple):
    """What one end of a link lets through. It is the same for the whole life of a link.

    out, into: filters of the topics that may leave to and come in from the peer, in the names of this end; None: all. out_except,
    into_except: filters of those that may not all the same. prefixes: (here, there), each empty or with ``/`` at its end.
    """

    out: tuple[str, ...] | None = None
    out_except: tuple[str, ...] = ()
    into: tuple[str, ...] | None = None
    into_except: tuple[str, ...] = ()
    prefixes: tuple[Prefix, ...] = ()

    @property
    def open(self) -> bool:
        """Whether everything passes under its own name."""
        return self == OPEN

    @property
    def closed(self) -> bool:
        """Whether nothing passes in either direction."""
        return self.out == () and self.into == ()


OPEN = Policy()
CLOSED = Policy((), (), (), ())


def check_policy(policy: Policy) -> None:
    """Raise ValueError, one line, for what is no policy."""
    size = 0
    for filter_ in (*(policy.out or ()), *policy.out_except, *(policy.into or ()), *policy.into_except):
        check_topics(filter_)
        size += len(filter_)
    for here, there in policy.prefixes:
        check_prefix(here)
        check_prefix(there)
        size += len(here) + len(there)
    check_prefixes(policy.prefixes)
    if size > LONGEST:
        raise ValueError(f"the policy has {size} characters, at most {LONGEST}")


def check_topics(filter_: str) -> None:
    """Raise ValueError unless this is a filter of topics that leave a broker."""
    try:
        check_filter(filter_, shared=False)
    except PeerError as error:
        raise ValueError(error.text) from None
    if filter_.startswith("$"):
        raise ValueError("topics that begin with $ never leave a broker")
    if "\0" in filter_ or len(filter_.encode("utf-8", "surrogatepass")) > LONGEST_NAME:
        raise ValueError("it is no Topic Filter of MQTT")


def check_prefix(prefix: str) -> None:
    """Raise ValueError unless topics may begin like this."""
    if prefix and not prefix.endswith("/"):
        raise ValueError("a prefix ends with /, or is empty for all topics")
    if "+" in prefix or "#" in prefix or "\0" in prefix:
        raise ValueError("a prefix has no wildcards: it stands for all topics that begin with it")
    if prefix.startswith("$"):
        raise ValueError("topics that begin with $ never leave a broker")


def check_prefixes(prefixes: Iterable[Prefix]) -> None:
    """Raise ValueError if a prefix stands twice on one side."""
    seen: tuple[set[str], set[str]] = set(), set()
    for pair in prefixes:
        for known, prefix, side in zip(seen, pair, ("here", "there"), strict=True):
            if prefix in known:
                raise ValueError(f'"{prefix}" stands twice as "{side}"')
            known.add(prefix)


def decode_policy(value: Any) -> Policy | None:
    """A policy as msgpack gives it back (`Policy` packs as a list of five). Raises ValueError."""
    if value is None:
        return None
    if type(value) is not list or len(value) != len(OPEN):
        raise ValueError("a policy is a list of five values")
    out, out_except, into, into_except, prefixes = value
    if type(prefixes) is not list:
        raise ValueError("the prefixes of a policy are a list")
    pairs = [_texts(pair) for pair in prefixes]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("a prefix of a policy is a pair")
    policy = Policy(
        None if out is None else _texts(out),
        _texts(out_except),
        None if into is None else _texts(into),
        _texts(into_except),
        tuple((here, there) for here, there in pairs),
    )
    check_policy(policy)
    return policy


def _texts(value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(item) is str for item in value):
        raise ValueError("filters and prefixes of a policy are lists of texts")
    return tuple(value)


class PolicyFilter:
    """A policy at work; its answers are kept, so that each topic is looked at once."""

    __slots__ = ("_here", "_inwards", "_outwards", "_there", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        pairs = [(here.encode(), there.encode()) for here, there in policy.prefixes]
        self._here = sorted(pairs, key=lambda pair: -len(pair[0]))  # the longest prefix wins
        self._there = sorted([(there, here) for here, there in pairs], key=lambda pair: -len(pair[0]))
        self._outwards: dict[bytes, bytes | None] = {}
        self._inwards: dict[bytes, bytes | None] = {}

    def outwards(self, topic: bytes) -> bytes | None:
        """The name on the link of a topic of this end; None: it must not leave."""
        try:
            return self._outwards[topic]
        except KeyError:
            pass
        name = None
        if _passes(topic, self.policy.out, self.policy.out_except):
            name = _translate(topic, self._here, self._there)
        return _keep(self._outwards, topic, name)

    def inwards(self, name: bytes) -> bytes | None:
        """The topic at this end of a name on the link; None: it must not come in."""
        try:
            return self._inwards[name]
        except KeyError:
            pass
        topic = _translate(name, self._there, self._here)
        if topic is not None and not _passes(topic, self.policy.into, self.policy.into_except):
            topic = None
        return _keep(self._inwards, name, topic)


def _keep(answers: dict[bytes, bytes | None], topic: bytes, answer: bytes | None) -> bytes | None:
    if len(topic) > LONGEST_CACHED:
        return answer
    if len(answers) >= CACHED:
        answers.clear()
    answers[topic] = answer
    return answer


def _passes(topic: bytes, allowed: tuple[str, ...] | None, but: tuple[str, ...]) -> bool:
    text = topic.decode()
    if allowed is not None and not any(matches(filter_, text) for filter_ in allowed):
        return False
    return not any(matches(filter_, text) for filter_ in but)


def _translate(name: bytes, from_: list[tuple[bytes, bytes]], back: list[tuple[bytes, bytes]]) -> bytes | None:
    """The other name, if that one's other name is this one."""
    other = _replace(name, from_)
    if not other or other.startswith(b"$") or name.startswith(b"$") or len(other) > LONGEST_NAME or _replace(other, back) != name:
        return None
    return other


def _replace(name: bytes, prefixes: list[tuple[bytes, bytes]]) -> bytes:
    for prefix, other in prefixes:
        if name.startswith(prefix):
            return other + name[len(prefix) :]
    return name
