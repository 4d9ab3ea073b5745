"""The words that one launcher shares with its fork server, and the states in them (DESIGN §9)."""

MIN_MARGIN_MS = 1_000

# A slot is eight 64-bit words shared by one launcher and the fork server. Each word is written
# whole, so the fork server never reads half a lease end.
STATE, LEASE_END, MARGIN, TICKS, GO_BOOT, GO_WALL, LOGGED, DROPPED = range(8)
SLOT_WORDS = 8

# NEW owes no receipt; WAITING is before "go"; EMPTY has no tree and no receipt yet; ENDED has both.
NEW, WAITING, RUNNING, EMPTY, ENDED = range(5)
