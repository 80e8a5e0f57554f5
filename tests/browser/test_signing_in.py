"""Signing in and out with a password file, and what a visitor sees who may only read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.browsing import Troubles, inspect
from tests.browser.demonstration import Demonstration
from wheel_sched.dashboard import PasswordFile, password_line

Opened = tuple[BrowserContext, Troubles]


@pytest.fixture
def users(tmp_path: Path) -> PasswordFile:
    path = tmp_path / "users"
    path.write_text(
        password_line("ada", "delete", "correct horse") + "\n" + password_line("eve", "read", "battery staple") + "\n"
    )
    path.chmod(0o600)
    return PasswordFile(path)


def sign_in(page: Page, name: str, password: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def test_signing_in_and_out(
    own: Callable[..., Demonstration], users: PasswordFile, contexts: Callable[..., Opened]
) -> None:
    """A visitor who has not signed in sees the form. A wrong password is refused. The right one leads to the page that
    was asked for. After signing out, the visitor sees the form again."""
    shop = own(access=users)
    context, troubles = contexts()
    troubles.allow("401")
    page = context.new_page()
    page.goto(f"{shop.url}/members?kind=x")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_label("Name")).to_be_focused()
    assert inspect(page, contrast=True, structure=True, targets=True) == []
    sign_in(page, "ada", "wrong password")
    expect(page.get_by_role("alert")).to_contain_text("wrong")
    sign_in(page, "ada", "correct horse")
    page.wait_for_url(f"{shop.url}/members?kind=x")
    expect(page.locator(".visitor")).to_contain_text("ada · delete")
    assert inspect(page, contrast=True, structure=True, targets=True) == []
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{shop.url}/sign-in")
    page.goto(f"{shop.url}/members")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_signing_in_without_javascript(
    own: Callable[..., Demonstration], users: PasswordFile, new_page: Callable[..., Page]
) -> None:
    """The forms work without JavaScript."""
    shop = own(access=users)
    page = new_page(java_script_enabled=False)
    page.goto(f"{shop.url}/")
    sign_in(page, "eve", "battery staple")
    expect(page.locator(".visitor")).to_contain_text("eve · read")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_a_reader_sees_no_button_that_changes(
    own: Callable[..., Demonstration], users: PasswordFile, new_page: Callable[..., Page], walked: object
) -> None:
    """A visitor with only the right to read sees no button that changes something, on any page."""
    shop = own(access=users)
    page = new_page()
    page.goto(f"{shop.url}/")
    sign_in(page, "eve", "battery staple")
    page.wait_for_url(f"{shop.url}/")
    for listed in [one.path for one in shop.pages if one.label]:
        page.goto(shop.url + listed)
        assert page.locator("form[action*='/actions/']").count() == 0, listed


def test_a_session_that_ends_is_noticed(
    own: Callable[..., Demonstration], users: PasswordFile, contexts: Callable[..., Opened]
) -> None:
    """When the cookie is gone, the next page asks to sign in, and comes back to where it was."""
    shop = own(access=users)
    context, troubles = contexts()
    troubles.allow("401")
    page = context.new_page()
    page.goto(f"{shop.url}/")
    sign_in(page, "ada", "correct horse")
    expect(page.locator(".visitor")).to_contain_text("ada")
    context.clear_cookies()
    page.get_by_role("navigation").get_by_role("link", name="Members").click()
    sign_in(page, "ada", "correct horse")
    page.wait_for_url(f"{shop.url}/members")
