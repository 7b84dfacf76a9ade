CREATE TABLE redrive_window_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema INTEGER NOT NULL
) STRICT;
INSERT INTO redrive_window_meta (one, schema) VALUES (1, 1);

-- A row is a commit: the ids that shared it.
CREATE TABLE redrive_window (
    -- In the order of commits.
    n INTEGER PRIMARY KEY,
    -- When, in nanoseconds since 1970; never less than in the row before.
    at INTEGER NOT NULL,
    -- CRC-32 of n, at and marks.
    crc INTEGER NOT NULL,
    -- 16 bytes for each id: half a SHA-256 over scope and id, each with its length before it.
    marks BLOB NOT NULL
) STRICT;
