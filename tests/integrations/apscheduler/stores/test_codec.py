"""A stored job can be read again. A job that must not be read is refused before any import."""

from __future__ import annotations

import functools
import json
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import pytz
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from hypothesis import given
from hypothesis import strategies as st
from wheel_sched_apscheduler.codec import (
    BadSignature,
    Forbidden,
    JobCodec,
    NotSerializable,
    Unreadable,
)
from wheel_sched_apscheduler.codec.values import Values

from wheel_sched.errors import ConfigError

OLD = datetime(2016, 5, 3, tzinfo=UTC)
SECRET = "a secret of some length"


class EveryOther(BaseTrigger):
    """A user's trigger whose state changes at each call."""

    def __init__(self, asked: int = 0) -> None:
        self.asked = asked

    def get_next_fire_time(self, _: Any, now: datetime) -> datetime:
        self.asked += 1
        return now

    def __getstate__(self) -> dict[str, int]:
        return {"asked": self.asked}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.dates()
    | st.timedeltas()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=4,
)


@given(value=plain)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    """Encoding and decoding a value gives an equal value of the same type."""
    import json

    values = Values()
    back = values.load(json.loads(json.dumps(values.dump(value, "it"))))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "pickle", "v": "x"},
        {1: 2, (3, 4): {5}},
        frozenset({1}),
        time(3, 4, 5),
        datetime(2026, 10, 25, 2, 30, fold=1),
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC).astimezone(ZoneInfo("Europe/Berlin")),
        timezone(timedelta(hours=-3, minutes=-30)),
        float("inf"),
        2**80,
        "\ud800",
    ],
    ids=repr,
)
def test_awkward_values_come_back_as_they_were(value: Any) -> None:
    """Encoding and decoding gives an equal value, even if the value looks like the codec's own tags."""
    import json

    values = Values()
    assert values.load(json.loads(json.dumps(values.dump(value, "it")))) == value


@pytest.mark.parametrize(
    "trigger",
    [
        DateTrigger(datetime(1931, 1, 1, 0, 0, 0, 1), "Europe/Berlin"),
        IntervalTrigger(seconds=5, jitter=3, timezone="UTC", end_date="2030-01-01"),
        CronTrigger(day="last", day_of_week="mon-fri", hour="*/2", timezone=pytz.timezone("Europe/Paris")),
        CronTrigger.from_crontab("0 3 1-7 * sun", timezone="America/New_York"),
        CronTrigger(month="jan-jun", day="2nd tue", start_date="2020-01-01", timezone="UTC"),
        CalendarIntervalTrigger(months=1, hour=3, timezone=ZoneInfo("America/New_York"), start_date="2026-01-31"),
        AndTrigger([CronTrigger(hour="1,2", timezone="UTC"), CronTrigger(hour="2,3", timezone="UTC")]),
        OrTrigger([IntervalTrigger(hours=1, timezone="UTC"), DateTrigger(OLD)], jitter=5),
    ],
    ids=["date", "interval", "last day", "crontab", "second tuesday", "calendar", "and", "or"],
)
def test_every_trigger_of_apscheduler_comes_back(make_job: Any, trigger: Any) -> None:
    """Each decoded trigger has the same text and gives the same run times."""
    codec = JobCodec()
    job = make_job(OLD, trigger=trigger)
    back = codec.decode(job.id, codec.encode(job)).job.trigger
    assert repr(back) == repr(trigger)
    assert str(codec.head(job.id, codec.encode(job)).trigger) == str(trigger)
    if not getattr(trigger, "jitter", None):
        assert back.get_next_fire_time(None, OLD) == trigger.get_next_fire_time(None, OLD)


def test_a_trigger_of_ones_own_must_be_named(make_job: Any) -> None:
    """Unknown trigger classes are refused when a job is stored, and again when it is read."""
    job = make_job(OLD, trigger=EveryOther(3))
    with pytest.raises(NotSerializable, match=r"triggers=\[...\]"):
        JobCodec().encode(job)
    codec = JobCodec(triggers=[EveryOther])
    raw = codec.encode(job)
    assert codec.decode(job.id, raw).job.trigger.asked == 3
    with pytest.raises(Forbidden, match="EveryOther"):
        JobCodec().decode(job.id, raw)
    with pytest.raises(ConfigError):
        JobCodec(triggers=[int])


def test_a_trigger_that_changes_is_written_as_it_is(make_job: Any) -> None:
    """The record of the next run has the trigger's new state. Triggers that do not change are not written again."""
    codec = JobCodec(triggers=[EveryOther])
    job = make_job(OLD, trigger=EveryOther())
    stored = codec.decode(job.id, codec.encode(job))
    stored.job.trigger.get_next_fire_time(None, OLD)
    assert codec.decode(job.id, codec.advanced(stored, OLD)).job.trigger.asked == 1


