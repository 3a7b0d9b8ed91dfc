// Every operation of UDDI with JAX-WS and the classes that wsimport makes of the directory's WSDL: `java EveryOperation URL ACCOUNT SECRET`.
// Prints the name of each that was answered well.
import javax.xml.ws.BindingProvider;
import uddi.*;

class EveryOperation {
    interface Asked<T> { T of() throws DispositionReport_Exception; }
    interface Done { void run() throws DispositionReport_Exception; }

    static <T> T call(String operation, Asked<T> asked) throws DispositionReport_Exception {
        T answer = asked.of();
        System.out.println(operation);
        return answer;
    }
    static void call(String operation, Done asked) throws DispositionReport_Exception {
        asked.run();
        System.out.println(operation);
    }
    static void same(Object found, Object wanted) {
        if (!wanted.equals(found)) throw new AssertionError(found + " is not " + wanted);
    }
    static Name name(String text) { var one = new Name(); one.setValue(text); return one; }
    static <T> T at(String url, T port) {
        ((BindingProvider) port).getRequestContext().put(BindingProvider.ENDPOINT_ADDRESS_PROPERTY, url);
        return port;
    }

    public static void main(String[] given) throws Exception {
        var service = new UDDIService();
        var find = at(given[0], service.getUDDIInquiryPort());
        var publish = at(given[0], service.getUDDIPublicationPort());
        var security = at(given[0], service.getUDDISecurityPort());

        var login = new GetAuthToken(); login.setUserID(given[1]); login.setCred(given[2]);
        String token = call("get_authToken", () -> security.getAuthToken(login)).getAuthInfo();
        String[] keys = save(publish, token);
        read(find, publish, token, keys, given[1]);
        delete(publish, token, keys);

        var over = new DiscardAuthToken(); over.setAuthInfo(token);
        call("discard_authToken", () -> security.discardAuthToken(over));
        try {
            var again = new DeleteBusiness(); again.setAuthInfo(token); again.getBusinessKey().add(keys[1]);
            publish.deleteBusiness(again);
            throw new AssertionError("a token that was discarded is over");
        } catch (DispositionReport_Exception refused) {
            same(refused.getFaultInfo().getResult().get(0).getErrInfo().getErrCode(), "E_authTokenExpired");
        }
    }

    /** The keys of a tModel, a business, a service and a binding. */
    static String[] save(UDDIPublicationPortType publish, String token) throws Exception {
        var model = new SaveTModel(); model.setAuthInfo(token);
        var one = new TModel(); one.setName(name("java-model")); model.getTModel().add(one);
        String modelKey = call("save_tModel", () -> publish.saveTModel(model)).getTModel().get(0).getTModelKey();

        var business = new SaveBusiness(); business.setAuthInfo(token);
        var entity = new BusinessEntity(); entity.getName().add(name("java-business")); business.getBusinessEntity().add(entity);
        String businessKey = call("save_business", () -> publish.saveBusiness(business)).getBusinessEntity().get(0).getBusinessKey();

        var service = new SaveService(); service.setAuthInfo(token);
        var offered = new BusinessService(); offered.setBusinessKey(businessKey); offered.getName().add(name("java-service"));
        offered.setCategoryBag(refers()); service.getBusinessService().add(offered);
        String serviceKey = call("save_service", () -> publish.saveService(service)).getBusinessService().get(0).getServiceKey();

        var point = new AccessPoint(); point.setValue("mqtts://java.example:8883"); point.setUseType("endPoint");
        var info = new TModelInstanceInfo(); info.setTModelKey(modelKey);
        var details = new TModelInstanceDetails(); details.getTModelInstanceInfo().add(info);
        var template = new BindingTemplate(); template.setServiceKey(serviceKey);
        template.setAccessPoint(point); template.setTModelInstanceDetails(details);
        var binding = new SaveBinding(); binding.setAuthInfo(token); binding.getBindingTemplate().add(template);
        String bindingKey = call("save_binding", () -> publish.saveBinding(binding)).getBindingTemplate().get(0).getBindingKey();
        return new String[] {modelKey, businessKey, serviceKey, bindingKey};
    }

