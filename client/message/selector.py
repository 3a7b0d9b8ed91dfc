"""Message selectors (Jakarta Messaging 3.1, 3.8), as the API has them: what is wrong with one is an `InvalidSelectorError`."""

from __future__ import annotations

from ...base.selector.selector import Selector as _Selector
from ...base.selector.selector import SelectorError
from ..core.errors import InvalidSelectorError


class Selector(_Selector):
    """A parsed selector. Raises `InvalidSelectorError`, which says what was expected and where."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidSelectorError(f"a selector is a string, not {text!r}: '' selects everything", "selector")
        try:
            text.encode()
            super().__init__(text)
        except (SelectorError, UnicodeEncodeError) as error:
            raise InvalidSelectorError(str(error), "selector") from None


def selects_all(text: str) -> bool:
    """Whether a selector is empty. Raises `InvalidSelectorError` unless it is a selector."""
    if isinstance(text, str) and not text.strip():
        return True
    Selector(text)
    return False
