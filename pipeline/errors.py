"""Errors of the pipeline, each one line for people."""

from __future__ import annotations

from ..base.extras import install


class PipelineError(Exception):
    """What a user can mend: one line with what is wrong and what would be right."""


class MissingExtra(PipelineError):
    """A library of an optional dependency is not installed."""

    def __init__(self, library: str, extra: str = "spark") -> None:
        super().__init__(f"{library} is not installed: {install(extra)}")
