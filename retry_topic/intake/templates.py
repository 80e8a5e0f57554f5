"""Herds: messages fail in herds, and what the records of one have in common is worked out once.

A herd are records whose headers have the same names in the same order, and the same values where these decide what
becomes of a record: topics, attempt, error, status and the like. The rest is a record's own: its id, times, offset, the
error's text, whatever else it carries. So of a herd is known which rule of the policy applies, and what its records
look like in the store, with gaps for what is their own.

Invariant: what a herd makes of a record is what `Intake` makes of it step by step, byte for byte. Where that cannot be
said at a glance (anything odd, dead, ordered, by reference or too large) it makes nothing, and the record goes the long
way. A herd is made of the third such record that went the long way, and only when it would have made the same of it.

Cost: about a third of the long way's. One thread.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

from retry_topic.brokers.protocol import Delivery
from retry_topic.cases import Case, Taken, tries_of
from retry_topic.fields import KEY, VALUE, field_of
from retry_topic.headers import AMPLE, content_print, read
from retry_topic.headers.names import FIELDS, LAST_MS, Field
from retry_topic.intake import DAY_MS, MAX_BODY_BYTES, RESTATED
from retry_topic.message import Message, Source
from retry_topic.policy import Failure, Match, PolicySet, Retry, RetryPolicy, decide_by, failure_from
from retry_topic.wire import decode_body
from wheel_sched.duration import LONGEST_MS
from wheel_sched.errors import Rejected
from wheel_sched.store import Item, Tries

_MOST = 4_096  # herds that are remembered, and layouts
_MOST_HEADERS = 64  # a few dozen are usual
_MOST_TEXT = FIELDS["error_message"].max_bytes
_UNUSUAL = frozenset({"ordering", "signature", "retry_after_ms", "published_ms"})
_NAME_OF = {field.header: name for name, field in FIELDS.items()}
_DUE, _DELAY = FIELDS["due_ms"].header, FIELDS["delay_ms"].header

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(slots=True)
class Ready:
    """A failed message that a herd has made ready to be stored; `case` is the same as the long way has it.

    Of its record it keeps what that can be made of again, in few objects: thousands are on their way at a time.
    """

    herd: _Herd
    id: str
    value: bytes
    key: bytes | None
    values: tuple[bytes, ...]
    source: Source | None
    item: Item
    decision: Retry
    keep_until_ms: int

    gate: ClassVar[None] = None
    dead: ClassVar[None] = None
    duplicate: ClassVar[bool] = False

    @property
    def member(self) -> str:
        return self.item.id

    def tries(self) -> tuple[Tries, Tries]:
        """See `Case.tries`."""
        herd = self.herd
        return (
            (self.id + herd.tries_suffix + content_print(self.value, self.key), herd.attempt, self.keep_until_ms),
            (self.id + "!", herd.replays, None),
        )

    def taken(self) -> Taken:
        herd, item = self.herd, self.item
        return Taken(item.id, herd.topic, herd.attempt, item.due_ms, None, self.decision)

    def case(self) -> Case:
        herd = self.herd
        headers = tuple(zip(herd.names, self.values, strict=True))
        message = Message(herd.retry_topic, self.value, self.key, headers, self.source)
        state = read(headers)
        case = Case(Delivery(message, None), state, state, herd.topic, repeated=False)
        case.due_ms, case.decision, case.item = self.item.due_ms, self.decision, self.item
        case.keep_until_ms = self.keep_until_ms
        return case


@dataclass(slots=True)
class _Herd:
    """What the records of one herd have in common.

    Args:
        retry_topic: where they were read.
        names: of their headers.
        topic: where they first failed.
        attempt: that failed.
        replays: of the message.
        policy: that decides.
        match: its rule in force.
        failure: theirs, but for the times.
        form: the body, with gaps for the lengths of what is a record's own, and then for that itself.
        room: bytes that a record's own headers may have.
        suffix: of ids in the store.
        tries_suffix: of the attempt records' keys.
    """

    retry_topic: str
    names: tuple[str, ...]
    topic: str
    attempt: int
    replays: int
    policy: RetryPolicy
    match: Match | None
    failure: Failure
    form: bytes
    room: int
    suffix: str
    tries_suffix: str

    def body(self, pieces: tuple[bytes, ...]) -> bytes:
        return self.form % (*map(len, pieces), *pieces)


class _Layout:
    """What names of headers, in their order, tell: which values make the herd, and which are a record's own."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.herds: dict[tuple[str, bool, tuple[bytes, ...]], _Herd] = {}
        fields = [_NAME_OF.get(name) for name in names]
        ours = [field for field in fields if field is not None]
        self.usual = (
            "id" in ours
            and len(ours) == len(set(ours))
            and not _UNUSUAL.intersection(ours)
            and len(names) <= _MOST_HEADERS
        )
        if not self.usual:
            return
        # an error's text says nothing that a fingerprint does not
        text = "error_message" if "error_fingerprint" in ours else None
        own = [at for at, name in enumerate(fields) if name is not None and not FIELDS[name].shared]
        texts = [at for at, name in enumerate(fields) if name is not None and name == text]
        self.id_at = fields.index("id")
        self.first_at = fields.index("first_failed_ms") if "first_failed_ms" in ours else None
        self.delay_at = fields.index("delay_ms") if "delay_ms" in ours else None
        self.shared = _picking([at for at, name in enumerate(fields) if name and at not in own and at not in texts])
        self.text_at = texts[0] if texts else None
        self._checked = _picking(own)
        patterns = [_pattern(FIELDS[_NAME_OF[names[at]]]) for at in own]
        self._fits = re.compile(rb"\0".join(patterns)).fullmatch  # none of these has a NUL in it
        self.kept = [at for at, name in enumerate(names) if name not in RESTATED]
        gaps = [at for at in self.kept if fields[at] is None or at in own or at in texts]
        self.is_gap = [at in gaps for at in self.kept]
        self.gaps = _picking(gaps)

    def odd(self, values: Sequence[bytes]) -> bool:
        """Whether anything about what is a record's own is not as usual."""
        if self.text_at is not None and len(values[self.text_at]) > _MOST_TEXT:
            return True
        return self._fits(b"\0".join(self._checked(values))) is None


