"""The dead-letter inbox as pages and API calls: groups with their states, one group, and notes about a group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retry_topic.dashboard.dead_letters.addresses import group_path, segment, text_of
from retry_topic.dashboard.dead_letters.panel import panel_of
from retry_topic.management.inbox.groups import Inbox, InboxGroup
from retry_topic.management.inbox.notes import GroupNote
from tests.retry_topic.dashboard.inbox_site import InboxSite, words
from wheel_sched.store import DeathGroup, DelayStore, open_store

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202epassword=hunter2 'x' \"y\""
GROUP = "/dead-letters/{topic}/{group}"


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def store(request: pytest.FixtureRequest) -> Iterator[DelayStore]:
    address = "memory:" if request.param == "memory" else request.getfixturevalue("redis_url")
    with open_store(address) as opened:
        yield opened


@pytest.fixture
def site(store: DelayStore) -> Iterator[InboxSite]:
    made = InboxSite(store)
    yield made
    made.close()


def test_an_empty_inbox_says_so(site: InboxSite) -> None:
    assert "No message has died" in site.page("/dead-letters")
    assert site.call("/dead-letters")["groups"] == []


def test_groups_are_listed_with_their_sample(site: InboxSite) -> None:
    """The largest group comes first. Each group has the error of its last letter."""
    site.bury(2, "a")
    site.bury(3, "b", print_="bbbb", error="other {}")
    found = site.call("/dead-letters")["groups"]
    assert [(one["group"], one["count"], one["state"]) for one in found] == [("bbbb", 3, "new"), ("aaaa", 2, "new")]
    assert found[1]["error"].startswith("builtins.ValueError: text of")
    assert sum(found[0]["by_hour"]) == 3
    seen = words(site.page("/dead-letters"))
    assert "orders · bbbb" in seen
    assert "builtins.ValueError: other" in seen
    assert "5 dead letters in this namespace" in seen


def test_letters_without_a_fingerprint_are_grouped_by_the_code_of_their_reason(site: InboxSite) -> None:
    site.bury(2, print_="")
    (found,) = site.call("/dead-letters")["groups"]
    assert (found["group"], found["count"]) == ("max-attempts", 2)
    assert len(site.call("/dead-letters/orders/max-attempts", GROUP)["members"]) == 2


def test_filters_and_order(site: InboxSite) -> None:
    """Groups are filtered by state, topic and text. The text is searched for in errors and in notes."""
    site.bury(3, "a", ago_ms=5_000)
    site.bury(1, "b", topic="payments", print_="bbbb", error="Needle {}", ago_ms=10)
    site.do("acknowledge-group", topic="orders", group="aaaa")
    site.do("note-group", topic="orders", group="aaaa", text="see ticket 7")

    def groups(query: str) -> list[str]:
        return [one["group"] for one in site.call(f"/dead-letters?{query}")["groups"]]

    assert groups("sort=last") == ["bbbb", "aaaa"]
    assert groups("state=acknowledged") == ["aaaa"]
    assert groups("topic=payments") == ["bbbb"]
    assert groups("text=needle") == ["bbbb"]
    assert groups("text=Ticket") == ["aaaa"]
    assert groups("text=nowhere") == []
    assert "No group matches" in site.page("/dead-letters?text=nowhere")
    assert site.call("/dead-letters")["states"] == {"new": 1, "acknowledged": 1, "fixed": 0, "regressed": 0}


@pytest.mark.parametrize("query", ["state=x", "sort=x", "limit=0", "cursor=x", "text=" + "x" * 201])
def test_wrong_filters_are_refused(site: InboxSite, query: str) -> None:
    site.page(f"/dead-letters?{query}", 400)


@pytest.mark.parametrize("sort", ["count", "last"])
def test_pages_follow_each_other(site: InboxSite, sort: str) -> None:
    for number in range(7):
        site.bury(1 + number % 3, f"n{number}-", print_=f"{number:04}")
    whole = [one["group"] for one in site.call(f"/dead-letters?sort={sort}")["groups"]]
    paged: list[str] = []
    cursor = ""
    while cursor is not None:
        page = site.client.get("/api/v1/dead-letters", params={"sort": sort, "limit": 3, "cursor": cursor}).json()
        paged += [one["group"] for one in page["groups"]]
        cursor = page["cursor"]
    assert paged == whole
    assert len(whole) == 7
    assert "Next page" in site.page(f"/dead-letters?sort={sort}&limit=3")


def test_a_group_has_its_letters_and_how_their_errors_differ(site: InboxSite) -> None:
    ids = site.bury(3, error="order {} of customer 77 timed out", traceback="Traceback:\n  <b>line</b>")
    found = site.call("/dead-letters/orders/aaaa", GROUP)
    assert sorted(one["id"] for one in found["members"]) == ids
    varying = [part["values"] for part in found["error_parts"] if part["values"]]
    assert [sorted(values) for values in varying] == [["0", "1", "2"]]
    page = site.page("/dead-letters/orders/aaaa")
    assert "<mark" in page
    assert "&lt;b&gt;line&lt;/b&gt;" in page
    assert all(f"/items/{one}" in page for one in ids)
    assert "of customer 77 timed out" in words(page)


def test_an_unknown_group_is_not_found(site: InboxSite) -> None:
    assert "see the list of all groups" in site.page("/dead-letters/orders/none", 404)


def test_payloads_are_shown_only_when_the_dashboard_may(store: DelayStore) -> None:
    hidden, open_ = InboxSite(store), InboxSite(store, show_payloads=True)
    hidden.bury(1)
    assert "secret payload" not in hidden.page("/dead-letters/orders/aaaa")
    assert "secret payload" in open_.page("/dead-letters/orders/aaaa")
    hidden.close()
    open_.close()


def test_hostile_texts_stay_texts(site: InboxSite) -> None:
    """Errors, topics, fingerprints, tracebacks and notes are shown as text. Markup and direction marks are escaped."""
    topic = "to/pic~<i>"
    print_ = "</a>/.."
    site.bury(2, topic=topic, print_=print_, error=HOSTILE.replace("{", "") + "{}", traceback=HOSTILE)
    site.do("note-group", topic=topic, group=print_, text=HOSTILE, link='https://example.org/"><script>')
    for path in ("/dead-letters", group_path(topic, print_)):
        page = site.page(path)
        assert "<script>alert" not in page
        assert "<i>" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
        assert "</a>/.." not in page.replace("&lt;/a&gt;", "")
    assert site.call(group_path(topic, print_), GROUP)["count"] == 2
    assert site.call("/dead-letters")["groups"][0]["topic"] == topic


@pytest.mark.parametrize("text", ["", "~", "a/b", "~1", ".", "..", "~2", "ü~0/", "3f2a"])
def test_each_name_has_an_address(text: str) -> None:
    part = segment(text)
    assert text_of(part) == text
    assert part
    assert "/" not in part
    assert part not in (".", "..")


def test_a_group_of_no_topic_has_a_page(site: InboxSite) -> None:
    site.bury(1, topic="")
    assert "(no topic)" in site.page(group_path("", "aaaa"))


def test_marks_change_the_state_and_a_death_after_fixed_is_a_regression(site: InboxSite) -> None:
    """The page shows who set the mark, and when. A group that is opened again counts as new."""
    names = {"topic": "orders", "group": "aaaa"}
    site.bury(2)

    def state() -> str:
        return str(site.call("/dead-letters/orders/aaaa", GROUP)["state"])

    site.do("acknowledge-group", **names)
    assert state() == "acknowledged"
    assert "acknowledged by ada" in words(site.page("/dead-letters/orders/aaaa"))
    assert "stay dead" in site.preview("fix-group", **names)["warning"]
    site.do("fix-group", **names)
    assert state() == "fixed"
    wait_for_a_later_ms(site)
    site.bury(1, "later", ago_ms=0)
    assert state() == "regressed"
    site.do("reopen-group", **names)
    assert state() == "new"
    entries = [one["action"] for one in site.client.get("/api/v1/audit").json()["entries"]]
    assert entries == ["reopen-group", "fix-group", "acknowledge-group"]


def wait_for_a_later_ms(site: InboxSite) -> None:
    start_ms = site.store.now_ms()
    while site.store.now_ms() <= start_ms:
        pass


def test_a_note_is_written_changed_and_removed(site: InboxSite) -> None:
    names = {"topic": "orders", "group": "aaaa"}
    site.bury(1)
    site.do("note-group", **names, text="look at the pool", link="https://example.org/7")
    note = site.call("/dead-letters/orders/aaaa", GROUP)["note"]
    assert (note["text"], note["link"], note["noted_by"], note["mark"]) == (
        "look at the pool",
        "https://example.org/7",
        "ada",
        "",
    )
    assert "look at the pool" in site.page("/dead-letters")
    assert 'href="https://example.org/7"' in site.page("/dead-letters/orders/aaaa")
    site.do("note-group", **names)
    assert site.call("/dead-letters/orders/aaaa", GROUP)["note"]["text"] == ""


@pytest.mark.parametrize(
    "wrong", [{"link": "javascript:alert(1)"}, {"link": "https://"}, {"link": "http://[x"}, {"text": "x" * 1_001}]
)
def test_a_wrong_note_is_refused(site: InboxSite, wrong: dict[str, str]) -> None:
    site.bury(1)
    assert "nothing was changed" in site.refused("note-group/preview", 400, topic="orders", group="aaaa", **wrong)


def test_nobody_overwrites_the_note_of_somebody_else(site: InboxSite) -> None:
    """If somebody else has changed the note after the preview, it stays as it is, and the page shows it."""
    names = {"topic": "orders", "group": "aaaa"}
    site.bury(1)
    token = site.preview("acknowledge-group", **names)["token"]
    site.do("note-group", **names, text="mine")
    assert "has changed since the preview" in site.refused("acknowledge-group", 409, **names, token=token)
    assert site.call("/dead-letters/orders/aaaa", GROUP)["state"] == "new"


def test_readers_get_no_buttons_and_no_actions(store: DelayStore) -> None:
    site = InboxSite(store, "read")
    site.bury(1)
    page = site.page("/dead-letters/orders/aaaa")
    assert "/actions/" not in page
    assert "may only read" in site.refused("fix-group/preview", 403, topic="orders", group="aaaa")
    operator = InboxSite(store, "operate")
    page = operator.page("/dead-letters/orders/aaaa")
    assert "/actions/start-replay" in page
    assert "/actions/delete-group" not in page
    assert "may only operate" in operator.refused("delete-group/preview", 403, topic="orders", group="aaaa")


def test_letters_of_an_older_release_are_named(site: InboxSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page counts the letters that belong to no group, and says how to see them."""
    found = Inbox.page

    def older(self: Inbox, **asked: object) -> object:
        page = found(self, **asked)  # type: ignore[arg-type]
        return type(page)(page.groups, page.cursor, page.states, 5, 4, page.now_ms)

    monkeypatch.setattr(Inbox, "page", older)
    page = site.page("/dead-letters")
    assert "4 dead letters of them died under an older release" in words(page)
    assert 'href="/items?search=state%3Adead"' in page


