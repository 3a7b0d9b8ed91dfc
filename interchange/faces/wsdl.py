"""The SOAP face as WSDL 1.1: document/literal over SOAP 1.1, in the words of the header (docs/interchange-http.md)."""

from __future__ import annotations

from xml.sax.saxutils import escape

NAMESPACE = "urn:mqmesh:interchange"
OPERATIONS = ("post", "poll", "settle", "query")

_TEXTS = ("session", "call", "hop", "number", "code", "reason", "traceparent")
_SCHEMA = """\
<xsd:schema targetNamespace="{namespace}" elementFormDefault="qualified">
  <xsd:complexType name="Argument">
    <xsd:sequence>
      <xsd:element name="name" type="xsd:string"/>
      <xsd:element name="value" type="xsd:string"/>
    </xsd:sequence>
  </xsd:complexType>
  <xsd:complexType name="Declaration">
    <xsd:sequence>
      <xsd:element name="service" type="xsd:string"/>
      <xsd:element name="argument" type="i:Argument" minOccurs="0" maxOccurs="unbounded"/>
    </xsd:sequence>
  </xsd:complexType>
  <xsd:complexType name="Services">
    <xsd:sequence>
      <xsd:element name="service" type="xsd:string" minOccurs="0" maxOccurs="unbounded"/>
    </xsd:sequence>
  </xsd:complexType>
  <xsd:complexType name="Access">
    <xsd:sequence>
      <xsd:element name="part" type="xsd:string"/>
      <xsd:element name="see" type="i:Services" minOccurs="0"/>
      <xsd:element name="change" type="i:Services" minOccurs="0"/>
    </xsd:sequence>
  </xsd:complexType>
  <xsd:complexType name="Part">
    <xsd:sequence>
      <xsd:element name="name" type="xsd:string" minOccurs="0"/>
      <xsd:element name="content_type" type="xsd:string" minOccurs="0"/>
      <xsd:element name="text" type="xsd:string" minOccurs="0"/>
      <xsd:element name="data" type="xsd:base64Binary" minOccurs="0"/>
    </xsd:sequence>
  </xsd:complexType>
  <xsd:complexType name="Message">
    <xsd:sequence>
      <xsd:element name="kind" type="xsd:string"/>
      <xsd:element name="sender" type="xsd:string" minOccurs="0"/>
      <xsd:element name="recipient" type="i:Declaration" minOccurs="0" maxOccurs="unbounded"/>
      <xsd:element name="service" type="i:Declaration" minOccurs="0" maxOccurs="unbounded"/>
      <xsd:element name="topic" type="xsd:string" minOccurs="0"/>
      <xsd:element name="handle" type="xsd:string" minOccurs="0"/>
      <xsd:element name="possible_duplicate" type="xsd:boolean" minOccurs="0"/>
      <xsd:element name="expires" type="xsd:dateTime" minOccurs="0"/>
{texts}
      <xsd:element name="access" type="i:Access" minOccurs="0" maxOccurs="unbounded"/>
      <xsd:element name="context" type="i:Argument" minOccurs="0" maxOccurs="unbounded"/>
      <xsd:element name="body" type="i:Part" minOccurs="0"/>
      <xsd:element name="attachment" type="i:Part" minOccurs="0" maxOccurs="unbounded"/>
      <xsd:element name="lease" type="xsd:string" minOccurs="0"/>
    </xsd:sequence>
  </xsd:complexType>
  <xsd:complexType name="Came">
    <xsd:sequence>
      <xsd:element name="recipient" type="xsd:string"/>
      <xsd:element name="state" type="xsd:string"/>
      <xsd:element name="number" type="xsd:string" minOccurs="0"/>
      <xsd:element name="at" type="xsd:string" minOccurs="0"/>
    </xsd:sequence>
  </xsd:complexType>
  <xsd:element name="post"><xsd:complexType><xsd:sequence>
    <xsd:element name="message" type="i:Message"/>
  </xsd:sequence></xsd:complexType></xsd:element>
  <xsd:element name="postResponse"><xsd:complexType><xsd:sequence>
    <xsd:element name="session" type="xsd:string" minOccurs="0"/>
    <xsd:element name="call" type="xsd:string" minOccurs="0"/>
    <xsd:element name="came" type="i:Came" minOccurs="0" maxOccurs="unbounded"/>
    <xsd:element name="waits_for" type="xsd:string" minOccurs="0"/>
  </xsd:sequence></xsd:complexType></xsd:element>
  <xsd:element name="poll"><xsd:complexType><xsd:sequence>
    <xsd:element name="service" type="xsd:string"/>
    <xsd:element name="most" type="xsd:int" minOccurs="0"/>
    <xsd:element name="wait" type="xsd:double" minOccurs="0"/>
    <xsd:element name="lease" type="xsd:double" minOccurs="0"/>
    <xsd:element name="selector" type="xsd:string" minOccurs="0"/>
  </xsd:sequence></xsd:complexType></xsd:element>
  <xsd:element name="pollResponse"><xsd:complexType><xsd:sequence>
    <xsd:element name="message" type="i:Message" minOccurs="0" maxOccurs="unbounded"/>
  </xsd:sequence></xsd:complexType></xsd:element>
  <xsd:element name="settle"><xsd:complexType><xsd:sequence>
    <xsd:element name="acknowledge" type="xsd:string" minOccurs="0" maxOccurs="unbounded"/>
    <xsd:element name="return" type="xsd:string" minOccurs="0" maxOccurs="unbounded"/>
    <xsd:element name="extend" type="xsd:string" minOccurs="0" maxOccurs="unbounded"/>
    <xsd:element name="lease" type="xsd:double" minOccurs="0"/>
  </xsd:sequence></xsd:complexType></xsd:element>
  <xsd:element name="settleResponse"><xsd:complexType><xsd:sequence>
    <xsd:element name="unknown" type="xsd:string" minOccurs="0" maxOccurs="unbounded"/>
  </xsd:sequence></xsd:complexType></xsd:element>
  <xsd:element name="query"><xsd:complexType><xsd:sequence>
    <xsd:element name="session" type="xsd:string" minOccurs="0"/>
    <xsd:element name="call" type="xsd:string" minOccurs="0"/>
    <xsd:element name="service" type="xsd:string" minOccurs="0"/>
    <xsd:element name="route" type="xsd:string" minOccurs="0"/>
    <xsd:element name="status" type="xsd:string" minOccurs="0"/>
    <xsd:element name="since" type="xsd:dateTime" minOccurs="0"/>
    <xsd:element name="until" type="xsd:dateTime" minOccurs="0"/>
    <xsd:element name="identifier" type="i:Argument" minOccurs="0"/>
    <xsd:element name="limit" type="xsd:int" minOccurs="0"/>
    <xsd:element name="cursor" type="xsd:string" minOccurs="0"/>
  </xsd:sequence></xsd:complexType></xsd:element>
  <xsd:element name="queryResponse"><xsd:complexType><xsd:sequence>
    <xsd:element name="answer" type="xsd:string"/>
  </xsd:sequence></xsd:complexType></xsd:element>
  <xsd:element name="refusal"><xsd:complexType><xsd:sequence>
    <xsd:element name="code" type="xsd:string"/>
    <xsd:element name="what" type="xsd:string"/>
    <xsd:element name="right" type="xsd:string" minOccurs="0"/>
  </xsd:sequence></xsd:complexType></xsd:element>
</xsd:schema>"""


