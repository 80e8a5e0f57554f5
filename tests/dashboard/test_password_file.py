"""The password file: its lines, who may change it, and what happens when it changes under a running dashboard."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from tests.dashboard.trying import PASSWORDS, password_file, sign_in, site
from wheel_sched.dashboard import PasswordFile, password_line
from wheel_sched.errors import ConfigError

GOOD = password_line("ada", "operate", PASSWORDS["ada"])


def written(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "users"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_a_line_holds_a_hash_and_no_password(tmp_path: Path) -> None:
    assert PASSWORDS["ada"] not in GOOD
    assert GOOD.startswith("ada:operate:scrypt$16384$8$1$")
    assert password_line("ada", "operate", PASSWORDS["ada"]) != GOOD, "each line has a salt of its own"
    users = PasswordFile(written(tmp_path, f"# users\n\n{GOOD}\n"))
    found = users.check("ada", PASSWORDS["ada"])
    assert found is not None
    assert (found.name, found.right) == ("ada", "operate")
    assert users.check("ada", "wrong") is None
    assert users.check("ADA", PASSWORDS["ada"]) is None


BAD_LINES = (
    "ada",
    "ada:operate",
    "ada:operate:plain text",
    GOOD.replace("operate", "admin"),
    GOOD.replace("operate", ""),
    GOOD.replace("ada", "a b"),
    GOOD.replace("ada", ""),
    GOOD.replace("ada", "x" * 61),
    GOOD.replace("16384", "16383"),
    GOOD.replace("16384", str(2**30)),
    GOOD.replace("$8$", "$80000$"),
    GOOD.replace("$1$", "$1000$"),
    GOOD.replace("16384", "x"),
    GOOD.replace("scrypt", "md5"),
    GOOD[:-1] + "!",
    GOOD + "$more",
    GOOD.rpartition("$")[0],
    f"{GOOD}\n{GOOD}",
)


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_an_error_that_quotes_no_line(tmp_path: Path, line: str) -> None:
    """If a line of the file cannot be read, nobody is let in. The error shows no hash."""
    with pytest.raises(ConfigError) as caught:
        PasswordFile(written(tmp_path, f"# comment\n{line}\n"))
    assert "users, line " in str(caught.value)
    assert GOOD.rpartition("$")[2] not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        PasswordFile(tmp_path / "absent")
    with pytest.raises(ConfigError, match="not UTF-8"):
        PasswordFile(written(tmp_path, b"\xff\xfe"))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod go-w"):
        PasswordFile(written(tmp_path, GOOD, mode))


def test_a_change_counts_at_once(tmp_path: Path) -> None:
    """A user is added and removed while the dashboard runs."""
    path = written(tmp_path, GOOD)
    users = PasswordFile(path)
    assert users.check("bob", PASSWORDS["bob"]) is None
    path.write_text(f"{GOOD}\n{password_line('bob', 'read', PASSWORDS['bob'])}\n", "utf-8")
    assert users.check("bob", PASSWORDS["bob"]) is not None
    path.write_text("", "utf-8")
    assert users.check("ada", PASSWORDS["ada"]) is None


@pytest.mark.parametrize("spoil", ["line", "mode", "gone"])
def test_a_file_that_becomes_wrong_lets_nobody_in(tmp_path: Path, spoil: str) -> None:
    """Nobody is let in, not even with a session, and the answer says so. When the file is right again, users are."""
    path = password_file(tmp_path, ada="delete")
    made, text = site(tmp_path, PasswordFile(path)), path.read_text("utf-8")
    sign_in(made.client, "ada")
    assert made.client.get("/").status_code == 200
    if spoil == "line":
        path.write_text("ada:delete\n", "utf-8")
    elif spoil == "mode":
        path.chmod(0o666)
    else:
        path.unlink()
    for answer in (made.client.get("/"), made.client.get("/api/v1/session"), sign_in(made.client, "ada")):
        assert answer.status_code == 503
        assert "nothing was shown or changed" in answer.text
        assert "users" not in answer.text
    assert made.client.get("/live").status_code == 503
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    assert made.client.get("/").status_code == 200


def test_an_unknown_name_takes_as_long_as_a_wrong_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both cases one hash of the same cost is computed, so the time does not tell which names exist."""
    salt_and_hash = GOOD.split("$", 4)[4]
    users = PasswordFile(written(tmp_path, f"ada:read:scrypt$8192$8$2${salt_and_hash}"))
    costs = []

    def counted(password: bytes, **how: int) -> bytes:
        costs.append((how["n"], how["r"], how["p"]))
        return b"\0" * 32

    monkeypatch.setattr(hashlib, "scrypt", counted)
    assert users.check("ada", "wrong") is None
    assert users.check("nobody", "wrong") is None
    assert costs == [(8192, 8, 2), (8192, 8, 2)]


@pytest.mark.parametrize(
    ("name", "right", "password"),
    [
        ("a:b", "read", "long enough"),
        ("a\nb", "read", "long enough"),
        ("", "read", "long enough"),
        ("ada", "admin", "long enough"),
        ("ada", "read", "short"),
        ("ada", "read", "x" * 1001),
    ],
)
def test_a_line_that_could_not_be_read_is_not_made(name: str, right: str, password: str) -> None:
    with pytest.raises(ConfigError, match="nothing was written"):
        password_line(name, right, password)  # type: ignore[arg-type]


def test_the_helper_makes_a_private_file(tmp_path: Path) -> None:
    assert stat.S_IMODE(password_file(tmp_path, ada="read").stat().st_mode) == 0o600
