"""Timelines as text and as a picture (SVG)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from html import escape

from .story import COMPLETE, Step, Story

LANE, HEAD, STEP, LEFT, WIDTH = 190, 86, 34, 96, 160
_COLOURS = {
    "published": "#2563eb",
    "received": "#0891b2",
    "forwarded": "#64748b",
    "delivered": "#16a34a",
    "acknowledged": "#15803d",
}
_BAD = "#dc2626"

Site = Callable[[int], str]


def text(story: Story, site: Site = str) -> str:
    """A story as lines: a head, then one line for each step with the milliseconds since publication."""
    head = [f"{story.message}  {story.topic or '(topic unknown)'}  {story.status}" + (f": {story.why}" if story.why else "")]
    facts = [f"published {moment(story.published)}"] if story.published else []
    facts += [f"by {story.publisher}"] if story.publisher else []
    facts += [f"account {story.account}"] if story.account else []
    facts += [f"{story.size} bytes", f"QoS {story.qos}", f"from {story.source}"]
    facts += [f"call {hexadecimal(story.call)}"] if story.call else []
    facts += [f"session {hexadecimal(story.session)}"] if story.session else []
    facts += [f"trace {story.trace}"] if story.trace else []
    facts += [f"made from {story.parent}"] if story.parent else []
    head.append("  " + ", ".join(facts))
    rows = [(after(story, step), site(step.broker), step.name, said(step, site)) for step in story.steps]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(3)]
    lines = [f"  {a.rjust(widths[0])}  {b.ljust(widths[1])}  {c.ljust(widths[2])}  {d}".rstrip() for a, b, c, d in rows]
    if any(step.moved for step in story.steps):
        lines.append("  ~ this broker's clock is behind: its steps are shown where they can have happened")
    return "\n".join(head + lines)


def moment(microseconds: int) -> str:
    """A time (UTC) as people read it."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f") + "Z"


def after(story: Story, step: Step) -> str:
    """Milliseconds since publication."""
    return f"{'~' if step.moved else ''}{(step.time + step.moved - story.published) / 1000:.3f} ms"


def said(step: Step, site: Site) -> str:
    """What a step says beside its kind."""
    parts = [f"from {site(step.from_broker)}"] if step.from_broker is not None else []
    parts += [f"to {site(step.to_broker)}"] if step.to_broker is not None else []
    parts += [f"client {step.client}"] if step.client else []
    parts += [f"recipient {step.recipient}"] if step.recipient else []
    parts += [f"({step.reason})"] if step.reason else []
    if step.name == "published":
        parts.append(f"for {step.value} other broker{'' if step.value == 1 else 's'}")
    elif step.name == "received":
        parts.append(f"for {step.value} client{'' if step.value == 1 else 's'} here")
    return " ".join(parts)


def hexadecimal(number: int) -> str:
    """A call or session as commands take it: sixteen hexadecimal figures."""
    return f"{number & (1 << 64) - 1:016x}"


def number_of(text: str) -> int:
    """The number of a call or session from its sixteen hexadecimal figures, or from decimal ones. Of the thirty-two of a session of the
    interchange the first sixteen count. Raises ValueError, one line.
    """
    stripped = text.strip()
    if len(stripped) == 32:
        stripped = stripped[:16]
    try:
        value = int(stripped, 16) if len(stripped) == 16 else int(stripped)
    except ValueError:
        raise ValueError(f'"{text[:80]}": give sixteen hexadecimal figures, such as 00c0ffee00c0ffee, or a whole number') from None
    return value - (1 << 64) if value >= 1 << 63 else value


def svg(story: Story, site: Site = str) -> str:
    """A picture: one lane for each broker from the top down, one dot for each step, arrows from broker to broker."""
    lanes = {broker: LEFT + WIDTH // 2 + LANE * place for place, broker in enumerate(story.path)}
    height = HEAD + STEP * (len(story.steps) + 1)
    width = LEFT + LANE * max(1, len(lanes)) + 40
    colour = "#15803d" if story.status == COMPLETE else _BAD
    title = f"{story.message}  {story.topic or ''}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="14" font-weight="600">{escape(title)}</text>',
        f'<text x="16" y="42" fill="{colour}">{escape(story.status + (": " + story.why if story.why else ""))}</text>',
    ]
    for broker, x in lanes.items():
        parts.append(f'<line x1="{x}" y1="{HEAD - 8}" x2="{x}" y2="{height - 16}" stroke="#cbd5e1"/>')
        parts.append(f'<text x="{x}" y="{HEAD - 16}" text-anchor="middle" font-weight="600">{escape(site(broker))}</text>')
    sent: dict[tuple[int, int], int] = {}
    for place, step in enumerate(story.steps):
        y = HEAD + STEP * place + 16
        x = lanes[step.broker]
        if step.to_broker is not None:
            sent[step.broker, step.to_broker] = y
        if step.name == "received" and step.from_broker in lanes:
            begin = sent.get((step.from_broker, step.broker), y)
            parts.append(f'<path d="M{lanes[step.from_broker]} {begin} L{x} {y}" stroke="#64748b" fill="none" stroke-dasharray="4 3"/>')
        fill = _COLOURS.get(step.name, _BAD if step.reason else "#64748b")
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#64748b">{escape(after(story, step))}</text>')
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{fill}"/>')
        words = f"{step.name} {said(step, site)}".strip()
        parts.append(
            f'<text x="{x + 10}" y="{y + 4}">{escape(words if len(words) <= 34 else words[:33] + "…")}<title>{escape(words)}</title></text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
