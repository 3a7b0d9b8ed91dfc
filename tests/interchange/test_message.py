"""The abstract message: its shared form, what is refused, what a delivery leaves out."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.interchange.message import Access, Declaration, Header, Kind, Message, Part, delivered, read_header
from mqmesh.interchange.refusals import Code, Refusal

SESSION = "0123456789abcdef0123456789abcdef"
HOP = "0123456789abcdef"


def whole() -> Header:
    return Header(
        Kind.REQUEST,
        "shop/orders",
        (Declaration("bank/credit", {"operation": "check"}), Declaration("bank/other")),
        (Declaration("map/ids", visible=frozenset({"body"})),),
        topic="credit",
        handle="h-1",
        possible_duplicate=True,
        expires=1_900_000_000_000,
        session=SESSION,
        access={"invoice": Access(see=frozenset({"bank/credit"}))},
        trace="00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
    )


def test_a_header_comes_back_from_the_form_of_the_faces() -> None:
    assert read_header(whole().fields()) == whole()


def test_names_alone_declare_services() -> None:
    header = read_header({"kind": "notification", "sender": "a/b", "recipients": ["c/d"]})
    assert header.recipients == (Declaration("c/d"),)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "order"},
        {"kind": None},
        {"sender": "orders"},
        {"sender": "a/b/c"},
        {"sender": "a/#"},
        {"sender": 1},
        {"recipients": []},
        {"recipients": "c/d"},
        {"recipients": ["c/d", "c/d"]},
        {"recipients": [{"service": "c/d", "more": 1}]},
        {"recipients": [{"service": "c/d", "arguments": {"a": 1}}]},
        {"recipients": [{"service": "c/d", "arguments": {"": "x"}}]},
        {"recipients": [f"c/{n}" for n in range(65)]},
        {"handle": "h" * 257},
        {"handle": "h" * (1 << 20)},
        {"topic": "\ud800"},
        {"topic": "a\0b"},
        {"session": "abc"},
        {"session": SESSION.upper()},
        {"call": SESSION},
        {"expires": -1},
        {"expires": True},
        {"expires": 1e300},
        {"possible_duplicate": "yes"},
        {"access": {"body": ["c/d"]}},
        {"access": {"body": {"see": ["nobody"]}}},
        {"unknown": 1},
        {"context": {"a": "b"}},
        {"kind": "response", "expires": 1, "call": HOP},
        {"kind": "response"},
        {"kind": "cancel"},
        {"kind": "error", "call": HOP},
    ],
)
def test_a_header_that_is_wrong_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        read_header({"kind": "request", "sender": "a/b", "recipients": ["c/d"], **change})
    assert caught.value.code is Code.NOT_WELL_FORMED
    assert caught.value.right
    assert len(str(caught.value)) < 400  # a value of a megabyte is not said again


def test_a_delivery_has_identifiers_and_no_route() -> None:
    message = Message(whole(), Part(b"body", "text/plain"), (Part(b"1", name="invoice"), Part(b"2", name="photo")))
    to = Declaration("bank/credit", {"operation": "check"}, frozenset({"body", "invoice"}))
    got = delivered(message, message.header, to, SESSION, HOP, HOP, {"limit": "5"})
    assert got.header.recipients == (to,)
    assert (got.header.services, got.header.handle, got.header.access) == ((), "", {})
    assert (got.header.session, got.header.call, got.header.hop) == (SESSION, HOP, HOP)
    assert [one.name for one in got.attachments] == ["invoice"]
    assert read_header(got.header.fields(), posted=False) == got.header


def test_a_body_that_may_not_be_seen_is_empty() -> None:
    message = Message(whole(), Part(b"secret", "text/plain"))
    assert message.only(frozenset()).body == Part(b"")
