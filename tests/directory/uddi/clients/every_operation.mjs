// Every operation of UDDI with node-soap: `node every_operation.mjs WSDL URL ACCOUNT SECRET`. Prints the name of each that was answered well.
import assert from 'node:assert'
import soap from 'soap'

const [wsdl, url, account, secret] = process.argv.slice(2)
const client = await soap.createClientAsync(wsdl)
client.setEndpoint(url)
const ports = client.UDDI_Service

async function call(operation, given) {
  const port = Object.values(ports).find(one => one[operation])
  const answer = await new Promise((resolve, reject) => port[operation](given, (error, got) => error ? reject(error) : resolve(got)))
  console.log(operation)
  return answer
}
const list = one => Array.isArray(one) ? one : [one]
const refers = { keyedReference: { attributes: { tModelKey: 'uddi:mqmesh:client', keyName: 'for', keyValue: 'node' } } }

const { authInfo } = await call('get_authToken', { attributes: { userID: account, cred: secret } })
const { tModel } = await call('save_tModel', { authInfo, tModel: { name: 'node-model' } })
const tModelKey = list(tModel)[0].attributes.tModelKey
const { businessEntity } = await call('save_business', { authInfo, businessEntity: { name: { attributes: { 'xml:lang': 'en' }, $value: 'node-business' } } })
const businessKey = list(businessEntity)[0].attributes.businessKey
const { businessService } = await call('save_service', { authInfo, businessService: { attributes: { businessKey }, name: 'node-service', categoryBag: refers } })
const serviceKey = list(businessService)[0].attributes.serviceKey
const accessPoint = { attributes: { useType: 'endPoint' }, $value: 'mqtts://node.example:8883' }
const details = { tModelInstanceInfo: { attributes: { tModelKey } } }
const { bindingTemplate } = await call('save_binding', { authInfo, bindingTemplate: { attributes: { serviceKey }, accessPoint, tModelInstanceDetails: details } })
const bindingKey = list(bindingTemplate)[0].attributes.bindingKey

const businesses = await call('find_business', { name: 'node-business' })
assert.equal(list(businesses.businessInfos.businessInfo)[0].attributes.businessKey, businessKey)
const services = await call('find_service', { attributes: { businessKey }, categoryBag: refers })
assert.equal(list(services.serviceInfos.serviceInfo)[0].attributes.serviceKey, serviceKey)
const bindings = await call('find_binding', { attributes: { serviceKey }, tModelBag: { tModelKey } })
assert.equal(list(bindings.bindingTemplate)[0].attributes.bindingKey, bindingKey)
const models = await call('find_tModel', { findQualifiers: { findQualifier: 'approximateMatch' }, name: 'node-m%' })
assert.equal(list(models.tModelInfos.tModelInfo)[0].attributes.tModelKey, tModelKey)
assert.equal(list((await call('find_relatedBusinesses', { businessKey })).businessKey)[0], businessKey)

assert.equal(list((await call('get_businessDetail', { businessKey })).businessEntity)[0].attributes.businessKey, businessKey)
const detail = list((await call('get_serviceDetail', { serviceKey })).businessService)[0]
assert.equal(list(detail.bindingTemplates.bindingTemplate)[0].accessPoint.$value, accessPoint.$value)
assert.equal(list((await call('get_bindingDetail', { bindingKey })).bindingTemplate)[0].attributes.serviceKey, serviceKey)
assert.equal(list((await call('get_tModelDetail', { tModelKey })).tModel)[0].attributes.tModelKey, tModelKey)
const info = list((await call('get_operationalInfo', { entityKey: serviceKey })).operationalInfo)[0]
assert.equal(info.authorizedName, account)
const own = await call('get_registeredInfo', { attributes: { infoSelection: 'all' }, authInfo })
assert.ok(list(own.businessInfos.businessInfo).some(one => one.attributes.businessKey === businessKey))

await call('delete_binding', { authInfo, bindingKey })
await call('delete_service', { authInfo, serviceKey })
await call('delete_business', { authInfo, businessKey })
await call('delete_tModel', { authInfo, tModelKey })
await call('discard_authToken', { authInfo })
try {
  await call('delete_business', { authInfo, businessKey })
  assert.fail('a token that was discarded is over')
} catch (error) {
  const result = list(error.root.Envelope.Body.Fault.detail.dispositionReport.result)[0]
  assert.equal(result.errInfo.attributes.errCode, 'E_authTokenExpired')
}
