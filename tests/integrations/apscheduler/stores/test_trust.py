"""A person who can write to a store cannot choose what runs. A job runs if it is signed, if its function's module is
listed, or if this process has added the function."""

from __future__ import annotations

import base64
import functools
import json
import os
import pickle
import re
import stat
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import RedisWheelJobStore
from wheel_sched_apscheduler.codec import (
    BadSignature,
    Forbidden,
    JobCodec,
    NotHere,
    NotRegistered,
    NotSerializable,
    signing,
)
from wheel_sched_apscheduler.codec.signing import ENVIRONMENT, FILE, kept_secret, secret_for

from wheel_sched.errors import ConfigError

OLD = datetime(2016, 5, 3, tzinfo=UTC)
SECRET = "a secret of some length"
HERE = __name__


def send() -> None:
    """A function that the tests add as a job."""


def another() -> None:
    """A function of this module that no added job calls."""


@functools.lru_cache
def cached() -> None:
    """A callable that is no plain function."""


class Base:
    """A class of this module."""

    @classmethod
    def make(cls) -> type:
        """A class method that jobs can call."""
        return cls

    @staticmethod
    def help() -> None:
        """A method that jobs can call."""

    def run(self) -> None:
        """A method that jobs can call."""


class Child(Base):
    """A class that inherits the methods of `Base`."""


class Callme:
    """A class whose instances can be called."""

    def __call__(self) -> None:
        """A method that APScheduler would call for an instance."""


callme = Callme()
environ = os.environ  # an object of another module, found in this one


@pytest.fixture(autouse=True)
def _no_secret_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)


@pytest.fixture
def planted(make_job: Any) -> Callable[..., Any]:
    """Decode a job whose reference an attacker with access to the store has written."""

    def decode(ref: str, codec: JobCodec, *, signer: JobCodec | None = None) -> Any:
        job = make_job(OLD)
        raw = JobCodec(allow=[job.func_ref]).encode(job).replace(job.func_ref.encode(), ref.encode())
        return codec.decode(job.id, raw if signer is None else signer.seal(job.id, raw)).job.func

    return decode


@pytest.mark.parametrize(
    "name",
    [
        "sys.path.insert",
        "os.environ._data.clear",
        "environ._data.clear",
        "__dict__.update",
        "__loader__.load_module",
        "send.__globals__.clear",
        "send.__code__",
        "Base.__subclasses__",
        "Base.mro",
        "callme.__call__",
        "callme",
        "Callable",
        "pytest",
        "BackgroundScheduler",
        "functools.partial",
        "cached",
        "cached.cache_clear",
        "kept_secret",
        "SECRET",
    ],
)
def test_only_what_a_listed_module_has_defined_itself_can_be_reached(planted: Any, name: str) -> None:
    """A job reaches no built-in, imported name, instance or special name, with a list, a signature or neither."""
    signed = JobCodec(secret=SECRET)
    for codec, signer in ((JobCodec(allow=[HERE]), None), (signed, signed), (JobCodec(), None)):
        with pytest.raises((Forbidden, NotHere)):
            planted(f"{HERE}:{name}", codec, signer=signer)


@pytest.mark.parametrize("ref", ["click:edit", "click.termui:edit", "kombu.serialization:loads", "hypothesis:settings"])
def test_a_job_that_is_not_signed_calls_no_library(planted: Any, ref: str) -> None:
    """An unsigned job names a library function that this process has neither added nor listed. The job is refused, and
    the library is not imported."""
    before = set(sys.modules)
    for codec in (JobCodec(), JobCodec(allow=[HERE])):
        with pytest.raises(Forbidden):
            planted(ref, codec)
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [("send", send), ("Base", Base), ("Base.help", Base.help), ("Base.run", Base.run), ("Child.run", Base.run)],
)
def test_own_functions_classes_and_methods_are_found(planted: Any, name: str, expected: Any) -> None:
    """A job may call functions, classes and methods of a listed module, or of a module in a listed package. A signed
    job may call those of an unlisted module."""
    assert planted(f"{HERE}:{name}", JobCodec(allow=["tests"])) is expected
    signed = JobCodec(secret=SECRET)
    assert planted(f"{HERE}:{name}", signed, signer=signed) is expected
    assert planted(f"{HERE}:Child.make", JobCodec(allow=["tests"]))() is Child


def test_without_a_list_and_a_signature_what_this_process_has_added_runs(make_job: Any, planted: Any) -> None:
    """A function that this process has added runs. For any other, the error is `NotRegistered`, because another process
    may have added it."""
    codec = JobCodec()
    job = make_job(OLD, func=send)
    assert codec.decode(job.id, codec.encode(job)).job.func is send
    with pytest.raises(NotRegistered, match="has added no job of it") as caught:
        planted(f"{HERE}:another", codec)
    assert isinstance(caught.value, LookupError)


