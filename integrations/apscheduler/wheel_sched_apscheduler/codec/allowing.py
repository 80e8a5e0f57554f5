"""What stored data may name: functions by module prefix, triggers by a table of classes.

A reference is checked before anything is imported, and the object found must itself come from an allowed module, so
that `myapp.jobs:os.system` does not lead out of an allowed one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from apscheduler.util import ref_to_obj

from wheel_sched.errors import ConfigError, StoreError

_OURS = frozenset({"apscheduler", "redis", "wheel_sched", "wheel_sched_apscheduler", "pip", "setuptools", "pytest"})


class Forbidden(StoreError):
    """A reference outside of the allow-list; it was not imported."""


class Allowed:
    """The allow-list of function references.

    Args:
        prefixes: modules (`myapp` also means `myapp.jobs`) or single functions (`myapp.jobs:send`). Defaults to None:
            everything but the standard library, APScheduler and this project. A list of your own is the safe setting.
        aliases: old reference -> new one, for functions that have moved. Defaults to none.

    Raises:
        ConfigError: a prefix is no text.
    """

    def __init__(self, prefixes: Iterable[str] | None = None, aliases: Mapping[str, str] | None = None) -> None:
        if isinstance(prefixes, str):
            prefixes = [prefixes]
        self.prefixes = None if prefixes is None else tuple(prefix.rstrip(".*") for prefix in _texts(prefixes))
        self.aliases = dict(aliases or {})
        self._found: dict[str, Callable[..., Any]] = {}

    def __repr__(self) -> str:
        return f"<Allowed {'all but the standard library' if self.prefixes is None else ', '.join(self.prefixes)}>"

    def permits(self, ref: str) -> bool:
        """Whether a reference `module:name` may be imported."""
        module, colon, name = ref.partition(":")
        if not colon or not name or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            return False
        if self.prefixes is None:
            return not _reserved(module)
        return any(ref == p or module == p or module.startswith(f"{p}.") for p in self.prefixes)

    def check(self, ref: str) -> None:
        """Refuse a reference that the list does not hold.

        Raises:
            Forbidden: with what to change.
        """
        if not self.permits(ref):
            listed = "the standard library and APScheduler are not" if self.prefixes is None else "it is not"
            raise Forbidden(
                f"the function {ref[:200]!r} may not be named by a stored job: {listed} in the allow-list; nothing was "
                "imported; open the store with allow=[...] naming its module"
            )

    def resolve(self, ref: str) -> Callable[..., Any]:
        """The function behind a reference, imported if need be.

        Raises:
            Forbidden: it is not in the list, or leads out of it; nothing was imported for the former.
            LookupError: there is no such module or function.
        """
        func = self._found.get(ref)
        if func is not None:
            return func
        self.check(ref)
        try:
            found = ref_to_obj(ref)
        except LookupError:
            raise
        except Exception as error:  # a module may fail in any way while it is imported
            raise LookupError(f"the module of {ref!r} cannot be imported: {error!r}") from error
        home = getattr(found, "__module__", None)
        if not callable(found) or (isinstance(home, str) and not self._at_home(ref, home)):
            raise Forbidden(f"{ref!r} leads to {home}, which the allow-list does not hold; it was not called")
        self._found[ref] = found
        return found  # type: ignore[no-any-return]

    def _at_home(self, ref: str, home: str) -> bool:
        module, _, name = ref.partition(":")
        if home == module or (self.prefixes is not None and ref in self.prefixes):
            return True
        if self.prefixes is None:
            return not _reserved(home)
        # a name that a package hands out for a module of its own lies under the same top
        return self.permits(f"{home}:{name}") or (
            "." not in name and home.partition(".")[0] == module.partition(".")[0]
        )


def _reserved(module: str) -> bool:
    top = module.partition(".")[0]
    return (top in sys.stdlib_module_names and top != "__main__") or top in _OURS


def _texts(prefixes: Iterable[Any]) -> list[str]:
    given = list(prefixes)
    if any(not isinstance(prefix, str) or not prefix for prefix in given):
        raise ConfigError(f"expected allow to be a list of module names, got: {given!r}; nothing was opened")
    return given