    static CategoryBag refers() {
        var one = new KeyedReference(); one.setTModelKey("uddi:mqmesh:client"); one.setKeyName("for"); one.setKeyValue("java");
        var bag = new CategoryBag(); bag.getContent().add(new ObjectFactory().createKeyedReference(one));
        return bag;
    }

    static void read(UDDIInquiryPortType find, UDDIPublicationPortType publish, String token, String[] keys, String account) throws Exception {
        var business = new FindBusiness(); business.getName().add(name("java-business"));
        same(call("find_business", () -> find.findBusiness(business)).getBusinessInfos().getBusinessInfo().get(0).getBusinessKey(), keys[1]);
        var service = new FindService(); service.setBusinessKey(keys[1]); service.setCategoryBag(refers());
        same(call("find_service", () -> find.findService(service)).getServiceInfos().getServiceInfo().get(0).getServiceKey(), keys[2]);
        var models = new TModelBag(); models.getTModelKey().add(keys[0]);
        var binding = new FindBinding(); binding.setServiceKey(keys[2]); binding.setTModelBag(models);
        same(call("find_binding", () -> find.findBinding(binding)).getBindingTemplate().get(0).getBindingKey(), keys[3]);
        var alike = new FindQualifiers(); alike.getFindQualifier().add("approximateMatch");
        var model = new FindTModel(); model.setFindQualifiers(alike); model.setName(name("java-m%"));
        same(call("find_tModel", () -> find.findTModel(model)).getTModelInfos().getTModelInfo().get(0).getTModelKey(), keys[0]);
        var related = new FindRelatedBusinesses(); related.setBusinessKey(keys[1]);
        same(call("find_relatedBusinesses", () -> find.findRelatedBusinesses(related)).getBusinessKey(), keys[1]);

        var businesses = new GetBusinessDetail(); businesses.getBusinessKey().add(keys[1]);
        same(call("get_businessDetail", () -> find.getBusinessDetail(businesses)).getBusinessEntity().get(0).getBusinessKey(), keys[1]);
        var services = new GetServiceDetail(); services.getServiceKey().add(keys[2]);
        var found = call("get_serviceDetail", () -> find.getServiceDetail(services)).getBusinessService().get(0);
        same(found.getBindingTemplates().getBindingTemplate().get(0).getAccessPoint().getValue(), "mqtts://java.example:8883");
        var bindings = new GetBindingDetail(); bindings.getBindingKey().add(keys[3]);
        same(call("get_bindingDetail", () -> find.getBindingDetail(bindings)).getBindingTemplate().get(0).getServiceKey(), keys[2]);
        var every = new GetTModelDetail(); every.getTModelKey().add(keys[0]);
        same(call("get_tModelDetail", () -> find.getTModelDetail(every)).getTModel().get(0).getTModelKey(), keys[0]);
        var info = new GetOperationalInfo(); info.getEntityKey().add(keys[2]);
        same(call("get_operationalInfo", () -> find.getOperationalInfo(info)).getOperationalInfo().get(0).getAuthorizedName(), account);
        var own = new GetRegisteredInfo(); own.setAuthInfo(token); own.setInfoSelection(InfoSelection.ALL);
        var mine = call("get_registeredInfo", () -> publish.getRegisteredInfo(own)).getBusinessInfos().getBusinessInfo();
        same(mine.stream().anyMatch(one -> one.getBusinessKey().equals(keys[1])), true);
    }

    static void delete(UDDIPublicationPortType publish, String token, String[] keys) throws Exception {
        var binding = new DeleteBinding(); binding.setAuthInfo(token); binding.getBindingKey().add(keys[3]);
        call("delete_binding", () -> publish.deleteBinding(binding));
        var service = new DeleteService(); service.setAuthInfo(token); service.getServiceKey().add(keys[2]);
        call("delete_service", () -> publish.deleteService(service));
        var business = new DeleteBusiness(); business.setAuthInfo(token); business.getBusinessKey().add(keys[1]);
        call("delete_business", () -> publish.deleteBusiness(business));
        var model = new DeleteTModel(); model.setAuthInfo(token); model.getTModelKey().add(keys[0]);
        call("delete_tModel", () -> publish.deleteTModel(model));
    }
}
