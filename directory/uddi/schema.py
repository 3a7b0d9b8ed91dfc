"""The XML schema of UDDI v3's messages that the directory takes and gives, and the WSDL that says where.

The schema is written as tables. A complex type is a line `name: content | attributes`; content is a list of elements, each with a sign
(`?` none or one, `*` any number, `+` one or more), or in parentheses a choice of such lists. A text type is `name = base type
| attributes`. An attribute ends in `!` when it must be there; `=type` names a type other than its own name's.
The source of names, limits and order is the UDDI specification 3.0.2, chapters 3 to 5 and 11.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from lxml import etree

from .documents import NAMESPACE

XSD = "http://www.w3.org/2001/XMLSchema"
XML = "http://www.w3.org/XML/1998/namespace"
SIGNATURES = "http://www.w3.org/2000/09/xmldsig#"

# name, base, shortest, longest, whether white space collapses
_LIMITS = [
    ("uddiKey", "anyURI", 0, 255, False),
    ("keyName", "string", 0, 255, True),
    ("keyValue", "string", 0, 255, True),
    ("useType", "string", 0, 255, True),
    ("sortCode", "string", 0, 10, True),
    ("authorizedName", "string", 0, 255, False),
    ("instanceParms", "string", 1, 8192, False),
    ("uri4096", "anyURI", 1, 4096, False),
    ("text50", "string", 1, 50, True),
    ("text80", "string", 1, 80, True),
    ("text255", "string", 1, 255, True),
    ("text4096", "string", 1, 4096, True),
]
_CHOICES = {
    "infoSelection": "all hidden visible",
    "keyType": "businessKey tModelKey serviceKey bindingKey subscriptionKey",
    "direction": "fromKey toKey",
    "completionStatus": "status:complete status:fromKey_incomplete status:toKey_incomplete status:both_incomplete",
}
_SIMPLE_ELEMENTS = {
    "authInfo": "xsd:string",
    "authorizedName": "api:authorizedName",
    "nodeID": "api:uddiKey",
    "businessKey": "api:uddiKey",
    "serviceKey": "api:uddiKey",
    "bindingKey": "api:uddiKey",
    "tModelKey": "api:uddiKey",
    "fromKey": "api:uddiKey",
    "toKey": "api:uddiKey",
    "instanceParms": "api:instanceParms",
    "findQualifier": "api:text255",
    "completionStatus": "api:completionStatus",
    "includeCount": "xsd:int",
    "actualCount": "xsd:int",
    "listHead": "xsd:int",
}
_ATTRIBUTES = {  # those whose type is not api:uddiKey
    "useType": "api:useType",
    "sortCode": "api:sortCode",
    "keyName": "api:keyName",
    "keyValue": "api:keyValue",
    "errCode": "xsd:string",
    "errno": "xsd:int",
    "keyType": "api:keyType",
    "direction": "api:direction",
    "completionStatus": "api:completionStatus",
    "truncated": "xsd:boolean",
    "deleted": "xsd:boolean",
    "maxRows": "xsd:int",
    "listHead": "xsd:int",
    "userID": "xsd:string",
    "cred": "xsd:string",
    "infoSelection": "api:infoSelection",
}
_TEXTS = """
accessPoint = text4096 | useType
addressLine = text80 | keyName keyValue
description = text255 | xml:lang
discoveryURL = uri4096 | useType
email = text255 | useType
errInfo = xsd:string | errCode!
name = text255 | xml:lang
overviewURL = uri4096 | useType
personName = text255 | xml:lang
phone = text50 | useType
"""
_TYPES = """
address: addressLine+ | xml:lang useType sortCode tModelKey
assertionStatusItem: fromKey toKey keyedReference keysOwned | completionStatus!
bindingTemplate: description* ( accessPoint / hostingRedirector ) tModelInstanceDetails? categoryBag? Signature* | bindingKey serviceKey
bindingTemplates: bindingTemplate+
businessEntity: discoveryURLs? name+ description* contacts? businessServices? identifierBag? categoryBag? Signature* | businessKey
businessInfo: name+ description* serviceInfos? | businessKey!
businessInfos: businessInfo+
businessService: name* description* bindingTemplates? categoryBag? Signature* | serviceKey businessKey
businessServices: businessService+
categoryBag: ( keyedReference+ keyedReferenceGroup* / keyedReferenceGroup+ )
contact: description* personName+ phone* email* address* | useType
contacts: contact+
discoveryURLs: discoveryURL+
dispositionReport: result+ | truncated
findQualifiers: findQualifier+
hostingRedirector: | bindingKey!
identifierBag: keyedReference+
instanceDetails: description* ( overviewDoc+ instanceParms? / instanceParms )
keyedReference: | tModelKey! keyName keyValue!
keyedReferenceGroup: keyedReference* | tModelKey!
keysOwned: ( fromKey toKey? / toKey )
listDescription: includeCount actualCount listHead
operationalInfo: created? modified? modifiedIncludingChildren? nodeID? authorizedName? | entityKey!
overviewDoc: ( description+ overviewURL? / overviewURL )
publisherAssertion: fromKey toKey keyedReference Signature*
relatedBusinessInfo: businessKey name+ description* sharedRelationships+
relatedBusinessInfos: relatedBusinessInfo+
result: errInfo? | keyType errno!
serviceInfo: name* | serviceKey! businessKey!
serviceInfos: serviceInfo+
sharedRelationships: keyedReference+ publisherAssertion* | direction!
tModel: name description* overviewDoc* identifierBag? categoryBag? Signature* | tModelKey deleted
tModelBag: tModelKey+
tModelInfo: name description* | tModelKey!
tModelInfos: tModelInfo+
tModelInstanceDetails: tModelInstanceInfo+
tModelInstanceInfo: description* instanceDetails? | tModelKey!
"""
_MESSAGES = """
find_binding: authInfo? findQualifiers? tModelBag? find_tModel? categoryBag? | maxRows serviceKey listHead
find_business: authInfo? findQualifiers? name* identifierBag? categoryBag? tModelBag? find_tModel? discoveryURLs? \
find_relatedBusinesses? | maxRows listHead
find_relatedBusinesses: authInfo? findQualifiers? ( businessKey / fromKey / toKey ) keyedReference? | maxRows listHead
find_service: authInfo? findQualifiers? name* categoryBag? tModelBag? find_tModel? | maxRows businessKey listHead
find_tModel: authInfo? findQualifiers? name? identifierBag? categoryBag? | maxRows listHead
get_bindingDetail: authInfo? bindingKey+
get_businessDetail: authInfo? businessKey+
get_operationalInfo: authInfo? entityKey+
get_serviceDetail: authInfo? serviceKey+
get_tModelDetail: authInfo? tModelKey+
get_authToken: | userID! cred!
discard_authToken: authInfo
delete_binding: authInfo? bindingKey+
delete_business: authInfo? businessKey+
delete_service: authInfo? serviceKey+
delete_tModel: authInfo? tModelKey+
get_registeredInfo: authInfo? | infoSelection!
save_binding: authInfo? bindingTemplate+
save_business: authInfo? businessEntity+
save_service: authInfo? businessService+
save_tModel: authInfo? tModel+
add_publisherAssertions: authInfo? publisherAssertion+
delete_publisherAssertions: authInfo? publisherAssertion+
get_assertionStatusReport: authInfo? completionStatus?
get_publisherAssertions: authInfo?
set_publisherAssertions: authInfo? publisherAssertion*
"""
_ANSWERS = """
authToken: authInfo
bindingDetail: listDescription? bindingTemplate* | truncated
businessDetail: businessEntity* | truncated
businessList: listDescription? businessInfos? | truncated
operationalInfos: operationalInfo* | truncated
registeredInfo: businessInfos? tModelInfos? | truncated
relatedBusinessesList: listDescription? businessKey relatedBusinessInfos? | truncated
serviceDetail: businessService* | truncated
serviceList: listDescription? serviceInfos? | truncated
tModelDetail: tModel* | truncated
tModelList: listDescription? tModelInfos? | truncated
"""
_LOCAL = {"entityKey": "api:uddiKey", "created": "xsd:dateTime", "modified": "xsd:dateTime", "modifiedIncludingChildren": "xsd:dateTime"}

# port -> operation -> what it answers ("" for an empty body); operations that are not here are answered E_unsupported
OPERATIONS = {
    "Inquiry": {
        "find_binding": "bindingDetail",
        "find_business": "businessList",
        "find_relatedBusinesses": "relatedBusinessesList",
        "find_service": "serviceList",
        "find_tModel": "tModelList",
        "get_bindingDetail": "bindingDetail",
        "get_businessDetail": "businessDetail",
        "get_operationalInfo": "operationalInfos",
        "get_serviceDetail": "serviceDetail",
        "get_tModelDetail": "tModelDetail",
    },
    "Publication": {
        "delete_binding": "",
        "delete_business": "",
        "delete_service": "",
        "delete_tModel": "",
        "get_registeredInfo": "registeredInfo",
        "save_binding": "bindingDetail",
        "save_business": "businessDetail",
        "save_service": "serviceDetail",
        "save_tModel": "tModelDetail",
    },
    "Security": {"discard_authToken": "", "get_authToken": "authToken"},
}


def schema_text() -> bytes:
    """The schema, for clients and for the validator."""
    root = _x("schema", None, nsmap={"xsd": XSD, "api": NAMESPACE}, targetNamespace=NAMESPACE, elementFormDefault="qualified")
    _x("import", root, namespace=XML, schemaLocation="xml.xsd")
    for name, base, shortest, longest, collapses in _LIMITS:
        restriction = _x("restriction", _x("simpleType", root, name=name), base=f"xsd:{base}")
        if shortest:
            _x("minLength", restriction, value=str(shortest))
        _x("maxLength", restriction, value=str(longest))
        if collapses:
            _x("whiteSpace", restriction, value="collapse")
    for name, words in _CHOICES.items():
        restriction = _x("restriction", _x("simpleType", root, name=name), base="xsd:NMTOKEN")
        for word in words.split():
            _x("enumeration", restriction, value=word)
    for name, type_ in _SIMPLE_ELEMENTS.items():
        _x("element", root, name=name, type=type_)
    for line in _TEXTS.strip().splitlines():
        _text_type(root, line)
    for line in (_TYPES + _MESSAGES + _ANSWERS).split("\n"):
        if line:
            _complex_type(root, line)
    return _text(root)


def xml_schema_text() -> bytes:
    """The attribute xml:lang, as a schema of its own: it has another namespace."""
    root = _x("schema", None, nsmap={"xsd": XSD}, targetNamespace=XML)
    _x("attribute", root, name="lang", type="xsd:language")
    return _text(root)


@cache
def validator() -> Any:
    """The schema, ready to validate with."""

    class Imports(etree.Resolver):  # type: ignore[misc]
        def resolve(self, url: str, public_id: str, context: object) -> Any:
            return self.resolve_string(xml_schema_text(), context)

    parser = etree.XMLParser(no_network=True)
    parser.resolvers.add(Imports())
    return etree.XMLSchema(etree.fromstring(schema_text(), parser=parser))


def _text_type(root: Any, line: str) -> None:
    name, base, attributes = re.fullmatch(r"(\w+) = (\S+) \| (.*)", line).groups()  # type: ignore[union-attr]
    _x("element", root, name=name, type=f"api:{name}")
    content = _x("simpleContent", _x("complexType", root, name=name))
    _attributes(_x("extension", content, base=base if ":" in base else f"api:{base}"), attributes)


def _complex_type(root: Any, line: str) -> None:
    name, _, rest = line.partition(":")
    content, _, attributes = rest.partition("|")
    _x("element", root, name=name, type=f"api:{name}")
    type_ = _x("complexType", root, name=name)
    here = _x("sequence", type_)
    above: list[Any] = []
    for word in content.split():
        if word == "(":
            above.append(here)
            here = _x("sequence", _x("choice", here))
        elif word == "/":
            here = _x("sequence", here.getparent())
        elif word == ")":
            _unwrap(here.getparent())
            here = above.pop()
        else:
            _member(here, word)
    _attributes(type_, attributes)


def _unwrap(choice: Any) -> None:
    """A branch of one element needs no sequence around it; some clients do not understand one there."""
    for sequence in list(choice):
        if len(sequence) == 1:
            choice.replace(sequence, sequence[0])


def _member(sequence: Any, word: str) -> None:
    sign = word[-1] if word[-1] in "?*+" else ""
    name = word.rstrip("?*+")
    occurs = {"": {}, "?": {"minOccurs": "0"}, "*": {"minOccurs": "0", "maxOccurs": "unbounded"}, "+": {"maxOccurs": "unbounded"}}[sign]
    if name == "Signature":
        _x("any", sequence, namespace=SIGNATURES, processContents="skip", **occurs)
    elif name in _LOCAL:
        _x("element", sequence, name=name, type=_LOCAL[name], **occurs)
    else:
        _x("element", sequence, ref=f"api:{name}", **occurs)


def _attributes(type_: Any, words: str) -> None:
    for word in words.split():
        name, use = word.rstrip("!"), {"use": "required"} if word.endswith("!") else {}
        if name == "xml:lang":
            _x("attribute", type_, ref="xml:lang")
        else:
            _x("attribute", type_, name=name, type=_ATTRIBUTES.get(name, "api:uddiKey"), **use)


def _x(tag: str, parent: Any, *, nsmap: Any = None, **attributes: str) -> Any:
    if parent is None:
        return etree.Element(f"{{{XSD}}}{tag}", attributes, nsmap=nsmap)
    return etree.SubElement(parent, f"{{{XSD}}}{tag}", attributes)


def _text(root: Any) -> bytes:
    return bytes(etree.tostring(root, xml_declaration=True, encoding="utf-8", pretty_print=True))
