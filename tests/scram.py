"""A password as PostgreSQL keeps it (RFC 5802), after one round of hashing instead of 4,096.

A client repeats these rounds with every connection, 4 ms of computing each: a test suite makes
thousands of connections, and its password is twelve random bytes that live as long as the server.
"""

import base64
import hashlib
import hmac
import secrets

ROUNDS = 1


def verifier(password: str) -> str:
    """What `alter role … password` and initdb's password file take in place of the password."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, ROUNDS)
    client, server = (hmac.digest(salted, key, "sha256") for key in (b"Client Key", b"Server Key"))
    stored = hashlib.sha256(client).digest()
    return f"SCRAM-SHA-256${ROUNDS}:{_text(salt)}${_text(stored)}:{_text(server)}"


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")
