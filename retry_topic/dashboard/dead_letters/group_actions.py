"""The actions on a group of dead letters: acknowledge it, mark it as fixed, open it again, write a note."""

from __future__ import annotations

from collections.abc import Callable

from retry_topic.dashboard.dead_letters.addresses import group_path
from retry_topic.dashboard.dead_letters.group_page import found_group
from retry_topic.management.inbox.notes import GroupNote, GroupNotes, Mark, checked_note
from wheel_sched.dashboard import Action, ActionField, ActionResult, Dashboard, Preview
from wheel_sched.dashboard.actions import digest_of
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.management.wording import amount

GROUP_FIELDS = (
    ActionField("topic", "the topic of the group; leave it out for letters without a topic"),
    ActionField("group", "the fingerprint of the error, or the code of the reason"),
)


def group_names(arguments: Arguments) -> tuple[str, str]:
    """The topic and the group of a request. An absent argument means the empty text."""
    return arguments.get("topic", ""), arguments.get("group", "")


def _marking(mark: Mark, words: str) -> tuple[Callable[..., Preview], Callable[..., ActionResult]]:
    def preview(dashboard: Dashboard, arguments: Arguments) -> Preview:
        topic, group = group_names(arguments)
        found, _ = found_group(dashboard, topic, group)
        about = f"{words} of {topic or '(no topic)'}, group {group}: {amount(found.counted.count, 'dead letter')}"
        warning = ""
        if mark == "fixed" and found.counted.count:
            warning = "The group's letters stay dead: replay or delete them. If another dies, the group is regressed."
        digest = digest_of([topic, group, mark, found.note.version])
        return Preview(1, about, digest, (found.error,) if found.error else (), warning, found.note)

    def execute(dashboard: Dashboard, arguments: Arguments, seen: Preview, who: str) -> ActionResult:
        note: GroupNote = seen.selected
        GroupNotes(dashboard.store).mark(note, mark, who)
        return ActionResult(1, f"done: {seen.words}", link=group_path(note.topic, note.group))

    return preview, execute


def _preview_note(dashboard: Dashboard, arguments: Arguments) -> Preview:
    topic, group = group_names(arguments)
    found, _ = found_group(dashboard, topic, group)
    text, link = checked_note(arguments.get("text", ""), arguments.get("link", ""))
    what = "write this note on" if text or link else "remove the note on"
    digest = digest_of([topic, group, text, link, found.note.version])
    samples = tuple(filter(None, (text, link)))
    return Preview(1, f"{what} {topic or '(no topic)'}, group {group}", digest, samples, selected=found.note)


def _write_note(dashboard: Dashboard, arguments: Arguments, seen: Preview, who: str) -> ActionResult:
    note: GroupNote = seen.selected
    GroupNotes(dashboard.store).write(note, arguments.get("text", ""), arguments.get("link", ""), who)
    return ActionResult(1, "the note is written", link=group_path(note.topic, note.group))


def _mark_action(name: str, summary: str, mark: Mark, words: str) -> Action:
    preview, execute = _marking(mark, words)
    return Action(name, "operate", summary, GROUP_FIELDS, preview, execute)


ACTIONS = (
    _mark_action("acknowledge-group", "Acknowledge a group of dead letters", "acknowledged", "acknowledge the errors"),
    _mark_action("fix-group", "Mark a group of dead letters as fixed", "fixed", "mark as fixed the errors"),
    _mark_action("reopen-group", "Open a group of dead letters again", "", "open again the errors"),
    Action(
        "note-group",
        "operate",
        "Write a note on a group of dead letters",
        (
            *GROUP_FIELDS,
            ActionField("text", "the note, at most 1,000 characters; without text and link the note is removed"),
            ActionField("link", "an http or https address, such as that of a ticket"),
        ),
        _preview_note,
        _write_note,
    ),
)
