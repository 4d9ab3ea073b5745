"""`python -m qinglong_sql` is the command line."""

from qinglong_sql.cli import main

if __name__ == "__main__":
    main(prog_name="qinglong-sql")