def test_what_is_allowed_and_not_there_is_another_matter(planted: Any) -> None:
    """An allowed function is missing in this process. The error is `NotHere`, not `Forbidden`, because another process
    may have it."""
    for ref in ("nowhere_to_be_found:f", f"{HERE}:gone", f"{HERE}:Base.gone"):
        with pytest.raises(NotHere) as caught:
            planted(ref, JobCodec(allow=["nowhere_to_be_found", HERE]))
        assert not isinstance(caught.value, Forbidden)


def test_a_function_named_in_so_many_words_may_be_of_any_kind(make_job: Any, planted: Any) -> None:
    """A callable of any kind may run if the list contains its full name or the callable itself."""
    for allow in ([f"{HERE}:cached"], [another, f"{HERE}:cached"]):
        assert planted(f"{HERE}:cached", JobCodec(allow=allow)) is cached
    assert planted(f"{HERE}:another", JobCodec(allow=[another])) is another
    with pytest.raises(Forbidden):
        planted(f"{HERE}:send", JobCodec(allow=[another]))
    assert planted("time:sleep", JobCodec(allow=["time:sleep"]))(0) is None
    for wrong in ([5], [""], [callme.__call__, 5]):
        with pytest.raises(ConfigError, match="nothing was opened"):
            JobCodec(allow=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("func", [callme, cached, print])
def test_what_no_process_would_run_is_refused_when_it_is_added(make_job: Any, func: Any) -> None:
    """A callable object, a cached function and a built-in function are refused. For the first two, APScheduler would
    store the name of their class and later call the class."""
    for codec in (JobCodec(), JobCodec(secret=SECRET), JobCodec(allow=[HERE])):
        with pytest.raises((Forbidden, NotSerializable), match=r"nothing was (stored|imported)"):
            codec.encode(make_job(OLD, func=func))


def test_nothing_is_unpickled_before_the_signature_is_checked(tmp_path: Path) -> None:
    """A forged job whose trigger holds a pickle is listed without running the pickle, also with `allow_pickle`."""
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return ran.touch, ()

    state = {"$": "pickle", "v": base64.b64encode(pickle.dumps(Evil())).decode()}
    forged = {"f": "a:b", "n": "n", "t": ["calendarinterval", state], "a": [], "k": {}, "e": "default"}
    raw = b"1;-;;" + json.dumps({**forged, "g": None, "c": True, "m": 1}).encode()
    codec = JobCodec(secret=SECRET, allow_pickle=True)
    assert codec.head("id", raw).func == "a:b"
    assert codec.shown_trigger(raw) is None
    with pytest.raises(BadSignature):
        codec.decode("id", raw)
    assert not ran.exists()


def test_a_bound_method_is_stored_with_its_object(make_job: Any) -> None:
    """The method is stored as in APScheduler: the class's function, with the object as first argument."""
    codec = JobCodec(allow_pickle=True)
    job = make_job(OLD, func=Child().run)
    back = codec.decode(job.id, codec.encode(job)).job
    assert back.func is Base.run
    assert [type(arg) for arg in back.args] == [Child]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that has imported a function of this module."""
    made = ModuleType("handing_out")
    made.send = send  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "handing_out", made)
    return made


def test_a_function_named_by_a_module_that_has_imported_it_is_stored_under_its_own(
    make_job: Any, package: ModuleType
) -> None:
    """The function is stored under the module that defines it, where other processes find it."""
    codec = JobCodec(secret=SECRET)
    job = make_job(OLD, func="handing_out:send")
    assert codec.head(job.id, codec.encode(job)).func == f"{HERE}:send"


def test_an_alias_allows_where_it_leads(planted: Any) -> None:
    """An alias allows its target, because the application has chosen the alias."""
    assert planted("old.place:f", JobCodec(aliases={"old.place:f": f"{HERE}:another"})) is another


# The secret.


def test_over_a_folder_a_secret_is_made_and_kept(tmp_path: Path, make_job: Any) -> None:
    """A store over a folder makes a secret once, in a file that only its owner can read. All processes that use the
    folder read the same secret."""
    folder = tmp_path / "jobs"
    store, other = (RedisWheelJobStore(f"embedded:{folder}") for _ in range(2))
    job = make_job(OLD, id="a", func=send)
    raw = store.codec.encode(job)
    assert other.codec.decode("a", raw).job.func is send
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    with pytest.raises(BadSignature):
        other.codec.decode("a", JobCodec().encode(job))
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_of_several_that_make_a_secret_one_wins(tmp_path: Path) -> None:
    """Eight threads make the secret of one folder at once. All get the same secret, and none reads an incomplete
    one."""
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(kept_secret(tmp_path / "new"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_secret_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    """An error names a secret's file that is damaged or cannot be written, and no job is stored without a secret."""
    (tmp_path / FILE).write_text("short")
    with pytest.raises(ConfigError, match=re.escape(FILE)):
        kept_secret(tmp_path)
    with pytest.raises(ConfigError, match="cannot be kept"):
        kept_secret(tmp_path / FILE / "below a file")


def test_the_secret_of_the_environment_goes_before_a_kept_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the environment is used instead of the one in an embedded server's folder. A store with a server's
    URL makes no secret."""
    assert secret_for("redis://localhost") is None
    monkeypatch.setenv(ENVIRONMENT, SECRET)
    assert secret_for("redis://localhost") == secret_for(f"embedded:{tmp_path}") == SECRET
    assert RedisWheelJobStore("redis://localhost").codec.signed
    monkeypatch.setenv(ENVIRONMENT, "short")
    with pytest.raises(ConfigError, match="16 bytes"):
        RedisWheelJobStore("redis://localhost")


def test_a_secret_given_as_text_can_be_rotated(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment and in ini files, a comma separates the new secret from the old one."""
    new = "another one of some length"
    old_body = JobCodec(secret=SECRET).encode(make_job(id="j"))
    monkeypatch.setenv(ENVIRONMENT, f"{new}, {SECRET}")
    both = RedisWheelJobStore("redis://localhost").codec
    assert both.unseal("j", old_body)
    assert JobCodec(secret=new).unseal("j", both.encode(make_job(id="j")))
    assert RedisWheelJobStore("redis://localhost", secret=f"{new},{SECRET}").codec.unseal("j", old_body)
    monkeypatch.setenv(ENVIRONMENT, f"{new},short")
    with pytest.raises(ConfigError, match="expected each secret to be at least 16 bytes, with commas between several"):
        RedisWheelJobStore("redis://localhost")


def test_a_store_without_a_secret_says_so_once(
    open_fake: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two unsigned stores in a process log one warning. It says how to sign jobs. A signed store does not warn."""
    monkeypatch.setattr(signing, "_warned", threading.Event())
    for settings in ({"secret": SECRET}, {}, {}):
        store = open_fake(**settings)
        store.start(BackgroundScheduler(), "default")
        store.shutdown()
    (warning,) = [record.getMessage() for record in caplog.records if "not signed" in record.getMessage()]
    assert ENVIRONMENT in warning


def test_a_process_without_the_secret_leaves_signed_jobs_to_others(
    open_fake: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process gives signed jobs back and logs what it lacks. Commands show the same error and change nothing."""
    signing, plain = open_fake(secret=SECRET), open_fake(allow=[HERE])
    now = datetime.now(UTC)
    signing.add_job(make_job(OLD, id="j", func=send))
    assert plain.claim_batch(now).occurrences == []
    plain.tracker.flush()
    entry = plain.get_entry("j")
    assert entry.state == "scheduled"
    assert "it is signed; give secret=" in entry.reason
    for change in (plain.run_now, plain.pause, plain.resume, plain.lookup_job):
        with pytest.raises(NotHere, match=f"it is signed; give secret=... or {ENVIRONMENT}"):
            change("j")
    assert signing.lookup_job("j").func is send


def test_a_signed_occurrence_is_left_to_others_too(make_job: Any) -> None:
    """The item of a long run is signed as a whole, so a process without the secret gives it back."""
    signed = JobCodec(secret=SECRET)
    assert signed.seal("id", b"1|body") != b"1|body"
    with pytest.raises(NotHere, match="it is signed"):
        JobCodec().unseal("id", signed.seal("id", b"1|body"))


def test_the_standard_librarys_tests_are_not_an_application(planted: Any) -> None:
    """Python's list of the standard library omits the package `test`, which can run any script. The codec refuses
    functions of `test` too."""
    before = set(sys.modules)
    signed = JobCodec(secret=SECRET)
    for ref in ("test.support.script_helper:run_python_until_end", "test:x"):
        with pytest.raises(Forbidden, match="standard library"):
            planted(ref, signed, signer=signed)
    assert set(sys.modules) == before
    ref = "test.support:sortdict"
    assert planted(ref, JobCodec(allow=[ref])) is not None


@pytest.mark.parametrize("package", ["wheel_sched", "wheel_sched_apscheduler", "wheel_sched_celery", "retry_topic"])
def test_this_project_is_not_an_application(planted: Any, package: str) -> None:
    """A signed job may name functions of this project only if they are listed."""
    signed = JobCodec(secret=SECRET)
    with pytest.raises(Forbidden):
        planted(f"{package}.anywhere:f", signed, signer=signed)


def test_a_module_of_ones_own_named_test_is_an_application(
    planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python finds the application's own module `test` before the standard library's, so its functions may run."""
    (tmp_path / "test.py").write_text("def nightly(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "test"]:
        monkeypatch.delitem(sys.modules, name)
    signed = JobCodec(secret=SECRET)
    try:
        assert planted("test:nightly", signed, signer=signed).__name__ == "nightly"
    finally:
        sys.modules.pop("test", None)
