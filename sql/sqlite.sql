-- Installer for the sqlite3 shell: sqlite3 qinglong.db < sqlite.sql, run in this folder.
-- What is installed is tables and shared decisions; the steps of sqlite/*.sql are statements that
-- the store runs, and stay files.

-- facts, and what keeps immutable what is immutable
.read sqlite/table.sql
.read sqlite/trigger.sql

-- decisions, byte for byte those of PostgreSQL: state first, then in the order of the flow
.read decision/state.sql
.read decision/admission.sql
.read decision/schedule.sql
.read decision/frontier.sql
.read decision/task_admission.sql
.read decision/dispatch.sql
.read decision/completion.sql
.read decision/recovery.sql
.read decision/cancellation.sql
.read decision/retention.sql
.read decision/explain.sql
.read decision/violation.sql
.read decision/reading.sql
