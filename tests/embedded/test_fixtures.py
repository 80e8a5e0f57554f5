"""The fixtures of tests/conftest.py give each test an empty server, and mark the tests that use a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import redis

LIBRARY = "#!lua name=lib\nredis.register_function('f', function() return 1 end)"


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_gets_an_empty_server(redis_client: redis.Redis, turn: int) -> None:
    """The server of a test has no data, functions or scripts of an earlier test."""
    assert redis_client.dbsize() == 0
    assert redis_client.function_list() == []
    assert redis_client.script_exists("e0e1f9fabfc9d4800c877a703b823ac0578ff8db") == [False]
    redis_client.set("k", "v")
    redis_client.function_load(LIBRARY)
    assert redis_client.script_load("return 1") == "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_gets_a_fresh_imitation_with_lua(fake_redis: redis.Redis, turn: int) -> None:
    """The client of fakeredis runs scripts and functions, and has no data of an earlier test."""
    assert fake_redis.dbsize() == 0
    fake_redis.function_load(LIBRARY)
    assert fake_redis.fcall("f", 0) == 1
    assert fake_redis.eval("return redis.call('INCR', KEYS[1])", 1, "n") == 1


def test_a_test_on_the_real_server_is_marked(request: pytest.FixtureRequest, redis_url: str) -> None:
    """A test that uses a fixture of the real server gets the mark `real`, although its code does not set the mark."""
    assert request.node.get_closest_marker("real") is not None


def test_a_test_without_the_real_server_is_not_marked(request: pytest.FixtureRequest) -> None:
    """A test that uses no fixture of the real server has no mark `real`, so `-m 'not real'` selects the test."""
    assert request.node.get_closest_marker("real") is None
