"""Messages become events: templates repeated, times and fates drawn, for a whole chunk at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...broker.journal.schema import NOBODY, Kind, name_id
from .routes import Routes
from .scene import Scene, ids

Columns = dict[str, np.ndarray]
QOS0, CUSTODY, LOCAL = 0, 1, 2
_THINK = 2_000  # microseconds that a service takes
_FATES = ("dropped", "expired", "returned", "failed_over", "lost")
_FATE_KINDS = np.array([0, Kind.DROPPED, Kind.EXPIRED, Kind.RETURNED, Kind.FAILED_OVER, 0], dtype=np.int16)
_FATE_REASONS = np.array([0, *(name_id(text) for text in ("queue full", "message expiry", "fault", "fault")), 0], dtype=np.int64)
LOST = 5


def mixed(values: np.ndarray) -> np.ndarray:
    """A number that looks like chance for each number: the finaliser of SplitMix64."""
    z = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).view(np.int64)


@dataclass(slots=True)
class Messages:
    """Arrays with one element for each message.

    parent: index of the message that it was made from; -1: none. trace: number of one; 0: none.
    """

    topic: np.ndarray
    published: np.ndarray
    call: np.ndarray
    parent: np.ndarray
    trace: np.ndarray
    origin: np.ndarray
    stream: np.ndarray
    sequence: np.ndarray
    factor: np.ndarray
    template: np.ndarray

    def __len__(self) -> int:
        return len(self.topic)


class Maker:
    """Makes chunks of messages and their events, one after the other. The sequences of each origin go on from chunk to chunk."""

    def __init__(self, scene: Scene, made: Routes) -> None:
        self.scene, self.routes = scene, made
        self.random = np.random.default_rng(scene.order.seed)
        topics = scene.topics
        weights = np.array([topic.weight for topic in topics])
        self.weights = weights / weights.sum()
        self.origins = np.array([topic.publisher.broker for topic in topics], dtype=np.int32)
        self.qos = np.array([topic.qos for topic in topics], dtype=np.int8)
        self.size = np.array([topic.size for topic in topics], dtype=np.int32)
        self.response = np.array([topic.response for topic in topics])
        self.second = np.array([topic.second for topic in topics])
        self.topic_ids, self.account_ids = ids([topic.name for topic in topics]), ids([topic.account for topic in topics])
        self.client_ids = ids([topic.publisher.name for topic in topics])
        self.periods = np.array([moment for moment, _ in scene.periods()])
        skew = np.zeros(max(scene.brokers) + 1, dtype=np.int64)
        for broker in scene.brokers:
            skew[broker] = scene.skew(broker)
        self.skew = skew
        self.last: dict[tuple[int, int], int] = {}
        self.calls = 0

    def messages(self, count: int, begin: int, end: int) -> Messages:
        """About `count` messages, published in [begin, end) or, as responses, soon after."""
        topic = self.random.choice(len(self.weights), count, p=self.weights)
        published = np.sort(self.random.integers(begin, end, count))
        call, parent, trace = np.zeros(count, np.int64), np.full(count, -1), np.zeros(count, np.int64)
        topic, published, call, parent, trace = self._conversations(topic, published, call, parent, trace)
        order = np.argsort(published, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        parent = np.where(parent >= 0, place[parent], -1)[order]
        topic, published, call, trace = topic[order], published[order], call[order], trace[order]
        template = self._template(topic, published)
        stream = np.where(~self.routes.remote[template], LOCAL, np.where(self.qos[topic] > 0, CUSTODY, QOS0)).astype(np.int8)
        origin = self.origins[topic]
        factor = 1 + self.random.lognormal(-2.5, 0.8, len(topic))
        return Messages(topic, published, call, parent, trace, origin, stream, self._sequences(origin, stream), factor, template)

    def _template(self, topic: np.ndarray, published: np.ndarray) -> np.ndarray:
        period = np.searchsorted(self.periods, published, side="right") - 1
        chosen: np.ndarray = period * len(self.weights) + topic
        return chosen

    def _conversations(self, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
        """Add what requests cause: a second request, and responses; one of fifty requests has no response."""
        topic, published, call, parent, trace = columns
        asked = np.flatnonzero(self.response[topic] >= 0)
        if not len(asked):
            return columns
        call[asked] = self._new_calls(len(asked))
        trace[asked] = np.where(self.random.random(len(asked)) < 0.5, np.arange(len(asked)) + 1 + self.calls, 0)
        ready = published[asked] + 3 * self.routes.answer[self._template(topic[asked], published[asked])] + _THINK
        both = np.flatnonzero(self.second[topic[asked]] >= 0)
        more_topic, more_at = self.second[topic[asked[both]]], ready[both]
        more_call, more_parent, more_trace = self._new_calls(len(both)), asked[both], trace[asked[both]]
        helped = more_at + 3 * self.routes.answer[self._template(more_topic, more_at)] + _THINK
        ready[both] = helped + 50_000
        second = len(topic) + np.arange(len(both))
        answers_topic = np.concatenate([self.response[topic[asked]], self.response[more_topic]])
        answers_at = np.concatenate([ready, helped])
        answers_call = np.concatenate([call[asked], more_call])
        answers_parent = np.concatenate([asked, second])
        kept = self.random.random(len(answers_topic)) < 0.98
        none = np.zeros(int(kept.sum()), np.int64)
        return (
            np.concatenate([topic, more_topic, answers_topic[kept]]),
            np.concatenate([published, more_at, answers_at[kept]]),
            np.concatenate([call, more_call, answers_call[kept]]),
            np.concatenate([parent, more_parent, answers_parent[kept]]),
            np.concatenate([trace, more_trace, none]),
        )

    def _new_calls(self, count: int) -> np.ndarray:
        self.calls += count
        return mixed(np.arange(self.calls - count, self.calls) + 17 * self.scene.order.seed) | 1

    def _sequences(self, origin: np.ndarray, stream: np.ndarray) -> np.ndarray:
        made, run = np.empty(len(origin), np.int64), self.scene.order.run
        for number in np.unique(origin):
            for one in (QOS0, CUSTODY, LOCAL):
                places = np.flatnonzero((origin == number) & (stream == one))
                before = self.last.get((int(number), one), 0)
                made[places] = before + 1 + run * np.arange(len(places))
                self.last[int(number), one] = before + run * len(places)
        return made

    def events(self, messages: Messages) -> tuple[Columns, np.ndarray]:
        """All columns but broker-wide ones (epoch, event, mono), and which messages are incomplete.

        Further columns: `message`, the index of the message; `true`, the time without skew.
        """
        made, run = self.routes, self.scene.order.run
        length = made.length[messages.template]
        index = np.repeat(np.arange(len(messages)), length)
        ends = np.cumsum(length)
        rows = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - length, length) + made.begin[messages.template][index]
        row = made.rows[rows]
        kind, reason, keep, bad = self._fates(row)
        incomplete = np.zeros(len(messages), bool)
        incomplete[index[bad]] = True
        row, index, kind, reason = row[keep], index[keep], kind[keep], reason[keep]
        topic = messages.topic[index]
        noise = (self.random.random(len(index)) * 0.3 * row["step"]).astype(np.int64)
        true = messages.published[index] + (row["base"] * messages.factor[index]).astype(np.int64) + noise
        origin, size = messages.origin[index], self.size[topic]
        hop = np.where(
            row["from_broker"] >= 0,
            mixed(
                mixed(messages.sequence[index] * 8 + messages.stream[index])
                ^ (origin * 10007 + row["from_broker"] * 131 + row["to_broker"])
            ),
            0,
        )
        columns = {
            name: row[name] for name in ("broker", "from_broker", "to_broker", "recipient", "value", "qos", "version_out", "protocol_out")
        }
        columns |= {name: row[name] for name in ("protocol_in", "version_in")}
        columns |= {
            "kind": kind,
            "reason": reason,
            "client": row["client"],
            "message": index,
            "true": true,
            "time": true + self.skew[row["broker"]],
            "count": np.full(len(index), run, np.int32),
            "origin": origin,
            "stream": messages.stream[index],
            "sequence": messages.sequence[index],
            "published": messages.published[index] + self.skew[origin],
            "size": size,
            "bytes": size.astype(np.int64) * run,
            "account": self.account_ids[topic],
            "topic": self.topic_ids[topic],
            "hop": np.where(
                kind == Kind.RECEIVED, np.where(row["from_broker"] == row["broker"], 0, hop), np.where(kind == Kind.FORWARDED, hop, 0)
            ),
            "call": messages.call[index],
        }
        return (columns if run < 2 else self._halved(columns)), incomplete

    def _fates(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """kind and reason of each row, which rows are left, and which show that the message is incomplete."""
        order = self.scene.order
        kind, reason = row["kind"].copy(), np.zeros(len(row), np.int64)
        keep, bad = np.ones(len(row), bool), np.zeros(len(row), bool)
        reached = np.cumsum(row["reached"]) - 1
        missed = self.random.random(int(row["reached"].sum())) < order.unreached
        if len(missed):
            gone = row["in_reached"] & missed[np.maximum(reached, 0)]
            keep &= ~gone
            bad |= gone
        chances = np.array([order.fates.get(name, 0.0) for name in _FATES])
        bounds = np.cumsum(chances)
        count = int(row["target"].sum())
        fate = np.searchsorted(bounds, self.random.random(count), side="right") + 1
        fate[fate > LOST] = 0
        if count:
            each = np.where(row["in_target"], fate[np.maximum(np.cumsum(row["target"]) - 1, 0)], 0)
            given_back = (each == 3) | (each == 4)
            each[given_back & (row["qos"] == 0)] = 1  # QoS 0 is neither given back nor failed over
            ended = (each > 0) & (each < LOST)
            first = row["target"] & ended
            kind[first], reason[first] = _FATE_KINDS[each[first]], _FATE_REASONS[each[first]]
            keep &= ~(ended & ~row["target"])
            lost = each == LOST
            bad |= lost
            keep &= ~(lost & ((row["kind"] == Kind.ACKNOWLEDGED) | ((row["kind"] == Kind.DELIVERED) & (row["qos"] == 0))))
        return kind, reason, keep, bad

    def _halved(self, columns: Columns) -> Columns:
        """Acknowledgements of a run come in two halves, as clients send them."""
        run = self.scene.order.run
        split = columns["kind"] == Kind.ACKNOWLEDGED
        times = np.where(split, 2, 1)
        made = {name: np.repeat(values, times) for name, values in columns.items()}
        last = np.cumsum(times) - 1
        parts = np.repeat(split, times)
        second = np.zeros(len(parts), bool)
        second[last[split]] = True
        head = run // 2
        made["count"] = np.where(parts, np.where(second, run - head, head), made["count"]).astype(np.int32)
        made["sequence"] = made["sequence"] + np.where(second, head, 0)
        made["bytes"] = made["size"].astype(np.int64) * made["count"]
        return made

    def refused(self, count: int, begin: int, end: int) -> Columns:
        """Messages that were not accepted: they have no id."""
        topic = self.random.choice(len(self.weights), count, p=self.weights)
        true, broker = np.sort(self.random.integers(begin, end, count)), self.origins[topic]
        size, zero = self.size[topic], np.zeros(count, np.int64)
        nobody = np.full(count, NOBODY, np.int32)
        return {
            "kind": np.full(count, Kind.REFUSED, np.int16),
            "reason": np.full(count, name_id("not authorised")),
            "broker": broker,
            "from_broker": nobody,
            "to_broker": nobody,
            "client": self.client_ids[topic],
            "recipient": zero,
            "value": zero,
            "qos": self.qos[topic],
            "version_out": zero,
            "protocol_out": zero,
            "protocol_in": zero + 1,
            "version_in": zero + 5,
            "message": zero - 1,
            "true": true,
            "time": true + self.skew[broker],
            "count": zero + 1,
            "origin": nobody,
            "stream": zero,
            "sequence": zero,
            "published": true + self.skew[broker],
            "size": size,
            "bytes": size.astype(np.int64),
            "account": self.account_ids[topic],
            "topic": self.topic_ids[topic],
            "hop": zero,
            "call": zero,
        }
