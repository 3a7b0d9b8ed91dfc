"""Services of an interchange (docs/interchange.md): request, notify, cancel, and serve what comes.

    with Service("shop/orders", ConnectionFactory("mqtt://127.0.0.1:1883")) as shop:
        print(shop.request("bank/credit", {"amount": 100}, timeout=30).text)

    with Service("bank/credit", ConnectionFactory("mqtt://127.0.0.1:1883")) as bank:
        bank.serve(lambda request: "granted" if request.json()["amount"] < 1000 else "refused")

A service that gives several responses to a request (`responses` in its record) yields them:

    def prices(request):
        for shelf in shelves:
            yield shelf.prices()

    for found in shop.ask("store/prices", "coffee").responses(timeout=30):
        print(found.text)

Responses come back to the instance that has asked: it is part of each handle, and the instance selects them in the service's inbox. A
request is acknowledged when its response is, and so it is not lost whatever dies; a second response to it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Self

from ...base.interchange import INBOX, POST
from ..core.errors import IllegalStateError, JMSError
from ..core.settings import AckMode
from ..message.bodies import BytesMessage
from ..message.destinations import Queue, Topic
from ..message.messages import Message
from .consumer import MessageConsumer
from .context import Context
from .factory import ConnectionFactory

log = logging.getLogger("mqmesh.client")

_REFUSAL = re.compile(f"{POST}[^:]*: ([a-z-]+): ")
Content = str | bytes | Mapping[str, Any] | list[Any] | None  # others go as JSON
Answer = Content | Iterator[Content]  # the response, or each of several


class ServiceError(JMSError):
    """A request was refused, or has failed: `error_code` says why, in a word of docs/interchange.md."""


class ExpiredError(ServiceError):
    """Nobody has answered in time."""


class CancelledError(ServiceError):
    """The request was cancelled."""


class Delivered:
    """What a service got. header: kind, sender, session, call, hop, topic and the others, as texts."""

    def __init__(self, message: Message) -> None:
        body = message.get_body(str) if message.is_body_assignable_to(str) else message.get_body(bytes)
        self.body: bytes = body.encode() if isinstance(body, str) else body or b""
        self.header: dict[str, str] = {name: str(value) for name, value in message.properties.items()}

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def sender(self) -> str:
        return self.header["sender"]

    @property
    def session(self) -> str:
        return self.header.get("session", "")

    @property
    def call(self) -> str:
        return self.header.get("call", "")


class Asked:
    """A request that was posted, to one or several recipients."""

    def __init__(self, service: Service, handle: str, recipients: int) -> None:
        self._service, self._handle = service, handle
        self._left = recipients
        self._several: dict[str, int] = {}  # recipient -> responses that are still to come, of several
        self._found: list[Delivered | ServiceError] = []
        self._done: Future[None] = Future()

    def _came(self, found: Delivered | ServiceError, header: Mapping[str, str] | None = None) -> bool:
        """An end for one recipient, or one of its responses. header: of the message. Whether it was the last one."""
        self._found.append(found)
        self._left -= self._is_last(header or {})
        if not self._left:
            self._done.set_result(None)
        return not self._left

    def _is_last(self, header: Mapping[str, str]) -> bool:
        """Whether nothing more is to come of a recipient: an error without a number ends all of its responses."""
        _, slash, of = header.get("number", "").partition("/")
        if not slash:
            return True
        self._several[header["sender"]] = left = self._several.get(header["sender"], int(of)) - 1
        return left == 0

    def responses(self, timeout: float | None = None) -> list[Delivered | ServiceError]:
        """The end, or the responses, of each recipient, in the order in which they came. Raises ExpiredError after `timeout` seconds."""
        try:
            self._done.result(timeout)
        except FutureTimeoutError:
            raise ExpiredError(f"not all recipients have answered within {timeout:g} s", "timeout") from None
        return self._found

    def cancel(self, reason: str = "") -> None:
        """End it for all recipients that have not answered: nothing more comes of them. Raises ServiceError."""
        self._service.cancel(self._handle, reason)

    def response(self, timeout: float | None = None) -> Delivered:
        """The response of the only recipient. Raises ServiceError with what went wrong, and ExpiredError after `timeout` seconds."""
        (found,) = self.responses(timeout)
        if isinstance(found, ServiceError):
            raise found
        return found


class Service:
    """One instance of a service. name: organisation/name. factory: to its broker. Use it in a `with` block."""

    def __init__(self, name: str, factory: ConnectionFactory) -> None:
        self.name = name
        self._inbox = Queue(INBOX + name)
        self._instance = secrets.token_hex(6)
        self._asked: dict[str, Asked] = {}
        self._lock = threading.Lock()
        self._context = factory.create_context()
        self._serving: list[tuple[MessageConsumer, threading.Thread]] = []
        try:
            self._replies = self._context.create_consumer(self._inbox, f"handle LIKE '{self._instance}-%'")
            self._replies.message_listener = self._replied
        except BaseException:
            self._context.close()
            raise

    def close(self) -> None:
        """End what it serves, and the connection. What it has not answered comes to other instances, or later."""
        for consumer, thread in self._serving:
            consumer.close()
            if thread is not threading.current_thread():
                thread.join()
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What it asks

    def ask(self, recipients: str | list[str], body: Content = None, expiry: float | None = None, **header: str | list[str]) -> Asked:
        """Post a request. expiry: seconds. header: `services`, `topic`, `session` and the others. Raises ServiceError if it is refused."""
        names = [recipients] if isinstance(recipients, str) else recipients
        handle = f"{self._instance}-{secrets.token_hex(8)}"
        asked = Asked(self, handle, len(names))
        with self._lock:
            self._asked[handle] = asked
        try:
            self._post(self._context, body, expiry, kind="request", recipients=names, handle=handle, **header)
        except ServiceError as error:
            if error.error_code != "duplicate":  # the client has repeated it after a lost connection: it is posted
                with self._lock:
                    del self._asked[handle]
                raise
        return asked

    def request(self, recipient: str, body: Content = None, timeout: float = 60.0, **header: str | list[str]) -> Delivered:
        """Post a request to one recipient, which expires after `timeout` seconds, and wait for the response. Raises ServiceError."""
        asked = self.ask(recipient, body, timeout, **header)
        return asked.response(timeout + 10)  # the interchange says that it has expired

    def notify(self, recipients: str | list[str], body: Content = None, expiry: float | None = None, **header: str | list[str]) -> None:
        """Post a notification. Raises ServiceError if it is refused."""
        names = [recipients] if isinstance(recipients, str) else recipients
        self._post(self._context, body, expiry, kind="notification", recipients=names, **header)

    def cancel(self, handle: str, reason: str = "") -> None:
        """End a request of this service, by its handle, for all recipients that have not answered. Raises ServiceError."""
        self._post(self._context, None, None, kind="cancel", handle=handle, reason=reason)
        with self._lock:
            asked = self._asked.pop(handle, None)
            while asked is not None and not asked._came(CancelledError(f"{handle} is cancelled", "cancelled")):
                pass

    def _replied(self, message: Message) -> None:
        """A response or an error has come for a request of this instance."""
        found = Delivered(message)
        header = found.header
        error = None
        if header.get("kind") == "error":
            code = header.get("code", "")
            kind = {"expired": ExpiredError, "cancelled": CancelledError}.get(code, ServiceError)
            error = kind(f"{found.sender}: {code}: {header.get('reason', '')}", code)
        with self._lock:
            asked = self._asked.get(header["handle"])
            if asked is not None and asked._came(error or found, header):
                del self._asked[header["handle"]]

    # What it is asked

    def serve(self, handler: Callable[[Delivered], Answer]) -> None:
        """Have a handler work requests and notifications, in a thread of its own, until `close`; call it again for more threads. It also
        serves as an in-transit service.

        What the handler returns is the response; an iterator gives several, as many as the service's record says. If it raises
        ServiceError, that is the error; any other exception is logged, and is an error with the code `failed`. A notification has no
        response.
        """
        context = self._context.create_context(AckMode.CLIENT)
        consumer = context.create_consumer(self._inbox, "handle IS NULL")
        thread = threading.Thread(target=self._serve, args=(context, consumer, handler), name=f"service {self.name}", daemon=True)
        self._serving.append((consumer, thread))
        thread.start()

    def _serve(self, context: Context, consumer: MessageConsumer, handler: Callable[[Delivered], Answer]) -> None:
        while (message := consumer.receive()) is not None:
            got = Delivered(message)
            try:
                if got.header.get("kind") in ("request", "notification", "response"):  # the last: on its way back
                    self._work(context, got, handler)
            except ServiceError as error:
                log.info("service=%s call=%s text=%s", self.name, got.call, error)  # it came too late: nobody waits for it
            except IllegalStateError:
                break  # it is closed
            except JMSError as error:
                log.warning("service=%s call=%s text=%s", self.name, got.call, error)
                context.recover()  # it is given again
                continue
            try:
                message.acknowledge()
            except IllegalStateError:
                break
            except JMSError as error:  # its connection was lost meanwhile: it is given again, maybe to another instance
                log.warning("service=%s call=%s text=%s", self.name, got.call, error)
        context.close()

    def _work(self, context: Context, got: Delivered, handler: Callable[[Delivered], Answer]) -> None:
        answer: Content = None
        fields: dict[str, Any] = {"kind": "response", "hop": got.header["hop"]}
        try:
            made = handler(got)
            if isinstance(made, Iterator):
                for number, one in enumerate(made, 1):
                    if got.header["kind"] != "notification":
                        self._post_one(context, one, number, fields)
                return
            answer = made
        except ServiceError as error:
            fields |= {"kind": "error", "code": error.error_code or "failed", "reason": str(error)}
        except Exception as error:
            log.exception("service=%s call=%s", self.name, got.call)
            fields |= {"kind": "error", "code": "failed", "reason": type(error).__name__}
        if got.header["kind"] != "notification":
            self._post(context, answer, None, **fields)

    def _post_one(self, context: Context, content: Content, number: int, fields: Mapping[str, Any]) -> None:
        """One of several responses; it may be there already, if the request was given again."""
        try:
            self._post(context, content, None, **fields, number=str(number))
        except ServiceError as error:
            if error.error_code != "already-answered":
                raise

    # The wire

    def _post(self, context: Any, body: Content, expiry: float | None, **header: str | list[str]) -> None:
        producer = context.create_producer().set_property("sender", self.name)
        for name, value in header.items():
            if value:
                producer.set_property(name, value if isinstance(value, str) else json.dumps(value))
        if expiry is not None:
            producer.set_time_to_live(int(expiry * 1000))
        message = BytesMessage(_bytes(body))
        if body is not None and not isinstance(body, str | bytes):
            message.content_type = "application/json"
        try:
            producer.send(Topic(POST), message)
        except JMSError as error:
            raise _refused(error) from error


class AsyncService:
    """The same for asyncio: `async with AsyncService(name, factory) as shop`. Handlers are coroutine functions."""

    def __init__(self, name: str, factory: ConnectionFactory) -> None:
        self.name, self._factory = name, factory
        self._service: Service | None = None

    async def __aenter__(self) -> Self:
        self._service = await asyncio.to_thread(Service, self.name, self._factory)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.service.close)

    @property
    def service(self) -> Service:
        """The blocking one. Raises IllegalStateError outside `async with`."""
        if self._service is None:
            raise IllegalStateError("use it in an `async with` block")
        return self._service

    async def request(self, recipient: str, body: Content = None, expiry: float = 60.0, **header: str | list[str]) -> Delivered:
        """See `Service.request`. expiry: seconds. Cancelling the task cancels the request."""
        asked = await asyncio.to_thread(self.service.ask, recipient, body, expiry, **header)
        try:
            await asyncio.wrap_future(asked._done)
        except asyncio.CancelledError:
            asyncio.get_running_loop().run_in_executor(None, asked.cancel)
            raise
        return asked.response(0)

    async def notify(
        self, recipients: str | list[str], body: Content = None, expiry: float | None = None, **header: str | list[str]
    ) -> None:
        """See `Service.notify`."""
        await asyncio.to_thread(self.service.notify, recipients, body, expiry, **header)

    async def serve(self, handler: Callable[[Delivered], Awaitable[Content] | AsyncIterator[Content]]) -> None:
        """See `Service.serve`; the handler runs in this loop. For several responses it is an asynchronous generator."""
        loop = asyncio.get_running_loop()

        async def handled(made: Awaitable[Content]) -> Content:
            return await made

        def each(made: AsyncIterator[Content]) -> Iterator[Content]:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield asyncio.run_coroutine_threadsafe(handled(anext(made)), loop).result()

        def work(got: Delivered) -> Answer:
            made = handler(got)
            return each(made) if isinstance(made, AsyncIterator) else asyncio.run_coroutine_threadsafe(handled(made), loop).result()

        await asyncio.to_thread(self.service.serve, work)


def _bytes(body: Content) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return b"" if body is None else json.dumps(body).encode()


def _refused(error: JMSError) -> JMSError:
    """The refusal that stands in the Reason String of PUBACK (`CODE: what; right`), as an error of its own."""
    found = _REFUSAL.search(str(error)) if error.error_code == "0x83" else None
    return ServiceError(str(error), found[1]) if found is not None else error
