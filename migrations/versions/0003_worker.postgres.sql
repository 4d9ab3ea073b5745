-- 0003_worker, postgres: written by scripts/freeze.py, but for what stands between the marks.
set local lock_timeout = '5s';
set local statement_timeout = '60s';
set local search_path = pg_catalog, pg_temp;

-- by hand: tables, and what else must come first
-- LOCKS    say which, and for how long
-- end of what is by hand
