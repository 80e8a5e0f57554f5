"""`wheel-sched list`: messages in order of due time, or dead letters grouped by error."""

from __future__ import annotations

from dataclasses import replace

import click

from retry_topic.cli.fair_keys import list_keys
from retry_topic.cli.filters import filter_options
from retry_topic.cli.settings import settings_of
from retry_topic.connection import Connection
from retry_topic.management.filters import Filter, ListedMessage
from retry_topic.management.listing import dead_groups, error_of, group_as_dict, payload_as_dict, preview
from retry_topic.management.opening import opened_connection
from retry_topic.management.search import parse_search
from retry_topic.management.untaken import untaken_lines
from wheel_sched.cli.failing import as_usage
from wheel_sched.cli.instants import now_ms as present_ms
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, note, table
from wheel_sched.management.opening import opened
from wheel_sched.management.wording import amount, instant, one_line, relative
from wheel_sched.store import Members, State
from wheel_sched.store.core.items import STATES

_PREVIEW = 80  # characters of a payload
_SHOWN = 50  # lines of a list without --limit


@click.command(name="list")
@filter_options
@click.option("--search", metavar="TEXT", help="Only messages that this search chooses, instead of the options above.")
@click.option("--parked", is_flag=True, help="Only messages that are parked behind a failed message of their key.")
@click.option("--group", is_flag=True, help="Group dead letters by error: count, first, last, a sample.")
@click.option("--by", type=click.Choice(["key"]), help="Fair topics: their keys with the most overdue messages.")
@click.option("--payload", is_flag=True, help="Show payloads too: whole with --json, else their beginnings.")
@json_option
@pass_session
def list_messages(
    session: Session,
    chosen: Filter,
    search: str | None,
    parked: bool,
    group: bool,
    by: str | None,
    payload: bool,
    as_json: bool,
) -> None:
    """List messages that wait, in order of due time.

    \b
    Examples:
      wheel-sched list
      wheel-sched list --topic orders --until +10m         due in the next ten minutes
      wheel-sched list --dead --group                      what failed, by kind of error
      wheel-sched list --by key --topic orders             who is behind, in a fair topic
      wheel-sched list --parked --key customer-7           what waits for its turn
      wheel-sched list --dead --error '*Timeout*' --since 2h --json
      wheel-sched list --dead --json --payload > dead.jsonl
      wheel-sched list --search 'topic:orders attempt>3 due<1h refused'

    INSTANT is `2h` (ago), `+5m` (from now), `now` or RFC 3339. Without --limit 50 lines are shown.
    """
    if by is not None:
        if search or parked or group or payload or not chosen.only_topic:
            raise click.UsageError("--by key takes --topic, --limit and --json only: remove the other options.")
        with opened(session.settings) as store:
            list_keys(store, chosen.topic, chosen.limit, as_json)
        return
    if search is not None:
        chosen = _searched(search, chosen)
    if group:
        if not chosen.only_dead:
            raise click.UsageError("--group lists dead letters only: remove --state.")
        if payload:
            raise click.UsageError("--group shows counts: remove --payload.")
        chosen = replace(chosen, states=("dead",))
    if parked:
        if group or chosen.states not in ((), ("held",)):
            raise click.UsageError("--parked lists held messages only: remove --state, --dead and --group.")
        chosen = replace(chosen, states=("held",), parked=True)
    if search is not None and not chosen.states:
        chosen = replace(chosen, states=STATES)
    with opened_connection(settings_of(session)) as connection:
        now_ms = connection.store.windows(0, 0)[0].now_us // 1000
        if group:
            _groups(connection, chosen, now_ms, as_json)
        else:
            _entries(connection, chosen, now_ms, payload, as_json)
        if not as_json:
            members = Members(connection.store).live()
            for line in untaken_lines(connection.broker, settings_of(session).retry_topic, members):
                note(line)


def _searched(text: str, chosen: Filter) -> Filter:
    """The filter of a search.

    Raises:
        UsageError: the text is no search, or other options choose messages too.
    """
    if chosen.narrow:
        raise click.UsageError("Give --search, or the other options that choose messages, not both.")
    with as_usage():
        return replace(parse_search(text).filter(present_ms()), limit=chosen.limit)


def _entries(connection: Connection, chosen: Filter, now_ms: int, payload: bool, as_json: bool) -> None:
    limit = chosen.limit or (None if as_json else _SHOWN)
    states: tuple[State, ...] = chosen.states or ("due",)
    rows = []
    more = False
    wanted = replace(chosen, limit=None if limit is None else limit + 1)
    for number, entry in enumerate(wanted.entries(connection, states)):
        if limit is not None and number == limit:
            more = True
            break
        if as_json:
            emit({**entry.as_dict(), **(payload_as_dict(entry) if payload else {})})
        else:
            row = _parked_row(entry, now_ms) if chosen.parked else _row(entry, now_ms, len(states) > 1)
            rows.append((*row, preview(entry, _PREVIEW)) if payload else row)
    if as_json:
        return
    head: tuple[str, ...] = ("died" if states == ("dead",) else "due", "at", "attempt", "topic", "id", "error")
    if chosen.parked:
        head = ("parked", "at", "key", "topic", "id")
    if rows:
        table((*(("state",) if len(states) > 1 else ()), *head, *(("payload",) if payload else ())), rows)
    else:
        what = "parked" if chosen.parked else " or ".join(states)
        note(f"nothing is {what}" + (" that matches" if chosen.narrow and not chosen.only_states else ""))
        if chosen.narrow and (words := chosen.elsewhere(connection, states)):
            note(words)
    if more and chosen.limit is None:
        note(f"the first {limit} are shown; --limit N shows more")


def _parked_row(entry: ListedMessage, now_ms: int) -> tuple[str, ...]:
    at_ms, message = entry.at_ms or now_ms, entry.letter.message
    key = b"" if message is None or message.key is None else message.key
    text = one_line(key.decode("utf-8", "backslashreplace"), 60)
    return relative(at_ms, now_ms), instant(at_ms), text, entry.letter.topic or "-", entry.id


def _row(entry: ListedMessage, now_ms: int, with_state: bool) -> tuple[str, ...]:
    state = entry.letter.state
    at_ms = entry.at_ms
    return (
        *((entry.found.state,) if with_state else ()),
        relative(at_ms, now_ms) if at_ms is not None else "never",
        instant(at_ms) if at_ms is not None else "-",
        f"{state.attempt}/{state.max_attempts or '-'}" if state.attempt else "-",
        entry.letter.topic or "-",
        entry.id,
        one_line(entry.error, 80),
    )


def _groups(connection: Connection, chosen: Filter, now_ms: int, as_json: bool) -> None:
    groups = dead_groups(connection, chosen)
    if as_json:
        for group in groups:
            emit(group_as_dict(group))
        return
    if not groups:
        note("no dead letters" + (" that match" if chosen.narrow and not chosen.only_states else ""))
        return
    rows = [
        (
            f"{group.count:,}",
            group.fingerprint,
            group.topic or "-",
            relative(group.first_ms, now_ms),
            relative(group.last_ms, now_ms),
            group.sample.id,
            one_line(error_of(group.sample), 70),
        )
        for group in groups
    ]
    table(("count", "fingerprint", "topic", "first", "last", "sample", "error"), rows, right=(0,))
    note(f"{amount(sum(group.count for group in groups), 'dead letter')}; `wheel-sched show ID` shows one")
