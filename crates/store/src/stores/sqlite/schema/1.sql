-- One row. `clean` is 0 while somebody owns the file, and stays so if that one dies.
CREATE TABLE redrive_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    clean INTEGER NOT NULL
) STRICT;
INSERT INTO redrive_meta VALUES (1, 0, random(), 0, 1);

CREATE TABLE redrive_queue (
    name TEXT PRIMARY KEY,
    ordered INTEGER NOT NULL,
    window INTEGER NOT NULL,
    horizon INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE redrive_stream (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    next INTEGER NOT NULL,
    UNIQUE (queue, tenant)
) STRICT;

-- May run and never ran: nothing in it ever changes, and its rev is 0.
-- `key` is set where order is kept within it; a key that means nothing is in `tag`.
-- `calm`: settled by then, the receipt lasts long enough as it is.
CREATE TABLE redrive_live (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    key TEXT,
    tag TEXT,
    payload BLOB NOT NULL,
    extra BLOB,
    published INTEGER NOT NULL,
    calm INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
CREATE INDEX redrive_live_key ON redrive_live (key) WHERE key IS NOT NULL;

-- All other living events. `state`: 0 waits for its time, 1 for the one of its key before it, 2 is dead and
-- holds up those of its key that follow, 3 is dead and does not. `flow`: 0 has never run, 1 has.
CREATE TABLE redrive_held (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    key TEXT,
    tag TEXT,
    payload BLOB NOT NULL,
    extra BLOB,
    published INTEGER NOT NULL,
    calm INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    flow INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    state INTEGER NOT NULL,
    due INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    mode TEXT NOT NULL,
    started INTEGER,
    previous INTEGER NOT NULL,
    strikes INTEGER NOT NULL,
    suspect INTEGER NOT NULL,
    story TEXT,
    reason TEXT,
    died INTEGER,
    park_until INTEGER,
    park_count INTEGER,
    progress_crc INTEGER NOT NULL
) STRICT;
CREATE INDEX redrive_held_due ON redrive_held (stream, flow, due) WHERE state = 0;
CREATE INDEX redrive_held_key ON redrive_held (key, state) WHERE key IS NOT NULL;
CREATE INDEX redrive_held_dead ON redrive_held (seq) WHERE state >= 2;
CREATE INDEX redrive_held_park ON redrive_held (stream, park_until) WHERE state = 2 AND park_until IS NOT NULL;
CREATE INDEX redrive_held_suspect ON redrive_held (suspect) WHERE suspect = 1;

-- An identity. Without a state, its event lives or is done.
CREATE TABLE redrive_receipt (
    stream INTEGER NOT NULL,
    id TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    seq INTEGER NOT NULL,
    published INTEGER NOT NULL,
    until INTEGER NOT NULL,
    state TEXT,
    ended INTEGER,
    attempts INTEGER,
    story TEXT,
    result BLOB,
    crc INTEGER NOT NULL,
    PRIMARY KEY (stream, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE redrive_inbox (
    handler TEXT NOT NULL,
    id TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (handler, id)
) STRICT, WITHOUT ROWID;
