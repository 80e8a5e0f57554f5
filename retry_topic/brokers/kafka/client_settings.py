"""Checks a user's librdkafka settings. Some settings only this package may set, and some mean the same as an argument
of `KafkaBroker`. librdkafka checks all others.

For its check, librdkafka makes clients that have no broker address, so no connection is opened. `KafkaBroker` reports a
mistyped name or an impossible value when it is made, not when it first needs the client. Cost: below a millisecond.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import admin as _typed_admin

from wheel_sched.errors import ConfigError

_admin: Any = _typed_admin  # the stubs of this module lack some of its names

_OURS = (
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "group.id",
    "isolation.level",
    "transactional.id",
)
_ADDRESS = ("bootstrap.servers", "metadata.broker.list")
_LEAVE_OUT = "leave it out: payloads and keys are bytes"
_LOGIN = "give sasl.mechanism, sasl.username and sasl.password"
_TRUST = "give ssl.ca.location, a PEM file"
_JAVA = {  # properties of Java clients, and what to set instead
    "sasl.jaas.config": _LOGIN,
    "sasl.login.callback.handler.class": _LOGIN,
    "sasl.client.callback.handler.class": _LOGIN,
    "ssl.truststore.location": _TRUST,
    "ssl.truststore.password": _TRUST,
    "ssl.truststore.type": _TRUST,
    "ssl.keystore.type": "give ssl.keystore.location in PKCS#12, or ssl.certificate.location and ssl.key.location",
    "key.serializer": _LEAVE_OUT,
    "value.serializer": _LEAVE_OUT,
    "key.deserializer": _LEAVE_OUT,
    "value.deserializer": _LEAVE_OUT,
    "request.timeout.ms": "give it for producers only, at most delivery_timeout_ms",
}
_SECRET = re.compile(r"password|secret|token|\.pem$|jaas|oauthbearer\.config|\.key$")
_ADVICE = "see librdkafka's CONFIGURATION.md; nothing was opened"


def reserved_problems(settings: Mapping[str, Any]) -> list[str]:
    """Why the user's settings are wrong: one text for each setting that only this package may set."""
    return [
        f"expected no setting {name}, because wheel-sched sets it, got: {settings[name]!r}"
        for name in _OURS
        if name in settings
    ]


def combined(settings: dict[str, Any], names: tuple[str, ...], argument: str, given: Any, problems: list[str]) -> Any:
    """The value that the user gave as an argument of `KafkaBroker`, or as a setting that means the same.

    Returns None if the user gave neither the argument nor such a setting. Removes the settings in `names` from
    `settings`. Adds a text to `problems` if the argument and a setting differ.

    Args:
        settings: the user's settings.
        names: the names of the settings that mean the same as the argument.
        argument: the name of the argument.
        given: the value of the argument; None if the user did not give it.
        problems: the list that gets the problems.
    """
    named = {name: settings.pop(name) for name in names if name in settings}
    for name, value in named.items():
        if given is not None and str(value).lower() != str(given):
            problems.append(f"expected {name} of the settings and {argument} to agree, got: {value!r} and {given!r}")
        given = value.lower() if isinstance(value, str) else value
    return given


def milliseconds(argument: str, value: Any, default: int, problems: list[str]) -> int:
    """A time in ms, from a number (an argument) or a text (a setting); `default` if `value` is None.

    Adds a text to `problems` if `value` is no whole number.
    """
    if value is None:
        return default
    if type(value) is str and re.fullmatch("[0-9]{1,10}", value):
        return int(value)
    if type(value) is not int:
        problems.append(f"expected {argument} to be a whole number of milliseconds, got: {value!r}")
        return default
    return value


def refusals(
    settings: Mapping[str, Any], producer: Callable[[], Mapping[str, Any]], member: Callable[[], Mapping[str, Any]]
) -> list[str]:
    """Why librdkafka refuses these settings: a text for each refused setting, or one text for a client with all of
    them. Empty if librdkafka accepts the settings.

    Args:
        settings: the user's settings.
        producer: makes the settings of a producer with transactions; called when librdkafka accepts `settings`.
        member: makes the settings of a group member; called when librdkafka accepts the producer too.
    """
    refusal = _refusal(_admin.AdminClient, settings)
    if refusal is not None:
        apart = [(name, _refusal(_admin.AdminClient, {name: value}, settings)) for name, value in settings.items()]
        # "Failed to create": the setting only lacks others; the check of the whole client reports it
        wrong = [_explained(name, text) for name, text in apart if text is not None and "Failed to create" not in text]
        return wrong or [_explained("", refusal)]
    for kind, made in ((Producer, producer), (Consumer, member)):
        refusal = _refusal(kind, made())
        if refusal is not None:
            return [_explained("", refusal)]
    return []


def checked_member(settings: dict[str, Any]) -> dict[str, Any]:
    """Check the settings of a group member again, because they depend on its `idle_ms`. Returns the settings.

    Raises:
        ConfigError: librdkafka refuses a consumer with these settings.
    """
    refusal = _refusal(Consumer, settings)
    if refusal is not None:
        raise ConfigError(_explained("", refusal))
    return settings


def _refusal(
    kind: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> str | None:
    """Why librdkafka refuses a client of class `kind` with these settings; None if it makes one.

    `beside`: all of the user's settings, when `settings` has only one of them. The returned text hides the secret
    values of `beside`. Defaults to `settings`.

    The check leaves out callbacks, because librdkafka would call a callback that fetches tokens.
    """
    plain = {
        name: value
        for name, value in settings.items()
        if name not in _ADDRESS and not callable(value) and not isinstance(value, logging.Logger)
    }
    try:
        kind({**plain, "log_level": 0})
    except KafkaException as error:
        if not _is_refusal(error):
            raise
        return _hidden(error.args[0].str(), beside or settings)
    except (TypeError, ValueError) as error:
        return _hidden(str(error), beside or settings)
    return None


def _is_refusal(error: KafkaException) -> bool:
    return bool(error.args[0].code() == KafkaError._INVALID_ARG)


def _explained(name: str, refusal: str) -> str:
    subject = f"setting {name}" if name else "settings"
    advice = _JAVA.get(name, _ADVICE)
    return f"expected Kafka's {subject} to be librdkafka's, got: {refusal.strip().rstrip('.')}; {advice}"


def _hidden(text: str, settings: Mapping[str, Any]) -> str:
    for name, value in settings.items():
        if _SECRET.search(str(name)) and isinstance(value, str) and value:
            text = text.replace(value, "***")
    return text
