"""What all tests share: Hypothesis profiles, and the rule that CI skips nothing unnoticed.

`--long` (or `HYPOTHESIS_PROFILE=long`) looks ten times longer. With `FASTCKPT_NO_SKIPS=1` (as `.ci/run` sets it) a skipped test fails the run,
unless its reason begins with one of `ALLOWED_SKIPS`.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell starts what it puts in the background with SIGINT ignored, and so would be every child in which a test sends one.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For `bench`, which no wheel holds. At the end, so that the installed package is the one that is tested.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# No deadline: a shared machine stalls now and then, and a timed test is no test.
settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="ten times as many examples (the Hypothesis profile `long`)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        settings.load_profile("long")


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A directory that a user without privileges can reach (pytest's own are private)."""
    folder = Path(tempfile.mkdtemp(prefix="fastckpt-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _the_collector_is_on() -> Iterator[None]:
    """Whatever was interrupted, forked or refused: nobody is left without a cyclic collector."""
    yield
    left_off = not gc.isenabled()
    gc.enable()
    assert not left_off, "the cyclic garbage collector was left off"


#: What CI may skip: how the reason begins → why.
ALLOWED_SKIPS: dict[str, str] = {
    "FASTCKPT_LARGE=1 is not set": "a state of more than 2 GiB takes two minutes and 12 GB of memory: by hand, before a release",
}

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _look_at(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _look_at(report)  # a whole module may be skipped


def _look_at(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:  # one that is expected to fail, too: it shows nothing
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else f"expected to fail: {getattr(report, 'wasxfail', report.longrepr)}"
        if not reason.removeprefix("Skipped: ").startswith(tuple(ALLOWED_SKIPS) or "\0"):
            _skipped.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if os.environ.get("FASTCKPT_NO_SKIPS") and _skipped and exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("FASTCKPT_NO_SKIPS") and _skipped:
        terminalreporter.section("skipped, which fails this run")
        for line in _skipped:
            terminalreporter.line(line)
