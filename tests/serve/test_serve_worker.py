"""The thread of a model, without a server around it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trivium.errors import TriviumError
from trivium.language_model import LanguageModel
from trivium.serve.errors import ApiError
from trivium.serve.limits import Limits
from trivium.serve.metrics import Metrics
from trivium.serve.models import Served, named_paths
from trivium.serve.worker import Order


class Lots:
    """A question that notes how many items it is asked at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def double(self, lm: LanguageModel, items: Sequence[int]) -> list[int]:
        self.begun.set()
        assert self.go.wait(60)
        self.sizes.append(len(items))
        if 13 in items:
            raise TriviumError("13 is no number of mine.")
        return [2 * item for item in items]


def served(engine: Any = None, **limits: Any) -> Served:
    """A model of which only its engine is there."""
    found = Served("fake", "nowhere", Limits(**limits), Metrics())
    verbs = ("generate",) if engine else ()
    lm = SimpleNamespace(verbs=verbs, tokenizer=object(), engine=lambda rows: engine)
    found.attach(cast(LanguageModel, lm), asyncio.get_running_loop())
    return found


async def stop(found: Served) -> None:
    assert found.worker is not None
    await asyncio.to_thread(found.worker.stop)


def test_one_question_that_is_wrong_spoils_no_other():
    async def main() -> None:
        found, lots = served(), Lots()
        first = asyncio.create_task(found.ask(lots.double, range(40), key="double"))
        await asyncio.to_thread(lots.begun.wait)
        others = [
            asyncio.create_task(found.ask(lots.double, [100 + n], key="double")) for n in range(7)
        ]
        alone = asyncio.create_task(found.ask(lots.double, [7], key=None))
        await asyncio.sleep(0.1)
        lots.go.set()
        await asyncio.gather(*others, alone, first, return_exceptions=True)
        assert [await other for other in others] == [[2 * (100 + n)] for n in range(7)]
        assert await alone == [14]
        with pytest.raises(TriviumError, match="13 is no number"):
            await first
        assert found.waiting == found.running == 0
        await stop(found)

    asyncio.run(main())


def test_long_lists_are_answered_in_lots():
    async def main() -> None:
        found, lots = served(), Lots()
        lots.go.set()
        assert await found.ask(lots.double, range(100, 141)) == list(range(200, 282, 2))
        assert lots.sizes == [16, 16, 9]
        await stop(found)

    asyncio.run(main())


def test_who_gives_up_gets_nothing_and_holds_nothing():
    async def main() -> None:
        found, lots = served(), Lots()
        first = asyncio.create_task(found.ask(lots.double, [1]))
        await asyncio.to_thread(lots.begun.wait)
        second = asyncio.create_task(found.ask(lots.double, [2]))
        await asyncio.sleep(0)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        lots.go.set()
        assert await found.ask(lots.double, [3]) == [6]
        assert lots.sizes == [1, 1]  # the second was never asked
        assert found.waiting == 0
        await stop(found)

    asyncio.run(main())


def test_questions_that_would_wait_too_long_are_refused():
    async def main() -> None:
        found, lots = served(rows=1, max_queue=1, max_texts=3), Lots()
        tasks = [asyncio.create_task(found.ask(lots.double, [n])) for n in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="no more than 1 may") as told:
            await found.ask(lots.double, [5])
        assert told.value.status == 429
        with pytest.raises(ApiError, match="4 texts are too many") as told:
            await found.ask(lots.double, [1, 2, 3, 4])
        assert told.value.status == 400
        lots.go.set()
        assert await asyncio.gather(*tasks) == [[0], [2]]
        await stop(found)

    asyncio.run(main())


class BrokenEngine:
    """It takes texts and fails to give any up."""

    rows, running, waiting, busy = 2, 1, 0, False

    def add(self, prompt: Any, **options: Any) -> Any:
        return SimpleNamespace(prompt_tokens=3, ids=[], tokens=[], finish=None, text="")

    def cancel(self, text: Any) -> None:
        raise RuntimeError("it does not want to")


def test_an_engine_that_fails_does_not_end_the_thread(capfd):
    async def main() -> None:
        found = served(BrokenEngine())
        pieces = found.write([Order(prompt="a", max_new_tokens=1, sampling=cast(Any, None))])
        number, piece = await anext(pieces)
        assert (number, piece.prompt_tokens, piece.finish) == (0, 3, None)
        await pieces.aclose()
        lots = Lots()
        lots.go.set()
        assert await found.ask(lots.double, [1]) == [2]
        await stop(found)

    asyncio.run(main())
    assert "it does not want to" in capfd.readouterr().err


def test_names_of_models(tmp_path, monkeypatch):
    (tmp_path / "runs" / "names").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs")
    assert named_paths(["names"]) == {"names": "names"}
    assert named_paths(["names/", "b=names"]) == {"names": "names/", "b": "names"}
    assert named_paths(["."]) == {"runs": "."}
    assert named_paths(["./a=b/c"]) == {"c": "./a=b/c"}
