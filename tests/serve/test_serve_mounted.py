"""A server with the playground at its root: what is around it stays as it is."""

from __future__ import annotations

import threading

import httpx
import pytest
from serving import running
from test_serve_hostile import check_error

pytest.importorskip("gradio", reason="the playground is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of Gradio


def test_errors_keep_their_shape_and_the_key_guards_the_page(paths):
    with running({"encoder": paths["encoder"]}, playground=True, key="secret") as found:
        check_error(found.get("/"), 401)
        page = found.get("/", auth=("me", "secret"))
        assert page.status_code == 200
        assert "gradio" in page.text
        headers = {"Authorization": "Bearer secret"}
        check_error(found.get("/v1/nothing", headers=headers), 404)
        check_error(found.get("/v1/completions", headers=headers), 405)
        assert found.get("/docs", headers=headers).status_code == 200
        asked = {"model": "encoder", "text": "a [MASK]"}
        assert found.post("fill-mask", asked, headers=headers).status_code == 200


def test_a_page_that_stays_open_does_not_keep_the_server(paths):
    opened = threading.Event()

    def stay(url: str) -> None:
        with httpx.stream("GET", f"{url}/gradio_api/heartbeat/somebody", timeout=60) as answer:
            opened.set()
            try:
                for _ in answer.iter_bytes():
                    pass
            except httpx.RemoteProtocolError:
                pass

    with running({"encoder": paths["encoder"]}, playground=True) as found:
        visitor = threading.Thread(target=stay, args=(found.url,))
        visitor.start()
        assert opened.wait(30)
    visitor.join(30)
    assert not visitor.is_alive()
