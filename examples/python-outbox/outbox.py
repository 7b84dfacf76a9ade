"""Books a cabin and publishes its confirmation, in one transaction.

    python3 outbox.py postgres://shop@localhost/shop Ada cabin-7

The table `booking` is this program's own; the queue `confirmations` is a Redrive's in the same database. Either both
rows are there afterwards, or none is. Asked for the same again, it says so: one guest's cabin is one intent, and its id
is made of both.
"""

import sys

import psycopg
from psycopg.types.json import Jsonb


def book(conn, guest, cabin):
    """One booking and one confirmation, in the caller's transaction."""
    said = conn.execute(
        "SELECT redrive.publish('confirmations', %s, %s, key => %s)",
        (f"{cabin}/{guest}", Jsonb({"guest": guest, "cabin": cabin}), cabin),
    ).fetchone()[0]
    if said == "accepted":
        conn.execute("INSERT INTO booking (guest, cabin) VALUES (%s, %s)", (guest, cabin))
    return said


def main():
    url, guest, cabin = sys.argv[1:4]
    with psycopg.connect(url) as conn:
        with conn.transaction():
            said = book(conn, guest, cabin)
            if guest == "Nobody":
                raise psycopg.Rollback()
        # After the commit, and only to save a moment: it would be found anyhow.
        conn.execute("SELECT redrive.wake()")
    print(said)


if __name__ == "__main__":
    main()
