"""The WSDL of the directory's UDDI face: three ports at one address, document/literal over SOAP 1.1."""

from __future__ import annotations

from typing import Any

from lxml import etree

from .documents import NAMESPACE
from .schema import OPERATIONS, XSD

WSDL = "http://schemas.xmlsoap.org/wsdl/"
SOAP = "http://schemas.xmlsoap.org/wsdl/soap/"
TARGET = "urn:mqmesh:directory"


def wsdl_text(address: str) -> bytes:
    """The WSDL whose ports are at `address`."""
    names = {None: WSDL, "soap": SOAP, "api": NAMESPACE, "own": TARGET, "xsd": XSD}
    root = etree.Element(f"{{{WSDL}}}definitions", {"targetNamespace": TARGET, "name": "directory"}, nsmap=names)
    schema = etree.SubElement(_w(root, "types"), f"{{{XSD}}}schema")
    etree.SubElement(schema, f"{{{XSD}}}import", {"namespace": NAMESPACE, "schemaLocation": f"{address}/uddi.xsd"})
    _messages(root)
    for port, operations in OPERATIONS.items():
        port_type = _w(root, "portType", name=f"UDDI_{port}_PortType")
        for operation, answer in operations.items():
            _operation(port_type, operation, answer)
    for port, operations in OPERATIONS.items():
        binding = _w(root, "binding", name=f"UDDI_{port}_SoapBinding", type=f"own:UDDI_{port}_PortType")
        _s(binding, "binding", transport="http://schemas.xmlsoap.org/soap/http", style="document")
        for operation in operations:
            _bound(binding, operation)
    service = _w(root, "service", name="UDDI_Service")
    for port in OPERATIONS:
        _s(_w(service, "port", name=f"UDDI_{port}_Port", binding=f"own:UDDI_{port}_SoapBinding"), "address", location=address)
    return bytes(etree.tostring(root, xml_declaration=True, encoding="utf-8", pretty_print=True))


def _messages(root: Any) -> None:
    every = {name for operations in OPERATIONS.values() for pair in operations.items() for name in pair if name}
    for name in (*sorted(every), "dispositionReport"):
        _w(_w(root, "message", name=name), "part", name="body", element=f"api:{name}")
    _w(root, "message", name="emptyMessage")


def _operation(port_type: Any, name: str, answer: str) -> None:
    operation = _w(port_type, "operation", name=name)
    _w(operation, "input", message=f"own:{name}")
    _w(operation, "output", message=f"own:{answer or 'emptyMessage'}")
    _w(operation, "fault", name="error", message="own:dispositionReport")


def _bound(binding: Any, name: str) -> None:
    operation = _w(binding, "operation", name=name)
    _s(operation, "operation", soapAction=name, style="document")
    for way in ("input", "output"):
        _s(_w(operation, way), "body", use="literal")
    _s(_w(operation, "fault", name="error"), "fault", name="error", use="literal")


def _w(parent: Any, tag: str, **attributes: str) -> Any:
    return etree.SubElement(parent, f"{{{WSDL}}}{tag}", attributes)


def _s(parent: Any, tag: str, **attributes: str) -> Any:
    return etree.SubElement(parent, f"{{{SOAP}}}{tag}", attributes)
