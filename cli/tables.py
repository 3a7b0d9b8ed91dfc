"""Tables for terminals."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rich.table import Table


def titled_table(title: str, *headings: str, left: Collection[str] = (), right: Collection[str] = (), **style: Any) -> Table:
    """A table with a title and headings.

    left: headings of columns that are aligned left, all others right.
    right: headings of columns that are aligned right, all others left. With neither, all columns are aligned left.
    """
    table = Table(title=title, title_justify="left", **style)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right or (left and heading not in left) else "left")
    return table