class Service:
    """A user's class with a method."""

    def run(self) -> None:
        """A method that jobs can call."""


@pytest.mark.parametrize(
    "options",
    [
        {"func": lambda: None},
        {"func": functools.partial(print)},
        {"func": Service().run},
        {"args": (object(),)},
        {"kwargs": {"key": Service()}},
    ],
    ids=["lambda", "partial", "bound method", "object", "keyword"],
)
def test_what_cannot_be_stored_is_refused_with_the_way_out(make_job: Any, options: dict[str, Any]) -> None:
    """The job is refused when it is added, not when it is due. The error says what to do."""
    with pytest.raises(NotSerializable, match=r"[Nn]othing was stored"):
        JobCodec(allow=["builtins", __name__.partition(".")[0]]).encode(make_job(OLD, **options))


def test_a_value_that_holds_itself_is_refused(make_job: Any) -> None:
    """The codec raises its own error before the interpreter's recursion limit is reached."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotSerializable, match="holds itself"):
        JobCodec().encode(make_job(OLD, args=(loop,)))


def test_pickle_is_read_where_both_sides_asked_for_it(make_job: Any) -> None:
    """A codec without `allow_pickle` refuses to read a pickled value."""
    job = make_job(OLD, args=(Service(),))
    raw = JobCodec(allow_pickle=True).encode(job)
    assert type(JobCodec(allow_pickle=True).decode(job.id, raw).job.args[0]) is Service
    with pytest.raises(Unreadable, match="does not read pickle"):
        JobCodec().decode(job.id, raw)


@pytest.mark.parametrize(
    "ref",
    ["os:system", "subprocess:run", "builtins:eval", "posix:system", "apscheduler.util:ref_to_obj", "pip:main"],
)
def test_the_standard_library_may_not_be_named(make_job: Any, ref: str) -> None:
    """The codec refuses functions of the standard library, of APScheduler and of pip, both when it reads a job and when
    it gives a job another function."""
    job = make_job(OLD)
    raw = JobCodec().encode(job).replace(job.func_ref.encode(), ref.encode())
    with pytest.raises(Forbidden, match="nothing was imported"):
        JobCodec().decode(job.id, raw)
    with pytest.raises(Forbidden):
        JobCodec().rewritten(job.id, JobCodec().encode(job), func=ref)


def test_a_reference_cannot_lead_out_of_an_allowed_module(make_job: Any) -> None:
    """This module imports `sys`. A reference that starts in this module does not reach `sys`."""
    job = make_job(OLD)
    raw = JobCodec().encode(job).replace(job.func_ref.encode(), f"{__name__}:sys.exit".encode())
    for codec in (JobCodec(), JobCodec(allow=[__name__])):
        with pytest.raises(Forbidden, match=r"leads to|has added no job of it"):
            codec.decode(job.id, raw)


def test_what_is_not_in_the_list_is_not_imported(make_job: Any) -> None:
    """The codec refuses a module that is not listed, before any of its code runs."""
    job = make_job(OLD)
    raw = JobCodec().encode(job).replace(job.func_ref.encode(), b"antigravity:geohash")
    with pytest.raises(Forbidden):
        JobCodec(allow=["myapp"]).decode(job.id, raw)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("allow", "ref", "permitted"),
    [
        (["myapp"], "myapp:f", True),
        (["myapp"], "myapp.jobs:f", True),
        (["myapp"], "myapplication:f", False),
        (["myapp."], "myapp.jobs:f", True),
        (["myapp.jobs:f"], "myapp.jobs:f", True),
        (["myapp.jobs:f"], "myapp.jobs:g", False),
        (["time"], "time:sleep", True),
        (None, "time:sleep", False),
        (None, "__main__:f", True),
        (None, "anything.at.all:f", False),
        ("myapp, other", "other.jobs:f", True),
        (None, "no colon", False),
        (None, "a b:c", False),
        (None, "a:__import__('os')", False),
    ],
)
def test_the_allow_list(allow: list[str] | str | None, ref: str, permitted: bool) -> None:
    """A listed module allows its submodules, but no module whose name only begins alike. A function is listed by its
    full name. A reference has only names, dots and a colon."""
    assert JobCodec(allow=allow).allowed.permits(ref) is permitted


def test_a_function_that_moved_is_found_by_its_alias(make_job: Any) -> None:
    """The alias maps the old reference in the store to the new function."""
    job = make_job(OLD)
    raw = JobCodec().encode(job).replace(job.func_ref.encode(), b"app.old:gone")
    with pytest.raises(LookupError):
        JobCodec().decode(job.id, raw)
    assert JobCodec(aliases={"app.old:gone": job.func_ref}).decode(job.id, raw).job.func is job.func


def test_a_changed_or_moved_body_has_no_valid_signature(make_job: Any) -> None:
    """The codec refuses a record that has a changed bit, the id of another job, no signature, or a signature with
    another secret."""
    codec = JobCodec(secret=SECRET)
    job = make_job(OLD, id="a")
    raw = codec.encode(job)
    assert codec.decode("a", raw).job == job
    tampered = [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] for at in range(0, len(raw), 7)]
    for bad in [*tampered, JobCodec().encode(job), JobCodec(secret="another secret that is long").encode(job), b""]:
        with pytest.raises(BadSignature):
            codec.decode("a", bad)
    with pytest.raises(BadSignature):
        codec.decode("b", raw)


def test_secrets_can_be_changed_one_after_the_other(make_job: Any) -> None:
    """If there are several secrets, the first one signs, and each of them verifies."""
    job = make_job(OLD)
    old, both = JobCodec(secret=SECRET), JobCodec(secret=["the new secret, long too", SECRET])
    assert both.decode(job.id, old.encode(job)).job == job
    with pytest.raises(BadSignature):
        old.decode(job.id, both.encode(job))
    with pytest.raises(ConfigError):
        JobCodec(secret="short")


@given(raw=st.binary(max_size=80) | st.binary(max_size=60).map(lambda tail: b"1;5;utc+0;{" + tail))
def test_any_bytes_are_a_job_or_an_error_of_ours(raw: bytes) -> None:
    """Reading random bytes raises `Unreadable` or `Forbidden`, and no other error."""
    with pytest.raises((Unreadable, Forbidden)):
        JobCodec().decode("a", raw)
    with pytest.raises(Unreadable):
        JobCodec().head("a", raw)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("t", ["date"]),
        ("t", ["cron", [[], None, None, "utc+0", None]]),
        ("t", ["interval", [[0, 0, 0], None, None, "utc+0", None]]),
        ("t", ["os:system", {}]),
        ("t", {"x": 1}),
        ("a", "text"),
        ("a", {"$": "nonsense", "v": 1}),
        ("k", [1]),
        ("g", "1"),
        ("m", 0),
        ("e", 5),
        ("n", None),
        ("f", ["os:system"]),
    ],
)
def test_a_field_of_a_wrong_shape_is_refused(make_job: Any, key: str, value: Any) -> None:
    """Each field is checked before the job is made."""
    import json

    job = make_job(OLD)
    head, _, doc = JobCodec().encode(job).partition(b"{")
    changed = {**json.loads(b"{" + doc), key: value}
    with pytest.raises((Unreadable, Forbidden)):
        JobCodec().decode(job.id, head + json.dumps(changed).encode())


def test_values_of_known_types_keep_their_type() -> None:
    """The codec would read a value of a subclass back as its base class, so it refuses the value."""

    class Money(Decimal):
        pass

    values = Values()
    for value in (Decimal("1.50"), UUID(int=5), date(2020, 1, 1)):
        assert values.load(values.dump(value, "it")) == value
    with pytest.raises(NotSerializable):
        values.dump(Money(1), "it")


@pytest.mark.parametrize("field", ["id", "name", "executor"])
@pytest.mark.parametrize("text", ["x\nforged", "x\x1b[31m", "x\x85", "x\u2028forged", "x\u202eforged"], ids=ascii)
def test_text_that_forges_a_line_of_a_log_is_no_name(make_job: Any, field: str, text: str) -> None:
    """APScheduler logs names, ids and aliases unescaped. The codec refuses such text on writing and on reading."""
    codec = JobCodec()
    with pytest.raises(NotSerializable, match=f"{field}.*nothing was stored"):
        codec.encode(make_job(OLD, **{field: text}))
    job = make_job(OLD, name="a name", executor="an executor")
    raw = codec.encode(job)
    letter, harmless = {"id": ("i", ""), "name": ("n", "a name"), "executor": ("e", "an executor")}[field]
    forged = raw.replace(f'"{letter}":"{harmless}"'.encode(), f'"{letter}":{json.dumps(text)}'.encode())
    with pytest.raises(Unreadable, match=field) as caught:
        codec.decode(text if field == "id" else job.id, forged)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["zwölf Uhr", "日本語", "👩\u200d🔧 repairs", 'a "quoted" 100 % name'])
def test_names_in_any_language_stay(make_job: Any, text: str) -> None:
    """Names in any language are stored and read back. A zero-width joiner inside an emoji is allowed, because it cannot
    forge a log line."""
    codec = JobCodec()
    job = make_job(OLD, id=text, name=text, executor=text)
    back = codec.decode(text, codec.encode(job)).job
    assert (back.id, back.name, back.executor) == (text, text, text)
