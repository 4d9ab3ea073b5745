"""Outputs and logs of bad will: refused or cut, in words; no process of ours grows with them."""

from pathlib import Path

from tests import hostile_steps
from tests.engines import Engine
from tests.shell import Shell


def test_bad_outputs_and_floods_end_their_step_alone(engine: Engine, tmp_path: Path) -> None:
    """A few MiB, which are beyond all bounds; tests.prove.inputs writes a GiB of each."""
    faults = list(hostile_steps.faults_of(Shell(tmp_path, engine.dsn), 6))
    assert not faults, "\n".join(faults)
