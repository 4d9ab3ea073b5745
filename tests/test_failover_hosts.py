"""Which of several hosts a DSN means, without a server, and that a timeline never goes back."""

from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.store.link import NotPrimary, Place, reach

ENVIRONMENT = ("PGHOST", "PGPORT", "PGSERVICE", "PGSERVICEFILE", "PGTARGETSESSIONATTRS")
READ_WRITE = {"target_session_attrs": "read-write", "connect_timeout": 5}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("dsn", "added"),
    [
        ("postgresql://h1/q", {}),
        ("postgresql:///q", {}),
        ("postgresql://h1,h2/q", READ_WRITE),
        ("postgresql://h1:1,h2:2/q", READ_WRITE),
        ("postgresql:///q?host=h1,h2", READ_WRITE),
        ("postgresql:///q?hostaddr=10.0.0.1,10.0.0.2", READ_WRITE),
        ("host=h1,h2 dbname=q", READ_WRITE),
        ("postgresql://h1,h2/q?connect_timeout=9", {"target_session_attrs": "read-write"}),
        ("postgresql://h1,h2/q?target_session_attrs=any", {"connect_timeout": 5}),
        ("postgresql://h1,h2/q?target_session_attrs=standby", {"connect_timeout": 5}),
    ],
)
def test_several_hosts_mean_the_one_that_takes_writes_unless_the_dsn_says_another(
    bare: pytest.MonkeyPatch, dsn: str, added: dict[str, object]
) -> None:
    assert reach(dsn) == added


def test_hosts_of_the_environment_and_of_a_service_file_count_as_well(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    services = tmp_path / "services"
    services.write_text("[two]\nhost=s1,s2\nport=1,2\n[far]\nhost=s1,s2\n"
                        "target_session_attrs=standby\n")  # fmt: skip
    bare.setenv("PGSERVICEFILE", str(services))
    of_two = {"host": "s1,s2", "port": "1,2", **READ_WRITE}
    assert reach("postgresql:///q?service=two") == of_two
    assert "target_session_attrs" not in reach("postgresql:///q?service=far")
    bare.setenv("PGSERVICE", "two")
    assert reach("postgresql:///q") == of_two
    bare.delenv("PGSERVICE")
    bare.setenv("PGHOST", "e1,e2")
    assert reach("postgresql:///q")["target_session_attrs"] == "read-write"
    assert reach("postgresql://alone/q") == {}
    bare.setenv("PGTARGETSESSIONATTRS", "any")
    assert "target_session_attrs" not in reach("postgresql:///q")


def test_a_timeline_never_goes_back() -> None:
    def row(timeline: int | None, *, recovery: bool = False, only: bool = False) -> dict[str, Any]:
        return {"in_recovery": recovery, "read_only": only, "timeline": timeline}

    place = Place()
    assert not place.meet(row(3)) and not place.meet(row(3))
    assert place.meet(row(4)), "promoted: what is connected to the one before is left"
    for late in (row(3), row(None, recovery=True), row(4, only=True)):
        with pytest.raises(NotPrimary) as caught:
            place.meet(late)
        assert caught.value.sqlstate == "25006"
    assert not place.meet(row(4))
