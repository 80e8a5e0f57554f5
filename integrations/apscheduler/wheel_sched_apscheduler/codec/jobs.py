"""JobCodec: writes a job as bytes and reads it back.

    [s <32 bytes HMAC>] 1;<next run time in us, or "-">;<its zone>;<JSON of the rest>

The part before the JSON, the *front*, changes with every run. So the codec writes the next occurrence of a job without
making the JSON again, unless the trigger's class is not one of APScheduler's: such a trigger may change at a run. The
JSON contains the job's metadata. Tags are not in these bytes: the store keeps
them as refs (second names) of the item, so that it can find jobs by a tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from apscheduler.job import Job

from wheel_sched_apscheduler.codec.allow_list import Allowed, Forbidden
from wheel_sched_apscheduler.codec.signing import ENVIRONMENT, MARK, Secret, Signer
from wheel_sched_apscheduler.codec.triggers import Triggers, is_built_in
from wheel_sched_apscheduler.codec.values import NotHere, NotSerializable, Unreadable, Values, moment_of, zone_name
from wheel_sched_apscheduler.entries import JobEntry, JobState
from wheel_sched_apscheduler.run_times import from_us, to_us

_VERSION = b"1"
_NEVER = b"-"
_HASHES = 33  # bytes of mark and signature
_FORGING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")  # see _flaw_of_names
_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False, allow_nan=False).encode
_loads = json.JSONDecoder().decode


@dataclass(slots=True)
class StoredJob:
    """A job that was read from bytes.

    `trigger` is the job's trigger as it was read. `zone` and `rest` are the parts of the bytes that hold the time zone
    and the JSON.
    """

    job: Any
    trigger: Any
    zone: bytes
    rest: bytes


class JobCodec:
    """Writes jobs as bytes and reads them back. Any thread may use it.

    Args:
        allow: modules or functions that stored jobs may name, see `Allowed`. Defaults to None: signed jobs may name any
            function that a module of an application defines, other jobs only functions of `__main__` and those of which
            this process has added a job.
        triggers: further trigger classes. Defaults to none.
        aliases: old function reference -> new one. Defaults to none.
        secret: signs the jobs that are written; jobs that are read must have a signature. If there are several secrets,
            the first one signs. Defaults to None: jobs are not signed.
        allow_pickle: see `Values`. Defaults to False.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str | Callable[..., Any]] | None = None,
        triggers: Iterable[type | str] = (),
        aliases: Mapping[str, str] | None = None,
        secret: Secret | None = None,
        allow_pickle: bool = False,
    ) -> None:
        self.allowed = Allowed(allow, aliases, signed=secret is not None)
        self._values = Values(allow_pickle=allow_pickle)
        self._triggers = Triggers(self._values, triggers)
        self._shown_triggers = Triggers(Values(), triggers)  # of jobs whose signature was not checked: without pickle
        self._signer = None if secret is None else Signer(secret)

    def __repr__(self) -> str:
        return f"<JobCodec {self.allowed!r}{' signed' if self._signer else ''}>"

    def encode(self, job: Any, metadata: Mapping[str, Any] | None = None) -> bytes:
        """The job as bytes.

        Raises:
            NotSerializable: the job's function has no importable name; the job's id, name or executor has a control
                character; or an argument, the metadata or the trigger cannot be stored.
            Forbidden: the job's function is outside of the allow-list, so no process would run it.
        """
        try:
            state = job.__getstate__()
            ref = self.allowed.accept(getattr(job, "plain_func", job.func), state["func"])
        except ValueError as error:
            raise NotSerializable(
                f"job {job.id!r}: {error} Nothing was stored; move the function to the top level of a module."
            ) from error
        flaw = _flaw_of_names(job.id, state["name"], state["executor"])
        if flaw:
            raise NotSerializable(f"{flaw}; nothing was stored")
        what = f"of job {job.id!r}"
        values = self._values
        doc: dict[str, Any] = {
            "f": ref,
            "n": state["name"],
            "t": self._triggers.dump(state["trigger"]),
            "a": [values.dump(arg, f"argument {i} {what}") for i, arg in enumerate(state["args"])],
            "k": {key: values.dump(arg, f"argument {key!r} {what}") for key, arg in dict(state["kwargs"]).items()},
            "e": state["executor"],
            "g": state["misfire_grace_time"],
            "c": state["coalesce"],
            "m": state["max_instances"],
        }
        if metadata:
            doc["x"] = values.dump(dict(metadata), f"the metadata {what}")
        try:
            rest = _dumps(doc).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError, RecursionError) as error:
            raise NotSerializable(f"job {job.id!r} cannot be written as JSON: {error}; nothing was stored") from error
        moment = state["next_run_time"]
        zone = b"" if moment is None else zone_name(moment.tzinfo).encode()
        return self._joined(job.id, moment, zone, rest)

    def advanced(self, stored: StoredJob, next_run_time: datetime | None) -> bytes:
        """The job's bytes with another next run time. None = the job has no next run time."""
        if not is_built_in(stored.trigger):
            doc = _loads(stored.rest.decode())
            doc["t"] = self._triggers.dump(stored.trigger)
            stored.rest = _dumps(doc).encode("utf-8", "surrogatepass")
        zone = stored.zone if next_run_time is None else zone_name(next_run_time.tzinfo).encode()  # type: ignore[arg-type]  # aware
        return self._joined(stored.job.id, next_run_time, zone, stored.rest)

    def _joined(self, job_id: str, moment: datetime | None, zone: bytes, rest: bytes) -> bytes:
        when = _NEVER if moment is None else b"%d" % to_us(moment)
        return self.seal(job_id, b"1;%s;%s;%s" % (when, zone, rest))

    @property
    def signed(self) -> bool:
        """Whether jobs are signed."""
        return self._signer is not None

    def seal(self, item_id: str, body: bytes) -> bytes:
        """The body with a signature for this item id; the body alone if there is no secret."""
        return body if self._signer is None else self._signer.sign(item_id, body)

    def unseal(self, item_id: str, raw: bytes) -> bytes:
        """Check the signature that `seal` has added, and return the body without it.

        Raises:
            BadSignature: none of our secrets has signed the body for this item id.
            NotHere: the body is signed, and this process has no secret; another process may have it.
        """
        if self._signer is not None:
            return self._signer.verify(item_id, raw)
        if raw[:1] == MARK:
            raise NotHere(f"it is signed; give secret=... or {ENVIRONMENT}")
        return raw

    def decode(self, job_id: str, raw: bytes, kind: Any = Job, *, resolve: bool = True) -> StoredJob:
        """Read a job from bytes. If `resolve` is False, the job has only its function's name, and does not import it.

        Raises:
            BadSignature, Forbidden, Unreadable: the job may not or cannot be read.
            NotRegistered, NotHere: this process cannot run the job; another process perhaps can.
        """
        when, zone, rest, doc = _parts(self.unseal(job_id, raw))
        ref = doc["f"]
        if not isinstance(ref, str):
            raise Unreadable("it names no function")
        ref = self.allowed.aliases.get(ref, ref)
        func = self.allowed.resolve(ref) if resolve else None
        args, kwargs = self._values.load(doc["a"]), self._values.load(doc["k"])
        trigger = self._triggers.load(doc["t"])
        _check(doc, args, kwargs)
        flaw = _flaw_of_names(job_id, doc["n"], doc["e"])
        if flaw:
            raise Unreadable(flaw)
        job: Any = kind.__new__(kind)
        job.id = job_id
        job.func, job.func_ref = func, ref
        job.args, job.kwargs = tuple(args), kwargs
        job.trigger = trigger
        job.name, job.executor = doc["n"], doc["e"]
        job.misfire_grace_time, job.coalesce, job.max_instances = doc["g"], doc["c"], doc["m"]
        job.next_run_time = None if when is None else moment_of(when, zone.decode())
        return StoredJob(job, trigger, zone, rest)

    def next_run_time(self, raw: bytes) -> datetime | None:
        """The next run time in UTC. Reads only the part of the bytes before the JSON, and checks no signature.

        Raises:
            Unreadable: the bytes are no job.
        """
        when, _, _, _ = _parts(unsigned(raw), whole=False)
        return None if when is None else from_us(when)

    def head(self, job_id: str, raw: bytes, state: JobState = "scheduled") -> JobEntry:
        """The job as a `JobEntry` in the given state. Imports nothing, so it also works for a job that cannot run here.

        Raises:
            Unreadable: the bytes are no job.
        """
        when, zone, _, doc = _parts(unsigned(raw))
        try:
            trigger = str(self._shown_triggers.load(doc["t"]))
        except (Unreadable, Forbidden):
            trigger = str(doc.get("t"))[:200]
        moment = None if when is None else moment_of(when, zone.decode())
        return JobEntry(
            job_id,
            state,
            func=str(doc["f"]),
            name=str(doc["n"]),
            trigger=trigger,
            next_run_time=moment,
            executor=str(doc["e"]),
            metadata=doc.get("x") or {},
            args=doc["a"],
            kwargs=doc["k"],
        )

    def shown_trigger(self, raw: bytes) -> Any:
        """The trigger of a stored job, to show it; None when it cannot be read here. Checks no signature."""
        try:
            return self._shown_triggers.load(_parts(unsigned(raw))[3]["t"])
        except (Unreadable, Forbidden):
            return None

    def rewritten(
        self, job_id: str, raw: bytes, *, func: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> bytes:
        """The job's bytes with another function reference or other metadata. The job is not loaded.

        Raises:
            BadSignature, Unreadable: the given bytes cannot be read.
            Forbidden: the new reference is outside of the allow-list.
            NotSerializable: the metadata cannot be stored.
        """
        when, zone, _, doc = _parts(self.unseal(job_id, raw))
        if func is not None:
            self.allowed.check(func)
            doc["f"] = func
        if metadata is not None:
            doc["x"] = self._values.dump(dict(metadata), f"the metadata of job {job_id!r}")
        rest = _dumps(doc).encode("utf-8", "surrogatepass")
        return self._joined(job_id, None if when is None else from_us(when), zone, rest)

    def moved(self, job_id: str, raw: bytes, next_run_time: datetime | None) -> bytes:
        """The job's bytes with another next run time and the same time zone. The job is not loaded.

        Raises:
            BadSignature, Unreadable, Forbidden: the given bytes cannot be read.
        """
        _, zone, rest, doc = _parts(self.unseal(job_id, raw))
        return self._joined(job_id, next_run_time, zone or self._home_zone(doc), rest)

    def _home_zone(self, doc: Mapping[str, Any]) -> bytes:
        """The time zone of a paused job, as text: the zone of its trigger. UTC if the trigger has none."""
        return zone_name(getattr(self._triggers.load(doc["t"]), "timezone", None) or UTC).encode()

    def trigger(self, job_id: str, raw: bytes) -> Any:
        """Read only the trigger of a stored job.

        Raises:
            BadSignature, Unreadable, Forbidden: the job may not or cannot be read.
        """
        return self._triggers.load(_parts(self.unseal(job_id, raw))[3]["t"])


def unsigned(raw: bytes) -> bytes:
    """Remove the signature from a body without checking it. Use the result to show a job, never to run one."""
    return raw[_HASHES:] if raw[:1] == MARK else raw


def definition_of(raw: bytes) -> bytes:
    """The part of a stored job that its runs do not change: function, trigger, arguments and options.

    Raises:
        Unreadable: the bytes are no job.
    """
    return _parts(unsigned(raw))[2]


def _parts(body: bytes, *, whole: bool = True) -> tuple[int | None, bytes, bytes, dict[str, Any]]:
    try:
        version, when, zone, rest = body.split(b";", 3)
        if version != _VERSION:
            kind = NotHere if version.isdigit() else Unreadable  # a newer release may run beside this one
            raise kind(f"it has the version {version[:20]!r}; this release reads {_VERSION!r}")
        doc = _loads(rest.decode()) if whole else {}
        if type(doc) is not dict or (whole and not doc.keys() >= set("fntakegcm")):
            raise ValueError("fields are missing")
        us = None if when == _NEVER else int(when)
        if us is not None:
            from_us(us)
        return us, zone, rest, doc
    except Unreadable:
        raise
    except OverflowError as error:
        raise Unreadable(f"its time is {when[:24]!r} us after 1970, which no calendar has: {error}") from error
    except (ValueError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"it is not a stored job ({len(body)} bytes, starts {body[:24]!r}): {error}") from error


def _flaw_of_names(job_id: str, name: str, executor: str) -> str | None:
    """What is wrong with one of these names, else None. A line break in a name could forge a line of the log."""
    for field, text in (("id", job_id), ("name", name), ("executor", executor)):
        if _FORGING.search(text):
            return f"expected the job's {field} to be one line without control characters, got: {text[:60]!a}"
    return None


def _check(doc: Mapping[str, Any], args: Any, kwargs: Any) -> None:
    grace, instances = doc["g"], doc["m"]
    if (
        type(args) is not list
        or type(kwargs) is not dict
        or not all(type(key) is str for key in kwargs)
        or type(doc["n"]) is not str
        or type(doc["e"]) is not str
        or type(doc["c"]) is not bool
        or not (grace is None or (type(grace) is int and grace > 0))
        or type(instances) is not int
        or instances < 1
    ):
        raise Unreadable("one of its fields has a type that no job has")