def group(name: str, state: str, by_hour: tuple[int, ...] = (0,) * 24, count: int = 1) -> InboxGroup:
    counted = DeathGroup("orders", name, count, 1, 0, 0, "id", by_hour)
    return InboxGroup(counted, GroupNote("orders", name), state)  # type: ignore[arg-type]


def test_the_overview_names_new_and_regressed_groups(site: InboxSite) -> None:
    site.bury(1)
    assert "orders aaaa: 1 letter" in words(site.page("/"))
    panel = panel_of([group("a", "new"), group("b", "regressed"), group("c", "fixed"), group("d", "new", count=0)])
    assert panel is not None
    assert [line[:2] for line in panel.lines] == [("regressed", "orders b: 1 letter"), ("new", "orders a: 1 letter")]
    assert [one.level for one in panel.problems] == ["problem"]
    assert panel_of([group("c", "fixed")]) is None
    many = panel_of([group(str(number), "new") for number in range(8)])
    assert many is not None
    assert many.lines[-1][1] == "3 groups more"


@pytest.mark.parametrize(
    ("hours", "rises"), [((1,) * 23 + (11,), True), ((1,) * 23 + (10,), False), ((4,) * 23 + (12,), False)]
)
def test_rising_deaths_are_an_ailment(hours: tuple[int, ...], rises: bool) -> None:
    """The overview warns if a group has over 10 deaths in this hour, and over three times the mean of the 23 hours
    before.
    """
    panel = panel_of([group("a", "fixed", hours)])
    assert (panel is not None and "rise" in panel.problems[0].what) is rises