def wsdl_text(address: str) -> bytes:
    """The WSDL of a face at a URL."""
    texts = "\n".join(f'      <xsd:element name="{name}" type="xsd:string" minOccurs="0"/>' for name in _TEXTS)
    messages = [(f"{name}{suffix}", f"{name}{suffix}") for name in OPERATIONS for suffix in ("", "Response")]
    parts = [
        f'<message name="{name}"><part name="parameters" element="i:{element}"/></message>'
        for name, element in (*messages, ("refusal", "refusal"))
    ]
    ports = [
        f'<operation name="{name}"><input message="i:{name}"/><output message="i:{name}Response"/>'
        '<fault name="refusal" message="i:refusal"/></operation>'
        for name in OPERATIONS
    ]
    bound = [
        f'<operation name="{name}"><soap:operation soapAction="{name}" style="document"/><input><soap:body use="literal"/></input>'
        '<output><soap:body use="literal"/></output><fault name="refusal"><soap:fault name="refusal" use="literal"/></fault></operation>'
        for name in OPERATIONS
    ]
    text = f"""<?xml version="1.0" encoding="utf-8"?>
<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/"
    xmlns:xsd="http://www.w3.org/2001/XMLSchema" xmlns:i="{NAMESPACE}" targetNamespace="{NAMESPACE}" name="interchange">
<types>
{_SCHEMA.format(namespace=NAMESPACE, texts=texts)}
</types>
{"".join(parts)}
<portType name="Interchange">{"".join(ports)}</portType>
<binding name="InterchangeSoap" type="i:Interchange">
<soap:binding transport="http://schemas.xmlsoap.org/soap/http" style="document"/>{"".join(bound)}</binding>
<service name="Interchange"><port name="Interchange" binding="i:InterchangeSoap">
<soap:address location="{escape(address, {'"': "&quot;"})}"/></port></service>
</definitions>
"""
    return text.encode()
