"""The decision cache of the intake: it decides about similar records and writes their items, by a template.

Often many messages fail for one reason. A `Template` describes records whose headers have the same names in the same
order, and the same values for all fields that decide: topics, attempt, error, status and the like. The other values are
the record's own: its id, times, offset, the error's text, foreign headers. The template has the policy's rule that
applies, and the body of the stored item with gaps for the record's own values.

Invariant: for each record, a template makes the same item as `plan`, byte for byte. The cache answers None for every
special record: odd headers, dead, ordered, by reference, too large. The plan then decides that record itself. The
second or third record of a kind makes a template, and only if the template would make the same item of it.

Cost: about a third of what the plan costs for a record. Only one thread may use it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

from retry_topic.brokers.protocol import Delivery
from retry_topic.intake.records import DAY_MS, MAX_BODY_BYTES, REWRITTEN, Decided, IntakeRecord
from retry_topic.intake.taken import Taken
from retry_topic.message import Message, Source
from retry_topic.message.encoding import KEY, TRACEBACK_NOTE, VALUE, decode_body, field_of
from retry_topic.message.headers import AMPLE, attempts_key, content_print, read
from retry_topic.message.headers.failed_attempts import NONE, line_of, quoted, quoted_bytes, with_line
from retry_topic.message.headers.state import FAILED_ATTEMPTS, FIELDS, LAST_MS, TRACEBACK, Field, decode
from retry_topic.policy import Failure, Match, PolicySet, RetryDecision, RetryPolicy, chosen_by, decide_by, failure_from
from wheel_sched.duration import LONGEST_MS
from wheel_sched.errors import Rejected
from wheel_sched.store import BatchCount, Item

_MOST = 4_096  # how many templates, and how many lists of header names, are remembered
_MOST_HEADERS = 64  # records with more headers get no template; a few dozen are usual
_UNUSUAL = frozenset({"key_lock", "signature", "retry_after_ms", "published_ms"})
_ATTEMPTS, _PROCESS = FIELDS["failed_attempts"], FIELDS["process"]
_NAME_OF = {field.header: name for name, field in FIELDS.items()}
_WRITTEN = FIELDS["due_ms"].header, FIELDS["delay_ms"].header, FAILED_ATTEMPTS  # these differ in similar records

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(slots=True)
class Template:
    """The common part of the records of one kind.

    Args:
        group: the owner of the retry topic.
        retry_topic: the topic from which the records were read.
        names: the names of the records' headers.
        topic: the topic on which the messages first failed.
        attempt: the number of the delivery that failed.
        replays: the replay count of the messages.
        policy: the policy that decides.
        match: the policy's rule that applies.
        failure: the failure of the records. Its times are set for each record.
        error_class: the class of the error, as the line about the attempt has it.
        chosen_by: what chooses the delay, as that line has it.
        form: the body, with gaps for a record's own values and their lengths.
        room: how many bytes a record's own headers may have.
        suffix: the end of an item's id, after the record's own id.
        key_suffix: the part of an attempt count's key between the record's own id and the checksum of its content.
    """

    group: str
    retry_topic: str
    names: tuple[str, ...]
    topic: str
    attempt: int
    replays: int
    policy: RetryPolicy
    match: Match | None
    failure: Failure
    error_class: bytes
    chosen_by: bytes
    form: bytes
    room: int
    suffix: str
    key_suffix: str

    def body(self, pieces: tuple[bytes, ...]) -> bytes:
        return self.form % (*map(len, pieces), *pieces)


@dataclass(slots=True)
class Prepared:
    """A failed message for which a template has chosen the next due time and written the item.

    It is no dead letter, has no ordering key, and its failure is new. It keeps few objects, because thousands of
    records can be in flight. `decided` converts it to a `Decided`.
    """

    template: Template
    id: str
    value: bytes
    key: bytes | None
    values: tuple[bytes, ...]
    source: Source | None
    item: Item
    decision: RetryDecision
    keep_until_ms: int

    key_lock: ClassVar[None] = None
    dead: ClassVar[None] = None
    duplicate: ClassVar[bool] = False

    @property
    def member(self) -> str:
        """The id of this attempt in the delay store."""
        return self.item.id

    def counts(self) -> tuple[BatchCount, BatchCount]:
        """The attempt count and the replay count that are stored with the record, as `Decided.counts` returns them."""
        template = self.template
        key = self.id + template.key_suffix + content_print(self.value, self.key)
        return (key, template.attempt, self.keep_until_ms), (self.id + "!", template.replays, None)

    def taken(self) -> Taken:
        template, item = self.template, self.item
        return Taken(item.id, template.topic, template.attempt, item.due_ms, None, self.decision)

    @property
    def record(self) -> IntakeRecord:
        """The record as it was read."""
        template = self.template
        headers = tuple(zip(template.names, self.values, strict=True))
        message = Message(template.retry_topic, self.value, self.key, headers, self.source)
        state = read(headers)
        return IntakeRecord(Delivery(message, None), state, state, template.topic, template.group, repeated=False)

    def decided(self) -> Decided:
        """This record as a `Decided`, equal to the one that the plan would make."""
        record = self.record
        one = Decided(record, record.state)
        one.due_ms, one.decision, one.item = self.item.due_ms, self.decision, self.item
        one.now_ms, one.keep_until_ms = self.decision.why.now_ms, self.keep_until_ms
        return one


class _Names:
    """The header names of some records, and what the values under each name are for.

    Records use one template if they have the same values under the names that decide, such as topic and attempt. The
    other values, such as id and times, are different in each record, so the template has gaps for them.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.templates: dict[tuple[str, bool, tuple[bytes, ...]], Template] = {}
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
        # with a fingerprint, the error's text decides nothing
        text = "error_message" if "error_fingerprint" in ours else None
        texts = [at for at, name in enumerate(fields) if name is not None and (name == text or FIELDS[name].extra)]
        own = [at for at, name in enumerate(fields) if name and not FIELDS[name].shared and at not in texts]
        places = {name: at for at, name in enumerate(fields) if name is not None}
        self.id_at = places["id"]
        self.first_at, self.delay_at = places.get("first_failed_ms"), places.get("delay_ms")
        self.failed_at, self.process_at = places.get("last_failed_ms"), places.get("process")
        self.message_at, self.attempts_at = places.get("error_message"), places.get("failed_attempts")
        self.traceback_at = places.get("traceback")
        self.shared = _picking([at for at, name in enumerate(fields) if name and at not in own and at not in texts])
        self._bounds = [(at, FIELDS[_NAME_OF[names[at]]].max_bytes) for at in texts]
        self._checked = _picking(own)
        patterns = [_pattern(FIELDS[_NAME_OF[names[at]]]) for at in own]
        self._fits = re.compile(rb"\0".join(patterns)).fullmatch  # no usual value contains a NUL
        self.kept = [at for at, name in enumerate(names) if name not in REWRITTEN and name != TRACEBACK]
        gaps = [at for at in self.kept if fields[at] is None or at in own or at in texts]
        self.is_gap = [at in gaps for at in self.kept]
        self.gaps = _picking(gaps)

    def odd(self, values: Sequence[bytes]) -> bool:
        """Whether the plan must decide this record, because a template cannot.

        That is so if a value that differs from record to record (an id, a time, an offset, the error's text) is too
        long, or if it does not consist of digits (numbers) or printable ASCII (labels).

        `values`: the values of the record's headers, in the order of the names.
        """
        for at, most in self._bounds:
            if len(values[at]) > most:
                return True
        return self._fits(b"\0".join(self._checked(values))) is None


