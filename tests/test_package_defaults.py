"""`defaults`: what tasks have that do not say it themselves; the model knows nothing of them."""

import pytest

from qinglong_sql.package import Package, PackageFaults, parse_package
from qinglong_sql.package_fault import Fault

HEAD = "package: p\n"
ALL = (
    "defaults: {timeout: 1h, retry: {attempts: 4, backoff: 2s}, env: {A: a, B: b}, cwd: jobs, "
    "queue: q, idempotent: true, on_lost: hold}\n"
)


def read(text: str) -> Package:
    return parse_package((HEAD + text).encode(), "jobs.yaml")


def faults(text: str) -> tuple[Fault, ...]:
    with pytest.raises(PackageFaults) as caught:
        read(text)
    return caught.value.faults


def placed(text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.where) for fault in faults(text)]


def task(text: str, key: str = "t") -> dict[str, object]:
    return dict(read(text).model["tasks"][key])


WHOLE = {
    "cwd": "jobs",
    "env": {"A": "a", "B": "b"},
    "idempotent": True,
    "name": None,
    "on_lost": "hold",
    "queue": "q",
    "retry": {
        "attempts": 4,
        "backoff_ms": 2_000,
        "max_backoff_ms": 300_000,
        "on": ["failed", "timed_out"],
    },
    "run": "x",
    "timeout_ms": 3_600_000,
}


def test_a_task_and_a_step_s_own_command_have_all_defaults() -> None:
    text = "tasks: {t: {run: x}}\nworkflows: {w: {steps: {s: {run: x}, u: {task: t}}}}\n"
    for whole in (ALL + text, text + ALL):
        tasks = read(whole).model["tasks"]
        assert tasks == {"t": WHOLE, "w/s": WHOLE}, "wherever the defaults stand in the file"


def test_a_workflow_s_own_timeout_is_no_default_s() -> None:
    package = read("defaults: {timeout: 1h}\nworkflows: {w: {steps: {s: {run: x}}}}\n")
    assert package.model["workflows"]["w"]["timeout_ms"] is None


def test_the_manifest_is_the_one_of_the_file_with_all_written_out() -> None:
    written_out = (
        "tasks: {t: {run: x, timeout: 1h, retry: {attempts: 4, backoff: 2s}, env: {B: b, A: a}, "
        "cwd: jobs, queue: q, idempotent: true, on_lost: hold}}\n"
    )
    assert read(ALL + "tasks: {t: {run: x}}\n").digest == read(written_out).digest
    assert "defaults" not in read(ALL + "tasks: {t: {run: x}}\n").model


@pytest.mark.parametrize(
    ("own", "field", "value"),
    [
        ("timeout: 5s", "timeout_ms", 5_000),
        ("cwd: other", "cwd", "other"),
        ("queue: r", "queue", "r"),
        ("idempotent: false", "idempotent", False),
        ("on_lost: fail", "on_lost", "fail"),
    ],
)
def test_what_a_task_says_wins(own: str, field: str, value: object) -> None:
    assert task(ALL + f"tasks: {{t: {{run: x, {own}}}}}\n") == {**WHOLE, field: value}


def test_a_retry_rule_is_taken_or_replaced_as_a_whole() -> None:
    rule = task(ALL + "tasks: {t: {run: x, retry: {attempts: 2}}}\n")["retry"]
    assert rule == {
        "attempts": 2,
        "backoff_ms": 1_000,
        "max_backoff_ms": 300_000,
        "on": ["failed", "timed_out"],
    }
    assert task(ALL + "tasks: {t: {run: x, retry: {}}}\n") == task(
        ALL + "tasks: {t: {run: x, retry: {attempts: 1}}}\n"
    ), "an empty rule is the rule of a file without defaults"


def test_an_environment_is_put_together_variable_by_variable() -> None:
    own = "tasks: {t: {run: x, env: {B: own, C: {file: c}, a: lower}}}\n"
    assert task(ALL + own)["env"] == {"A": "a", "B": "own", "C": {"file": "c"}, "a": "lower"}


@pytest.mark.parametrize("null", ["null", "Null", "NULL", "~"])
def test_null_takes_a_default_away(null: str) -> None:
    package = read(ALL + f"tasks: {{t: {{run: x, env: {{B: {null}}}}}}}\n")
    assert package.model["tasks"]["t"]["env"] == {"A": "a"}
    assert not package.warnings


