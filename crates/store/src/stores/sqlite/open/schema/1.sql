-- One row. `clean` is 0 while a process owns the file, and stays 0 if that process dies. `deaths` counts all deaths,
-- `orders` the commands that may have taken events from the owner.
CREATE TABLE redrive_meta (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    schema INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    clean INTEGER NOT NULL,
    deaths INTEGER NOT NULL,
    orders INTEGER NOT NULL
) STRICT;
INSERT INTO redrive_meta VALUES (1, 0, random(), 0, 1, 0, 0);

CREATE TABLE redrive_queue (
    name TEXT PRIMARY KEY,
    ordered INTEGER NOT NULL,
    dedupe_window INTEGER NOT NULL,
    horizon INTEGER NOT NULL,
    pull INTEGER NOT NULL,
    keep_time INTEGER,
    keep_count INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE redrive_stream (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    next INTEGER NOT NULL,
    UNIQUE (queue, tenant)
) STRICT;

-- May run and never ran: nothing in it ever changes, and its rev is 0. `key` is set if the queue keeps the order of
-- keys; otherwise a key is in `tag`. `dedupe_ok_until`: if settled by then, the dedupe record lasts long enough as it
-- is.
CREATE TABLE redrive_fresh (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    key TEXT,
    tag TEXT,
    payload BLOB NOT NULL,
    extra BLOB,
    published INTEGER NOT NULL,
    dedupe_ok_until INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
CREATE INDEX redrive_fresh_key ON redrive_fresh (key) WHERE key IS NOT NULL;

-- All other events. `state`: 0 waits for its time, 1 for an earlier event of its key, 2 is dead and blocks the later
-- events of its key, 3 is dead and does not, 4 is the head of a key that a rule withholds, 5 was discarded and can be
-- restored, 6 is leased. `flow`: 0 has never run, 1 has. `cause` is the cause of its death, also after it was
-- redriven; `death` the number of its death; `redrive` what redrove it: the line of a command in the audit, or a job's
-- number below zero. A lease stays on the row when it is over, until there is another.
CREATE TABLE redrive_tracked (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    key TEXT,
    tag TEXT,
    payload BLOB NOT NULL,
    extra BLOB,
    published INTEGER NOT NULL,
    dedupe_ok_until INTEGER NOT NULL,
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
    crash_count INTEGER NOT NULL,
    suspect INTEGER NOT NULL,
    history TEXT,
    reason TEXT,
    died INTEGER,
    park_until INTEGER,
    park_count INTEGER,
    route TEXT,
    out_of_order INTEGER NOT NULL,
    cause INTEGER,
    death INTEGER,
    redrive INTEGER,
    redriven INTEGER NOT NULL,
    lease_attempt INTEGER,
    lease_token BLOB,
    lease_until INTEGER,
    lease_from INTEGER,
    progress_crc INTEGER NOT NULL
) STRICT;
CREATE INDEX redrive_tracked_due ON redrive_tracked (stream, flow, due) WHERE state = 0 /* waiting */;
CREATE INDEX redrive_tracked_key ON redrive_tracked (key, state) WHERE key IS NOT NULL;
CREATE INDEX redrive_tracked_dead ON redrive_tracked (seq) WHERE state IN (2, 3) /* dead, holding; dead, passed */;
CREATE INDEX redrive_tracked_cause ON redrive_tracked (cause, seq) WHERE state IN (2, 3) /* dead, holding; dead, passed */;
CREATE INDEX redrive_tracked_died ON redrive_tracked (stream, died, death) WHERE state = 3 /* dead, passed */;
CREATE INDEX redrive_tracked_gone ON redrive_tracked (seq) WHERE state = 5 /* discarded */;
CREATE INDEX redrive_tracked_lease ON redrive_tracked (stream, lease_until) WHERE state = 6 /* leased */;
CREATE INDEX redrive_tracked_park ON redrive_tracked (stream, park_until) WHERE state = 2 /* dead, holding */ AND park_until IS NOT NULL;
CREATE INDEX redrive_tracked_suspect ON redrive_tracked (suspect) WHERE suspect = 1;

-- An identity. Without a state, its event lives, is done, or has a row in `redrive_ending`. `became`: the id of its
-- replacement, if it was edited. The identity is first in the key: comparing a text is cheaper than comparing a number
-- that is nearly always the same and then a text.
CREATE TABLE redrive_dedupe (
    id TEXT NOT NULL,
    stream INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    seq INTEGER NOT NULL,
    published INTEGER NOT NULL,
    until INTEGER NOT NULL,
    state TEXT,
    ended INTEGER,
    attempts INTEGER,
    history TEXT,
    result BLOB,
    became TEXT,
    crc INTEGER NOT NULL,
    PRIMARY KEY (id, stream)
) STRICT, WITHOUT ROWID;

-- How an event ended, if it was not simply done at its first attempt. Not on the dedupe record, which would grow in
-- the middle of its tree. `token`: the hash of the token of the lease that settled it, if it was leased.
CREATE TABLE redrive_ending (
    seq INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    ended INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    history TEXT,
    result BLOB,
    token BLOB,
    crc INTEGER NOT NULL
) STRICT;

CREATE TABLE redrive_inbox (
    handler TEXT NOT NULL,
    id TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (handler, id)
) STRICT, WITHOUT ROWID;

-- Bytes that programs built on the store keep in it, by name.
CREATE TABLE redrive_kept (
    name TEXT PRIMARY KEY,
    bytes BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- A request under its idempotency key. The phase defines `one` and `two`; `ends` is when time changes it. The body has
-- a checksum of its own, and is last: SQLite reads through a large value to reach the columns after it.
CREATE TABLE redrive_request (
    tenant TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    print BLOB NOT NULL,
    first INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    phase TEXT NOT NULL,
    retention INTEGER NOT NULL,
    phase_at INTEGER,
    phase_until INTEGER,
    status INTEGER,
    headers TEXT,
    body_crc INTEGER,
    place TEXT,
    resource TEXT,
    ends INTEGER,
    crc INTEGER NOT NULL,
    body BLOB,
    UNIQUE (tenant, operation, key)
) STRICT;
CREATE INDEX redrive_request_ends ON redrive_request (ends) WHERE ends IS NOT NULL;
CREATE INDEX redrive_request_unknown ON redrive_request (tenant, operation, key) WHERE phase = 'unknown';
CREATE INDEX redrive_request_resource ON redrive_request (resource) WHERE resource IS NOT NULL;

-- An active rule, as JSON.
CREATE TABLE redrive_rule (
    rule TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    until INTEGER,
    who TEXT NOT NULL,
    why TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A change to many dead letters that goes on in the background. `plan` is JSON.
CREATE TABLE redrive_job (
    id INTEGER PRIMARY KEY,
    plan TEXT NOT NULL,
    state TEXT NOT NULL,
    why TEXT NOT NULL,
    who TEXT NOT NULL,
    started INTEGER NOT NULL,
    running_since INTEGER NOT NULL,
    taken_before INTEGER NOT NULL,
    ended INTEGER,
    planned INTEGER NOT NULL,
    deaths INTEGER NOT NULL,
    cursor INTEGER,
    exhausted INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    done INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    other INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;

-- Dead letters of one cause in one stream, counted. `redrive` is what redrove some of them last.
CREATE TABLE redrive_tally (
    stream INTEGER NOT NULL,
    cause INTEGER NOT NULL,
    title TEXT NOT NULL,
    letters INTEGER NOT NULL,
    holding INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    redrive INTEGER,
    redriven_at INTEGER NOT NULL,
    redriven_letters INTEGER NOT NULL,
    redriven_failed INTEGER NOT NULL,
    PRIMARY KEY (stream, cause)
) STRICT, WITHOUT ROWID;

-- The audit. Lines are added, and nothing else.
CREATE TABLE redrive_audit (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    place TEXT NOT NULL,
    verb TEXT NOT NULL,
    target TEXT NOT NULL,
    count INTEGER NOT NULL,
    note TEXT NOT NULL
) STRICT;
CREATE TRIGGER redrive_audit_stays BEFORE UPDATE ON redrive_audit
BEGIN SELECT RAISE(ABORT, 'the audit is never changed'); END;
CREATE TRIGGER redrive_audit_is_kept BEFORE DELETE ON redrive_audit
BEGIN SELECT RAISE(ABORT, 'nothing of the audit is taken away'); END;
