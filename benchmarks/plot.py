"""The picture of a run: one dot for each broker in each scenario, on a logarithmic scale, and what mqmesh must reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import OURS, count

if TYPE_CHECKING:  # a second to load, for one who draws
    from matplotlib.axes import Axes

LOOKS = {  # colours that colour-blind readers tell apart, and a shape for each
    "mqmesh": ("#d55e00", "o", 90),
    "mqmesh-asyncio": ("#e69f00", "o", 50),
    "mqmesh-access": ("#f0a070", "o", 50),
    "mosquitto": ("#0072b2", "s", 50),
    "nats": ("#009e73", "^", 60),
    "amqtt": ("#777777", "D", 40),
    "forward": ("#cc79a7", "v", 50),
}


def draw(data: dict[str, Any], path: Path) -> None:
    """Draw the JSON of a run; the ending of `path` says in which format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rates = [scenario for scenario in data["scenarios"] if scenario["unit"] != "seconds"]
    times = [scenario for scenario in data["scenarios"] if scenario["unit"] == "seconds"]
    named = ((rates, "deliveries per second (right is better)"), (times, "time to delivery, p50 in µs (left is better)"))
    panels = [(group, title) for group, title in named if group]
    heights = [len(group) + 1.5 for group, _ in panels]
    with mpl.rc_context({"svg.hashsalt": "mqmesh", "font.size": 10, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(9, 0.42 * sum(heights) + 0.6), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for ax, (group, title) in zip(axes, panels, strict=True):
            panel(ax, group, title)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)


def panel(ax: Axes, group: list[dict[str, Any]], title: str) -> None:
    """One panel: scenarios from top to bottom."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    latency = group[0]["unit"] == "seconds"
    scale = 1e6 if latency else 1.0
    for peer in [peer for peer in LOOKS if any(peer in scenario["peers"] for scenario in group)]:
        colour, shape, size = LOOKS[peer]
        points = [(s["peers"][peer]["median"] * scale, y) for y, s in enumerate(group) if s["peers"].get(peer, {}).get("median")]
        if points:
            xs, ys = zip(*points, strict=True)
            ax.scatter(xs, ys, c=colour, marker=shape, s=size, label=peer, zorder=3, linewidths=0)
    bars = [(level * scale, y) for y, s in enumerate(group) if (level := needed(s, latency))]
    if bars:
        xs, ys = zip(*bars, strict=True)
        ax.scatter(xs, ys, c=LOOKS[OURS][0], marker="|", s=260, linewidths=2, label="mqmesh must reach", zorder=2)
    ax.set_xscale("log")
    ax.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=10)
    ax.set_yticks(range(len(group)), [scenario["title"] for scenario in group])
    ax.set_ylim(len(group) - 0.4, -0.6)
    ax.grid(axis="x", color="#dddddd")
    ax.grid(axis="y", color="#eeeeee")
    ax.tick_params(which="both", length=0)
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if latency else count(value).replace(".00", "").replace(".0", ""))
    )
    if latency:
        ax.set_xlim(left=10)
        ax.set_xticks([10, 20, 50, 100, 200, 500])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.spines[:].set_visible(False)


def needed(scenario: dict[str, Any], latency: bool) -> float | None:
    """The strictest bar as a figure of this run, None without one."""
    levels = []
    for bar in scenario["bars"]:
        peer = scenario["peers"].get(bar["peer"], {}).get("median")
        if peer:
            levels.append(bar["bar"] * peer)
    return (min(levels) if latency else max(levels)) if levels else None
