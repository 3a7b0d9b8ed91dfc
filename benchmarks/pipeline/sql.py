"""The jobs once more, independently: SQL of DuckDB over the journal's files. Tests and the comparison of speed use it."""

MESSAGES = """
with events as (
    select *, unnest(range("count")) as offs, kind in (7, 8) and to_broker not in (-1, broker) as away
    from read_parquet($paths, hive_partitioning = false)
    where origin >= 0 and kind in (1, 3, 4, 5, 6, 7, 8, 9, 10, 24, 25)
), grouped as (
    select origin, origin_epoch, stream, sequence + offs as sequence,
        max(published) as published, max(size) as size, coalesce(max(case when kind = 1 then account end), 0) as account,
        max(topic) as topic,
        max("call") as "call", max(session) as session,
        coalesce(max(case when kind = 1 then qos end), 0) as qos_in,
        coalesce(max(case when kind = 1 then client end), 0) as sender,
        coalesce(max(case when kind = 5 then client end), 0) as receiver,
        coalesce(max(nullif(reason, 0)), 0) as reason,
        coalesce(max(case when kind = 1 then protocol_in * 16 + version_in end), 0) as entered,
        count(*) filter (kind = 1) as publications,
        count(*) filter (kind = 4 and broker <> origin) as arrivals,
        coalesce(sum(value) filter (kind = 4), 0) as targets,
        count(*) filter (kind in (6, 7, 8, 9, 10) and not away or kind = 5 and qos = 0) as ends,
        count(*) filter (away) as given_up,
        count(*) filter (kind = 3) as forwards,
        count(*) filter (kind = 5) as deliveries,
        count(*) filter (kind = 6) as acknowledgements,
        count(*) filter (kind = 7) as drops,
        count(*) filter (kind = 8) as expiries,
        count(*) filter (kind = 9) as "returns",
        count(*) filter (kind = 10) as failovers,
        count(*) filter (kind = 25) as releases,
        coalesce(max(case when kind = 1 then value end), 0) as wanted,
        coalesce(max(case when kind in (6, 7, 8, 9, 10) and not away or kind = 5 and qos = 0 then time end), 0) as finished,
        max(time) as last,
        bit_or(case when kind = 5 then 1 << protocol_out else 0 end) as ways_out,
        bit_or(case when kind = 4 and broker <> origin then 1::bigint << (broker - 1) else 0 end) as reached0
    from events group by all
)
select *, case when publications = 0 then 4 when arrivals + given_up < wanted then 2 when ends < targets then 3 else 1 end as status,
    strftime(make_timestamp(published), '%Y-%m-%d') as date
from grouped
"""

HISTOGRAM = """
with prefixes as (
    select distinct id, case when len(string_split(name, '/')) <= 2 then name
        else array_to_string(string_split(name, '/')[1:2], '/') || '/#' end as prefix
    from read_parquet($names, hive_partitioning = false)
)
select case when e.kind = 4 then 'arrival' else 'delivery' end as level,
    published - published % 3600000000 as "window", prefix, origin, broker,
    case when "time" < published then -1 else greatest(0, floor(16 * ln("time" - published + 0.5)))::int end as bucket,
    sum("count")::bigint as messages
from read_parquet($paths, hive_partitioning = false) e left join prefixes on e.topic = prefixes.id
where origin >= 0 and (e.kind = 5 or e.kind = 4 and broker <> origin)
group by all
"""

HOPS = """
with events as (
    select *, unnest(range("count")) as offs from read_parquet($paths, hive_partitioning = false)
    where origin >= 0 and (kind in (3, 5, 6, 7, 8, 9, 10) or kind = 4 and from_broker <> broker)
        and not (kind in (7, 8) and to_broker not in (-1, broker))
)
select origin, origin_epoch, stream, sequence + offs as sequence,
    case when kind = 4 then from_broker else broker end as sender,
    case kind when 3 then to_broker when 4 then broker else -1 end as receiver,
    case when kind >= 5 then client end as client,
    max(published) as published, max(topic) as topic, max(nullif(hop, 0)) as hop,
    max(case when kind in (3, 5) then "time" end) as sent,
    max(case when kind in (4, 6, 7, 8, 9, 10) or kind = 5 and qos = 0 then "time" end) as arrived,
    max(case when kind >= 6 or kind = 5 and qos = 0 then kind end) as "end",
    max(qos) as qos, max(protocol_out) as protocol_out, max(nullif(reason, 0)) as reason
from events group by all
"""

TRAFFIC = """
select published - published % 3600000000 as "window", origin, broker, sum("count")::bigint as messages, sum(bytes)::bigint as bytes
from read_parquet($paths, hive_partitioning = false) where kind = 4 and origin >= 0 group by all
"""

LINKS = """
select published - published % 3600000000 as "window", broker as sender, to_broker as receiver, sum("count")::bigint as copies,
    sum(bytes)::bigint as bytes
from read_parquet($paths, hive_partitioning = false) where kind = 3 group by all
"""

CALLS = """
with members as (from messages where "call" <> 0),
firsts as (select "call", min((published, origin, origin_epoch, stream, sequence)) as first from members group by all)
select m."call", arg_min(sender, published) as requester, count(*) as messages, sum(forwards)::int as hops, sum(size)::bigint as bytes,
    max(finished) as finished, count(*) filter (m.status = 1)::int as completed,
    case when max(case when (published, origin, origin_epoch, stream, sequence) = first then m.status end) <> 1 then 2
        when count(*) = 1 then 3 when count(*) filter (m.status = 1) = 1 then 4 else 1 end as status
from members m join firsts f on m."call" = f."call" group by all
"""

SESSIONS = """
with recursive events as (
    select *, unnest(range("count")) as offs from read_parquet($paths, hive_partitioning = false)
    where kind = 1 and (parent is not null or trace is not null)
), heads as (
    select "call", min((published, origin, origin_epoch, stream, sequence)) as first from messages where "call" <> 0 group by all
), above as (
    select h."call", max(e.trace) as trace, max(case when p."call" <> h."call" then p."call" end) as parent
    from heads h
    left join events e on (e.published, e.origin, e.origin_epoch, e.stream, e.sequence + e.offs) = h.first
    left join messages p on p.origin || '.' || p.origin_epoch || '.' || p.stream || '.' || p.sequence = e.parent
    group by all
), up as (
    select "call", "call" as root from above where parent is null or parent = 0
    union all select a."call", up.root from above a join up on a.parent = up."call"
)
select up."call", coalesce('t:' || a.trace, 'c:' || up.root) as session from up join above a on a."call" = up.root
"""
