"""The pages of messages: the search, its result in several pages, and the page of one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

HOUR = 3_600_000


def test_the_list_shows_what_matches_and_nothing_else(seen: Any) -> None:
    """Page and API show the messages that a search chooses. The page shows each condition with a link to remove it."""
    seen.message("a1.2")
    seen.message("b1.2", topic="mail", in_ms=2 * HOUR)
    seen.message("c1.2", state="dead", in_ms=-HOUR)
    page = seen.page("/items", search="topic:orders state:due")
    assert "a1.2" in page
    assert "b1.2" not in page
    assert "c1.2" not in page
    assert 'href="/items?search=topic%3Aorders"' in page
    found = seen.valid("/items", "/items", search="topic:orders")
    assert [one["id"] for one in found["items"]] == ["a1.2", "c1.2"]
    assert found["search"] == "topic:orders"
    assert [one["id"] for one in seen.valid("/items", "/items", state="dead")["items"]] == ["c1.2"]


def test_messages_come_in_order_of_due_time_page_by_page(seen: Any) -> None:
    """The pages together have every message once, in order of due time; the last page has no cursor."""
    for number in (3, 1, 2, 5, 4):
        seen.message(f"m{number}.1", in_ms=number * HOUR)
    ids: list[str] = []
    query = {"limit": "2", "search": "state:due"}
    while True:
        found = seen.valid("/items", "/items", **query)
        ids += [one["id"] for one in found["items"]]
        if found["cursor"] is None:
            break
        assert len(found["items"]) == 2
        query["cursor"] = found["cursor"]
    assert ids == ["m1.1", "m2.1", "m3.1", "m4.1", "m5.1"]
    page = seen.page("/items", limit="2")
    assert "limit=2&amp;cursor=" in page
    assert 'rel="next"' in page


def test_a_wrong_search_is_shown_with_what_is_wrong(seen: Any) -> None:
    """For a search that cannot be read, the page says what is wrong. The API refuses the search in the same words."""
    page = seen.page("/items", 400, search="topik:orders")
    assert "did you mean topic:orders?" in page
    assert 'value="topik:orders"' in page
    assert "did you mean" in seen.api("/items", 400, search="topik:orders")["error"]["message"]
    assert "expected state" in seen.api("/items", 400, state="gone")["error"]["message"]
    assert "expected a cursor" in seen.api("/items", 400, cursor="due {")["error"]["message"]


def test_tabs_have_the_numbers_of_messages(seen: Any) -> None:
    """Each state has a tab with the number of its messages. The link of a tab keeps the other parts of the search."""
    seen.message("a1.2")
    seen.message("c1.2", state="dead", in_ms=-HOUR)
    page = seen.page("/items", search="due<3h topic:orders")
    assert "waiting 1" in page
    assert "dead 1" in page
    assert "/items?search=topic%3Aorders+state%3Adead" in page


def test_one_message_says_why_it_is_due_then(seen: Any) -> None:
    """The page of a message has the reason for its due time, the picture of its attempts, how their errors differ, and
    the next decision.
    """
    seen.message()
    page = seen.page("/items/m1.2")
    assert "policy payments@3 said: wait 1h" in page
    assert 'class="chart timeline"' in page
    assert page.count('class="failed"') == 2
    assert ">wait 1m</text>" in page  # as the header of the attempt records it
    assert ">wait 1h10m" in page  # from the last failure to the present due time
    assert "<del>a</del><ins>b</ins>" in page
    assert "Traceback (most recent call last)" in page
    assert "If attempt 3 fails with the same error" in page
    assert "attempt 3 of 8: exponential" in page
    found = seen.valid("/items/{id:path}", "/items/m1.2")
    assert found["next_decision"]["attempt"] == 3
    assert found["why"].startswith("attempt 2 failed with TimeoutError")
    assert [one["number"] for one in found["failed_attempts"]] == [1, 2]


def test_the_decision_is_that_of_the_policies_of_the_settings(see: Callable[..., Any], tmp_path: Any) -> None:
    """The page shows the next decision by the policy file that the settings name. If the file is broken, the page says
    so.
    """
    file = tmp_path / "policies.toml"
    file.write_text('[default]\nname = "ours"\ndelay = {kind = "fixed", base = "7m"}\nmax_attempts = 5\n')
    one = see(env={"WHEEL_SCHED_POLICIES": str(file)})
    one.message()
    found = one.api("/items/m1.2")["next_decision"]
    assert found["policy"] == "ours@1", found
    assert "fixed 7m" in found["words"]
    file.write_text("nonsense")
    assert "cannot be read" in one.api("/items/m1.2")["next_decision"]["words"]


@pytest.mark.parametrize("path", ["/items/gone", "/items/a/b%2Fc"])
def test_an_unknown_message_is_not_found_in_the_words_of_the_command(seen: Any, path: str) -> None:
    """For an id that no message has, the page has status 404 and says the same as the command `show`."""
    seen.message()
    assert "there is no message" in seen.page(path, 404)
    assert "it was delivered or deleted, never stored here" in seen.page(path, 404)
    assert "there is no message" in seen.api(path, 404)["error"]["message"]


def test_a_message_is_found_by_the_id_that_logs_show(seen: Any) -> None:
    """The id without its attempt leads to the page of the message, which says under which id it is stored."""
    seen.message("m1.2")
    assert "m1 is stored as m1.2" in seen.page("/items/m1")


def test_payloads_keys_and_header_values_are_hidden_unless_shown(see: Callable[..., Any]) -> None:
    """Page and API have payloads, keys and header values only with `show_payloads`."""
    secret = {"value": b'{"pin": "4711"}', "key": b"jane-roe", "headers": (("trace", b"abc-secret"),)}
    hidden = see()
    hidden.message(**secret)
    for text in (hidden.page("/items"), hidden.page("/items/m1.2"), hidden.page("/items/m1.2", view="hex")):
        assert not any(word in text for word in ("4711", "jane-roe", "abc-secret", "34 37 31 31"))
    whole = hidden.valid("/items/{id:path}", "/items/m1.2")
    assert whole["value_base64"] is None
    assert whole["key"] is None
    assert ["trace", None] in whole["headers"]
    assert hidden.api("/items")["items"][0]["key"] is None
    shown = see(show_payloads=True)
    page = shown.page("/items/m1.2")
    assert "&#34;pin&#34;: &#34;4711&#34;" in page
    assert "jane-roe" in page
    assert "abc-secret" in page
    assert "34 37 31 31" in shown.page("/items/m1.2", view="hex")
    whole = shown.valid("/items/{id:path}", "/items/m1.2")
    assert whole["key"] == "jane-roe"
    assert ["trace", "abc-secret"] in whole["headers"]
    assert whole["value_base64"]
    assert "jane-roe" in shown.page("/items")


def test_a_large_payload_is_cut(see: Callable[..., Any]) -> None:
    """For a payload of ten million bytes, the page shows its size and its beginning. The API leaves the payload out."""
    shown = see(show_payloads=True)
    shown.message(value=b"x" * 10_000_000)
    for view in ("", "text", "json", "hex"):
        page = shown.page("/items/m1.2", view=view)
        assert "10,000,000 bytes" in page
        assert len(page) < 60_000
    assert shown.valid("/items/{id:path}", "/items/m1.2")["value_base64"] is None
    assert "expected view" in shown.page("/items/m1.2", 400, view="picture")


HOSTILE = "<script>alert(1)</script>\"'\x1b[31m\u202eabc\x00"


def test_foreign_texts_cannot_act_on_a_page(see: Callable[..., Any]) -> None:
    """HTML, terminal codes and direction marks in any text of a message are shown as escapes."""
    shown = see(show_payloads=True)
    item_id = "<b>&\x1b\u202e?#/.."
    fields = {"error_class": HOSTILE, "error_message": HOSTILE, "policy": HOSTILE, "consumer_group": HOSTILE}
    shown.message(
        item_id,
        topic="<i>\u202etopic",
        value=HOSTILE.encode(),
        key=HOSTILE.encode(),
        headers=((HOSTILE[:25], HOSTILE.encode()),),
        traceback=HOSTILE,
        state="held",
        reason=HOSTILE,
        **fields,
    )
    item_path = "/items/%3Cb%3E%26%1B%E2%80%AE%3F%23%2F.."
    pages = [shown.page("/items"), shown.page("/items", search=f'"{HOSTILE[:20]}"'), shown.page(item_path)]
    pages += [shown.page(item_path, view=view) for view in ("text", "json", "hex")]
    pages += [shown.page("/"), shown.page("/topics"), shown.page("/topics/%3Ci%3E%E2%80%AEtopic")]
    for page in pages:
        for bad in ("<script>alert", "<b>&", "<i>", "\x1b", "\u202e", "\x00"):
            assert bad not in page, (bad, page[:500])
    assert f"{item_path}" in pages[0]
    assert shown.api(item_path)["id"] == item_id


def test_ids_of_any_bytes_can_be_opened_and_changed(seen: Any) -> None:
    """For an id that is not UTF-8, the page's link and button work, and the API returns exactly this id."""
    seen.message("m\udcff.2")
    assert "/items/m%FF.2" in seen.page("/items")
    page = seen.page("/items/m%FF.2")
    assert 'name="ids%" value="m%FF.2"' in page
    assert seen.api("/items/m%FF.2")["id"] == "m\udcff.2"
    assert "1 message due now" in seen.submit("run-now", {"ids%": ["m%FF.2"]})


