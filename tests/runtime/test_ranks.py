"""``runtime/ranks.py``: the ranks that torchrun, or something like it, has started."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or not sys.platform.startswith("linux"),
    reason="needs torch and Linux",
)


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that torchrun started here and that have ended, in seconds; others when time is over."""
    from megatile.runtime import ranks as there
    from megatile.runtime.errors import LaunchError

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    for name, value in {**where, "RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"ranks 1, 2 did not come within 0\.3 s"):
        there.all_here(0.3)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr(there, "GONE_SECONDS", 0.1)
    monkeypatch.setattr(os, "getppid", os.getpid)
    started = [subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": str(r)}) for r in (0, 1)]
    try:
        with pytest.raises(LaunchError, match="rank 2 ended before it came"):
            there.all_here(30.0)
        started[1].kill()
        started[1].wait()
        assert there.ended(os.getpid()) == {1, 2}
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_hosts_have_a_name_of_their_own_or_the_one_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatile.runtime.ranks import HOST_VARIABLE, _host

    monkeypatch.setenv(HOST_VARIABLE, "this one")
    assert _host() == "this one"
    monkeypatch.delenv(HOST_VARIABLE)
    assert socket.gethostname() in _host()
