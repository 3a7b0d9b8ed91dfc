"""Turns a mosquitto.conf into the tables of a broker's file; what cannot be said there goes to the remarks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import words
from .for_all_listeners import listener_flag, one_option, security_option
from .limits import LIMITS, limits_of
from .mosquitto_acl import NOBODY, rules_of
from .mosquitto_conf import OF_SECURITY, Conf, Listener, MigrateError, flag, options_of, read_text
from .remarks import Option, Remarks

_ALL = ["#", "$SYS/#"]


def tables_of(conf: Conf, name: str, remarks: Remarks, ipv6: bool) -> dict[str, Any]:
    """The tables. name: of the broker. ipv6: this machine has it. Raises MigrateError."""
    if conf.local and conf.options and not any(map(_known, conf.options)):
        raise MigrateError(f"{conf.file}: no line of it is an option of Mosquitto's: is it a mosquitto.conf?")
    remarks.lines += len(conf.options) + sum(len(one.options) + (one.option is not None) for one in conf.listeners)
    served = [one for one in conf.listeners if _served(one, remarks)]
    if not served:
        raise MigrateError(f"{conf.file}: no listener is left: {words.PSK}")
    named = _named(conf, served)
    table: dict[str, Any] = {"name": name, "listen": _addresses(served, conf.local, ipv6, named)}
    persistence = conf.last("persistence")
    if persistence is not None and flag(persistence):
        table["data"] = f"data/{name}"
        remarks.note(persistence, f"mqmesh migrate --database {_database(conf)} --config FILE brings what is stored into the new store")
    limits = limits_of(conf, served, remarks)
    tables = {
        "tls": _tls(served, remarks),
        "access": _access(conf, served, remarks, named),
        "websocket": _websocket(served, remarks),
        "limits": limits,
    }
    _others(conf, served, remarks)
    return {**table, **{key: value for key, value in tables.items() if value}}


def _database(conf: Conf) -> str:
    location, file = conf.last("persistence_location"), conf.last("persistence_file")
    return f"{location.value if location is not None else ''}{file.value if file is not None else 'mosquitto.db'}"


def _served(listener: Listener, remarks: Remarks) -> bool:
    """Whether the listener can be served at all: with a pre-shared key it cannot, and without it it would be open."""
    psk = listener.options.get("psk_hint")
    if psk is not None:
        remarks.lost(psk, f"the listener is left out: {words.PSK}")
    return psk is None


def _encrypted(listener: Listener) -> bool:
    return "certfile" in listener.options


def _named(conf: Conf, listeners: list[Listener]) -> bool:
    """Whether listeners differ in whom they admit or what they permit, so that they need names."""
    said = ([one.value("acl_file") for one in listeners], [listener_flag(one, "allow_anonymous") for one in listeners])
    return conf.per_listener and any(len(set(values)) > 1 for values in said)


def _name_of(number: int) -> str:
    return f"listener-{number + 1}"


def _addresses(listeners: list[Listener], local: bool, ipv6: bool, named: bool) -> list[Any]:
    """The value of `listen`: addresses, or tables where listeners have names."""
    found: dict[str, str] = {}
    for number, one in enumerate(listeners):
        for address in _addresses_of(one, local, ipv6):
            found.setdefault(address, _name_of(number))
    return [{"address": address, "name": name} for address, name in found.items()] if named else list(found)


def _addresses_of(one: Listener, local: bool, ipv6: bool) -> list[str]:
    if one.host.startswith("/"):
        return [f"unix://{one.host}"]
    web = one.value("protocol") == "websockets"
    scheme = f"ws{'s' * _encrypted(one)}" if web else f"mqtt{'s' * _encrypted(one)}"
    domain = one.value("socket_domain")
    if one.host:
        hosts = [f"[{one.host}]" if ":" in one.host else one.host]
    else:
        four, six = ("127.0.0.1", "[::1]") if local else ("0.0.0.0", "[::]")
        hosts = [four] * (domain != "ipv6") + [six] * (domain != "ipv4" and (ipv6 or domain == "ipv6"))
    return [f"{scheme}://{host}:{one.port}" for host in hosts]


def _tls(listeners: list[Listener], remarks: Remarks) -> dict[str, Any]:
    encrypted = [one for one in listeners if _encrypted(one)]
    keys = {"certfile": "certificate", "keyfile": "key", "cafile": "ca", "crlfile": "revoked"}
    found: dict[str, Any] = {}
    for name, key in keys.items():
        option = one_option(encrypted, name, remarks, f"tls.{key}")
        if option is not None:
            found[key] = _path(option)
    asked = [one for one in encrypted if listener_flag(one, "require_certificate")]
    if asked:
        found["client_certificates"] = "required"
        if len(asked) < len(encrypted):
            option = asked[0].options["require_certificate"]
            remarks.lost(option, "tls.client_certificates is one for all listeners of a broker: all with TLS ask for one now")
    for one in encrypted:
        version = one.options.get("tls_version")
        if version is not None and version.value != "tlsv1.2":
            remarks.lost(version, "clients use TLS 1.2 or 1.3")
        form = one.options.get("tls_keyform")
        if form is not None and form.value != "pem":
            remarks.lost(form, "keys are in files (PEM)")
    return found


def _websocket(listeners: list[Listener], remarks: Remarks) -> dict[str, Any]:
    web = next((one for one in listeners if one.value("protocol") == "websockets"), None)
    if web is None:
        return {}
    remarks.note(web.options["protocol"], "as with Mosquitto, every web page may connect: name yours in websocket.origins")
    return {"origins": ["*"]}


# [access]


def _access(conf: Conf, listeners: list[Listener], remarks: Remarks, named: bool) -> dict[str, Any]:
    users = security_option(conf, listeners, "password_file", remarks, "access.users")
    certificates = _certificates(listeners, remarks)
    proven = users is not None or certificates
    anonymous = _anonymous(conf, listeners, remarks, proven)
    found: dict[str, Any] = {}
    if users is not None:
        found["users"] = _path(users)
        _check_users(users, remarks)
    if certificates:
        found["certificates"] = True
    if proven or not anonymous:
        found["anonymous"] = anonymous
    if not anonymous and not proven:
        remarks.lost(_reason(conf), "nobody may connect: give access.users, or anonymous = true; the broker does not start before")
    prefix = conf.last("clientid_prefixes")
    if prefix is not None:
        found["client_ids"] = [f"{prefix.value}*"]
    rules = _rules_of_listeners(listeners, proven, remarks) if named else _rules_of_all(conf, listeners, proven, remarks)
    return found | ({"on_overlap": "filter", "rule": rules} if rules else {})


def _rules_of_all(conf: Conf, listeners: list[Listener], proven: bool, remarks: Remarks) -> list[dict[str, Any]]:
    acl = listeners[0].options.get("acl_file") if conf.per_listener else conf.last("acl_file")
    return _rules(acl, proven, remarks) if acl is not None else []


def _rules_of_listeners(listeners: list[Listener], proven: bool, remarks: Remarks) -> list[dict[str, Any]]:
    """Rules of named listeners; those that have no file permit everything."""
    files: dict[str | None, tuple[Option | None, list[str]]] = {}
    for number, one in enumerate(listeners):
        files.setdefault(one.value("acl_file"), (one.options.get("acl_file"), []))[1].append(_name_of(number))
    if files.keys() == {None}:
        return []
    found = []
    for acl, names in files.values():
        rules = _rules(acl, proven, remarks) if acl is not None else [{"allow": ["publish", "subscribe"], "topics": _ALL}]
        found += [{"listeners": names, **rule} for rule in rules]
    return found


def _rules(acl: Option, proven: bool, remarks: Remarks) -> list[dict[str, Any]]:
    path = _path(acl)
    rules = rules_of(options_of(read_text(Path(path)), path), remarks)
    if not proven and any(rule.get("users", [NOBODY]) != [NOBODY] for rule in rules):
        remarks.lost(
            acl, "rules of users are left out: without password_file anybody may give any name, and a name that is not proven is none"
        )
        rules = [rule for rule in rules if rule.get("users", [NOBODY]) == [NOBODY]]
    return rules or [{"deny": ["publish", "subscribe"], "topics": _ALL}]


def _certificates(listeners: list[Listener], remarks: Remarks) -> bool:
    named = [one for one in listeners if _encrypted(one) and listener_flag(one, "use_identity_as_username")]
    for one in listeners:
        if one not in named and named and _encrypted(one) and listener_flag(one, "require_certificate"):
            remarks.note(
                one.options["require_certificate"], "access.certificates is one for all listeners: the common name is the user here too"
            )
    return bool(named)


def _anonymous(conf: Conf, listeners: list[Listener], remarks: Remarks, proven: bool) -> bool | list[str]:
    """Whether clients without a name may come in, or by which listeners. Where names are not proven at all, the stricter one decides."""
    if not conf.per_listener:
        option = conf.last("allow_anonymous")
        return flag(option) if option is not None else conf.local
    said = [listener_flag(one, "allow_anonymous") if "allow_anonymous" in one.options else conf.local for one in listeners]
    if len(set(said)) > 1 and proven:
        return [_name_of(number) for number, answer in enumerate(said) if answer]
    if len(set(said)) > 1:
        option = next(one.options["allow_anonymous"] for one, answer in zip(listeners, said, strict=True) if answer)
        remarks.lost(option, "another listener lets nobody in without a name, and there are no names without access.users: so false")
    return all(said)


def _check_users(users: Option, remarks: Remarks) -> None:
    from ...broker.auth.passwords import PasswordError, load

    try:
        load(Path(_path(users)))
    except PasswordError as error:
        remarks.lost(users, f"{error}: mosquitto_passwd -U FILE hashes plain passwords")
    except OSError as error:
        raise MigrateError(f"{users.place}: password_file {users.value}: {error.strerror or error}") from None


def _reason(conf: Conf) -> Option:
    """A line to show for `allow_anonymous`, which may have its default."""
    listener = next((one.option for one in conf.listeners if one.option is not None), None)
    return conf.last("allow_anonymous") or listener or Option("allow_anonymous", "false", conf.file, 1)


# All others

_TAKEN_WORDS = """
persistence allow_anonymous password_file acl_file clientid_prefixes allow_zero_length_clientid
"""
_TAKEN = frozenset(_TAKEN_WORDS.split())
_TAKEN_OF_LISTENERS_WORDS = """
protocol socket_domain cafile certfile keyfile crlfile require_certificate use_identity_as_username tls_version
tls_keyform psk_hint max_connections max_qos max_topic_alias
"""
_TAKEN_OF_LISTENERS = frozenset(_TAKEN_OF_LISTENERS_WORDS.split())
_OFF_WORDS = """
use_subject_as_username use_username_as_clientid queue_qos0_messages upgrade_outgoing_qos check_retain_source
"""
_OFF = frozenset(_OFF_WORDS.split())


def _known(option: Option) -> bool:
    name = option.name
    return any(name in names for names in (LIMITS, _TAKEN, _OFF, OF_SECURITY, words.NEEDLESS, words.NOTES, words.LOST))


def _others(conf: Conf, listeners: list[Listener], remarks: Remarks) -> None:
    """The options that no table has."""
    for option in [*conf.options, *(option for one in listeners for option in one.options.values())]:
        name = option.name
        if name in LIMITS or name in _TAKEN or name in _TAKEN_OF_LISTENERS or name in words.NEEDLESS:
            continue
        if name in _OFF and not flag(option):
            continue
        if name in words.NOTES:
            remarks.note(option, words.NOTES[name])
        elif name.startswith(("auth_opt_", "plugin_opt_")):
            remarks.lost(option, words.PLUGIN)
        else:
            remarks.lost(option, words.LOST.get(name, "Mosquitto 2.0 has no such option"))


def _path(option: Option) -> str:
    """The path that a line names: relative to the current folder, as Mosquitto reads it, or else to the folder of its file."""
    path = Path(option.value)
    return str((path if path.is_absolute() or os.path.exists(path) else Path(option.file).parent / path).absolute())
