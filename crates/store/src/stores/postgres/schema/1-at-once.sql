-- A publish or a settle as one statement, which is its own transaction: one round trip, and nobody who stands still can
-- leave it open. Locks are taken in the order of the statements in it, each of which sees what was committed before it
-- began; so the fence, which comes last, is as good as one before a COMMIT.
--
-- Rows are found by `seq = ANY(…)`, and what is to be so of each by its place in the arrays, which are in the order of
-- their seqs (`width_bucket` is a search in them). A join would be as good on paper; but a table that is full of rows
-- which vacuum may not clear away looks empty to the planner, and it would go through all of them.

-- Keeps events that are simply new, in the order of their identities. `all_new`: that is what is thought of all of them,
-- and nobody is looked for before; it is a third cheaper. `fresh`: the seqs of those that were new, or nothing where all
-- were; of the others nothing was kept. `number`: that of the transaction. `drawn`: so many places for later. Queues that
-- are not as the caller thinks: nothing is kept at all.
CREATE FUNCTION redrive.publish_at_once(
    wait BIGINT, all_new BOOLEAN, draw BIGINT,
    queues TEXT[], ordereds BIGINT[], remembereds BIGINT[], horizons BIGINT[], pulls BIGINT[],
    ids TEXT[], streams BIGINT[], prints BYTEA[], seqs BIGINT[], publisheds BIGINT[], untils BIGINT[], sums BIGINT[],
    keys TEXT[], tags TEXT[], payloads BYTEA[], extras BYTEA[], calms BIGINT[], crcs BIGINT[], shards BIGINT[],
    OUT fresh BIGINT[], OUT number TEXT, OUT drawn BIGINT[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE known BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    SELECT count(*) INTO known
        FROM unnest(queues, ordereds, remembereds, horizons, pulls) AS spec (name, ordered, remembered, horizon, pull)
        JOIN redrive.queue USING (name, ordered, remembered, horizon, pull);
    IF known < cardinality(queues) THEN
        RAISE EXCEPTION USING ERRCODE = 'RD002', MESSAGE = 'a queue was declared anew';
    END IF;
    IF all_new THEN
        BEGIN
            INSERT INTO redrive.receipt (id, stream, fingerprint, seq, published, until, crc)
            SELECT ids[i], streams[i], prints[i], seqs[i], publisheds[i], untils[i], sums[i]
            FROM generate_series(1, cardinality(ids)) AS i;
        EXCEPTION WHEN unique_violation THEN
            all_new := false;
        END;
    END IF;
    IF NOT all_new THEN
        WITH new AS (
            INSERT INTO redrive.receipt (id, stream, fingerprint, seq, published, until, crc)
            SELECT ids[i], streams[i], prints[i], seqs[i], publisheds[i], untils[i], sums[i]
            FROM generate_series(1, cardinality(ids)) AS i
            ON CONFLICT DO NOTHING RETURNING seq
        ) SELECT coalesce(array_agg(seq), '{}') INTO fresh FROM new;
    END IF;
    INSERT INTO redrive.live (seq, id, key, tag, payload, extra, published, calm, crc, stream, shard)
        SELECT seqs[i], ids[i], keys[i], tags[i], payloads[i], extras[i], publisheds[i], calms[i], crcs[i], streams[i],
        shards[i] FROM generate_series(1, cardinality(ids)) AS i WHERE fresh IS NULL OR seqs[i] = ANY(fresh);
    SELECT array_agg(nextval('redrive.place')) INTO drawn FROM generate_series(1, draw);
    number := pg_current_xact_id()::text;
END $$;

-- Takes away events that ran once, with success and without a key, and need not be remembered longer than is written
-- in them (`last`: when the last of them ended). `gone`: which; of the others nothing was changed. `shards` with their
-- epochs and incarnations are the rights in which it is done.
CREATE FUNCTION redrive.done_at_once(
    wait BIGINT, seqs BIGINT[], last BIGINT,
    shards BIGINT[], epochs BIGINT[], incarnations BIGINT[],
    OUT gone BIGINT[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE held BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    WITH done AS (
        DELETE FROM redrive.live WHERE seq = ANY(seqs) AND key IS NULL AND shard = ANY(shards) AND calm >= last
        RETURNING seq
    ) SELECT array_agg(seq) INTO gone FROM done;
    -- The last lock: whoever takes the shard waits for this commit, or was first.
    SELECT count(*) INTO held FROM (
        SELECT 1 FROM redrive.shard JOIN unnest(shards, epochs, incarnations) AS own (id, epoch, incarnation)
        ON shard.id = own.id AND shard.epoch = own.epoch AND shard.incarnation = own.incarnation
        WHERE shard.owner IS NOT NULL ORDER BY shard.id FOR SHARE OF shard
    ) own;
    IF held < cardinality(shards) THEN
        RAISE EXCEPTION USING ERRCODE = 'RD001', MESSAGE = 'the shard has another owner';
    END IF;
END $$;

-- Who is at the head of each of these keys, in their order: an event that never ran, with its columns, or nobody. Is it
-- not as simple as that (it waits for its time, is dead or leased, or a rule may withhold the key), then that is said.
CREATE FUNCTION redrive.heads(streams BIGINT[], keys TEXT[])
RETURNS TABLE (
    seq BIGINT, id TEXT, key TEXT, tag TEXT, payload BYTEA, extra BYTEA, published BIGINT, calm BIGINT, crc BIGINT,
    shard BIGINT, is_special BOOLEAN
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE ruled BOOLEAN := EXISTS (SELECT 1 FROM redrive.rule);
BEGIN
    RETURN QUERY SELECT next.seq, next.id, next.key, next.tag, next.payload, next.extra, next.published, next.calm,
        next.crc, next.shard, earlier.seq IS NOT NULL OR (ruled AND next.seq IS NOT NULL)
        FROM unnest(streams, keys) WITH ORDINALITY AS wanted (stream, key, place)
        LEFT JOIN LATERAL (
            SELECT * FROM redrive.live WHERE live.stream = wanted.stream AND live.key = wanted.key
            ORDER BY live.seq LIMIT 1
        ) next ON true
        LEFT JOIN LATERAL (
            SELECT held.seq FROM redrive.held WHERE held.stream = wanted.stream AND held.key = wanted.key
            AND held.state IN (0, 2, 6) ORDER BY held.seq LIMIT 1
        ) earlier ON next.seq IS NULL OR earlier.seq < next.seq
        ORDER BY wanted.place;
END $$;

-- Takes away events that ended otherwise, or with a key, and writes how (`states`, where absence does not say it all).
-- With each comes who is at the head of its key now. Events that an operator put back, or that somebody outside has had,
-- are left alone: there is more to write of them.
CREATE FUNCTION redrive.ended_at_once(
    wait BIGINT, seqs BIGINT[], revs BIGINT[], ats BIGINT[], places BIGINT[],
    states TEXT[], attempts BIGINT[], stories TEXT[], results BYTEA[], sums BIGINT[],
    shards BIGINT[], epochs BIGINT[], incarnations BIGINT[]
) RETURNS TABLE (
    seq BIGINT, id TEXT, key TEXT, tag TEXT, payload BYTEA, extra BYTEA, published BIGINT, calm BIGINT, crc BIGINT,
    shard BIGINT, is_special BOOLEAN, gone BIGINT, freed TEXT
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    gones BIGINT[];
    turns BIGINT[];
    streams BIGINT[];
    keys TEXT[];
    held BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    WITH fresh AS (
        DELETE FROM redrive.live WHERE live.seq = ANY(seqs) AND revs[width_bucket(live.seq, seqs)] = 0
        AND live.shard = places[width_bucket(live.seq, seqs)] AND live.calm >= ats[width_bucket(live.seq, seqs)]
        RETURNING live.seq, live.stream, live.key
    ), late AS (
        DELETE FROM redrive.held WHERE held.seq = ANY(seqs) AND held.rev = revs[width_bucket(held.seq, seqs)]
        AND held.shard = places[width_bucket(held.seq, seqs)] AND held.calm >= ats[width_bucket(held.seq, seqs)]
        AND held.state = 0 AND held.redrive IS NULL AND held.lease_attempt IS NULL
        RETURNING held.seq, held.stream, held.key
    ), done AS (SELECT * FROM fresh UNION ALL SELECT * FROM late)
    SELECT array_agg(done.seq ORDER BY done.seq), array_agg(done.stream ORDER BY done.seq),
        array_agg(done.key ORDER BY done.seq), array_agg(width_bucket(done.seq, seqs))
        INTO gones, streams, keys, turns FROM done;
    INSERT INTO redrive.ending (seq, state, ended, attempts, story, result, crc)
        SELECT seqs[turn], states[turn], ats[turn], attempts[turn], stories[turn], results[turn], sums[turn]
        FROM unnest(turns) AS done (turn) WHERE states[turn] IS NOT NULL
        ON CONFLICT (seq) DO UPDATE SET state = EXCLUDED.state, ended = EXCLUDED.ended, attempts = EXCLUDED.attempts,
        story = EXCLUDED.story, result = EXCLUDED.result, token = NULL, crc = EXCLUDED.crc;
    -- Sees that they are gone: a statement of its own. Who is at the head now is not blocked.
    UPDATE redrive.live SET blocked = false WHERE live.blocked AND live.seq = ANY(ARRAY(
        SELECT (SELECT first.seq FROM redrive.live first WHERE first.stream = free.stream AND first.key = free.key
        ORDER BY first.seq LIMIT 1) FROM unnest(streams, keys) AS free (stream, key) WHERE free.key IS NOT NULL));
    RETURN QUERY SELECT z.seq, z.id, z.key, z.tag, z.payload, z.extra, z.published, z.calm, z.crc, z.shard, z.is_special,
        z.gone, z.freed
        FROM ROWS FROM (unnest(gones), unnest(keys), redrive.heads(streams, keys)) AS z (gone, freed, seq, id, key, tag,
        payload, extra, published, calm, crc, shard, is_special);
    -- The last lock, as above.
    SELECT count(*) INTO held FROM (
        SELECT 1 FROM redrive.shard JOIN unnest(shards, epochs, incarnations) AS own (id, epoch, incarnation)
        ON shard.id = own.id AND shard.epoch = own.epoch AND shard.incarnation = own.incarnation
        WHERE shard.owner IS NOT NULL ORDER BY shard.id FOR SHARE OF shard
    ) own;
    IF held < cardinality(shards) THEN
        RAISE EXCEPTION USING ERRCODE = 'RD001', MESSAGE = 'the shard has another owner';
    END IF;
END $$;

-- Has events run again later. `changed`: which; what an operator put back, or somebody outside has had, is left alone.
CREATE FUNCTION redrive.again_at_once(
    wait BIGINT, seqs BIGINT[], revs BIGINT[], places BIGINT[],
    flows BIGINT[], dues BIGINT[], attempts BIGINT[], modes TEXT[], starteds BIGINT[], previouses BIGINT[],
    strikes BIGINT[], suspects BIGINT[], stories TEXT[], routes TEXT[], disorders BIGINT[], sums BIGINT[],
    shards BIGINT[], epochs BIGINT[], incarnations BIGINT[],
    OUT changed BIGINT[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE own BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    WITH fresh AS (
        DELETE FROM redrive.live WHERE live.seq = ANY(seqs) AND revs[width_bucket(live.seq, seqs)] = 0
        AND live.shard = places[width_bucket(live.seq, seqs)]
        RETURNING live.*, width_bucket(live.seq, seqs) AS turn
    ), moved AS (
        INSERT INTO redrive.held (seq, id, key, tag, payload, extra, published, calm, crc, stream, shard, stamp, flow, rev,
            state, due, attempts, mode, started, previous, strikes, suspect, story, route, out_of_order, redriven,
            progress_crc)
        SELECT seq, id, key, tag, payload, extra, published, calm, crc, stream, shard, '3'::xid8, flows[turn],
            revs[turn] + 1, 0, dues[turn], attempts[turn], modes[turn], starteds[turn], previouses[turn], strikes[turn],
            suspects[turn], stories[turn], routes[turn], disorders[turn], 0, sums[turn]
        FROM fresh RETURNING seq
    ), later AS (
        UPDATE redrive.held SET flow = flows[width_bucket(held.seq, seqs)], rev = held.rev + 1,
            due = dues[width_bucket(held.seq, seqs)], attempts = again_at_once.attempts[width_bucket(held.seq, seqs)],
            mode = modes[width_bucket(held.seq, seqs)], started = starteds[width_bucket(held.seq, seqs)],
            previous = previouses[width_bucket(held.seq, seqs)],
            strikes = again_at_once.strikes[width_bucket(held.seq, seqs)],
            suspect = suspects[width_bucket(held.seq, seqs)], story = stories[width_bucket(held.seq, seqs)],
            route = routes[width_bucket(held.seq, seqs)], out_of_order = disorders[width_bucket(held.seq, seqs)],
            progress_crc = sums[width_bucket(held.seq, seqs)]
        WHERE held.seq = ANY(seqs) AND held.rev = revs[width_bucket(held.seq, seqs)]
        AND held.shard = places[width_bucket(held.seq, seqs)] AND held.state = 0
        AND held.reason IS NULL AND held.died IS NULL AND held.park_until IS NULL AND held.park_count IS NULL
        AND held.cause IS NULL AND held.death IS NULL AND held.redrive IS NULL AND held.redriven = 0
        AND held.lease_attempt IS NULL AND held.lease_until IS NULL
        RETURNING held.seq
    ) SELECT array_agg(seq) INTO changed FROM (SELECT seq FROM moved UNION ALL SELECT seq FROM later) done;
    -- The last lock, as above.
    SELECT count(*) INTO own FROM (
        SELECT 1 FROM redrive.shard JOIN unnest(shards, epochs, incarnations) AS own (id, epoch, incarnation)
        ON shard.id = own.id AND shard.epoch = own.epoch AND shard.incarnation = own.incarnation
        WHERE shard.owner IS NOT NULL ORDER BY shard.id FOR SHARE OF shard
    ) own;
    IF own < cardinality(shards) THEN
        RAISE EXCEPTION USING ERRCODE = 'RD001', MESSAGE = 'the shard has another owner';
    END IF;
END $$;

-- Marks events of a shard that wait for an earlier one of their key, among the first so many that are not marked: loads
-- pass them by. The earlier one is locked, so whoever takes it away does so after this commit, sees the marks, and takes
-- off that of whoever is next. One that is being taken away just now is passed over, and the next one of its key is held
-- for the head: that one is never marked here.
CREATE FUNCTION redrive.block_at_once(
    wait BIGINT, of_stream BIGINT, of_shard BIGINT, of_epoch BIGINT, of_incarnation BIGINT, most BIGINT,
    OUT marked BIGINT
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    seqs BIGINT[];
    keys TEXT[];
    heads BIGINT[];
    names TEXT[];
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    SELECT array_agg(seq), array_agg(key) INTO seqs, keys FROM (
        SELECT seq, key FROM redrive.live WHERE stream = of_stream AND shard = of_shard AND NOT blocked
        ORDER BY seq LIMIT most
    ) few WHERE key IS NOT NULL;
    WITH wanted AS MATERIALIZED (SELECT DISTINCT key FROM unnest(keys) AS name (key)), live AS MATERIALIZED (
        SELECT wanted.key, head.seq FROM wanted, LATERAL (
            SELECT first.seq FROM redrive.live first WHERE first.stream = of_stream AND first.key = wanted.key
            ORDER BY first.seq LIMIT 1 FOR SHARE SKIP LOCKED
        ) head
    ), held AS MATERIALIZED (
        SELECT wanted.key, head.seq FROM wanted, LATERAL (
            SELECT first.seq FROM redrive.held first WHERE first.stream = of_stream AND first.key = wanted.key
            AND first.state IN (0, 2, 6) ORDER BY first.seq LIMIT 1 FOR SHARE SKIP LOCKED
        ) head
    ) SELECT array_agg(key), array_agg(seq) INTO names, heads
        FROM (SELECT * FROM live UNION ALL SELECT * FROM held) locked;
    UPDATE redrive.live SET blocked = true WHERE live.seq = ANY(seqs) AND NOT live.blocked
        AND EXISTS (SELECT 1 FROM unnest(names, heads) AS head (key, seq)
        WHERE head.key = live.key AND head.seq < live.seq);
    GET DIAGNOSTICS marked = ROW_COUNT;
    -- The last lock, as above.
    PERFORM 1 FROM redrive.shard WHERE id = of_shard AND epoch = of_epoch AND incarnation = of_incarnation
        AND owner IS NOT NULL FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'RD001', MESSAGE = 'the shard has another owner';
    END IF;
END $$;