def _picking(places: Sequence[int]) -> Pick:
    """A function that returns the values at these places of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        only = places[0]
        return lambda values: (values[only],)
    return lambda values: ()


def _pattern(field: Field) -> bytes:
    """The regular expression of a field's usual values."""
    if field.kind == "integer":
        return b"[0-9]{1,%d}" % (len(str(field.high)) - 1)  # fewer digits than the greatest value has
    return b"[ -~]{1,%d}" % field.max_bytes


class Templates:
    """The templates that an intake knows.

    Args:
        policies: the retry policies.
        rng: the source of randomness for delays.
        longest: the longest payload in bytes that the store holds; records with longer ones are not prepared.
    """

    def __init__(self, policies: PolicySet, rng: random.Random, longest: int = MAX_BODY_BYTES) -> None:
        self._policies = policies
        self._rng = rng
        self._longest = longest
        self._names: dict[tuple[str, ...], _Names] = {}
        self._seen: set[Any] = set()  # names and values that were seen once

    def __len__(self) -> int:
        return sum(len(names.templates) for names in self._names.values())

    @property
    def seen(self) -> int:
        """How many things the intake remembers to have seen once: lists of header names, and kinds of records."""
        return len(self._seen)

    def prepare(self, delivery: Delivery, now_ms: int) -> Prepared | None:
        """The prepared record of a delivery; None if the plan must decide it."""
        message = delivery.message
        if not message.headers:
            return None
        names, values = zip(*message.headers, strict=True)
        known = self._names.get(names)
        if known is None or not known.usual:
            return None
        template = known.templates.get((message.topic, message.key is None, known.shared(values)))
        if template is None or known.odd(values):
            return None
        gaps = known.gaps(values)
        if sum(map(len, gaps)) > template.room or len(message.value) > self._longest:
            return None
        failure = template.failure
        failure.first_failed_ms = now_ms if known.first_at is None else int(values[known.first_at])
        if known.delay_at is not None:
            failure.previous_delay_ms = int(values[known.delay_at])
        decision = decide_by(template.match, template.policy, failure, now_ms, self._rng)
        if not isinstance(decision, RetryDecision) or decision.delay_ms > LONGEST_MS or decision.due_ms > LAST_MS:
            return None
        body = template.body(_pieces(message, known, values, template, decision))
        if len(body) > MAX_BODY_BYTES:
            return None
        name = values[known.id_at].decode("ascii")
        refs, _ = template.policy.place_of(message, by_key=False)
        item = Item(name + template.suffix, decision.due_ms, body, template.topic, refs)
        keep_until_ms = decision.due_ms + (decision.why.max_age_ms or 7 * DAY_MS)
        return Prepared(
            template, name, message.value, message.key, values, message.source, item, decision, keep_until_ms
        )

    def learn(self, one: Decided) -> None:
        """Make a template of a record that the plan has decided, if more records like it are likely."""
        message = one.delivery.message
        keyed = one.key_lock is not None or self._policies.for_topic(one.topic).once_per_key is not None
        if one.dead is not None or keyed or one.duplicate or not message.headers:
            return
        names, values = zip(*message.headers, strict=True)
        known = self._names.get(names)
        if known is None:
            if self._is_new(names):
                return
            if len(self._names) >= _MOST:
                self._names.clear()
            known = self._names[names] = _Names(names)
        if not known.usual:
            return
        key = message.topic, message.key is None, known.shared(values)
        if self._is_new((names, key)) or key in known.templates or known.odd(values):
            return
        template = _template(one, known, values, self._policies)
        if template is not None:
            if len(known.templates) >= _MOST:
                known.templates.clear()
            known.templates[key] = template

    def _is_new(self, what: Any) -> bool:
        if what in self._seen:
            return False
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen.add(what)
        return True


