"""Entries in Redis: a stream for each segment.

    {NAME}:SEGMENT      a stream; an entry of it has one field
    {NAME}:segments     the set of their numbers
    {NAME}:owner        who may write: a word of the broker that opened the log last, and how often it has connected

Each script asks first whether the owner is still the one that sends it. So a broker that was away is shut out, and so is what our own
earlier connection left in the server's socket. A script is whole or it is not there.

What Redis promises is a matter of its configuration: with `appendonly yes` and `appendfsync always` an answer follows the disk. Where a
commit is to survive, other settings are refused. `wait`: so many replicas have an entry before it counts.
"""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Iterator
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..port import Away
from .entries import HEAD, LARGEST, Place
from .url import parsed, taken_over

PATIENCE = 5.0  # seconds for an answer
PAGE = 64  # entries that are read at once
FULL = ("MISCONF", "OOM")  # beginnings of errors: the disk takes nothing, or the memory is full
OWNER = "NOTOWNER"
_MINE = f"if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('{OWNER}') end\n"
_SEND = (
    _MINE
    + """local places = {}
for i = 3, #KEYS do
  redis.call('SADD', KEYS[2], ARGV[2 * i - 4])
  places[i - 2] = redis.call('XADD', KEYS[i], '*', 'd', ARGV[2 * i - 3])
end
return places"""
)
_DELETE = _MINE + "redis.call('SREM', KEYS[2], ARGV[2])\nreturn redis.call('UNLINK', KEYS[3])"
_RENEW = (
    f"if string.sub(redis.call('GET', KEYS[1]) or '', 1, #ARGV[1]) ~= ARGV[1] then return redis.error_reply('{OWNER}') end\n"
    "redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2])"
)


class RedisStreams:
    """See `Product`. url: `redis://` or `rediss://`, with `name` and `wait`. sync: a commit waits for the server's disk."""

    def __init__(self, url: str, sync: bool = True) -> None:
        found = parsed(url, "wait")
        self.shown = found.shown
        self.largest = LARGEST
        self._name = found.name
        self._wait = found.number
        self._sync = sync
        self._word = f"{uuid.uuid4()}:"
        self._times = 0  # that we have said who we are
        self._known = False  # the server knows us, as of this connection
        retry = Retry(NoBackoff(), 0)  # what was sent and not answered is not to be sent again
        self._client: Any = redis.Redis.from_url(found.bare, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE, retry=retry)

    def _key(self, name: object) -> str:
        return f"{{{self._name}}}:{name}"

    def open(self) -> list[int]:
        """Say who we are."""
        with self._errors():
            if self._sync:
                self._check()
            self._client.set(self._key("owner"), f"{self._word}0")
            self._known = True
            return [int(number) for number in self._client.smembers(self._key("segments"))]

    def _check(self) -> None:
        try:
            found = self._client.config_get("append*")
        except redis.ResponseError:  # who runs it does not show its settings
            return
        if (found.get("appendonly"), found.get("appendfsync")) != ("yes", "always"):
            text = "it forgets what is confirmed when it crashes: set appendonly yes and appendfsync always"
            raise OSError(errno.EINVAL, f'{self.shown}: {text}, or [queues] durability = "os"')

    def fetch(self, number: int, start: Place | None, most: int | None) -> list[tuple[Place, bytes]]:
        """XRANGE."""
        found: list[tuple[Place, bytes]] = []
        size, begin = 0, start or "-"
        with self._errors():
            while most is None or size < most:
                page = self._client.xrange(self._key(number), begin, "+", PAGE)
                if not page:
                    break
                for place, fields in page:
                    found.append((place.decode(), fields[b"d"]))
                    size += len(fields[b"d"]) - HEAD.size
                begin = f"({found[-1][0]}"
        return found

    def send(self, entries: list[tuple[int, bytes]]) -> list[Place]:
        """XADD of all, in one script."""
        keys = [self._key("owner"), self._key("segments"), *[self._key(number) for number, _ in entries]]
        values = [value for entry in entries for value in entry]
        with self._errors():
            pipeline = self._mine().pipeline(transaction=False)
            pipeline.eval(_SEND, len(keys), *keys, f"{self._word}{self._times}", *values)
            if self._wait:
                pipeline.wait(self._wait, int(1000 * PATIENCE))
            places, *replicas = pipeline.execute()
        if self._wait and replicas[0] < self._wait:
            raise OSError(errno.EIO, f"{self.shown}: {replicas[0]} replicas have taken it, and not {self._wait}")
        return [place.decode() for place in places]

    def delete(self, number: int) -> None:
        """UNLINK."""
        keys = [self._key("owner"), self._key("segments"), self._key(number)]
        with self._errors():
            self._mine().eval(_DELETE, 3, *keys, f"{self._word}{self._times}", number)

    def _mine(self) -> Any:
        """The client, whose server knows that we write: anew after an error, so that what was sent before counts no longer."""
        if not self._known:
            self._times += 1
            self._client.eval(_RENEW, 1, self._key("owner"), self._word, self._times)
            self._known = True
        return self._client

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except redis.ResponseError as error:
            self._known = False
            text = str(error)
            if OWNER in text:
                raise taken_over(self.shown) from None
            raise OSError(errno.ENOSPC if text.startswith(FULL) else errno.EIO, f"{self.shown}: {text}") from error
        except redis.RedisError as error:
            self._known = False
            raise Away(errno.EIO, f"{self.shown}: {error}") from error
