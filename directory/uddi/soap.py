"""SOAP 1.1 around UDDI: bytes in, bytes and an HTTP status out; and what may come in at all.

A request is UTF-8 without a document type (so no entities), at most as deep and long as libxml2 allows without its `huge` option, and valid
against the schema. Everything else gets a fault with a dispositionReport.
"""

from __future__ import annotations

import logging
import re
from threading import Lock
from typing import Any

from lxml import etree

from ..storage.errors import CODES, DirectoryError
from ..storage.store import Store
from ..turns import Lane
from .documents import NAMESPACE, add, make
from .operations import perform
from .schema import OPERATIONS, validator

ENVELOPE = "http://schemas.xmlsoap.org/soap/envelope/"
_KNOWN = {operation for operations in OPERATIONS.values() for operation in operations}
LARGEST = 16 * 1024 * 1024  # bytes of an answer
_OPERATION = re.compile(rb"<(?:[\w.-]+:)?(get_authToken|discard_authToken|(?:save|delete)_)")
_TOKEN = re.compile(rb"<(?:[\w.-]+:)?authInfo[^<>]*>([^<]{1,1000})<")
_validating = Lock()  # a validator keeps the errors of its last run

log = logging.getLogger("mqmesh.directory")


def answer(store: Store, body: bytes, source: str = "") -> tuple[int, bytes]:
    """Do one request; the answer's HTTP status (500 for faults, as SOAP 1.1 says) and body. source: the address that asks."""
    try:
        request = _request(body)
        try:
            done = perform(store, request, source)
        except DirectoryError as error:
            if error.ours:
                log.error("event=request-failed operation=%s error=%s text=%s", etree.QName(request).localname, error.code, error.cause)
            raise
        text = _envelope(done)
        if len(text) > LARGEST:
            raise DirectoryError("E_resultSetTooLarge", f"the answer has more than {LARGEST} bytes; ask for less at a time")
        return 200, text
    except DirectoryError as error:
        return 500, _envelope(_fault(error))
    except Exception:
        log.exception("event=request-failed")
        return 500, _envelope(_fault(DirectoryError("E_fatalError", "the directory failed; its log says how", ours=True)))


def lane_and_token(body: bytes) -> tuple[Lane, str | None]:
    """What a request seems to do, and its token, before it is parsed."""
    token = _TOKEN.search(body)
    operation = _OPERATION.search(body)
    verb = operation[1] if operation else b""
    lane = Lane.LOGIN if verb in (b"get_authToken", b"discard_authToken") else Lane.WRITE if verb else Lane.READ
    return lane, token[1].decode("utf-8", "replace").strip() if token else None


def refused(error: DirectoryError) -> bytes:
    """The fault for a request whose turn does not come."""
    return _envelope(_fault(error))


def too_long(text: str) -> bytes:
    """The fault for a body that was not read to its end."""
    return _envelope(_fault(DirectoryError("E_fatalError", text)))


def _request(body: bytes) -> Any:
    try:
        body.decode("utf-8")
        if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
            raise _malformed("a document type is not allowed")
        parser = etree.XMLParser(
            encoding="utf-8",
            resolve_entities=False,
            no_network=True,
            load_dtd=False,
            huge_tree=False,
            remove_comments=True,
            remove_pis=True,
        )
        envelope = etree.fromstring(body, parser=parser)
    except (UnicodeDecodeError, etree.XMLSyntaxError, ValueError) as error:
        raise _malformed(str(error)) from error
    content = envelope.find(f"{{{ENVELOPE}}}Body") if envelope.tag == f"{{{ENVELOPE}}}Envelope" else None
    if content is None or len(content) != 1:
        raise _malformed("give a SOAP 1.1 envelope whose body has one element")
    for header in envelope.iterfind(f"{{{ENVELOPE}}}Header/*"):
        if header.get(f"{{{ENVELOPE}}}mustUnderstand") in ("1", "true"):
            raise _malformed(f"the header {header.tag!r} is not understood")
    request = content[0]
    name = etree.QName(request)
    if name.namespace != NAMESPACE or name.localname not in _KNOWN:
        raise DirectoryError("E_unsupported", f"{name.localname} of {name.namespace!r} is not supported")
    with _validating:
        if not validator().validate(request):
            raise _malformed(str(validator().error_log[0].message))
    return request


def _malformed(text: str) -> DirectoryError:
    return DirectoryError("E_fatalError", f"the request is not valid: {text[:500]}")


def _fault(error: DirectoryError) -> Any:
    fault = etree.Element(f"{{{ENVELOPE}}}Fault")
    etree.SubElement(fault, "faultcode").text = "soap:Server" if error.ours else "soap:Client"
    etree.SubElement(fault, "faultstring").text = error.code
    report = make("dispositionReport")
    result = add(report, "result", errno=CODES[error.code][0])
    add(result, "errInfo", _printable(f"{error.code}: {error}"), errCode=error.code)
    etree.SubElement(fault, "detail").append(report)
    return fault


def _printable(text: str) -> str:
    """What XML cannot have becomes a question mark."""
    return "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)


def _envelope(content: Any) -> bytes:
    envelope = etree.Element(f"{{{ENVELOPE}}}Envelope", nsmap={"soap": ENVELOPE})
    body = etree.SubElement(envelope, f"{{{ENVELOPE}}}Body")
    if content is not None:
        body.append(content)
    return bytes(etree.tostring(envelope, xml_declaration=True, encoding="utf-8"))