def test_null_takes_away_what_a_merge_brings() -> None:
    package = read("x-e: &e {A: a}\ntasks: {t: {run: x, env: {<<: *e, A: null}}}\n")
    assert package.model["tasks"]["t"]["env"] == {}
    assert not package.warnings


def test_a_null_that_takes_nothing_away_is_a_warning_and_a_quoted_one_text() -> None:
    package = read('tasks: {t: {run: x, env: {A: null, B: "null", C: }}}\n')
    assert package.model["tasks"]["t"]["env"] == {"B": "null", "C": ""}
    (warning,) = package.warnings
    assert (warning.code, warning.where) == ("idle_null", "tasks.t.env.A")
    assert "quote it" in warning.message


def test_null_is_nothing_anywhere_else_and_told() -> None:
    assert [fault.code for fault in faults("tasks: {t: {run: x, name: null, cwd: ~}}\n")] == [
        "bad_value",
        "bad_value",
    ]


def test_a_fault_of_the_defaults_is_told_once_at_its_place() -> None:
    text = (
        "defaults:\n  timeout: 15\n  retry: {attempts: 0, when: now}\n  env: {QL_X: x}\n"
        "  queue: a b\n  on_lost: maybe\n  idempotent: yes\n  cwd:\n"
        "tasks: {a: {run: x}, b: {run: x}}\nworkflows: {w: {steps: {s: {run: x}}}}\n"
    )
    assert placed(text) == [
        (3, "defaults.timeout"),
        (4, "defaults.retry.attempts"),
        (4, "defaults.retry.when"),
        (5, "defaults.env.QL_X"),
        (6, "defaults.queue"),
        (7, "defaults.on_lost"),
        (8, "defaults.idempotent"),
        (9, "defaults.cwd"),
    ]
    assert "one attempt of each task" in faults(text)[0].hint


def test_defaults_that_no_task_inherits_are_checked_too() -> None:
    assert placed("defaults: {timeout: 0s}\ntasks: {a: {run: x, timeout: 1s}}\n") == [
        (2, "defaults.timeout")
    ]


def test_what_no_default_can_be_is_told_with_the_reason() -> None:
    (run,) = faults("defaults: {run: x}\ntasks: {a: {run: x}}\n")
    assert (run.code, run.hint) == ("unknown_field", "what to execute is said by each task")


LOST = "defaults: {on_lost: retry}\ntasks:\n"


def test_lost_work_by_default_is_told_once_with_the_tasks_that_may_not_run_twice() -> None:
    many = "".join(f"  t{n}: {{run: x}}\n" for n in range(8))
    (fault,) = faults(LOST + "  ok: {run: x, idempotent: true}\n" + many)
    assert (fault.line, fault.where) == (2, "defaults.on_lost")
    assert "tasks.t0, tasks.t1, tasks.t2, tasks.t3, tasks.t4 and 3 more" in fault.message
    assert read(LOST + "  ok: {run: x, idempotent: true}\n  no: {run: x, on_lost: fail}\n")


def test_what_a_task_says_against_a_default_is_told_at_the_task() -> None:
    both = "defaults: {idempotent: true, on_lost: retry}\ntasks:\n  t: {run: x, "
    assert placed(both + "idempotent: false}\n") == [(4, "tasks.t.idempotent")]
    assert placed(both + "retry: {attempts: 1}}\n") == [(4, "tasks.t.retry.attempts")]
    one = "defaults: {idempotent: true, retry: {attempts: 1}}\ntasks:\n"
    assert placed(one + "  t: {run: x, on_lost: retry}\n") == [(4, "tasks.t.on_lost")]


def test_lost_work_has_three_attempts_by_default_too() -> None:
    lost = "defaults: {idempotent: true, on_lost: retry}\ntasks: {t: {run: x}}\n"
    assert task(lost)["retry"] == {
        "attempts": 3,
        "backoff_ms": 1_000,
        "max_backoff_ms": 300_000,
        "on": [],
    }
    assert task(lost.replace("{t: {run: x}", "{t: {run: x, retry: {}}"))["retry"] == {
        "attempts": 3,
        "backoff_ms": 1_000,
        "max_backoff_ms": 300_000,
        "on": ["failed", "timed_out"],
    }


def test_the_manifest_may_not_grow_beyond_the_limit_by_defaults() -> None:
    big = "defaults: {env: {A: " + "x" * 100_000 + "}}\n"
    tasks = "tasks: {a: {run: x}, b: {run: x}, c: {run: x}}\n"
    (fault,) = faults(big + tasks)
    assert fault.code == "too_large" and "with all defaults" in fault.message
