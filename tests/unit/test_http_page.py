"""Answers of the metrics and health page, without a socket.

Tests of the operator and the broker use sockets.
"""

from http import HTTPStatus

import pytest

from tidemark.http_page import HttpPage, _Server


def page(*, well: bool = True) -> HttpPage:
    return HttpPage(metrics=lambda: b"up 1\n", health=lambda: (well, "why"))


def test_metrics_and_health_have_a_page_and_nothing_else() -> None:
    assert page().answer("/metrics") == (HTTPStatus.OK, b"up 1\n")
    assert page().answer("/metrics?name=up") == (HTTPStatus.OK, b"up 1\n")
    assert page().answer("/healthz") == (HTTPStatus.OK, b"why\n")
    assert page().answer("/")[0] is HTTPStatus.NOT_FOUND
    assert page().answer("/metrics/topics")[0] is HTTPStatus.NOT_FOUND


def test_a_process_has_pages_of_its_own() -> None:
    more = {"/metrics/topics": lambda: b"topic 1\n"}
    made = HttpPage(metrics=bytes, health=lambda: (True, ""), more=more)
    assert made.answer("/metrics/topics") == (HTTPStatus.OK, b"topic 1\n")


def test_an_unhealthy_broker_gets_no_traffic_from_a_load_balancer() -> None:
    assert page(well=False).answer("/healthz") == (HTTPStatus.SERVICE_UNAVAILABLE, b"why\n")


def test_a_client_that_does_not_wait_for_a_page_causes_no_traceback(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kubelet may have probed the process while it hung. Any other error is logged."""
    # The constructor would open a socket, which a unit test must not do.
    server = _Server.__new__(_Server)
    for error in (BrokenPipeError("gone"), TimeoutError(), ValueError("of ours")):
        try:
            raise error
        except type(error):
            server.handle_error(None, ("10.0.0.1", 5))
    assert capsys.readouterr().err == ""
    assert [record.message for record in caplog.records] == ["a page for ('10.0.0.1', 5) failed"]
