"""`DeadLetters`: the dead letters of a store, for users."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from retry_topic.connection import Connection
from retry_topic.dead_letters.groups import Group, group_letters
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS
from retry_topic.dead_letters.replay import LetterReplay, Order, Replayed
from retry_topic.dead_letters.selection import PAGE, DeadLetterFilter, DeadLetterInfo, select
from retry_topic.message import Message
from wheel_sched.errors import ConfigError
from wheel_sched.store import Outcome


class DeadLetters:
    """The dead letters of a store. Any thread may use it.

    Args:
        connection: the connection to the store, see `connect`.
        secrets: give them if the service signs headers. The first one signs replayed messages. Defaults to none.
    """

    def __init__(self, connection: Connection, *, secrets: Sequence[bytes] = ()) -> None:
        self._connection = connection
        self._store = connection.store
        self._secrets = secrets

    def select(self, selection: DeadLetterFilter | None = None) -> Iterator[DeadLetterInfo]:
        """Iterate over the dead letters that `selection` chooses (by default all), in order of death.

        Letters that are chosen by id come sorted by id instead. The letters are read page by page.
        """
        return select(self._store, selection or DeadLetterFilter())

    def groups(self, selection: DeadLetterFilter | None = None) -> list[Group]:
        """Group the dead letters that `selection` chooses (by default all) by topic and fingerprint, largest first."""
        return group_letters(self.select(selection))

    def replay(
        self,
        selection: DeadLetterFilter | None = None,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        limit: int | None = None,
        target: str | None = None,
        edit: Callable[[Message], Message] | None = None,
        max_replays: int = MAX_REPLAYS,
        progress: Callable[[int], None] | None = None,
    ) -> Replayed:
        """Store dead letters as waiting messages again. They become due from now on, `rate` per second.

        Args:
            selection: which letters. Defaults to all.
            dry_run: change nothing; count, and give five samples. Defaults to False.
            rate: messages per second. Defaults to None: all at once.
            limit: at most this many. Defaults to all.
            target: send the letters to this topic instead. It then counts as the topic on which they first failed.
                Defaults to the topic of each letter's next attempt.
            edit: changes each message before it is sent: payload, key, headers. Defaults to no change.
            max_replays: the loop guard's limit, per message. Defaults to 3.
            progress: called with the number of letters handled so far.

        Raises:
            ConfigError: an argument is wrong. Nothing was replayed.
            UnknownTopic: the topic `target` is absent. Nothing was replayed.
            Rejected: `edit` made a message that cannot be sent. Its batch was not replayed.
        """
        problems = []
        if rate is not None and not 0 < rate <= 1e6:
            problems.append(f"expected rate to be messages per second, above 0, got: {rate!r}")
        if limit is not None and limit < 1:
            problems.append(f"expected limit to be at least 1, got: {limit!r}")
        if max_replays < 1:
            problems.append(f"expected max_replays to be at least 1, got: {max_replays!r}")
        if problems:
            raise ConfigError(problems)
        if target is not None:
            (self._connection.check_topic if dry_run else self._connection.prepare_topic)(target)
        now_ms = self._store.now_ms()
        selection = selection or DeadLetterFilter()
        if selection.until_ms is None:  # a letter that dies again during the replay is not selected twice
            selection = replace(selection, until_ms=now_ms + 1)
        run = LetterReplay(
            self._store,
            now_ms,
            lambda _, place: now_ms + (int(place * 1000 / rate) if rate else 0),
            lambda _, message: message if edit is None else edit(message),
            max_replays,
            dry_run,
            target,
            self._secrets,
            tracing=self._connection.tracing,
        )
        return run.run(itertools.islice(self.select(selection), limit), progress)

    def replay_orders(
        self, orders: Sequence[Order], *, dry_run: bool = False, max_replays: int = MAX_REPLAYS
    ) -> Replayed:
        """Store exactly these letters as waiting messages again, each with its due time.

        Letters that are no longer dead are skipped. So a second run of the same orders does nothing, unless a letter
        has died again before it was delivered.

        Args:
            orders: the letters, and when each is sent.
            dry_run: change nothing; count, and give five samples. Defaults to False.
            max_replays: the loop guard's limit, per message. Defaults to 3.

        Raises:
            Rejected: a new payload cannot be sent. Its batch was not replayed.
        """
        now_ms = self._store.now_ms()
        wanted = {order.id: order for order in orders}
        ids = sorted(wanted)

        def due_ms(letter: DeadLetterInfo, _: int) -> int:
            due_ms = wanted[letter.id].due_ms
            return now_ms if due_ms is None else due_ms

        def edited(letter: DeadLetterInfo, message: Message) -> Message:
            value = wanted[letter.id].value
            return message if value is None else replace(message, value=value)

        pages = (DeadLetterFilter(ids=frozenset(ids[at : at + PAGE])) for at in range(0, len(ids), PAGE))
        run = LetterReplay(
            self._store,
            now_ms,
            due_ms,
            edited,
            max_replays,
            dry_run,
            secrets=self._secrets,
            tracing=self._connection.tracing,
        )
        return run.run(itertools.chain.from_iterable(map(self.select, pages)))

    def delete(
        self, selection: DeadLetterFilter | None = None, *, dry_run: bool = False, limit: int | None = None
    ) -> int:
        """Delete dead letters for good.

        Args:
            selection: which letters. Defaults to all.
            dry_run: change nothing, only count. Defaults to False.
            limit: at most this many letters. Defaults to all.

        Returns:
            The number of deleted letters; in a dry run, of those that would be deleted.
        """
        letters = [*itertools.islice(self.select(selection), limit)]
        if dry_run:
            return len(letters)
        by_route: dict[str | None, list[str]] = {}
        for letter in letters:
            by_route.setdefault(letter.route, []).append(letter.id)
        deleted = 0
        for route, ids in by_route.items():
            for at in range(0, len(ids), PAGE):
                deleted += self._store.delete_dead(ids[at : at + PAGE], route=route).count(Outcome.DONE)
        return deleted