def test_an_item_that_is_no_message_is_shown(seen: Any) -> None:
    """An item whose body is not a message is in the list and has a page."""
    from wheel_sched.store import Item

    seen.store.schedule([Item("odd", seen.store.now_ms() + HOUR, b"\xff\x00", "orders")])
    assert "odd" in seen.page("/items")
    assert "cannot be read as a message: 2 bytes" in seen.page("/items/odd")
    assert seen.valid("/items/{id:path}", "/items/odd")["next_decision"] is None


def test_the_call_of_the_api_is_shown_without_a_secret(seen: Any) -> None:
    """The page has a shell script that runs the message now. The script has no token and no password."""
    seen.message("it's.2")
    page = seen.page("/items/it%27s.2")
    assert "actions/run-now/preview" in page
    assert "it&#39;&#34;&#39;&#34;&#39;s.2" in page
    assert seen.client.get("/api/v1/session").json()["csrf_token"] not in page.partition("<pre>API=")[2]


def test_a_dead_letter_links_to_its_group_and_its_policy(seen: Any) -> None:
    """The links lead to pages that exist, also for a topic with a slash in its name."""
    seen.message("a.1", topic="eu/orders", state="dead")
    page = seen.page("/items/a.1")
    for path in ("/dead-letters/eu~1orders/3f2a00", "/policies/eu%2Forders", "/topics/eu%2Forders"):
        assert f'href="{path}"' in page
        seen.page(path)


def test_a_visitor_who_may_only_read_sees_no_buttons(see: Callable[..., Any]) -> None:
    """A page has buttons only if the visitor may use them."""
    reader = see("read")
    reader.message()
    for path in ("/items", "/items/m1.2", "/topics", "/topics/orders"):
        assert "/actions/" not in reader.page(path)
    operator = see("operate")
    page = operator.page("/items/m1.2")
    assert "/actions/run-now" in page
    assert "/actions/delete" not in page
