"""Pushes what waits in inboxes to the URLs of their services (us-9037726, l. 200-202).

    a message waits, a window is open      it is posted to the URL, signed as Standard Webhooks are
    2xx                                    it is done
    anything else, or no answer in 15 s    it is tried again after `interval`, then after twice that, or as Retry-After says
    `tries` are over                       it is put into the inbox again, marked, and stays there to be polled

Each service has its own feed, which pushes at most `TOGETHER` messages at a time: what one receiver does is not felt by others. Messages
that are not tried yet are in the inbox, where the service may poll them too.

What it does not know: queues, the registry.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from ...base.interchange import CONNECTIONS, ENVELOPE
from ...base.quoting import quoted
from ...mqtt.packets import Publish
from ..faces import cloudevents, envelope, mqtt
from ..faces.envelope import TRACE, Form
from ..refusals import Refusal
from ..windows import opens_in
from .line import Denied, Line, Lost
from .webhook import PushError, Sender, basic, signature

if TYPE_CHECKING:
    from ..registry.records import Push

TOGETHER = 8  # pushes of one service at a time
PAUSE = 1.0  # seconds until the broker is asked again
LONGEST_PAUSE = 3600.0  # seconds between two tries
MARK = "pushed"  # user property of a message that was pushed in vain
UNPUSHED = f"{MARK} IS NULL"

log = logging.getLogger("mqmesh.interchange")


@dataclass(frozen=True, slots=True)
class Target:
    """How a service gets its messages. as_json: as one JSON object, and not as a CloudEvent."""

    push: Push
    as_json: bool = False


class Pushes:
    """The feeds of one interchange.

    connect: opens one of the connections that may take from all inboxes here. Services share them out, because the broker looks at all
    inboxes of a connection when a message of one is settled.
    put_back: puts a message into the inbox again, marked; False: not now.
    now: milliseconds since 1970.
    """

    def __init__(
        self,
        sender: Sender,
        connect: Callable[[int], Awaitable[Line]],
        put_back: Callable[[str, Publish], Awaitable[bool]],
        now: Callable[[], int],
    ) -> None:
        self._sender = sender
        self._connect = connect
        self._put_back = put_back
        self._now = now
        self._lines: dict[int, Line] = {}
        self._opening = asyncio.Lock()
        self._feeds: dict[str, tuple[Target, asyncio.Task[None]]] = {}
        self._waits: dict[str, str] = {}  # services whose pushes wait for the broker -> why

    def renew(self, targets: Mapping[str, Target]) -> None:
        """Push to these services from now on, and to no others."""
        for service, (target, task) in list(self._feeds.items()):
            if targets.get(service) != target:
                task.cancel()
                del self._feeds[service]
                self._waits.pop(service, None)
        for service, target in targets.items():
            if service not in self._feeds:
                task = asyncio.create_task(self._feed(service, target), name=f"push to {service}")
                self._feeds[service] = target, task

    async def stop(self) -> None:
        """Push no more: what is under way is in its inbox again."""
        tasks = [task for _, task in self._feeds.values()]
        self.renew({})
        await asyncio.gather(*tasks, return_exceptions=True)
        for line in self._lines.values():
            line.close()
        self._sender.close()

    async def _feed(self, service: str, target: Target) -> None:
        """Push what waits in one inbox, for ever."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    await self._follow(service, target, group)
            except* (Lost, Denied, Refusal) as errors:
                text = str(errors.exceptions[0])
                if self._waits.get(service) != text:
                    self._waits[service] = text
                    log.warning("event=push-waits service=%s text=%s", quoted(service), text)
            except* Exception:  # what nobody has foreseen does not end pushes to this service
                log.exception("event=internal-error work=interchange-push service=%s", quoted(service))
            await asyncio.sleep(PAUSE)

    async def _follow(self, service: str, target: Target, group: asyncio.TaskGroup) -> None:
        room = asyncio.Semaphore(TOGETHER)
        while True:
            await room.acquire()
            await self._window(target)
            line = await self._connected(crc32(service.encode()) % CONNECTIONS)
            alert = await line.open(service, UNPUSHED)
            alert.clear()
            found = await line.take(service, 1)
            if self._waits.pop(service, None) is not None:
                log.warning("event=push-goes-on service=%s", quoted(service))
            if not found:
                room.release()
                await alert.wait()
                continue
            (message,) = found
            task = group.create_task(self._deliver(service, target, line, message), name=f"push to {service}")
            task.add_done_callback(lambda _: room.release())

    async def _connected(self, number: int) -> Line:
        async with self._opening:
            line = self._lines.get(number)
            if line is None or line.closed:
                line = self._lines[number] = await self._connect(number)
            return line

    async def _window(self, target: Target) -> None:
        while wait := opens_in(target.push.windows, target.push.zone, self._now()):  # noqa: ASYNC110
            await asyncio.sleep(wait / 1000)

    async def _deliver(self, service: str, target: Target, line: Line, message: Publish) -> None:
        """Push one message until it is taken, or its tries are over."""
        try:
            done = await self._tried(service, target, message)
            line.settle(message.packet_id, await self._put_back(service, message) if done is None else done)
        except asyncio.CancelledError:
            line.settle(message.packet_id, False)
            raise

    async def _tried(self, service: str, target: Target, message: Publish) -> bool | None:
        """Whether a message was taken. False: it has expired. None: its tries are over."""
        push, pause = target.push, target.push.interval
        form = mqtt.taken(message.payload, message.properties, self._now())
        body, content_type = _written(form, target.as_json)
        for number in range(1, push.tries + 1):
            retry = 0.0
            if form.fields.get("expires", self._now()) < self._now():
                return False
            try:
                answer = await self._sender.post(push.url, self._headers(push, form, body, content_type), body)
                if 200 <= answer.status < 300:
                    return True
                text, retry = f"status {answer.status}", answer.retry
            except PushError as error:
                text = str(error)
            hop = form.fields.get("hop", "")
            log.info("event=push-failed service=%s hop=%s try=%d of=%d text=%s", quoted(service), hop, number, push.tries, quoted(text))
            if number < push.tries:
                await asyncio.sleep(max(pause, retry))
                await self._window(target)
                pause = min(2 * pause, LONGEST_PAUSE)
        log.warning("event=push-given-up service=%s hop=%s text=%s", quoted(service), form.fields.get("hop", ""), quoted(text))
        return None

    def _headers(self, push: Push, form: Form, body: bytes, content_type: str) -> dict[str, str]:
        id, timestamp = form.fields.get("hop", ""), self._now() // 1000
        headers = {"Content-Type": content_type, "webhook-id": id, "webhook-timestamp": str(timestamp)}
        if push.secret:
            headers["webhook-signature"] = signature(push.secret, id, timestamp, body)
        if push.user:
            headers["Authorization"] = basic(push.user, push.password)
        if TRACE in form.fields:
            headers[TRACE] = form.fields[TRACE]
        return headers


def _written(form: Form, as_json: bool) -> tuple[bytes, str]:
    """All of a message in one body, so that the signature is of all of it; its type."""
    if as_json:
        return envelope.encoded(form), ENVELOPE
    return json.dumps(cloudevents.written(form), ensure_ascii=False).encode(), cloudevents.STRUCTURED
