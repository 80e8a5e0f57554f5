"""What a safeguard is, and how a test switches it off.

A change names a function and a text in its source. If the source no longer has this text, applying the change fails.
Then the safeguard's entry in `SAFEGUARDS` must be adapted to the moved code.

A history shows a safeguard if the history breaks a promise only when the safeguard is switched off.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Change = tuple[str, str, str]  # where, old and new, as in `Safeguard`


@dataclass(frozen=True, slots=True)
class Safeguard:
    """A safeguard and how to switch it off.

    A history shows the safeguard if it breaks a promise only when the safeguard is switched off.

    Args:
        name: what is switched off, in plain words.
        where: the function, as "module:function" or "module:Class.method".
        old: a text in the function's source.
        new: the text that replaces it.
        world: the kind of world whose histories show it. Defaults to "retry".
        also: further changes, for a safeguard that is in several places. Defaults to none.
        hidden: why few histories or none show it; for example, another safeguard covers it. Defaults to "": one of the
            histories that the tests run shows it.
        needs: kinds of faults; a history without any of them cannot show it, and is not run. Defaults to none: all run.
    """

    name: str
    where: str
    old: str
    new: str
    world: str = "retry"
    also: tuple[Change, ...] = ()
    needs: tuple[str, ...] = ()
    hidden: str = ""

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes that switch the safeguard off."""
        return ((self.where, self.old, self.new), *self.also)


def source_at(where: str) -> tuple[Any, str, str]:
    """The module or class that owns the function, the function's name, and its source.

    Raises:
        AttributeError: the owner has no such function.
    """
    module_name, _, path = where.partition(":")
    owner: Any = importlib.import_module(module_name)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    return owner, name, textwrap.dedent(inspect.getsource(inspect.getattr_static(owner, name)))


@contextmanager
def switched_off(safeguard: Safeguard) -> Iterator[None]:
    """Switch a safeguard off while the block runs."""
    with ExitStack() as changes:
        for change in safeguard.changes:
            changes.enter_context(_changed(*change))
        yield


@contextmanager
def _changed(where: str, old: str, new: str) -> Iterator[None]:
    owner, name, source = source_at(where)
    assert old in source, f"{where} has no {old!r} any more"
    original = inspect.getattr_static(owner, name)
    made: dict[str, Any] = {}
    module = inspect.getmodule(original)
    assert module is not None
    code = compile(source.replace(old, new), f"<{where}>", "exec", dont_inherit=False)
    exec(code, module.__dict__, made)  # noqa: S102
    holders = [owner, *_importers(original)] if owner is module else [owner]
    for holder in holders:
        setattr(holder, name, made[name])
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, original)


def _importers(function: Any) -> list[ModuleType]:
    """The modules that have imported a function under the function's own name."""
    modules = [module for module in sys.modules.values() if isinstance(module, ModuleType)]
    return [module for module in modules if vars(module).get(function.__name__) is function]
