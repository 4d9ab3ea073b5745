"""What a step costs on either engine, beside the bound of the same row writes.

    python -m scripts.bench                      PostgreSQL and SQLite, some minutes
    python -m scripts.bench --quick              a smoke test, some seconds
    python -m scripts.bench --profile            where the time goes instead

The load is 300 graphs of ten steps (1 → 8 → 1) whose executions end at once: what is measured is
the rows, not the processes. `__main__` reads the words, `load` is the load, `postgres` and `sqlite`
run and count it, `bound` is what a scheduler without rules could reach, `profile` looks inside the
server and `table` prints.
"""
