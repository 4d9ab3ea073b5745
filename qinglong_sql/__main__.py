"""`python -m qinglong_sql` is the command line."""

from qinglong_sql.start import main

if __name__ == "__main__":
    main()
