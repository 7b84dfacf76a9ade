-- Names are written as in the default schema, `redrive`; another name takes its place when the step is done.

-- One row. `schema`: how many steps were done. `least`: how many of them a program must know. `orders` counts the
-- commands that may have taken events from an owner.
CREATE TABLE redrive.meta (
    singleton BIGINT PRIMARY KEY CHECK (singleton = 1),
    schema BIGINT NOT NULL,
    least BIGINT NOT NULL,
    shards BIGINT NOT NULL,
    orders BIGINT NOT NULL
) WITH (fillfactor = 50);

-- The place of an event within its stream is drawn here; the stream is in the upper bits of its seq. Not cached, so
-- that a later publisher has a larger one.
CREATE SEQUENCE redrive.place MAXVALUE 1099511627775 CACHE 1;
-- Deaths are numbered, so that a job knows which were there before it.
CREATE SEQUENCE redrive.death CACHE 1;
-- The number of a line in the audit is known before the line is written.
CREATE SEQUENCE redrive.line CACHE 1;
CREATE SEQUENCE redrive.job_number CACHE 1;

-- A try of a commit that may have to be told apart from another one. Written with the commit, obsolete once that was
-- answered.
CREATE TABLE redrive.commit_id (
    number UUID PRIMARY KEY,
    at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- A process that may own shards. Its lease is by the database's clock, and renewed here alone. Processes that run
-- handlers share out the shards among themselves.
CREATE TABLE redrive.node (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT NOT NULL,
    since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    runs BOOLEAN NOT NULL DEFAULT false,
    until TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

-- A shard: changed when its owner does, locked by the fence. `owner` is set while a process owns it, and stays so if
-- the process dies. It is 0 if the shard was handed back and the next owner has to treat running attempts as suspect.
CREATE TABLE redrive.shard (
    id BIGINT PRIMARY KEY,
    incarnation BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    owner BIGINT
) WITH (fillfactor = 50);

-- The running attempts of a shard, as its owner noted them last under the crash guard.
CREATE TABLE redrive.note (
    shard BIGINT PRIMARY KEY,
    epoch BIGINT NOT NULL,
    seqs BIGINT[] NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE redrive.queue (
    name TEXT COLLATE "C" PRIMARY KEY,
    ordered BIGINT NOT NULL,
    dedupe_window BIGINT NOT NULL,
    horizon BIGINT NOT NULL,
    pull BIGINT NOT NULL,
    keep_time BIGINT,
    keep_count BIGINT
);

CREATE TABLE redrive.stream (
    id BIGINT GENERATED ALWAYS AS IDENTITY (MAXVALUE 8388607) PRIMARY KEY,
    queue TEXT COLLATE "C" NOT NULL,
    tenant TEXT COLLATE "C" NOT NULL,
    UNIQUE (queue, tenant)
);

-- May run and never ran: nothing in it ever changes but `blocked`, and its rev is 0. Inserted by publishers, deleted
-- by owners. `blocked`: an earlier event of its key lives; set by owners if many wait for one, so that loads skip
-- them. The head of a key never has it. `key` is set if the queue keeps the order of keys; otherwise a key is in
-- `tag`. `dedupe_ok_until`: if settled by then, the dedupe record lasts long enough as it is. `stamp`: the transaction
-- that wrote it; arrivals are found by it.
CREATE TABLE redrive.fresh (
    seq BIGINT PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C",
    tag TEXT COLLATE "C",
    payload BYTEA NOT NULL,
    extra BYTEA,
    published BIGINT NOT NULL,
    dedupe_ok_until BIGINT NOT NULL,
    crc BIGINT NOT NULL,
    stream BIGINT NOT NULL,
    shard BIGINT NOT NULL,
    stamp xid8 NOT NULL DEFAULT pg_current_xact_id(),
    blocked BOOLEAN NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX fresh_load ON redrive.fresh (stream, shard, seq) WHERE NOT blocked;
CREATE INDEX fresh_key ON redrive.fresh (stream, key, seq) WHERE key IS NOT NULL;
CREATE INDEX fresh_stamp ON redrive.fresh (stamp);

-- All other events. `state`: 0 waits for its time, or for an earlier event of its key; 2 is dead and blocks the later
-- events of its key; 3 is dead and does not; 5 was discarded and can be restored; 6 is leased. Whether an event is the
-- head of its key is never written down: two publishers commit in any order. `flow`: 0 has never run, 1 has. The rest
-- is as in the SQLite store. A process that is not the owner renews `stamp`.
CREATE TABLE redrive.tracked (
    seq BIGINT PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C",
    tag TEXT COLLATE "C",
    payload BYTEA NOT NULL,
    extra BYTEA,
    published BIGINT NOT NULL,
    dedupe_ok_until BIGINT NOT NULL,
    crc BIGINT NOT NULL,
    stream BIGINT NOT NULL,
    shard BIGINT NOT NULL,
    stamp xid8 NOT NULL DEFAULT pg_current_xact_id(),
    flow BIGINT NOT NULL,
    rev BIGINT NOT NULL,
    state BIGINT NOT NULL,
    due BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    mode TEXT NOT NULL,
    started BIGINT,
    previous BIGINT NOT NULL,
    crash_count BIGINT NOT NULL,
    suspect BIGINT NOT NULL,
    history TEXT,
    reason TEXT,
    died BIGINT,
    park_until BIGINT,
    park_count BIGINT,
    route TEXT,
    out_of_order BIGINT NOT NULL,
    cause BIGINT,
    death BIGINT,
    redrive BIGINT,
    redriven BIGINT NOT NULL,
    lease_attempt BIGINT,
    lease_token BYTEA,
    lease_until BIGINT,
    lease_from BIGINT,
    progress_crc BIGINT NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX tracked_due ON redrive.tracked (stream, shard, flow, due, seq) WHERE state = 0 /* waiting */;
CREATE INDEX tracked_key ON redrive.tracked (stream, key, seq) WHERE key IS NOT NULL AND state IN (0, 2, 6) /* waiting; dead, holding; leased */;
CREATE INDEX tracked_dead ON redrive.tracked (seq) WHERE state IN (2, 3) /* dead, holding; dead, passed */;
CREATE INDEX tracked_cause ON redrive.tracked (cause, seq) WHERE state IN (2, 3) /* dead, holding; dead, passed */;
CREATE INDEX tracked_died ON redrive.tracked (stream, died, death) WHERE state = 3 /* dead, passed */;
CREATE INDEX tracked_gone ON redrive.tracked (seq) WHERE state = 5 /* discarded */;
CREATE INDEX tracked_lease ON redrive.tracked (stream, lease_until) WHERE state = 6 /* leased */;
CREATE INDEX tracked_park_until ON redrive.tracked (stream, shard, park_until) WHERE state = 2 /* dead, holding */ AND park_until IS NOT NULL;
CREATE INDEX tracked_park_count ON redrive.tracked (stream, shard, seq) WHERE state = 2 /* dead, holding */ AND park_count IS NOT NULL;
CREATE INDEX tracked_suspect ON redrive.tracked (shard, seq) WHERE suspect = 1;
CREATE INDEX tracked_stamp ON redrive.tracked (stamp);

-- An identity: unique over all that are remembered, for all publishers. Without a state, its event lives, is done, or
-- has a row in `ending`. `became`: the id of its replacement, if it was edited.
CREATE TABLE redrive.dedupe (
    id TEXT COLLATE "C" NOT NULL,
    stream BIGINT NOT NULL,
    fingerprint BYTEA NOT NULL,
    seq BIGINT NOT NULL,
    published BIGINT NOT NULL,
    until BIGINT NOT NULL,
    state TEXT,
    ended BIGINT,
    attempts BIGINT,
    history TEXT,
    result BYTEA,
    became TEXT,
    crc BIGINT NOT NULL,
    PRIMARY KEY (id, stream)
) WITH (fillfactor = 90);

-- How an event ended, if it was not simply done at its first attempt.
CREATE TABLE redrive.ending (
    seq BIGINT PRIMARY KEY,
    state TEXT NOT NULL,
    ended BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    history TEXT,
    result BYTEA,
    token BYTEA,
    crc BIGINT NOT NULL
);

CREATE TABLE redrive.inbox (
    handler TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    until BIGINT NOT NULL,
    PRIMARY KEY (handler, id)
);

-- Bytes that programs built on the store keep in it, by name.
CREATE TABLE redrive.kept (
    name TEXT COLLATE "C" PRIMARY KEY,
    bytes BYTEA NOT NULL
);

-- A request under its idempotency key. The phase defines `one` and `two`; `ends` is when time changes it.
CREATE TABLE redrive.request (
    tenant TEXT COLLATE "C" NOT NULL,
    operation TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    print BYTEA NOT NULL,
    first BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    phase TEXT NOT NULL,
    retention BIGINT NOT NULL,
    phase_at BIGINT,
    phase_until BIGINT,
    status BIGINT,
    headers TEXT,
    body_crc BIGINT,
    place TEXT,
    resource TEXT COLLATE "C",
    ends BIGINT,
    crc BIGINT NOT NULL,
    body BYTEA,
    PRIMARY KEY (tenant, operation, key)
) WITH (fillfactor = 80);
CREATE INDEX request_ends ON redrive.request (ends) WHERE ends IS NOT NULL;
CREATE INDEX request_unknown ON redrive.request (tenant, operation, key) WHERE phase = 'unknown';
CREATE INDEX request_resource ON redrive.request (resource) WHERE resource IS NOT NULL;

-- An active rule, as JSON.
CREATE TABLE redrive.rule (
    rule TEXT COLLATE "C" PRIMARY KEY,
    since BIGINT NOT NULL,
    until BIGINT,
    who TEXT NOT NULL,
    why TEXT NOT NULL
);

-- A change to many dead letters that goes on in the background. `plan` is JSON.
CREATE TABLE redrive.job (
    id BIGINT PRIMARY KEY,
    plan TEXT NOT NULL,
    state TEXT NOT NULL,
    why TEXT NOT NULL,
    who TEXT NOT NULL,
    started BIGINT NOT NULL,
    running_since BIGINT NOT NULL,
    taken_before BIGINT NOT NULL,
    ended BIGINT,
    planned BIGINT NOT NULL,
    deaths BIGINT NOT NULL,
    cursor BIGINT,
    exhausted BIGINT NOT NULL,
    taken BIGINT NOT NULL,
    skipped BIGINT NOT NULL,
    done BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    other BIGINT NOT NULL,
    crc BIGINT NOT NULL
) WITH (fillfactor = 50);

-- Dead letters of one cause in one stream, counted. `redrive` is what redrove some of them last.
CREATE TABLE redrive.tally (
    stream BIGINT NOT NULL,
    cause BIGINT NOT NULL,
    title TEXT NOT NULL,
    letters BIGINT NOT NULL,
    holding BIGINT NOT NULL,
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    redrive BIGINT,
    redriven_at BIGINT NOT NULL,
    redriven_letters BIGINT NOT NULL,
    redriven_failed BIGINT NOT NULL,
    PRIMARY KEY (stream, cause)
) WITH (fillfactor = 70);

-- The audit. Lines are added, and nothing else.
CREATE TABLE redrive.audit (
    number BIGINT PRIMARY KEY,
    at BIGINT NOT NULL,
    who TEXT NOT NULL,
    place TEXT NOT NULL,
    verb TEXT NOT NULL,
    target TEXT NOT NULL,
    count BIGINT NOT NULL,
    note TEXT NOT NULL
);
CREATE FUNCTION redrive.audit_stays() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$ BEGIN RAISE EXCEPTION 'the audit is never changed, and nothing of it is taken away'; END $$;
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON redrive.audit
    FOR EACH STATEMENT EXECUTE FUNCTION redrive.audit_stays();

-- For a restored backup: gives it a new incarnation. Owners of the old one change nothing any more, and a process that
-- takes a shard finds that it was not handed back. Call it before anything starts.
CREATE FUNCTION redrive.begin_new_life() RETURNS BIGINT LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$ DECLARE life BIGINT := ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
BEGIN
    UPDATE redrive.shard SET incarnation = life, owner = 0;
    DELETE FROM redrive.node;
    DELETE FROM redrive.commit_id;
    RETURN life;
END $$;
