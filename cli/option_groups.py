"""Groups of options that several commands take.

A group is a dataclass. Each of its fields that is annotated with `typer.Option` is an option of the command; the others have their
defaults. A subclass turns more fields into options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_origin, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each option of the groups among its parameters. The command receives the groups."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            options = _options(group)
            groups[parameter.name] = group, [option.name for option in options]
            parameters += options
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {name: group(**{option: values.pop(option) for option in options}) for name, (group, options) in groups.items()}
        command(**made, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name])
        for field in fields(group)
        if get_origin(hints[field.name]) is Annotated
    ]


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default
