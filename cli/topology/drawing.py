"""A topology as a picture: SVG written here, PNG through matplotlib (the extra `plot`). Both show the same.

A disc is a broker with its number, its name beside it; a line is a link, with its cost where that is not 1. What a single
failure would cut is amber: a cut vertex has a ring, a cut link is dashed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from xml.sax.saxutils import escape

from ...base.extras import install
from ...mesh.topology.analysis import Analysis
from ...mesh.topology.topology import Topology
from .layout import Point, positions

HOP = 130.0  # pixels
MARGIN = 56.0
HEAD = 100.0
FOOT = 44.0
LEFT = 36.0  # where title and legend begin
LETTER = 8.0  # width of a letter of a name, about
_FREE = 0.72  # cosine of the angle to the nearest link up to which a side counts as free
RADIUS = 21.0
SMALLEST = 420.0
INK, PALE, PAPER = "#1d2b3a", "#5b6b7b", "#ffffff"
BROKER, LINK, AMBER = "#1f6f8b", "#8fa3b3", "#d9822b"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"


class NoMatplotlib(Exception):
    """PNG needs matplotlib, which is not installed."""


@dataclass(slots=True)
class Disc:
    name: str
    number: int
    at: Point
    cut: bool
    label: Point  # where the name stands,
    anchor: str  # and which part of it: "start", "middle" or "end"


@dataclass(slots=True)
class Line:
    start: Point
    end: Point
    cut: bool
    cost: int
    guarded: bool = False  # it has a policy of topics

    @property
    def words(self) -> str:
        return ", ".join(word for word, said in ((f"cost {self.cost}", self.cost != 1), ("policy", self.guarded)) if said)

    @property
    def middle(self) -> Point:
        return (self.start[0] + self.end[0]) / 2, (self.start[1] + self.end[1]) / 2


@dataclass(slots=True)
class Picture:
    """Everything that is drawn, in pixels, with y downwards."""

    width: float
    height: float
    title: str
    subtitle: str
    discs: list[Disc]
    lines: list[Line]

    @property
    def weak(self) -> bool:
        return any(disc.cut for disc in self.discs) or any(line.cut for line in self.lines)


def picture(topology: Topology, analysis: Analysis) -> Picture:
    """The picture of a topology: places of brokers, links and names."""
    places = {name: (x * HOP, y * HOP) for name, (x, y) in positions(topology.graph()).items()}
    cut_links = {frozenset(ends) for ends in analysis.cut_links}
    lines = [Line(places[link.listener], places[link.dialler], link.ends in cut_links, link.cost, link.guarded) for link in topology.links]
    discs = []
    for broker in topology.brokers:
        at = places[broker.name]
        label, anchor = _label(at, lines)
        discs.append(Disc(broker.name, broker.number, at, broker.name in analysis.cut_brokers, label, anchor))
    return _framed(Picture(0, 0, topology.mesh.name, size_of(analysis), discs, lines))


def size_of(analysis: Analysis) -> str:
    """`5 brokers, 5 links, diameter 2 hops`."""
    return f"{_count(analysis.brokers, 'broker')}, {_count(analysis.links, 'link')}, diameter {_count(analysis.diameter, 'hop')}"


def _framed(what: Picture) -> Picture:
    """Move everything to make room for margins, the title above and the legend below."""
    boxes = [_box(disc) for disc in what.discs]
    left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
    right, bottom = max(box[2] for box in boxes), max(box[3] for box in boxes)
    what.width = max(right - left + 2 * MARGIN, SMALLEST, len(what.title) * 12 + 2 * MARGIN)
    what.height = bottom - top + HEAD + FOOT + MARGIN / 2
    dx, dy = (what.width - right - left) / 2, HEAD - top

    def moved(at: Point) -> Point:
        return at[0] + dx, at[1] + dy

    for disc in what.discs:
        disc.at, disc.label = moved(disc.at), moved(disc.label)
    for line in what.lines:
        line.start, line.end = moved(line.start), moved(line.end)
    return what


def _box(disc: Disc) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of a disc and its name."""
    (x, y), (lx, ly) = disc.at, disc.label
    wide = LETTER * len(disc.name)
    start = {"start": lx, "middle": lx - wide / 2, "end": lx - wide}[disc.anchor]
    return min(x - RADIUS, start), min(y - RADIUS, ly - 9), max(x + RADIUS, start + wide), max(y + RADIUS, ly + 9)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


# Sides at which a name may stand, the best kind first: from the disc's middle, and the name's anchor.
_SIDES = (
    ((0.0, 1.0, "middle"), (0.0, -1.0, "middle")),
    ((1.0, 0.0, "start"), (-1.0, 0.0, "end")),
    ((0.75, 0.75, "start"), (0.75, -0.75, "start"), (-0.75, 0.75, "end"), (-0.75, -0.75, "end")),
)


def _label(at: Point, lines: list[Line]) -> tuple[Point, str]:
    """Where the name has most room: the first kind of side that no link is near, or else the freest side of all."""
    ways = []
    for line in lines:
        if at in (line.start, line.end):
            x, y = line.end if line.start == at else line.start
            long = hypot(x - at[0], y - at[1]) or 1
            ways.append(((x - at[0]) / long, (y - at[1]) / long))

    def crowded(side: tuple[float, float, str]) -> float:
        long = hypot(side[0], side[1])
        return round(max((side[0] * x + side[1] * y for x, y in ways), default=-1.0) / long, 3)

    best = [min(kind, key=crowded) for kind in _SIDES]
    dx, dy, anchor = next((side for side in best if crowded(side) < _FREE), min(best, key=crowded))
    away = RADIUS + (15 if anchor == "middle" else 7)
    return (at[0] + dx * away, at[1] + dy * away), anchor


