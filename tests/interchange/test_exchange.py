"""Exchanges of one home: what becomes of each post, who gets what, what is refused, what survives (us-9037726, l. 98-126, 184-206)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from mqmesh.interchange.calls import State, Step, unpack
from mqmesh.interchange.exchange import DEFAULT_EXPIRY, TABLE, TOO_LATE, Deliver, Elsewhere, Exchange, Input, Save, Verdict
from mqmesh.interchange.identifiers import BEGINNING, Identifiers, first_count, home_of
from mqmesh.interchange.message import Access, Declaration, Header, Kind, Message, Part, read_header
from mqmesh.interchange.quota import Quota
from mqmesh.interchange.refusals import Code, Refusal
from msgspec.structs import replace

NOW = BEGINNING + 30 * 86_400_000
HOME = 3
SEVERAL = {"bank/prices": 3}  # responses to a request


class Ways:
    """Routes as the headers have them: the explicit services before each recipient. backward: services of each way back."""

    def __init__(self) -> None:
        self.backward: tuple[str, ...] = ()
        self.strict = True

    def out(self, message: Message, now: int) -> list[tuple[Step, ...]]:
        header = message.header
        if any(one.service == "nobody/there" for one in header.recipients):
            raise Refusal(Code.UNKNOWN_SERVICE, "nobody/there")
        return [tuple(Step(one) for one in (*header.services, to)) for to in header.recipients]

    def back(self, request: Header, response: Message, now: int) -> tuple[Step, ...]:
        return tuple(Step(Declaration(one)) for one in self.backward)

    def arrive(self, message: Message, steps: tuple[Step, ...], at: int, now: int) -> tuple[Step, ...]:
        return steps

    def delivery(self, service: str) -> str:
        return "mqtt"

    def refuses_duplicates(self, service: str) -> bool:
        return self.strict

    def responses(self, service: str) -> int:
        return SEVERAL.get(service, 1)

    def follows(self, service: str) -> bool:
        return service == "bank/follower"


class World:
    """An exchange with its store and the inboxes of all services, and a clock."""

    def __init__(self) -> None:
        self.now = NOW
        self.ways = Ways()
        self.quota = 100, 1 << 20
        self.exchange = self.made()
        self.rows: dict[str, bytes] = {}
        self.inboxes: dict[str, list[Message]] = {}

    def made(self) -> Exchange:
        return Exchange(
            Identifiers(HOME, 0, lambda: "f" * 16), self.ways, first_count(NOW), retention=1000, most=5, quota=Quota(*self.quota)
        )

    def restart(self) -> None:
        last = self.exchange.ids.last
        self.exchange = self.made()
        self.exchange.ids.last = last
        self.exchange.restore(self.rows.values())

    def post(self, kind: str, sender: str, body: bytes = b"", attachments: tuple[Part, ...] = (), **fields: Any) -> Verdict:
        self.now += 1
        header = read_header({"kind": kind, "sender": sender, **fields})
        verdict = self.exchange.post(Message(header, Part(body), attachments), self.now)
        self.carry_out()
        return verdict

    def refused(self, kind: str, sender: str, **fields: Any) -> Code:
        with pytest.raises(Refusal) as caught:
            self.post(kind, sender, **fields)
        assert not self.exchange.take(), "a refused post does something"
        return caught.value.code

    def carry_out(self) -> None:
        for action in self.exchange.take():
            if isinstance(action, Deliver):
                self.inboxes.setdefault(action.service, []).append(action.message)
            elif isinstance(action, Save) and action.value is not None:
                self.rows[action.call] = action.value
            else:
                del self.rows[action.call]

    def later(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.exchange.on_timer(self.now)
        self.carry_out()

    def got(self, service: str) -> Message:
        """The one message that a service has."""
        (found,) = self.inboxes.pop(service)
        return found


@pytest.fixture
def world() -> World:
    return World()


def ask(world: World, *recipients: str, **fields: Any) -> Verdict:
    return world.post("request", "shop/orders", b"?", recipients=list(recipients or ("bank/credit",)), **fields)


def test_request_and_response(world: World) -> None:
    verdict = ask(world, handle="h-1", topic="credit")
    request = world.got("bank/credit")
    assert (request.header.kind, request.header.sender, request.header.topic, request.body.data) == (
        Kind.REQUEST,
        "shop/orders",
        "credit",
        b"?",
    )
    assert (request.header.session, request.header.call) == (verdict.session, verdict.call)
    assert home_of(verdict.call) == home_of(verdict.session) == home_of(request.header.hop) == HOME
    assert request.header.handle == "", "the poster's own names do not travel"
    assert request.header.expires == world.now + DEFAULT_EXPIRY

    world.restart()
    world.post("response", "bank/credit", b"yes", hop=request.header.hop)
    response = world.got("shop/orders")
    assert (response.header.kind, response.header.sender, response.body.data) == (Kind.RESPONSE, "bank/credit", b"yes")
    assert (response.header.session, response.header.call, response.header.handle) == (verdict.session, verdict.call, "h-1")
    assert response.header.hop not in ("", request.header.hop)
    assert not world.inboxes


def test_a_response_names_the_call_alone(world: World) -> None:
    verdict = ask(world)
    assert world.post("response", "bank/credit", call=verdict.call) == Verdict(verdict.session, verdict.call)


def test_one_response_and_no_more(world: World) -> None:
    verdict = ask(world)
    world.post("response", "bank/credit", call=verdict.call)
    assert world.refused("response", "bank/credit", call=verdict.call) is Code.ALREADY_ANSWERED
    world.restart()
    assert world.refused("response", "bank/credit", call=verdict.call) is Code.ALREADY_ANSWERED
    world.later(2000)
    assert world.refused("response", "bank/credit", call=verdict.call) is Code.NO_REQUEST, "the retention is over"
    assert not world.rows
    assert world.exchange.next_deadline() is None


def test_who_may_answer(world: World) -> None:
    verdict = ask(world)
    hop = world.got("bank/credit").header.hop
    assert world.refused("response", "shop/orders", call=verdict.call) is Code.NOT_A_RECIPIENT
    assert world.refused("response", "shop/orders", hop=hop) is Code.NOT_A_RECIPIENT
    for stranger in ({"call": verdict.call}, {"hop": hop}):
        assert world.refused("response", "thief/any", **stranger) is Code.NO_REQUEST, "as if it did not exist"
    assert world.refused("response", "bank/credit", call=world.exchange.ids.one(world.now + 5)) is Code.NO_REQUEST


def test_what_is_of_an_earlier_life_of_the_home_is_lost(world: World) -> None:
    before = Identifiers(HOME, 0, lambda: "f" * 16).one(NOW - 1)
    assert world.refused("response", "bank/credit", call=before) is Code.HOME_LOST
    assert world.refused("cancel", "shop/orders", call=before) is Code.HOME_LOST


def test_what_belongs_to_another_home_is_handed_on(world: World) -> None:
    other = Identifiers(9, 0, lambda: "a" * 16)
    with pytest.raises(Elsewhere) as handed:
        world.post("response", "bank/credit", call=other.one(NOW))
    assert (handed.value.home, handed.value.asks) == (9, False)
    session = other.session(NOW)
    for named in ({"session": session}, {"call": other.one(NOW)}):
        with pytest.raises(Elsewhere) as handed:
            ask(world, **named)
        assert (handed.value.home, handed.value.asks) == (9, True)
    header = read_header({"kind": "request", "sender": "shop/orders", "recipients": ["bank/credit"], "session": session})
    verdict = world.exchange.post(Message(header), world.now, vouched=True)
    assert (verdict.session, home_of(verdict.call)) == (session, HOME)


def test_a_notification_has_no_response_and_no_error(world: World) -> None:
    verdict = world.post("notification", "shop/orders", recipients=["bank/credit"])
    assert world.got("bank/credit").header.kind is Kind.NOTIFICATION
    assert world.refused("response", "bank/credit", call=verdict.call) is Code.NO_RESPONSE_WANTED
    world.post("notification", "shop/orders", recipients=["bank/credit"], services=["map/ids"])
    world.post("error", "map/ids", hop=world.got("map/ids").header.hop, code="bad")
    world.later(DEFAULT_EXPIRY)
    assert not world.inboxes


def test_a_service_fails(world: World) -> None:
    verdict = ask(world)
    world.post("error", "bank/credit", call=verdict.call, code="no-account", reason="who is this")
    error = world.got("shop/orders").header
    assert (error.kind, error.sender, error.code, error.reason, error.call) == (
        Kind.ERROR,
        "bank/credit",
        "no-account",
        "who is this",
        verdict.call,
    )
    assert world.refused("error", "bank/credit", call=verdict.call, code="again") is Code.ALREADY_ENDED


def test_a_response_with_a_code_is_an_error(world: World) -> None:
    verdict = ask(world)
    world.post("response", "bank/credit", call=verdict.call, code="no-account")
    assert world.got("shop/orders").header.kind is Kind.ERROR


def test_expiry_gives_an_error(world: World) -> None:
    verdict = ask(world, expires=NOW + 500)
    world.restart()
    assert world.exchange.next_deadline() == NOW + 500
    world.later(498)
    assert "shop/orders" not in world.inboxes
    world.later(1)
    error = world.got("shop/orders").header
    assert (error.kind, error.code, error.sender, error.call) == (Kind.ERROR, Code.EXPIRED, "bank/credit", verdict.call)
    assert world.refused("response", "bank/credit", call=verdict.call) is Code.EXPIRED
    assert world.refused("request", "shop/orders", recipients=["bank/credit"], expires=NOW) is Code.EXPIRED


def test_recipients_are_independent(world: World) -> None:
    verdict = ask(world, "bank/one", "bank/two", "bank/three", expires=NOW + 1000)
    world.post("response", "bank/two", b"2", call=verdict.call)
    assert world.got("shop/orders").header.sender == "bank/two"
    world.post("error", "bank/one", call=verdict.call, code="no")
    assert world.got("shop/orders").header.sender == "bank/one"
    world.later(1000)
    error = world.got("shop/orders").header
    assert (error.sender, error.code) == ("bank/three", Code.EXPIRED)


def test_services_on_the_way_change_the_message(world: World) -> None:
    verdict = ask(world, "bank/one", "bank/two", services=["map/ids"])
    first, second = world.inboxes.pop("map/ids")
    assert first.header.recipients == (Declaration("map/ids"),)
    world.post("response", "map/ids", b"1!", hop=first.header.hop)
    world.restart()
    assert world.got("bank/one").body.data == b"1!"
    assert world.refused("response", "map/ids", hop=first.header.hop) is Code.ALREADY_ANSWERED
    world.post("error", "map/ids", hop=second.header.hop, code="no-mapping")
    assert world.got("shop/orders").header.code == "no-mapping"
    world.post("response", "bank/one", b"ok", call=verdict.call)
    assert world.got("shop/orders").body.data == b"ok"
    assert not world.inboxes


def test_a_way_back(world: World) -> None:
    world.ways.backward = ("filter/back", "log/all")
    verdict = ask(world)
    world.post("response", "bank/credit", b"raw", call=verdict.call)
    back = world.got("filter/back")
    assert (back.header.kind, back.header.sender, back.body.data) == (Kind.RESPONSE, "bank/credit", b"raw")
    world.restart()
    assert world.refused("response", "bank/credit", call=verdict.call) is Code.ALREADY_ANSWERED
    world.post("response", "filter/back", b"clean", hop=back.header.hop)
    world.post("response", "log/all", b"clean", hop=world.got("log/all").header.hop)
    response = world.got("shop/orders")
    assert (response.header.sender, response.body.data) == ("bank/credit", b"clean")
    assert world.exchange.calls[verdict.call].branches[0].state is State.ANSWERED


def test_a_service_on_the_way_sees_and_changes_only_what_it_may(world: World) -> None:
    world.post(
        "request",
        "shop/orders",
        b"order",
        (Part(b"secret", name="card"), Part(b"fixed", name="terms")),
        recipients=["bank/credit"],
        services=[{"service": "map/ids", "visible": ["body", "terms"]}],
        access={"terms": {"change": ["bank/credit"]}},
    )
    seen = world.got("map/ids")
    assert [one.name for one in seen.attachments] == ["terms"]
    changed = (Part(b"other", name="terms"), Part(b"stolen", name="card"), Part(b"more", name="note"))
    world.post("response", "map/ids", b"mapped", changed, hop=seen.header.hop)
    got = world.got("bank/credit")
    assert got.body.data == b"mapped"
    assert {one.name: one.data for one in got.attachments} == {"card": b"secret", "terms": b"fixed", "note": b"more"}


def test_cancel_says_how_far_it_came_and_tells_who_has_it(world: World) -> None:
    verdict = ask(world, "bank/one", "bank/two")
    world.post("response", "bank/one", call=verdict.call)
    world.inboxes.clear()
    assert world.refused("cancel", "bank/two", call=verdict.call) is Code.UNKNOWN_CALL
    assert world.refused("cancel", "thief/any", call=verdict.call) is Code.UNKNOWN_CALL
    came = world.post("cancel", "shop/orders", call=verdict.call, reason="sold out").came
    assert came == [{"recipient": "bank/one", "state": "answered"}, {"recipient": "bank/two", "state": "out", "at": "bank/two"}]
    told = world.got("bank/two").header
    assert (told.kind, told.call, told.reason) == (Kind.CANCEL, verdict.call, "sold out")
    assert world.refused("response", "bank/two", call=verdict.call) is Code.CANCELLED
    assert world.post("cancel", "shop/orders", call=verdict.call).came == [
        {"recipient": "bank/one", "state": "answered"},
        {"recipient": "bank/two", "state": "cancelled", "code": "cancelled"},
    ]
    assert not world.inboxes


def test_cancel_by_handle(world: World) -> None:
    ask(world, handle="h-1")
    assert world.refused("cancel", "shop/orders", handle="h-2") is Code.UNKNOWN_CALL
    assert world.refused("cancel", "thief/any", handle="h-1") is Code.UNKNOWN_CALL
    assert world.post("cancel", "shop/orders", handle="h-1").came == [{"recipient": "bank/credit", "state": "out", "at": "bank/credit"}]


def test_acknowledge_is_noted(world: World) -> None:
    verdict = ask(world)
    world.post("acknowledge", "bank/credit", call=verdict.call)
    assert world.refused("acknowledge", "shop/orders", call=verdict.call) is Code.NOT_A_RECIPIENT
    assert unpack(world.rows[verdict.call]).branches[0].hops[0].acknowledged == world.now - 1
    world.post("response", "bank/credit", call=verdict.call)


def test_a_handle_is_posted_once(world: World) -> None:
    verdict = ask(world, handle="h-1")
    world.restart()
    with pytest.raises(Refusal) as caught:
        ask(world, handle="h-1", possible_duplicate=True)
    assert caught.value.code is Code.DUPLICATE
    assert verdict.call in caught.value.what
    assert verdict.session in caught.value.what
    world.post("request", "shop/other", recipients=["bank/credit"], handle="h-1")
    world.ways.strict = False
    assert ask(world, handle="h-1").call != verdict.call


def test_sessions_are_for_those_who_take_part(world: World) -> None:
    verdict = ask(world)
    again = world.post("request", "bank/credit", recipients=["map/ids"], session=verdict.session)
    assert (again.session, again.call != verdict.call) == (verdict.session, True)
    assert world.post("notification", "map/ids", recipients=["bank/credit"], call=again.call).session == verdict.session
    assert world.refused("request", "thief/any", recipients=["bank/credit"], session=verdict.session) is Code.UNKNOWN_SESSION
    assert world.refused("request", "thief/any", recipients=["bank/credit"], call=verdict.call) is Code.UNKNOWN_CALL


def test_what_is_refused_changes_nothing(world: World) -> None:
    assert world.refused("request", "shop/orders", recipients=["bank/credit", "nobody/there"]) is Code.UNKNOWN_SERVICE
    world.exchange.ids.last = first_count(world.now + 10_000)
    assert world.refused("request", "shop/orders", recipients=["bank/credit"]) is Code.UNAVAILABLE
    assert not world.exchange.calls


def test_a_recipient_whose_rules_give_less_time_expires_first(world: World) -> None:
    class Hurried(Ways):
        def out(self, message: Message, now: int) -> list[tuple[Step, ...]]:
            return [
                tuple(replace(one, expires=NOW + 300) if one.to.service == "bank/one" else one for one in way)
                for way in super().out(message, now)
            ]

    world.ways = Hurried()
    world.restart()
    verdict = ask(world, "bank/one", "bank/two", expires=NOW + 900)
    assert world.exchange.next_deadline() == NOW + 300
    world.now = NOW + 300
    world.exchange.on_timer(world.now)
    world.carry_out()
    (error,) = world.inboxes.pop("shop/orders")
    assert (error.header.sender, error.header.code) == ("bank/one", "expired")
    world.restart()
    assert world.exchange.next_deadline() == NOW + 900
    assert world.refused("response", "bank/one", call=verdict.call) is Code.EXPIRED
    world.post("response", "bank/two", b"yes", call=verdict.call)
    (response,) = world.inboxes.pop("shop/orders")
    assert response.header.sender == "bank/two"


def test_open_calls_of_a_sender_are_bounded(world: World) -> None:
    world.quota = 2, 1 << 20
    world.restart()
    first = ask(world, expires=NOW + 500)
    ask(world)
    world.restart()
    assert world.refused("request", "shop/orders", recipients=["bank/credit"]) is Code.OVER_LIMIT
    world.post("notification", "shop/other", recipients=["bank/credit"])
    world.post("response", "bank/credit", call=first.call)
    ask(world)
    world.now = NOW + DEFAULT_EXPIRY + 10
    world.exchange.on_timer(world.now)
    world.carry_out()
    ask(world)
    ask(world)
    assert world.refused("request", "shop/orders", recipients=["bank/credit"]) is Code.OVER_LIMIT


def test_bytes_of_open_calls_are_bounded(world: World) -> None:
    """What is kept of a message on its way counts, as long as it is kept, over a restart too."""
    world.quota = 100, 10_000
    world.restart()
    large = {"services": ["map/ids"], "access": {"body": {"see": ["bank/credit"]}}, "recipients": ["bank/credit"]}
    first = world.post("request", "shop/orders", b"x" * 20_000, **large)
    world.restart()
    assert world.refused("request", "shop/orders", recipients=["bank/credit"]) is Code.OVER_LIMIT
    world.post("notification", "shop/other", recipients=["bank/credit"])
    world.post("response", "map/ids", call=first.call)  # the bank has it now: it is not needed any more
    for _ in range(3):
        ask(world)
    world.post("cancel", "shop/orders", call=first.call)
    ask(world)


def test_what_is_posted_during_work_is_of_its_session(world: World) -> None:
    """Of a service that follows; unless it works for several sessions, or wants a session of its own (l. 222)."""

    def begun(sender: str, **fields: Any) -> str:
        return world.post("notification", sender, recipients=["map/ids"], **fields).session

    first = world.post("request", "shop/orders", recipients=["bank/follower", "bank/credit"])
    world.restart()
    assert begun("bank/follower") == first.session
    assert begun("bank/follower", session="new") != first.session
    assert begun("bank/credit") != first.session
    assert begun("shop/orders") != first.session
    again = world.post("request", "shop/orders", recipients=["bank/follower"], session=first.session)
    assert begun("bank/follower") == first.session
    second = world.post("request", "shop/orders", recipients=["bank/follower"])
    assert begun("bank/follower") not in (first.session, second.session)
    world.post("cancel", "shop/orders", call=second.call)
    assert begun("bank/follower") == first.session
    world.post("response", "bank/follower", call=first.call)
    assert begun("bank/follower") == first.session
    world.post("error", "bank/follower", call=again.call, code="no")
    assert begun("bank/follower") != first.session


def test_new_is_a_session_for_new_calls_only(world: World) -> None:
    first = ask(world)
    with pytest.raises(Refusal):
        world.post("response", "bank/credit", call=first.call, session="new")


def test_an_alert_is_a_notification_with_a_code(world: World) -> None:
    world.post("notification", "shop/orders", recipients=["bank/credit"], code="low-stock", reason="two are left")
    got = world.got("bank/credit").header
    assert (got.kind, got.code, got.reason) == (Kind.NOTIFICATION, "low-stock", "two are left")


def test_an_open_call_is_known_by_its_handle_after_a_restart(world: World) -> None:
    world.ways.strict = False
    first = ask(world, handle="h")
    world.post("response", "bank/credit", call=first.call)
    second = ask(world, handle="h")
    world.restart()
    assert world.post("cancel", "shop/orders", handle="h").call == second.call


def test_what_cannot_expire_for_want_of_identifiers_expires_later(world: World) -> None:
    ask(world, expires=NOW + 500)
    world.exchange.ids.last = first_count(NOW + 900)
    world.later(600)
    assert "shop/orders" not in world.inboxes
    world.later(1000)
    assert world.got("shop/orders").header.code == Code.EXPIRED


def test_ended_calls_are_bounded(world: World) -> None:
    for _ in range(8):
        world.post("notification", "shop/orders", recipients=["bank/credit"])
    assert len(world.rows) == len(world.exchange.calls) == 5


def test_the_table_is_complete() -> None:
    """Each end says why it is too late; what is open has a next state for each input that can come."""
    assert set(TOO_LATE) == {state for state in State if state.ended}
    assert {state for state, _ in TABLE} == {state for state in State if not state.ended}
    assert all((state, one) in TABLE for state in State if not state.ended for one in Input)


def test_access_travels_over_a_restart(world: World) -> None:
    verdict = ask(world, services=["map/ids"], access={"body": {"see": ["bank/credit"]}})
    assert world.got("map/ids").body.data == b""
    world.restart()
    assert world.exchange.calls[verdict.call].header.access == {"body": Access(see=frozenset({"bank/credit"}))}
    world.post("response", "map/ids", b"forged", call=verdict.call)
    assert world.got("bank/credit").body.data == b"?"


# Several responses (l. 222, 224)


def answer(world: World, hop: str, number: str, sender: str = "bank/prices") -> Verdict:
    return world.post("response", sender, number.encode(), hop=hop, number=number)


def test_a_service_gives_as_many_responses_as_its_record_says(world: World) -> None:
    verdict = ask(world, "bank/prices", "bank/credit", handle="h-1")
    hop = world.got("bank/prices").header.hop
    for number in ("2", "1"):
        answer(world, hop, number)
        got = world.got("shop/orders")
        assert (got.header.number, got.header.handle, got.body.data) == (f"{number}/3", "h-1", number.encode())
        assert world.refused("response", "bank/prices", hop=hop, number=number) is Code.ALREADY_ANSWERED, "it came twice"
        world.restart()
    assert [one.state for one in world.exchange.calls[verdict.call].branches] == [State.OUT, State.OUT, State.ANSWERED, State.ANSWERED]
    answer(world, hop, "3")
    assert world.got("shop/orders").header.number == "3/3"
    assert world.refused("response", "bank/prices", hop=hop, number="3") is Code.ALREADY_ANSWERED
    assert not world.exchange.calls[verdict.call].ended, "the other recipient has not answered"
    world.post("response", "bank/credit", hop=world.got("bank/credit").header.hop, number="7")  # it gives one: its number says nothing
    assert world.got("shop/orders").header.number == ""
    assert world.exchange.calls[verdict.call].ended


@pytest.mark.parametrize("number", ["", "0", "4", "-1", "x", "1.0", "\u0661", "9" * 200])
def test_a_number_that_is_none_of_a_service_is_refused(world: World, number: str) -> None:
    ask(world, "bank/prices")
    assert world.refused("response", "bank/prices", hop=world.got("bank/prices").header.hop, number=number) is Code.NOT_WELL_FORMED


def test_each_response_goes_its_own_way_back(world: World) -> None:
    world.ways.backward = ("filter/names",)
    verdict = ask(world, "bank/prices")
    hop = world.got("bank/prices").header.hop
    for number in "123":
        answer(world, hop, number)
    on_the_way = world.inboxes.pop("filter/names")
    assert [one.header.number for one in on_the_way] == ["1/3", "2/3", "3/3"]
    world.restart()
    world.post("response", "filter/names", b"filtered", hop=on_the_way[2].header.hop)
    got = world.got("shop/orders")
    assert (got.header.number, got.header.sender, got.body.data) == ("3/3", "bank/prices", b"filtered")
    world.post("error", "filter/names", hop=on_the_way[0].header.hop, code="no")
    got = world.got("shop/orders")
    assert (got.header.kind, got.header.number, got.header.code) == (Kind.ERROR, "1/3", "no")
    world.later(DEFAULT_EXPIRY)
    got = world.got("shop/orders")
    assert (got.header.kind, got.header.number, got.header.code) == (Kind.ERROR, "2/3", Code.EXPIRED)
    assert world.exchange.calls[verdict.call].ended


def test_one_error_stands_for_all_responses_that_do_not_come(world: World) -> None:
    verdict = ask(world, "bank/prices")
    hop = world.got("bank/prices").header.hop
    answer(world, hop, "1")
    world.got("shop/orders")
    world.post("error", "bank/prices", hop=hop, code="no")
    assert (world.got("shop/orders").header.number, world.exchange.calls[verdict.call].ended) == ("", world.now)
    assert world.refused("response", "bank/prices", hop=hop, number="2") is Code.ALREADY_ENDED


def test_a_cancel_reaches_who_has_a_response_and_who_is_to_give_more(world: World) -> None:
    world.ways.backward = ("filter/names",)
    verdict = ask(world, "bank/prices")
    answer(world, world.got("bank/prices").header.hop, "2")
    world.got("filter/names")
    came = world.post("cancel", "shop/orders", call=verdict.call).came
    assert came == [
        {"recipient": "bank/prices", "state": "out", "at": "bank/prices"},
        {"recipient": "bank/prices", "state": "back", "number": "2/3", "at": "filter/names"},
    ]
    assert {world.got("filter/names").header.kind, world.got("bank/prices").header.kind} == {Kind.CANCEL}
    assert "shop/orders" not in world.inboxes


def test_the_service_that_a_request_comes_to_says_how_many_responses_there_are(world: World) -> None:
    """Its rules may send it to another one than the sender named."""
    elsewhere = (Step(Declaration("map/ids")), Step(Declaration("bank/prices")))
    world.ways.arrive = lambda message, steps, at, now: elsewhere if at else steps  # type: ignore[method-assign]
    ask(world, "bank/credit", services=["map/ids"])
    world.post("response", "map/ids", b"!", hop=world.got("map/ids").header.hop)
    hop = world.got("bank/prices").header.hop
    for number in "312":
        answer(world, hop, number)
        assert world.got("shop/orders").header.number == f"{number}/3"


def test_a_notification_to_a_service_that_gives_several_ends_at_once(world: World) -> None:
    verdict = world.post("notification", "shop/orders", recipients=["bank/prices"])
    assert world.exchange.calls[verdict.call].ended


def test_calls_of_earlier_releases_have_one_response(world: World) -> None:
    verdict = ask(world)
    found = msgpack.unpackb(world.rows[verdict.call])
    found[6] = [branch[:8] for branch in found[6]]
    (branch,) = unpack(msgpack.packb(found)).branches
    assert (branch.missing, branch.of, branch.number) == ((), 1, "")
