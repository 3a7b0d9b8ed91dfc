"""Usage by account, service, day and role, from the counters.

    originator      published               the publisher's account
    recipient       delivered               the recipient's account: of a [[party]], else of its user
    intermediary    forwarded by a relay    the account of the relay's site, of a [[party]]; from events: only where topics are journalled

What an account has no name for ("": clients that show no user) is in the table too, so that the sums are those of the counters.
Source: US 9,037,726, usage report and billing (rows M12, M13, M15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...broker.journal.schema import Kind
from ..billing.tariff import Role, Tariffs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DAY_MINUTES = 1440
KEYS = ("date", "account", "service", "role")
ROLES = {int(Kind.PUBLISHED): Role.ORIGINATOR, int(Kind.DELIVERED): Role.RECIPIENT}


def usage(counts: DataFrame, names: DataFrame, tariffs: Tariffs) -> DataFrame:
    """One row for each account, service, day and role. counts: of the journal. names: id and name."""
    from pyspark.sql import functions as F

    role = F.when(F.col("kind") == int(Kind.PUBLISHED), Role.ORIGINATOR.value).otherwise(Role.RECIPIENT.value)
    used = counts.where(F.col("kind").isin(*ROLES)).groupBy("kind", "topic", "account", "recipient", date_of("minute").alias("date"))
    named = with_names(used.agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")), names, "topic", "account", "recipient")
    account = F.when(F.col("kind") == int(Kind.DELIVERED), recipients_account(tariffs)).otherwise(F.col("account"))
    return summed(
        named.select("date", account.alias("account"), service_of(tariffs).alias("service"), role.alias("role"), "messages", "bytes")
    )


def passed_on(events: DataFrame, names: DataFrame, tariffs: Tariffs) -> DataFrame:
    """The same for relays. events: kind, broker, origin, topic, recipient, published, count, bytes; one may stand for several messages."""
    from pyspark.sql import functions as F

    relayed = events.where((F.col("kind") == int(Kind.FORWARDED)) & (F.col("broker") != F.col("origin")))
    day = F.expr("cast(date_add(date'1970-01-01', cast(published div 86400000000 as int)) as string)")
    used = relayed.groupBy("broker", "topic", "recipient", day.alias("date"))
    named = with_names(used.agg(F.sum("count").alias("messages"), F.sum("bytes").alias("bytes")), names, "topic", "recipient")
    made = named.select(
        "date",
        sites_account(tariffs).alias("account"),
        service_of(tariffs).alias("service"),
        F.lit(Role.INTERMEDIARY.value).alias("role"),
        "messages",
        "bytes",
    )
    return summed(made.where(F.col("account") != ""))


def summed(frame: DataFrame) -> DataFrame:
    """Rows with equal `KEYS` as one."""
    from pyspark.sql import functions as F

    sums = frame.groupBy(*KEYS).agg(F.sum("messages").cast("long").alias("messages"), F.sum("bytes").cast("long").alias("bytes"))
    return sums.where((F.col("messages") != 0) | (F.col("bytes") != 0))


def date_of(minute: str) -> Column:
    """The date (UTC) of a minute since 1970, as text; it does not depend on the session's time zone."""
    from pyspark.sql import functions as F

    return F.expr(f"cast(date_add(date'1970-01-01', cast({minute} div {DAY_MINUTES} as int)) as string)")


def with_names(frame: DataFrame, names: DataFrame, *columns: str) -> DataFrame:
    """Ids replaced by their names; an id without a name is written as `#` and its number, and 0 as ""."""
    from pyspark.sql import functions as F

    for column in columns:
        known = names.select(F.col("id").alias(column), F.col("name").alias("_name"))
        name = F.when(F.col(column) == 0, "").otherwise(F.coalesce("_name", F.concat(F.lit("#"), F.col(column).cast("string"))))
        frame = frame.join(F.broadcast(known), column, "left").withColumn(column, name).drop("_name")
    return frame


def service_of(tariffs: Tariffs) -> Column:
    """What a message is sold as, of the columns topic and recipient; as `Tariffs.service_of` says."""
    from pyspark.sql import functions as F

    made = F.substring_index("topic", "/", 1)
    for service in reversed(tariffs.services):
        fits = F.lit(False)
        if service.recipients:
            fits = fits | ((F.col("recipient") != "") & F.col("recipient").rlike(_any(service.recipients, pattern_regex)))
        if service.topics:
            fits = fits | ((F.col("topic") != "") & F.col("topic").rlike(_any(service.topics, filter_regex)))
        made = F.when(fits, service.name).otherwise(made)
    return made


def recipients_account(tariffs: Tariffs) -> Column:
    """Whose account a recipient is, as `Tariffs.account_of_recipient` says."""
    from pyspark.sql import functions as F

    made = F.col("account")
    for party in reversed(tariffs.parties):
        if party.recipients:
            made = F.when(F.col("recipient").rlike(_any(party.recipients, pattern_regex)), party.account).otherwise(made)
    return made


def sites_account(tariffs: Tariffs) -> Column:
    """Whose account a site is, as `Tariffs.account_of_site` says."""
    from pyspark.sql import functions as F

    made = F.lit("")
    for party in reversed(tariffs.parties):
        if party.sites:
            made = F.when(F.col("broker").isin(*party.sites), party.account).otherwise(made)
    return made


def pattern_regex(pattern: str) -> str:
    """A pattern of names (`*`, `?`) as a regular expression of Java."""
    return "".join({"*": "(?s:.*)", "?": "(?s:.)"}.get(c) or _literal(c) for c in pattern)


def filter_regex(topic_filter: str) -> str:
    """A topic filter as a regular expression of Java. A wildcard at its beginning does not match `$` [MQTT-4.7.2-1]."""
    levels = topic_filter.split("/")
    made = "(?!\\$)" if levels[0] in ("+", "#") else ""
    for place, level in enumerate(levels):
        if level == "#":
            return made + ("(?s:.*)" if not place else "(?s:/.*)?")
        made += ("/" if place else "") + ("[^/]*" if level == "+" else "".join(_literal(c) for c in level))
    return made


def _literal(character: str) -> str:
    return character if character.isalnum() or character in "_/" else f"\\x{{{ord(character):x}}}"


def _any(patterns: tuple[str, ...], regex: object) -> str:
    return "\\A(?:" + "|".join(regex(pattern) for pattern in patterns) + ")\\z"  # type: ignore[operator]


__all__ = ["filter_regex", "passed_on", "pattern_regex", "usage"]