# SVG


def svg(what: Picture) -> str:
    """The picture as a self-contained SVG document."""
    return "\n".join(_svg_lines(what)) + "\n"


def _svg_lines(what: Picture) -> Iterator[str]:
    size = f'width="{what.width:.0f}" height="{what.height:.0f}" viewBox="0 0 {what.width:.0f} {what.height:.0f}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img">'
    yield f"<title>{escape(what.title)}: {escape(what.subtitle)}</title>"
    yield f'<rect width="100%" height="100%" rx="10" fill="{PAPER}"/>'
    yield _svg_text((LEFT, 38), what.title, 20, INK, "start", "600")
    yield _svg_text((LEFT, 60), what.subtitle, 13, PALE, "start")
    for line in what.lines:
        yield from _svg_link(line)
    for disc in what.discs:
        yield from _svg_broker(disc)
    yield from _svg_legend(what)
    yield "</svg>"


def _svg_text(at: Point, text: str, size: int, colour: str, anchor: str = "middle", weight: str = "400", halo: bool = False) -> str:
    around = f' stroke="{PAPER}" stroke-width="5" paint-order="stroke" stroke-linejoin="round"' if halo else ""
    place = f'x="{at[0]:.1f}" y="{at[1] + size * 0.35:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" font-weight="{weight}" fill="{colour}"{around}>{escape(text)}</text>'


def _svg_link(line: Line) -> Iterator[str]:
    (x1, y1), (x2, y2) = line.start, line.end
    style = f'stroke="{AMBER}" stroke-width="3.5" stroke-dasharray="9 6"' if line.cut else f'stroke="{LINK}" stroke-width="3"'
    yield f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style} stroke-linecap="round"/>'
    if line.words:
        yield _svg_text(line.middle, line.words, 12, PALE, halo=True)


def _svg_broker(disc: Disc) -> Iterator[str]:
    x, y = disc.at
    ring = f'stroke="{AMBER}" stroke-width="5"' if disc.cut else f'stroke="{PAPER}" stroke-width="3"'
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS:.0f}" fill="{BROKER}" {ring}/>'
    yield _svg_text(disc.at, str(disc.number), 15 if disc.number < 1000 else 11, PAPER, weight="600")
    yield _svg_text(disc.label, disc.name, 14, INK, disc.anchor, halo=True)


def _svg_legend(what: Picture) -> Iterator[str]:
    y = what.height - FOOT / 2
    if not what.weak:
        yield _svg_text((LEFT, y), legend(what), 12, PALE, "start")
        return
    yield f'<circle cx="{LEFT + 7:.0f}" cy="{y:.1f}" r="6" fill="{BROKER}" stroke="{AMBER}" stroke-width="3"/>'
    yield _svg_text((LEFT + 22, y), legend(what), 12, PALE, "start")


def legend(what: Picture) -> str:
    """The line at the foot."""
    return "amber: its failure alone cuts others off" if what.weak else "no single failure cuts anything off"


# PNG


def png(what: Picture, path: Path, scale: float = 2.0) -> None:
    """Write the picture as PNG, `scale` times its size in pixels. Raises NoMatplotlib, OSError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise NoMatplotlib(f"PNG needs matplotlib: {install('plot')}, or write SVG") from None
    figure = Figure(figsize=(what.width / 100, what.height / 100), dpi=100 * scale, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, what.width)
    axes.set_ylim(what.height, 0)
    axes.axis("off")
    _png_marks(axes, what)
    figure.savefig(path, format="png")


_ALIGNED = {"start": "left", "middle": "center", "end": "right"}


def _png_marks(axes, what: Picture) -> None:  # type: ignore[no-untyped-def]  # matplotlib is optional, and so are its types
    from matplotlib import patheffects
    from matplotlib.patches import Circle

    point = 0.72  # points a pixel, at 100 pixels an inch
    halo = [patheffects.withStroke(linewidth=5 * point, foreground=PAPER)]

    def text(at: Point, words: str, size: float, colour: str, **more: object) -> None:
        axes.text(*at, words, fontsize=size * point, color=colour, **{"ha": "center", "va": "center_baseline", "zorder": 5, **more})

    text((LEFT, 38), what.title, 20, INK, ha="left", weight="bold")
    text((LEFT, 60), what.subtitle, 13, PALE, ha="left")
    for line in what.lines:
        xs, ys = zip(line.start, line.end, strict=True)
        style = {"color": AMBER, "lw": 3.5 * point, "dashes": (2.6, 1.7)} if line.cut else {"color": LINK, "lw": 3 * point}
        axes.plot(xs, ys, solid_capstyle="round", zorder=1, **style)
        if line.words:
            text(line.middle, line.words, 12, PALE, path_effects=halo)
    for disc in what.discs:
        edge, width = (AMBER, 5.0) if disc.cut else (PAPER, 3.0)
        axes.add_patch(Circle(disc.at, RADIUS, facecolor=BROKER, edgecolor=edge, linewidth=width * point, zorder=3))
        text(disc.at, str(disc.number), 15 if disc.number < 1000 else 11, PAPER, weight="bold")
        text(disc.label, disc.name, 14, INK, path_effects=halo, ha=_ALIGNED[disc.anchor])
    y = what.height - FOOT / 2
    if what.weak:
        axes.add_patch(Circle((LEFT + 7, y), 6, facecolor=BROKER, edgecolor=AMBER, linewidth=3 * point, zorder=3))
    text((LEFT + (22 if what.weak else 0), y), legend(what), 12, PALE, ha="left")