def _picking(places: Sequence[int]) -> Pick:
    """What gives the values of these places."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        only = places[0]
        return lambda values: (values[only],)
    return lambda values: ()


def _pattern(field: Field) -> bytes:
    """What a value of a field looks like when nothing about it is odd."""
    if field.kind == "integer":
        return b"[0-9]{1,%d}" % (len(str(field.high)) - 1)  # so it is within its bounds
    return b"[ -~]{1,%d}" % field.max_bytes


class Herds:
    """The herds that an intake knows.

    Args:
        policies: who decides.
        rng: randomness of the delays.
        longest: bytes of a payload that is stored; of longer ones nothing is made.
    """

    def __init__(self, policies: PolicySet, rng: random.Random, longest: int = MAX_BODY_BYTES) -> None:
        self.policies = policies
        self._rng = rng
        self._longest = longest
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._seen: set[Any] = set()  # names and values that came once

    def ready(self, delivery: Delivery, now_ms: int) -> Ready | None:
        """What is to be stored of a record; None: it goes the long way."""
        message = delivery.message
        if not message.headers:
            return None
        names, values = zip(*message.headers, strict=True)
        layout = self._layouts.get(names)
        if layout is None or not layout.usual:
            return None
        herd = layout.herds.get((message.topic, message.key is None, layout.shared(values)))
        if herd is None or layout.odd(values):
            return None
        gaps = layout.gaps(values)
        if sum(map(len, gaps)) > herd.room or len(message.value) > self._longest:
            return None
        failure = herd.failure
        failure.first_failed_ms = now_ms if layout.first_at is None else int(values[layout.first_at])
        if layout.delay_at is not None:
            failure.previous_delay_ms = int(values[layout.delay_at])
        decision = decide_by(herd.match, herd.policy, failure, now_ms, self._rng)
        if not isinstance(decision, Retry) or decision.delay_ms > LONGEST_MS or decision.due_ms > LAST_MS:
            return None
        body = herd.body(_pieces(message, gaps, decision))
        if len(body) > MAX_BODY_BYTES:
            return None
        name = values[layout.id_at].decode("ascii")
        item = Item(name + herd.suffix, decision.due_ms, body, herd.topic)
        keep_until_ms = decision.due_ms + (decision.why.max_age_ms or 7 * DAY_MS)
        return Ready(herd, name, message.value, message.key, values, message.source, item, decision, keep_until_ms)

    def learn(self, case: Case) -> None:
        """Make a herd of a record that went the long way, if others like it are to be expected."""
        message = case.delivery.message
        if case.dead is not None or not message.headers:
            return
        names, values = zip(*message.headers, strict=True)
        layout = self._layouts.get(names)
        if layout is None:
            if self._is_new(names):
                return
            if len(self._layouts) >= _MOST:
                self._layouts.clear()
            layout = self._layouts[names] = _Layout(names)
        if not layout.usual:
            return
        key = message.topic, message.key is None, layout.shared(values)
        if self._is_new((names, key)) or key in layout.herds or layout.odd(values):
            return
        herd = _herd(case, layout, values, self.policies)
        if herd is not None:
            if len(layout.herds) >= _MOST:
                layout.herds.clear()
            layout.herds[key] = herd

    def _is_new(self, what: Any) -> bool:
        if what in self._seen:
            return False
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen.add(what)
        return True


def _pieces(message: Message, gaps: tuple[bytes, ...], decision: Retry) -> tuple[bytes, ...]:
    """What is a record's own, in the order of the form's gaps."""
    times = b"%d" % decision.due_ms, b"%d" % decision.delay_ms
    if message.key is None:
        return (message.value, *gaps, *times)
    return (message.value, message.key, *gaps, *times)


def _herd(case: Case, layout: _Layout, values: Sequence[bytes], policies: PolicySet) -> _Herd | None:
    """The herd of a record; None when it would have made something else of it."""
    state, decision, item, message = case.state, case.decision, case.item, case.delivery.message
    if item is None or not isinstance(decision, Retry) or state.attempt < 1 or state.oddities:
        return None
    try:
        stored = decode_body(item.body)
    except Rejected:
        return None
    if stored.reference is not None or len(stored.headers) < len(layout.kept):
        return None
    kept = [values[at] for at, gap in zip(layout.kept, layout.is_gap, strict=True) if not gap]
    herd = _Herd(
        message.topic,
        layout.names,
        case.topic,
        state.attempt,
        state.replays,
        policies.for_topic(case.topic),
        decision.why.match,
        failure_from(state, now_ms=decision.why.now_ms),
        _form(stored, layout.is_gap),
        AMPLE - sum(map(len, kept)),
        f"{state.stem}.{state.attempt}".removeprefix(f"{state.id}"),
        tries_of(state, message).removeprefix(f"{state.id}").removesuffix(content_print(message.value, message.key)),
    )
    pieces = _pieces(message, layout.gaps(values), decision)
    try:
        same = herd.body(pieces) == item.body and item.topic == case.topic and len(case.topic) == len(item.topic)
    except TypeError:  # it has other gaps
        same = False
    return herd if same else None


def _form(stored: Message, is_gap: Sequence[bool]) -> bytes:
    """The body of a message as a format; the first headers have gaps where it says so."""
    lengths, parts = [], []

    def put(part: bytes | None) -> None:
        lengths.append(b"%d" if part is None else b"%d" % len(part))
        parts.append(b"%b" if part is None else part.replace(b"%", b"%%"))

    put(stored.topic.encode("utf-8", "surrogateescape"))
    put(VALUE)
    put(None)
    if stored.key is not None:
        put(KEY)
        put(None)
    for at, (name, content) in enumerate(stored.headers):
        put(field_of(name))
        put(None if (is_gap[at] if at < len(is_gap) else name in (_DUE, _DELAY)) else content)
    return b"S1[%b]%b" % (b",".join(lengths), b"".join(parts))
