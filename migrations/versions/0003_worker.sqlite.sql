-- 0003_worker, sqlite: written by scripts/freeze.py, but for what stands between the marks.

-- by hand: tables, and what else must come first
-- LOCKS    say which, and for how long
-- end of what is by hand
