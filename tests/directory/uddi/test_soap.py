"""What the SOAP endpoint is sent by those who mean no good, or do not know better: each time a fault, and the directory goes on."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from mqmesh.directory.server import LONGEST
from mqmesh.directory.storage.store import Store
from mqmesh.directory.uddi import soap
from mqmesh.directory.uddi.documents import NAMESPACE, q
from mqmesh.directory.uddi.saving import prepare
from support.directories import Directory
from support.examples import examples
from support.services import PATIENCE

pytestmark = pytest.mark.process

HEAD = '<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/">'
FIND = f'<find_business xmlns="{NAMESPACE}"><name>a</name></find_business>'


def wrapped(content: str, prolog: str = "") -> bytes:
    return f"{prolog}{HEAD}<e:Body>{content}</e:Body></e:Envelope>".encode()


def code(body: bytes) -> str | None:
    """The error in an answer, None where it is none."""
    report = next(etree.fromstring(body).iter(q("errInfo")), None)
    return None if report is None else report.get("errCode")


def send(directory: Directory, body: bytes) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{directory.url}/uddi", body, {"Content-Type": "text/xml"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


ENTITIES = '<!DOCTYPE e [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "E_fatalError"),
        (b"<", "E_fatalError"),
        (b"<a/>", "E_fatalError"),
        (b"\xff\xfe<\x00a\x00/\x00>\x00", "E_fatalError"),
        (wrapped(FIND.replace("<name>a", "<name>&b;&c;"), ENTITIES), "E_fatalError"),
        (wrapped(FIND, '<!DOCTYPE e SYSTEM "http://127.0.0.1:1/x.dtd">'), "E_fatalError"),
        (wrapped("<a>" * 5000 + "</a>" * 5000), "E_fatalError"),
        (wrapped(FIND.replace("<name>a", "<name>" + "a" * 300)), "E_fatalError"),
        (wrapped(FIND.replace("<name>", "<surname>").replace("</name>", "</surname>")), "E_fatalError"),
        (wrapped(FIND.replace("<find_business", '<find_business maxRows="many"')), "E_fatalError"),
        (wrapped(FIND + FIND), "E_fatalError"),
        (wrapped(""), "E_fatalError"),
        (wrapped(FIND).replace(b"<e:Body>", b'<e:Header><x e:mustUnderstand="1"/></e:Header><e:Body>'), "E_fatalError"),
        (wrapped('<find_business xmlns="urn:uddi-org:api_v2"/>'), "E_unsupported"),
        (wrapped('<get_subscriptions xmlns="urn:uddi-org:sub_v3"/>'), "E_unsupported"),
        (wrapped(f'<set_publisherAssertions xmlns="{NAMESPACE}"/>'), "E_unsupported"),
        (wrapped(f'<nonsense xmlns="{NAMESPACE}"/>'), "E_unsupported"),
        (b" " * (LONGEST + 1), "E_fatalError"),
    ],
)
def test_what_is_not_a_request_gets_a_fault(directory: Directory, body: bytes, expected: str) -> None:
    status, answer = send(directory, body)
    assert (status, code(answer)) == (500, expected)
    assert b"root:" not in answer
    assert send(directory, wrapped(FIND))[0] == 200


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store(f"sqlite:///{tmp_path_factory.mktemp('soap') / 'd.db'}")
    prepare(made)
    return made


@settings(max_examples=examples(150))
@given(data=st.data())
def test_a_damaged_request_never_breaks_the_directory(store: Store, data: st.DataObject) -> None:
    """Never the directory's own fault: E_fatalError with soap:Server would be one."""
    body = bytearray(
        wrapped(FIND.replace("<name>", "<findQualifiers><findQualifier>approximateMatch</findQualifier></findQualifiers><name>"))
    )
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    status, answer = soap.answer(store, bytes(body))
    assert b"soap:Server" not in answer
    assert (status == 200) is (code(answer) is None)


def test_no_prefix_is_the_scheme_of_keys(directory: Directory) -> None:
    """Clients such as suds take a value that begins with a prefix of the WSDL for a qualified name, and send another prefix."""
    for document in ("uddi?wsdl", "uddi/uddi.xsd"):
        with urllib.request.urlopen(f"{directory.url}/{document}") as answer:
            prefixes = [prefix for _, (prefix, _) in etree.iterparse(answer, events=("start-ns",))]
        assert "api" in prefixes
        assert "uddi" not in prefixes


def test_the_wsdl_says_where_the_request_came_to(directory: Directory) -> None:
    with urllib.request.urlopen(f"{directory.url}/uddi?wsdl") as answer:
        assert answer.read().count(f'location="{directory.url}/uddi"'.encode()) == 3
