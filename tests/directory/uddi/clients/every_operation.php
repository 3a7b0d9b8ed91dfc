<?php
// Every operation of UDDI with PHP's SoapClient: `php every_operation.php WSDL URL ACCOUNT SECRET`. Prints the name of each that was answered well.
[, $wsdl, $url, $account, $secret] = $argv;
$client = new SoapClient($wsdl, ['location' => $url, 'cache_wsdl' => WSDL_CACHE_NONE, 'features' => SOAP_SINGLE_ELEMENT_ARRAYS]);

function call(string $operation, array $given): mixed
{
    global $client;
    $answer = $client->$operation($given);
    echo "$operation\n";
    return $answer;
}
function same(mixed $found, mixed $wanted): void
{
    if ($found !== $wanted) {
        throw new Exception(var_export($found, true) . ' is not ' . var_export($wanted, true));
    }
}

$token = call('get_authToken', ['userID' => $account, 'cred' => $secret])->authInfo;
$model = call('save_tModel', ['authInfo' => $token, 'tModel' => [['name' => 'php-model']]])->tModel[0]->tModelKey;
$refers = ['keyedReference' => [['tModelKey' => 'uddi:mqmesh:client', 'keyName' => 'for', 'keyValue' => 'php']]];
$saved = call('save_business', ['authInfo' => $token, 'businessEntity' => [['name' => [['_' => 'php-business', 'lang' => 'en']]]]]);
$business = $saved->businessEntity[0]->businessKey;
$wanted = ['businessKey' => $business, 'name' => ['php-service'], 'categoryBag' => $refers];
$service = call('save_service', ['authInfo' => $token, 'businessService' => [$wanted]])->businessService[0]->serviceKey;
$point = ['_' => 'mqtts://php.example:8883', 'useType' => 'endPoint'];
$wanted = ['serviceKey' => $service, 'accessPoint' => $point, 'tModelInstanceDetails' => ['tModelInstanceInfo' => [['tModelKey' => $model]]]];
$binding = call('save_binding', ['authInfo' => $token, 'bindingTemplate' => [$wanted]])->bindingTemplate[0]->bindingKey;

same(call('find_business', ['name' => ['php-business']])->businessInfos->businessInfo[0]->businessKey, $business);
same(call('find_service', ['businessKey' => $business, 'categoryBag' => $refers])->serviceInfos->serviceInfo[0]->serviceKey, $service);
same(call('find_binding', ['serviceKey' => $service, 'tModelBag' => ['tModelKey' => [$model]]])->bindingTemplate[0]->bindingKey, $binding);
$found = call('find_tModel', ['findQualifiers' => ['findQualifier' => ['approximateMatch']], 'name' => 'php-m%']);
same($found->tModelInfos->tModelInfo[0]->tModelKey, $model);
same(call('find_relatedBusinesses', ['businessKey' => $business])->businessKey, $business);

same(call('get_businessDetail', ['businessKey' => [$business]])->businessEntity[0]->businessKey, $business);
$found = call('get_serviceDetail', ['serviceKey' => [$service]])->businessService[0];
same($found->bindingTemplates->bindingTemplate[0]->accessPoint->_, $point['_']);
same(call('get_bindingDetail', ['bindingKey' => [$binding]])->bindingTemplate[0]->serviceKey, $service);
same(call('get_tModelDetail', ['tModelKey' => [$model]])->tModel[0]->tModelKey, $model);
same(call('get_operationalInfo', ['entityKey' => [$service]])->operationalInfo[0]->authorizedName, $account);
$own = call('get_registeredInfo', ['infoSelection' => 'all', 'authInfo' => $token])->businessInfos->businessInfo;
same(in_array($business, array_map(fn ($one) => $one->businessKey, $own)), true);

call('delete_binding', ['authInfo' => $token, 'bindingKey' => [$binding]]);
call('delete_service', ['authInfo' => $token, 'serviceKey' => [$service]]);
call('delete_business', ['authInfo' => $token, 'businessKey' => [$business]]);
call('delete_tModel', ['authInfo' => $token, 'tModelKey' => [$model]]);
call('discard_authToken', ['authInfo' => $token]);
try {
    call('delete_business', ['authInfo' => $token, 'businessKey' => [$business]]);
    throw new Exception('a token that was discarded is over');
} catch (SoapFault $fault) {
    same($fault->faultstring, 'E_authTokenExpired');
    same(str_starts_with(print_r($fault->detail->dispositionReport->result->errInfo, true), 'E_authTokenExpired: '), true);
}
