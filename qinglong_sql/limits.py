"""Every limit and every fixed interval, in one place (DESIGN §7, §12).

SQL and README state the same numbers and a test holds them together. `_MS` is milliseconds,
`_BYTES` bytes of UTF-8 text, `_CHARS` Unicode code points.
"""

from typing import Final

# Workflows and runs
MAX_STEPS: Final = 128
MAX_NEEDS: Final = 127
MAX_ATTEMPTS: Final = 64
MAX_CLAIM_RETURNS: Final = 64
MAX_RUN_ATTEMPTS: Final = 8192

# Names and ids
KEY_PATTERN: Final = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}"
KEY_CHARS: Final = 63
NAME_CHARS: Final = 200
ID_CHARS: Final = 36
# An inline task is called "<workflow>/<step>".
TASK_KEY_CHARS: Final = 2 * KEY_CHARS + 1
QUEUE_CHARS: Final = 200

# Sizes
PACKAGE_BYTES: Final = 256 * 1024
INPUT_BYTES: Final = 16 * 1024
OUTPUT_BYTES: Final = 16 * 1024
EVENT_PAYLOAD_BYTES: Final = 16 * 1024
ATTEMPT_INPUT_BYTES: Final = 1024 * 1024
ERROR_BYTES: Final = 2 * 1024
ACTOR_BYTES: Final = 256
# Linux refuses a longer single argument or environment entry (MAX_ARG_STRLEN, with its NUL).
ARGUMENT_BYTES: Final = 128 * 1024 - 1

# What a package file may ask of its reader
YAML_DEPTH: Final = 20
YAML_ALIASES: Final = 256
YAML_NODES: Final = 200_000
JSON_DEPTH: Final = 64

# Durations in a package file
TIMEOUT_MAX_MS: Final = 30 * 24 * 3600 * 1000
BACKOFF_MAX_MS: Final = 24 * 3600 * 1000
BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 5 * 60 * 1000

# Pages
PAGE_SIZE: Final = 32
PAGES: Final = 4
ADMISSIONS_PER_CALL: Final = 512
FAULT_BACKOFF_MAX_MS: Final = 5 * 60 * 1000  # of a run that raised in a stage
WORKER_BATCH: Final = 128
WORKER_QUEUES: Final = 128

# Leases: renewed at a third
LEASE_MS: Final = 30_000
LEASE_MIN_MS: Final = 5_000
LEASE_MAX_MS: Final = 5 * 60 * 1000
LEASE_RENEWALS: Final = 3
LEASE_MARGIN_MIN_MS: Final = 1_000
GRACE_MAX_MS: Final = 3600 * 1000
# Between TERM and KILL of an execution that is to stop
STOP_GRACE_MS: Final = 10_000
STOP_GRACE_MAX_MS: Final = 5 * 60 * 1000

# Cadence
IDLE_CLUSTER_MS: Final = 250
IDLE_STANDALONE_MS: Final = 1_000
IDLE_EDGE_MS: Final = 5_000
IDLE_FIRST_MS: Final = 2
IDLE_GROWTH: Final = 1.25
LOCAL_PAUSE_MS: Final = 2

# Triggers
CRON_GRACE_MS: Final = 30_000
CRON_GRACE_STANDALONE_MS: Final = 5 * 60 * 1000
CRON_GRACE_MAX_MS: Final = 5 * 60 * 1000
SCHEDULE_CLAIM_MS: Final = 30_000

# Local pages, (size, pages) a cycle: cancellation, frontier, admission; dispatch is a size alone
EDGE_PAGES: Final = ((4, 1), (1, 1), (1, 1))
EDGE_SCHEDULE: Final = (4, 1)
EDGE_DISPATCH: Final = 1
STANDALONE_PAGES: Final = ((32, 4), (16, 4), (16, 4))
STANDALONE_SCHEDULE: Final = (16, 4)
STANDALONE_DISPATCH: Final = 4

# SQLite
SQLITE_BUSY_MS: Final = 5_000
SQLITE_CACHED_STATEMENTS: Final = 512
SQLITE_PAGE_BYTES: Final = 1024
