"""Every operation of UDDI with suds: `python every_operation.py WSDL URL ACCOUNT SECRET`. Prints the name of each that went well."""

import sys
from typing import Any

import suds
import suds.client
import suds.plugin


class EmptyAnswers(suds.plugin.MessagePlugin):  # type: ignore[misc]
    """suds 1.1 and 1.2 take an empty body for none."""

    def received(self, context: Any) -> None:
        """Put something into it."""
        context.reply = context.reply.replace(b"<soap:Body/>", b"<soap:Body><done/></soap:Body>")


class Uddi:
    """The three ports of a WSDL. Attributes of an element begin with `_`."""

    def __init__(self, wsdl: str, url: str) -> None:
        self._client = suds.client.Client(wsdl, cache=None, location=url, unwrap=False, prefixes=False, plugins=[EmptyAnswers()])
        ports = self._client.wsdl.services[0].ports
        self._ports = {operation: port.name for port in ports for operation in port.methods}

    def __call__(self, operation: str, **given: object) -> Any:
        answer = getattr(self._client.service[self._ports[operation]], operation)(given)
        print(operation, flush=True)
        return answer

    def access_point(self, address: str) -> Any:
        """A text with an attribute, which suds takes as an object only."""
        point = self._client.factory.create("{urn:uddi-org:api_v3}accessPoint")
        point.value, point._useType = address, "endPoint"
        return point


def main(wsdl: str, url: str, account: str, secret: str) -> None:
    """Save, find, read, delete."""
    call = Uddi(wsdl, url)
    token = call("get_authToken", _userID=account, _cred=secret).authInfo
    model = call("save_tModel", authInfo=token, tModel=[{"name": "suds-model"}]).tModel[0]._tModelKey
    refers = {"keyedReference": [{"_tModelKey": "uddi:mqmesh:client", "_keyName": "for", "_keyValue": "suds"}]}
    business = call("save_business", authInfo=token, businessEntity=[{"name": ["suds-business"]}]).businessEntity[0]._businessKey
    wanted = {"_businessKey": business, "name": ["suds-service"], "categoryBag": refers}
    service = call("save_service", authInfo=token, businessService=[wanted]).businessService[0]._serviceKey
    point = call.access_point("mqtts://suds.example:8883")
    details = {"tModelInstanceInfo": [{"_tModelKey": model}]}
    wanted = {"_serviceKey": service, "accessPoint": point, "tModelInstanceDetails": details}
    binding = call("save_binding", authInfo=token, bindingTemplate=[wanted]).bindingTemplate[0]._bindingKey

    assert call("find_business", name=["suds-business"]).businessInfos.businessInfo[0]._businessKey == business
    found = call("find_service", _businessKey=business, categoryBag=refers)
    assert found.serviceInfos.serviceInfo[0]._serviceKey == service
    found = call("find_binding", _serviceKey=service, tModelBag={"tModelKey": [model]})
    assert found.bindingTemplate[0]._bindingKey == binding
    found = call("find_tModel", findQualifiers={"findQualifier": ["approximateMatch"]}, name="suds-m%")
    assert found.tModelInfos.tModelInfo[0]._tModelKey == model
    assert call("find_relatedBusinesses", businessKey=business).businessKey == business

    assert call("get_businessDetail", businessKey=[business]).businessEntity[0]._businessKey == business
    found = call("get_serviceDetail", serviceKey=[service]).businessService[0]
    assert found.bindingTemplates.bindingTemplate[0].accessPoint.value == point.value
    assert call("get_bindingDetail", bindingKey=[binding]).bindingTemplate[0]._serviceKey == service
    assert call("get_tModelDetail", tModelKey=[model]).tModel[0]._tModelKey == model
    assert call("get_operationalInfo", entityKey=[service]).operationalInfo[0].authorizedName == account
    own = call("get_registeredInfo", _infoSelection="all", authInfo=token)
    assert business in [one._businessKey for one in own.businessInfos.businessInfo]

    call("delete_binding", authInfo=token, bindingKey=[binding])
    call("delete_service", authInfo=token, serviceKey=[service])
    call("delete_business", authInfo=token, businessKey=[business])
    call("delete_tModel", authInfo=token, tModelKey=[model])
    call("discard_authToken", authInfo=token)
    try:
        call("delete_business", authInfo=token, businessKey=[business])
    except suds.WebFault as fault:
        assert fault.fault.detail.dispositionReport.result.errInfo._errCode == "E_authTokenExpired", fault  # noqa: PT017
    else:
        raise AssertionError("a token that was discarded is over")


main(*sys.argv[1:])
