-- One row. `clean` is 0 while somebody owns the file, and stays so if that one dies. `deaths` counts all deaths,
-- `orders` the orders that may have taken something out of the owner's hands.
CREATE TABLE redrive_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
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
    window INTEGER NOT NULL,
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

-- All other events. `state`: 0 waits for its time, 1 for the one of its key before it, 2 is dead and holds up
-- those of its key that follow, 3 is dead and does not, 4 is the head of a key that a rule withholds, 5 was taken
-- away and can be restored, 6 is leased. `flow`: 0 has never run, 1 has. `cause` is what it died of, also after it
-- was put back; `death` the number of its death; `redrive` what put it back: the line of an order in the audit, or
-- a job's number below zero. A lease stays on the row when it is over, until there is another.
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
CREATE INDEX redrive_held_due ON redrive_held (stream, flow, due) WHERE state = 0;
CREATE INDEX redrive_held_key ON redrive_held (key, state) WHERE key IS NOT NULL;
CREATE INDEX redrive_held_dead ON redrive_held (seq) WHERE state IN (2, 3);
CREATE INDEX redrive_held_cause ON redrive_held (cause, seq) WHERE state IN (2, 3);
CREATE INDEX redrive_held_died ON redrive_held (stream, died, death) WHERE state = 3;
CREATE INDEX redrive_held_gone ON redrive_held (seq) WHERE state = 5;
CREATE INDEX redrive_held_lease ON redrive_held (stream, lease_until) WHERE state = 6;
CREATE INDEX redrive_held_park ON redrive_held (stream, park_until) WHERE state = 2 AND park_until IS NOT NULL;
CREATE INDEX redrive_held_suspect ON redrive_held (suspect) WHERE suspect = 1;

-- An identity. Without a state, its event lives, is done, or has a row in `redrive_end`. `became`: the id under which
-- it goes on, if an edit gave its place to another. The identity is first in the key: to compare a text is cheaper
-- than to compare a number that is nearly always the same and then a text.
CREATE TABLE redrive_receipt (
    id TEXT NOT NULL,
    stream INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    seq INTEGER NOT NULL,
    published INTEGER NOT NULL,
    until INTEGER NOT NULL,
    state TEXT,
    ended INTEGER,
    attempts INTEGER,
    story TEXT,
    result BLOB,
    became TEXT,
    crc INTEGER NOT NULL,
    PRIMARY KEY (id, stream)
) STRICT, WITHOUT ROWID;

-- How an event ended, where its absence does not say it all. Not on the receipt, which would grow in the middle of its
-- tree. `token`: the hash of the token of the lease that did it, where it was leased.
CREATE TABLE redrive_end (
    seq INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    ended INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    story TEXT,
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

-- What a program that is built on the store keeps in it, by its names.
CREATE TABLE redrive_kept (
    name TEXT PRIMARY KEY,
    bytes BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- A request under its idempotency key. What `one` and `two` are is the phase's; `ends` is when time changes it. The body
-- has a sum of its own, and is last: what comes after a large value is reached through all of it.
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
    one INTEGER,
    two INTEGER,
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

-- A rule that holds, as JSON.
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

-- Dead letters of one cause in one stream, counted. `redrive` is what put some of them back last.
CREATE TABLE redrive_group (
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

-- Who did what. Lines are added, and nothing else.
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
