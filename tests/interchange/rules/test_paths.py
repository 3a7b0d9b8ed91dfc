"""Paths into JSON (RFC 9535, singular queries), XML, headers and attachments."""

from __future__ import annotations

from typing import Any

import pytest
from lxml import etree
from mqmesh.interchange.refusals import Refusal
from mqmesh.interchange.rules.paths import XmlTree, attachment_path, header_path, json_path, walk_json, xml_path

BODY = {"a": {"b c": [1, {"é": "x"}], "'": 2, '"': 3, "\n": 4, "\U0001f600": 5}, "": 6, "n": None, "_": 7}
XML = b'<o xmlns:p="urn:p" q="1"><l>a</l><l n="2">b</l><p:l>c</p:l><d><e><f>deep</f></e></d></o>'


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$", BODY),
        ("$.a['b c'][0]", 1),
        ('$.a["b c"][-1].é', "x"),
        ("$ .a ['b c'] [1]['\\u00e9']", "x"),
        ("$.a['\\'']", 2),
        ('$.a["\\""]', 3),
        ("$.a['\"']", 3),
        ("$.a['\\n']", 4),
        ("$.a['\\uD83D\\uDE00']", 5),
        ("$['']", 6),
        ("$._", 7),
        ("$.n", None),
        ("$.n.more", None),
        ("$.a['b c'][2]", None),
        ("$.a['b c'][-3]", None),
        ("$.a[0]", None),
        ("$.a['b c'].x", None),
    ],
)
def test_a_json_path_finds_what_it_names(path: str, value: Any) -> None:
    assert walk_json(BODY, json_path(path, "json").steps) == value


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "$.",
        "$..a",
        "$.*",
        "$[*]",
        "$[0:1]",
        "$['a','b']",
        "$[?@.a]",
        "$.a ",
        "$[01]",
        "$[-0]",
        "$[9007199254740992]",
        "$['a",
        "$[a]",
        "$.1a",
        "$['\\x']",
        '$["\\\'"]',
        "$['\\uD83D']",
        "$['\n']",
        "$" + ".a" * 65,
        "$." + "a" * 1024,
        5,
        None,
    ],
)
def test_a_json_path_that_is_not_singular_or_wrong_is_refused(path: Any) -> None:
    with pytest.raises(Refusal):
        json_path(path, "json")


def text_at(path: str, **namespaces: str) -> str | None:
    found = XmlTree(etree.fromstring(XML)).walk(xml_path(path, "xml", namespaces).steps)
    return found.text if isinstance(found, etree._Element) else found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/o/l", "a"),
        ("/o/l[1]", "a"),
        ("/o/l[2]", "b"),
        ("/o/l[3]", None),
        ("/o/l[2]/@n", "2"),
        ("/o/@q", "1"),
        ("/o/d/e/f", "deep"),
        ("/x", None),
    ],
)
def test_an_xml_path_finds_what_it_names(path: str, value: str | None) -> None:
    assert text_at(path) == value


def test_namespaces_of_xml_paths() -> None:
    assert text_at("/o/z:l", z="urn:p") == "c"
    assert text_at("/o/z:l", z="urn:q") is None
    with pytest.raises(Refusal, match="namespace"):
        text_at("/o/z:l")


@pytest.mark.parametrize(
    "path", ["", "o", "//l", "/o/*", "/o/l[0]", "/o/@q/l", "/@q", "/o/..", "/o/l[x]", "/o[2]", "/o/l[last()]", "/o" * 65, "/o/"]
)
def test_an_xml_path_that_searches_is_refused(path: str) -> None:
    with pytest.raises(Refusal):
        xml_path(path, "xml", {})


@pytest.mark.parametrize("name", ["colour", "argument", "context.", "argument.", 7])
def test_a_header_that_there_is_not_is_refused(name: Any) -> None:
    with pytest.raises(Refusal):
        header_path(name, "header")


@pytest.mark.parametrize("name", ["pdf", "a/b/c", "*/*", "image/", ""])
def test_an_attachment_that_is_no_content_type_is_refused(name: Any) -> None:
    with pytest.raises(Refusal):
        attachment_path(name, "attachment")
