"""No run ends while something of it is alive: real executions, cancelled at chosen moments."""

from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.cancelling import Moment, moments, placed
from tests.engines import Engine


def test_a_cancelled_run_ends_after_all_that_it_started(engine: Engine, tmp_path: Path) -> None:
    rng = Random("cancels")
    chosen = [
        Moment("ignores", "succeeded", "call"),
        Moment("hidden", "succeeded", "twice"),
        Moment("again", "retry_wait", "call"),
        *islice(moments(rng), 3),
    ]
    with placed(engine.dsn, tmp_path, "suite") as place:
        broken = [line for one in chosen for line in place.cancelled(one, rng)]
        assert broken == []
        assert chosen[0].most >= 1 and chosen[1].most >= 2, "nothing of it was seen"
        assert place.hits["running"] + place.hits["starting"] >= 1


@pytest.mark.parametrize("kind", ["ignores", "cleared"])
def test_a_worker_that_reports_too_early_is_caught(
    sqlite_dsn: str, tmp_path: Path, kind: str
) -> None:
    with placed(sqlite_dsn, tmp_path, "hasty", hasty=True) as place:
        broken = place.cancelled(Moment(kind, "succeeded", "call"), Random(1))
    assert any("live" in line or "before its last process" in line for line in broken), broken