def _pieces(
    message: Message, known: _Names, values: Sequence[bytes], template: Template, decision: RetryDecision
) -> tuple[bytes, ...]:
    """The values of one record for the gaps of a template (`Template.form`), in the order of the gaps."""
    payload = (message.value,) if message.key is None else (message.value, message.key)
    attempts = _failed_attempts(known, values, template, decision)
    note = () if known.traceback_at is None else (values[known.traceback_at],)
    return (*payload, *known.gaps(values), b"%d" % decision.due_ms, b"%d" % decision.delay_ms, attempts, *note)


def _failed_attempts(known: _Names, values: Sequence[bytes], template: Template, decision: RetryDecision) -> bytes:
    """The value of the header about the failed attempts, with a line for the attempt that failed now."""
    line = line_of(
        template.attempt,
        decision.why.now_ms if known.failed_at is None else int(values[known.failed_at]),
        NONE if known.process_at is None else quoted(values[known.process_at].decode("ascii"), _PROCESS.max_bytes),
        template.error_class,
        NONE if known.message_at is None else quoted_bytes(values[known.message_at]),
        decision.delay_ms,
        template.chosen_by,
    )
    if known.attempts_at is None:
        return line
    return with_line(decode(_ATTEMPTS, values[known.attempts_at])[0], line.decode()).encode()


def _template(one: Decided, known: _Names, values: Sequence[bytes], policies: PolicySet) -> Template | None:
    """The template of a record; None if the item that it makes differs from the item that the plan has made."""
    record, state, decision, item = one.record, one.state, one.decision, one.item
    message = record.delivery.message
    if item is None or not isinstance(decision, RetryDecision) or record.given.attempt < 1 or state.oddities:
        return None
    try:
        stored = decode_body(item.body)
    except Rejected:
        return None
    if stored.reference is not None or len(stored.headers) < len(known.kept):
        return None
    kept = [values[at] for at, gap in zip(known.kept, known.is_gap, strict=True) if not gap]
    template = Template(
        record.group,
        message.topic,
        known.names,
        record.topic,
        state.attempt,
        state.replays,
        policies.for_topic(record.topic),
        decision.why.match,
        failure_from(state, now_ms=decision.why.now_ms),
        quoted(state.error_class or None),
        quoted(chosen_by(decision)),
        _form(stored, known.is_gap, noted=known.traceback_at is not None),
        AMPLE - sum(map(len, kept)),
        one.member.removeprefix(f"{state.id}"),
        attempts_key(state, message)
        .removeprefix(f"{state.id}")
        .removesuffix(content_print(message.value, message.key)),
    )
    try:
        same = (
            template.body(_pieces(message, known, values, template, decision)) == item.body
            and item.topic == record.topic
        )
    except TypeError:  # the record has other gaps than the template
        same = False
    return template if same else None


def _form(stored: Message, is_gap: Sequence[bool], *, noted: bool) -> bytes:
    """The stored body as a `%` format: fixed bytes, and gaps for the values in which similar records differ.

    Payload and key are gaps. The stored headers are first those kept from the record, then those that the intake
    wrote. A kept header's value is a gap if `is_gap` says so, a written header's value if `_WRITTEN` has its name.
    `noted`: the records have a traceback. Then the body ends with the traceback as its note, whose value is a gap.
    """
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
    for at, (name, content) in enumerate(stored.headers[:-1] if noted else stored.headers):
        put(field_of(name))
        put(None if (is_gap[at] if at < len(is_gap) else name in _WRITTEN) else content)
    if noted:
        put(TRACEBACK_NOTE)
        put(None)
    return b"S1[%b]%b" % (b",".join(lengths), b"".join(parts))
