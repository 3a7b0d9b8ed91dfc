"""Pictures of traffic as SVG, without a drawing library: the mesh with links as thick as what they carry, and the matrix of sites."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import cos, log1p, pi, sin
from typing import TYPE_CHECKING

from .graph import Flow

if TYPE_CHECKING:
    import networkx as nx

_SIDE, _MARGIN, _CELL = 640, 80, 64
_STYLE = '<style>text{font:13px sans-serif;fill:#222;text-anchor:middle}</style><rect width="100%" height="100%" fill="#fff"/>'


def graph_svg(mesh: nx.Graph[int]) -> str:
    """Brokers on a circle. A link's width is its share of the most used one's copies; a grey dashed one carries nothing."""
    nodes, middle = sorted(mesh), _SIDE / 2
    places = {
        node: (middle + (middle - _MARGIN) * sin(2 * pi * i / len(nodes)), middle - (middle - _MARGIN) * cos(2 * pi * i / len(nodes)))
        for i, node in enumerate(nodes)
    }
    most = max((edge["copies"] for _, _, edge in mesh.edges(data=True)), default=0)
    parts = []
    for a, b, edge in mesh.edges(data=True):
        (x, y), (u, v) = places[a], places[b]
        used = edge["copies"] > 0
        style = f'stroke="#2a6" stroke-width="{1 + 11 * edge["copies"] / most:.1f}"' if used else 'stroke="#999" stroke-dasharray="4 4"'
        parts.append(f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{u:.0f}" y2="{v:.0f}" {style}/>')
        parts.append(f'<text x="{(x + u) / 2:.0f}" y="{(y + v) / 2 - 8:.0f}">{edge["copies"]:,}</text>')
    for node, (x, y) in places.items():
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="22" fill="#eef" stroke="#447"/><text x="{x:.0f}" y="{y + 5:.0f}">{node}</text>')
    return _svg(_SIDE, _SIDE, parts)


def matrix_svg(flows: Iterable[Flow]) -> str:
    """Rows are the brokers of publication, columns those that received; the darker, the more messages, by their logarithm."""
    counts = {(flow.origin, flow.broker): flow.messages for flow in flows}
    brokers = sorted({number for pair in counts for number in pair})
    most = max(counts.values(), default=0)
    parts = [f'<text x="{_CELL * (len(brokers) / 2 + 1):.0f}" y="16">received at</text>']
    for i, origin in enumerate(brokers):
        at = _CELL * (i + 1)
        parts.append(f'<text x="{_CELL / 2:.0f}" y="{at + _CELL / 2 + 5:.0f}">{origin}</text>')
        parts.append(f'<text x="{at + _CELL / 2:.0f}" y="{_CELL - 12}">{origin}</text>')
        for j, broker in enumerate(brokers):
            count = counts.get((origin, broker), 0)
            share = log1p(count) / log1p(most) if most else 0.0
            fill, ink = f"rgb({255 - int(200 * share)},{255 - int(120 * share)},255)", ' style="fill:#fff"' if share > 0.8 else ""
            x = _CELL * (j + 1)
            what = escape(f"{origin} to {broker}: {count:,} messages")
            parts.append(
                f'<rect x="{x}" y="{at}" width="{_CELL}" height="{_CELL}" fill="{fill}" stroke="#fff"><title>{what}</title></rect>'
                f'<text x="{x + _CELL / 2:.0f}" y="{at + _CELL / 2 + 5:.0f}"{ink}>{_short(count)}</text>'
            )
    side = _CELL * (len(brokers) + 1)
    return _svg(side + 8, side + 8, parts)


def _short(count: int) -> str:
    for bound, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= bound:
            return f"{count / bound:.3g} {unit}"
    return str(count)


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">{_STYLE}'
    return "\n".join([head, *parts, "</svg>", ""])
