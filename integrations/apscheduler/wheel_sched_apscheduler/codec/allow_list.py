"""The allow-list: which functions a stored job may name.

A stored reference is `module:name` or `module:Class.method`. It must name a plain Python function, class or method that
the module itself defines: `__module__` is that module and `__qualname__` is that name. A reference cannot name what the
module has only imported, a built-in, a special method, or an attribute of an object. Only a reference that `allow` or
`aliases` has in full may name another callable. This module checks a reference before it imports anything.

A job may name functions of the modules in `allow`. Without such a list, a signed job may name functions of any module
except the standard library, this project, APScheduler and a few tools (`_OURS`), because a process that knows the
secret has stored the job. An unsigned job may name functions of `__main__`, and functions of which this process itself
has added a job (*registered* functions).
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import ismethod
from pathlib import Path
from types import FunctionType
from typing import Any

from apscheduler.util import obj_to_ref

from wheel_sched.errors import ConfigError, StoreError
from wheel_sched_apscheduler.codec.values import NotHere

_PROJECT = {"wheel_sched", "wheel_sched_apscheduler", "wheel_sched_celery", "retry_topic"}
_OURS = frozenset({"apscheduler", "redis", "pip", "setuptools", "pytest", *_PROJECT})
_SHOWN = 200
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))

_registered: dict[str, Callable[..., Any]] = {}  # functions of which this process has added a job


class Forbidden(StoreError):
    """A reference is outside of the allow-list. Nothing was called, and no module outside of the list was imported."""


class NotRegistered(Forbidden, LookupError):
    """This process has not registered the function, because it has added no job of it so far."""


class Allowed:
    """The allow-list of function references.

    Args:
        allow: modules (`myapp` also means `myapp.jobs`), names of single callables (`myapp.jobs:send`), or functions
            themselves. Defaults to None: see the top of this module.
        aliases: old reference -> new one, for functions that have moved; the new ones are allowed. Defaults to none.
        signed: whether every job that is read has a valid signature. Defaults to False.

    Raises:
        ConfigError: an entry of `allow` is neither text nor a function, or an entry of `aliases` is not a pair of
            texts, the second with a colon.
    """

    def __init__(
        self,
        allow: Iterable[str | Callable[..., Any]] | None = None,
        aliases: Mapping[str, str] | None = None,
        *,
        signed: bool = False,
    ) -> None:
        self.aliases = _pairs(aliases)
        self._signed = signed
        self._listed = allow is not None
        self._modules: tuple[str, ...] = ()
        self._exact = set(self.aliases.values())
        self._found: dict[str, Callable[..., Any]] = {}
        for entry in allow.split(",") if isinstance(allow, str) else allow or ():
            if not isinstance(entry, str):
                self._found[_reference_of(entry)] = entry
            elif ":" in entry:
                self._exact.add(entry.strip())
            elif entry.strip(".* "):
                self._modules += (entry.strip().rstrip(".*"),)
            else:
                raise _wrong(entry)
        self._exact |= self._found.keys()

    def __repr__(self) -> str:
        return f"<Allowed {self}>"

    def __str__(self) -> str:
        """The functions that jobs may name, as text for people."""
        if self._listed:
            return f"the functions of {', '.join([*self._modules, *sorted(self._exact)]) or 'nothing'}"
        return "the functions of any application" if self._signed else "the functions this process has added jobs of"

    def permits(self, ref: str) -> bool:
        """Whether a stored reference may be looked up in this process."""
        if ref in self._exact:
            return True
        if not self._storable(ref):
            return False
        return self._listed or self._signed or ref in _registered or ref.startswith("__main__:")

    def _storable(self, ref: str) -> bool:
        """Whether these settings allow the reference, at least in a process that has registered its function."""
        if ref in self._exact:
            return True
        module, colon, name = ref.partition(":")
        if not colon or not (module == "__main__" or _plain(module)) or not _plain(name):
            return False
        if self._listed:
            return any(module == listed or module.startswith(f"{listed}.") for listed in self._modules)
        return not _reserved(module)

    def check(self, ref: str) -> None:
        """Check that these settings allow a reference, at least in a process that has registered its function.

        A process registers a function when it adds a job of it.

        Raises:
            Forbidden: these settings allow the reference in no process. The text of the error says what to change.
        """
        if not self._storable(ref):
            raise self._forbidden(ref)

    def accept(self, func: Any, ref: str) -> str:
        """Register a function of which the application adds a job, and return the reference to store.

        Args:
            func: the function; None = only its reference is known.
            ref: the reference by which APScheduler names the function.

        Raises:
            Forbidden: no process with these settings may look the function up, or `func` is no plain function, class
                or method.
            ValueError: the function has no name that can be imported.
        """
        if func is None or ref in self._exact:
            self.check(ref)
            return ref
        plain = func.__func__ if ismethod(func) else func
        if type(plain) is FunctionType or isinstance(plain, type):
            if not _is_own(func, *_parts_of(ref)):
                ref = obj_to_ref(func)  # a given text may name a module that has only imported the function
        else:
            raise Forbidden(
                f"{ref[:_SHOWN]!r} is no plain function, class or method, but {type(func).__name__}: a stored job can "
                "name such an object only if the allow-list has its full name; nothing was stored; wrap it in a "
                f"function, or open the store with allow=[..., {ref[:_SHOWN]!r}]"
            )
        if ref not in self._exact:
            self.check(ref)
        if not self._listed:
            # the object of a bound method is among the arguments, as APScheduler stores it
            _registered[ref] = plain if ismethod(func) and not isinstance(func.__self__, type) else func
        return ref

    def resolve(self, ref: str) -> Callable[..., Any]:
        """The function that a stored reference names. Imports its module if needed.

        Raises:
            Forbidden: the list does not allow the reference (then nothing was imported), or the reference names an
                object that its module does not define.
            NotRegistered: `allow` is None, the job is not signed, and this process has not registered the function.
            NotHere: there is no such module or function in this process.
        """
        func = self._found.get(ref)
        if func is not None:
            return func
        if not self.permits(ref):
            raise self._not_registered(ref) if self._storable(ref) else self._forbidden(ref)
        func = None if self._listed else _registered.get(ref)
        if func is None:
            func = self._looked_up(ref)
            self._found[ref] = func
        return func

    def _looked_up(self, ref: str) -> Callable[..., Any]:
        module_name, _, name = ref.partition(":")
        try:
            module = import_module(module_name)
        except Exception as error:  # a module may fail in any way while it is imported
            raise NotHere(f"the module of {ref!r} cannot be imported here: {error!r}") from error
        found: Any = module
        owner_ref = ref
        for depth, part in enumerate(name.split(".")):
            if depth:
                walked = ".".join(name.split(".")[:depth])
                if not _is_own(found, module_name, walked):
                    raise self._leads_out(ref, found)
            try:
                owner, entry = _entry(found, part)
            except KeyError:
                raise NotHere(f"there is no {name!r} in the module {module_name!r} here") from None
            if depth:
                owner_ref = f"{owner.__module__}:{owner.__qualname__}.{part}"
            found = getattr(found, part) if depth else entry
        if ref in self._exact:
            if not callable(found):
                raise self._leads_out(ref, found)
        elif not self.permits(owner_ref) or not _is_own(found, *_parts_of(owner_ref)):
            raise self._leads_out(ref, found)
        return found  # type: ignore[no-any-return]

    def _leads_out(self, ref: str, found: Any) -> Forbidden:
        kind, module = type(found).__name__, getattr(found, "__module__", None)
        return Forbidden(
            f"{ref[:_SHOWN]!r} leads to a {kind} of {str(module)[:_SHOWN]!r}, not to a function, class or method that "
            "this module has defined; it was not called"
        )

    def _forbidden(self, ref: str) -> Forbidden:
        listed = "it is not" if self._listed else "the standard library and APScheduler are not"
        return Forbidden(
            f"the function {ref[:_SHOWN]!r} may not be named by a stored job: {listed} in the allow-list; nothing was "
            f"imported; open the store with allow=[...] naming its module or itself"
        )

    def _not_registered(self, ref: str) -> NotRegistered:
        return NotRegistered(
            f"the function {ref[:_SHOWN]!r} may not be named by a job that is not signed: this process has added no "
            "job of it; nothing was imported; open the store with secret=... (or WHEEL_SCHED_APS_SECRET) wherever jobs "
            "are added and run, or with allow=[...] naming its module"
        )


def _reference_of(entry: Any) -> str:
    try:
        if callable(entry):
            return str(obj_to_ref(entry))
    except (ValueError, TypeError, AttributeError):
        pass
    raise _wrong(entry)


def _wrong(entry: Any) -> ConfigError:
    return ConfigError(
        f"expected allow to be a list of modules and functions, got in it: {entry!r}; nothing was opened"
    )


def _pairs(aliases: Any) -> dict[str, str]:
    """Aliases as a dict. A settings file gives aliases as the text `old=new, ...`."""
    if isinstance(aliases, str):
        parts = [part.partition("=") for part in aliases.split(",") if part.strip()]
        aliases = {old.strip(): new.strip() for old, _, new in parts}
    found = dict(aliases or {})
    if not all(isinstance(old, str) and isinstance(new, str) and ":" in new for old, new in found.items()):
        raise ConfigError(
            f"expected aliases to name functions, old module:name to new, got: {aliases!r}; nothing was opened"
        )
    return found


def _plain(dotted: str) -> bool:
    """Whether a text consists of names and dots, and no name begins with two underscores."""
    return all(part.isidentifier() and not part.startswith("__") for part in dotted.split("."))


def _reserved(module: str) -> bool:
    top = module.partition(".")[0]
    if module == "__main__":
        return False
    return top in sys.stdlib_module_names or top in _OURS or _lies_in_standard_library(top)


def _lies_in_standard_library(top: str) -> bool:
    """Whether a module is in the folder of the standard library. Imports nothing.

    Python's list of the standard library lacks some of these modules, such as `test`.
    """
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # a module made by hand has no spec
        return False
    if spec is None or spec.origin is None:
        return False
    place = Path(spec.origin)
    return (place.parent.parent if spec.submodule_search_locations else place.parent) == _STANDARD_LIBRARY


def _parts_of(ref: str) -> tuple[str, str]:
    module, _, name = ref.partition(":")
    return module, name


def _entry(holder: Any, name: str) -> tuple[Any, Any]:
    """The module or class that defines a name, and the value in its `__dict__`. Runs no code of the module.

    Raises:
        KeyError: neither the module nor the class, with its base classes, defines the name.
    """
    for owner in holder.__mro__ if isinstance(holder, type) else [holder]:
        if name in vars(owner):
            return owner, vars(owner)[name]
    raise KeyError(name)


def _is_own(found: Any, module: str, name: str) -> bool:
    """Whether an object is a plain function, class or method that this module defines under this name."""
    if ismethod(found) and isinstance(found.__self__, type):
        found = found.__func__
    if type(found) is not FunctionType and not isinstance(found, type):
        return False
    return bool(found.__module__ == module and found.__qualname__ == name)
