-- A publish or a settle as one statement, which is its own transaction: one round trip, and a suspended process cannot
-- leave it open. Locks are taken in the order of the statements in it, each of which sees what was committed before it
-- began; so the fence, which comes last, is as good as one before a COMMIT.
--
-- Rows are found by `seq = ANY(…)`, and their conditions by their position in the arrays, which are in the order of
-- their seqs (`width_bucket` searches them). A join would be as good on paper; but a table full of rows that vacuum
-- may not remove looks empty to the planner, and it would scan all of them.

-- Stores events that are simply new, in the order of their identities. `all_new`: the caller expects all of them to be
-- new, so none is looked up before; that is a third cheaper. `accepted`: the seqs of the new ones, or NULL if all
-- were; the others are not stored. `number`: that of the transaction. `drawn`: reserved seqs for later. If a queue is
-- not as the caller thinks, nothing is stored at all.
CREATE FUNCTION redrive.publish_fast(
    wait BIGINT, all_new BOOLEAN, draw BIGINT,
    queues TEXT[], ordereds BIGINT[], dedupe_windows BIGINT[], horizons BIGINT[], pulls BIGINT[],
    ids TEXT[], streams BIGINT[], prints BYTEA[], seqs BIGINT[], publisheds BIGINT[], untils BIGINT[], sums BIGINT[],
    keys TEXT[], tags TEXT[], payloads BYTEA[], extras BYTEA[], dedupe_ok_untils BIGINT[], crcs BIGINT[], shards BIGINT[],
    OUT accepted BIGINT[], OUT number TEXT, OUT drawn BIGINT[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE known BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    SELECT count(*) INTO known
        FROM unnest(queues, ordereds, dedupe_windows, horizons, pulls) AS spec (name, ordered, dedupe_window, horizon, pull)
        JOIN redrive.queue USING (name, ordered, dedupe_window, horizon, pull);
    IF known < cardinality(queues) THEN
        RAISE EXCEPTION USING ERRCODE = 'RD002', MESSAGE = 'a queue was declared anew';
    END IF;
    IF all_new THEN
        BEGIN
            INSERT INTO redrive.dedupe (id, stream, fingerprint, seq, published, until, crc)
            SELECT ids[i], streams[i], prints[i], seqs[i], publisheds[i], untils[i], sums[i]
            FROM generate_series(1, cardinality(ids)) AS i;
        EXCEPTION WHEN unique_violation THEN
            all_new := false;
        END;
    END IF;
    IF NOT all_new THEN
        WITH new AS (
            INSERT INTO redrive.dedupe (id, stream, fingerprint, seq, published, until, crc)
            SELECT ids[i], streams[i], prints[i], seqs[i], publisheds[i], untils[i], sums[i]
            FROM generate_series(1, cardinality(ids)) AS i
            ON CONFLICT DO NOTHING RETURNING seq
        ) SELECT coalesce(array_agg(seq), '{}') INTO accepted FROM new;
    END IF;
    INSERT INTO redrive.fresh (seq, id, key, tag, payload, extra, published, dedupe_ok_until, crc, stream, shard)
        SELECT seqs[i], ids[i], keys[i], tags[i], payloads[i], extras[i], publisheds[i], dedupe_ok_untils[i], crcs[i], streams[i],
        shards[i] FROM generate_series(1, cardinality(ids)) AS i WHERE accepted IS NULL OR seqs[i] = ANY(accepted);
    SELECT array_agg(nextval('redrive.place')) INTO drawn FROM generate_series(1, draw);
    number := pg_current_xact_id()::text;
END $$;

-- Deletes events that ran once, with success and without a key, and whose dedupe records last long enough (`last`:
-- when the last of them ended). `gone`: which; the others are unchanged. `shards` with their epochs and incarnations
-- are the fencing tokens.
CREATE FUNCTION redrive.done_fast(
    wait BIGINT, seqs BIGINT[], last BIGINT,
    shards BIGINT[], epochs BIGINT[], incarnations BIGINT[],
    OUT gone BIGINT[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE still_owned BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    WITH done AS (
        DELETE FROM redrive.fresh WHERE seq = ANY(seqs) AND key IS NULL AND shard = ANY(shards) AND dedupe_ok_until >= last
        RETURNING seq
    ) SELECT array_agg(seq) INTO gone FROM done;
    -- The last lock: a process that takes the shard waits for this commit, or was first.
    SELECT count(*) INTO still_owned FROM (
        SELECT 1 FROM redrive.shard JOIN unnest(shards, epochs, incarnations) AS own (id, epoch, incarnation)
        ON shard.id = own.id AND shard.epoch = own.epoch AND shard.incarnation = own.incarnation
        WHERE shard.owner IS NOT NULL ORDER BY shard.id FOR SHARE OF shard
    ) own;
    IF still_owned < cardinality(shards) THEN
        RAISE EXCEPTION USING ERRCODE = 'RD001', MESSAGE = 'the shard has another owner';
    END IF;
END $$;

-- The head of each of these keys, in order: an event that never ran, with its columns, or no event. If the head needs
-- a closer look (it waits for its time, is dead or leased, or a rule may withhold the key), the row says so.
CREATE FUNCTION redrive.heads(streams BIGINT[], keys TEXT[])
RETURNS TABLE (
    seq BIGINT, id TEXT, key TEXT, tag TEXT, payload BYTEA, extra BYTEA, published BIGINT, dedupe_ok_until BIGINT, crc BIGINT,
    shard BIGINT, is_special BOOLEAN
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE ruled BOOLEAN := EXISTS (SELECT 1 FROM redrive.rule);
BEGIN
    RETURN QUERY SELECT next.seq, next.id, next.key, next.tag, next.payload, next.extra, next.published, next.dedupe_ok_until,
        next.crc, next.shard, earlier.seq IS NOT NULL OR (ruled AND next.seq IS NOT NULL)
        FROM unnest(streams, keys) WITH ORDINALITY AS wanted (stream, key, place)
        LEFT JOIN LATERAL (
            SELECT * FROM redrive.fresh WHERE fresh.stream = wanted.stream AND fresh.key = wanted.key
            ORDER BY fresh.seq LIMIT 1
        ) next ON true
        LEFT JOIN LATERAL (
            SELECT tracked.seq FROM redrive.tracked WHERE tracked.stream = wanted.stream AND tracked.key = wanted.key
            AND tracked.state IN (0, 2, 6) /* waiting; dead, holding; leased */ ORDER BY tracked.seq LIMIT 1
        ) earlier ON next.seq IS NULL OR earlier.seq < next.seq
        ORDER BY wanted.place;
END $$;

-- Deletes events with any other end, or with a key, and writes the end (`states`; NULL if it is simply done). Each row
-- comes with the present head of its key. Events that were redriven or leased are left alone: they need more writes.
CREATE FUNCTION redrive.ended_fast(
    wait BIGINT, seqs BIGINT[], revs BIGINT[], ats BIGINT[], places BIGINT[],
    states TEXT[], attempts BIGINT[], histories TEXT[], results BYTEA[], sums BIGINT[],
    shards BIGINT[], epochs BIGINT[], incarnations BIGINT[]
) RETURNS TABLE (
    seq BIGINT, id TEXT, key TEXT, tag TEXT, payload BYTEA, extra BYTEA, published BIGINT, dedupe_ok_until BIGINT, crc BIGINT,
    shard BIGINT, is_special BOOLEAN, gone BIGINT, freed TEXT
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    gones BIGINT[];
    turns BIGINT[];
    streams BIGINT[];
    keys TEXT[];
    still_owned BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    WITH fresh AS (
        DELETE FROM redrive.fresh WHERE fresh.seq = ANY(seqs) AND revs[width_bucket(fresh.seq, seqs)] = 0
        AND fresh.shard = places[width_bucket(fresh.seq, seqs)] AND fresh.dedupe_ok_until >= ats[width_bucket(fresh.seq, seqs)]
        RETURNING fresh.seq, fresh.stream, fresh.key
    ), late AS (
        DELETE FROM redrive.tracked WHERE tracked.seq = ANY(seqs) AND tracked.rev = revs[width_bucket(tracked.seq, seqs)]
        AND tracked.shard = places[width_bucket(tracked.seq, seqs)] AND tracked.dedupe_ok_until >= ats[width_bucket(tracked.seq, seqs)]
        AND tracked.state = 0 /* waiting */ AND tracked.redrive IS NULL AND tracked.lease_attempt IS NULL
        RETURNING tracked.seq, tracked.stream, tracked.key
    ), done AS (SELECT * FROM fresh UNION ALL SELECT * FROM late)
    SELECT array_agg(done.seq ORDER BY done.seq), array_agg(done.stream ORDER BY done.seq),
        array_agg(done.key ORDER BY done.seq), array_agg(width_bucket(done.seq, seqs))
        INTO gones, streams, keys, turns FROM done;
    INSERT INTO redrive.ending (seq, state, ended, attempts, history, result, crc)
        SELECT seqs[turn], states[turn], ats[turn], attempts[turn], histories[turn], results[turn], sums[turn]
        FROM unnest(turns) AS done (turn) WHERE states[turn] IS NOT NULL
        ON CONFLICT (seq) DO UPDATE SET state = EXCLUDED.state, ended = EXCLUDED.ended, attempts = EXCLUDED.attempts,
        history = EXCLUDED.history, result = EXCLUDED.result, token = NULL, crc = EXCLUDED.crc;
    -- Sees that they are gone: a statement of its own. The new head is not blocked.
    UPDATE redrive.fresh SET blocked = false WHERE fresh.blocked AND fresh.seq = ANY(ARRAY(
        SELECT (SELECT first.seq FROM redrive.fresh first WHERE first.stream = free.stream AND first.key = free.key
        ORDER BY first.seq LIMIT 1) FROM unnest(streams, keys) AS free (stream, key) WHERE free.key IS NOT NULL));
    RETURN QUERY SELECT z.seq, z.id, z.key, z.tag, z.payload, z.extra, z.published, z.dedupe_ok_until, z.crc, z.shard, z.is_special,
        z.gone, z.freed
        FROM ROWS FROM (unnest(gones), unnest(keys), redrive.heads(streams, keys)) AS z (gone, freed, seq, id, key, tag,
        payload, extra, published, dedupe_ok_until, crc, shard, is_special);
    -- The last lock, as above.
    SELECT count(*) INTO still_owned FROM (
        SELECT 1 FROM redrive.shard JOIN unnest(shards, epochs, incarnations) AS own (id, epoch, incarnation)
        ON shard.id = own.id AND shard.epoch = own.epoch AND shard.incarnation = own.incarnation
        WHERE shard.owner IS NOT NULL ORDER BY shard.id FOR SHARE OF shard
    ) own;
    IF still_owned < cardinality(shards) THEN
        RAISE EXCEPTION USING ERRCODE = 'RD001', MESSAGE = 'the shard has another owner';
    END IF;
END $$;

-- Schedules retries of events. `changed`: which; events that were redriven or leased are left alone.
CREATE FUNCTION redrive.again_fast(
    wait BIGINT, seqs BIGINT[], revs BIGINT[], places BIGINT[],
    flows BIGINT[], dues BIGINT[], attempts BIGINT[], modes TEXT[], starteds BIGINT[], previouses BIGINT[],
    crash_count BIGINT[], suspects BIGINT[], histories TEXT[], routes TEXT[], disorders BIGINT[], sums BIGINT[],
    shards BIGINT[], epochs BIGINT[], incarnations BIGINT[],
    OUT changed BIGINT[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE own BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    WITH fresh AS (
        DELETE FROM redrive.fresh WHERE fresh.seq = ANY(seqs) AND revs[width_bucket(fresh.seq, seqs)] = 0
        AND fresh.shard = places[width_bucket(fresh.seq, seqs)]
        RETURNING fresh.*, width_bucket(fresh.seq, seqs) AS turn
    ), moved AS (
        INSERT INTO redrive.tracked (seq, id, key, tag, payload, extra, published, dedupe_ok_until, crc, stream, shard, stamp, flow, rev,
            state, due, attempts, mode, started, previous, crash_count, suspect, history, route, out_of_order, redriven,
            progress_crc)
        SELECT seq, id, key, tag, payload, extra, published, dedupe_ok_until, crc, stream, shard, '3'::xid8, flows[turn],
            revs[turn] + 1, 0, dues[turn], attempts[turn], modes[turn], starteds[turn], previouses[turn], crash_count[turn],
            suspects[turn], histories[turn], routes[turn], disorders[turn], 0, sums[turn]
        FROM fresh RETURNING seq
    ), later AS (
        UPDATE redrive.tracked SET flow = flows[width_bucket(tracked.seq, seqs)], rev = tracked.rev + 1,
            due = dues[width_bucket(tracked.seq, seqs)], attempts = again_fast.attempts[width_bucket(tracked.seq, seqs)],
            mode = modes[width_bucket(tracked.seq, seqs)], started = starteds[width_bucket(tracked.seq, seqs)],
            previous = previouses[width_bucket(tracked.seq, seqs)],
            crash_count = again_fast.crash_count[width_bucket(tracked.seq, seqs)],
            suspect = suspects[width_bucket(tracked.seq, seqs)], history = histories[width_bucket(tracked.seq, seqs)],
            route = routes[width_bucket(tracked.seq, seqs)], out_of_order = disorders[width_bucket(tracked.seq, seqs)],
            progress_crc = sums[width_bucket(tracked.seq, seqs)]
        WHERE tracked.seq = ANY(seqs) AND tracked.rev = revs[width_bucket(tracked.seq, seqs)]
        AND tracked.shard = places[width_bucket(tracked.seq, seqs)] AND tracked.state = 0 /* waiting */
        AND tracked.reason IS NULL AND tracked.died IS NULL AND tracked.park_until IS NULL AND tracked.park_count IS NULL
        AND tracked.cause IS NULL AND tracked.death IS NULL AND tracked.redrive IS NULL AND tracked.redriven = 0
        AND tracked.lease_attempt IS NULL AND tracked.lease_until IS NULL
        RETURNING tracked.seq
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
-- skip them. The earlier one is locked, so a transaction that removes it does so after this commit, sees the marks, and
-- takes the mark off the next one. An event that is being removed just now is skipped, and the next one of its key
-- counts as the head: it is never marked here.
CREATE FUNCTION redrive.block_fast(
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
        SELECT seq, key FROM redrive.fresh WHERE stream = of_stream AND shard = of_shard AND NOT blocked
        ORDER BY seq LIMIT most
    ) few WHERE key IS NOT NULL;
    WITH wanted AS MATERIALIZED (SELECT DISTINCT key FROM unnest(keys) AS name (key)), fresh AS MATERIALIZED (
        SELECT wanted.key, head.seq FROM wanted, LATERAL (
            SELECT first.seq FROM redrive.fresh first WHERE first.stream = of_stream AND first.key = wanted.key
            ORDER BY first.seq LIMIT 1 FOR SHARE SKIP LOCKED
        ) head
    ), tracked AS MATERIALIZED (
        SELECT wanted.key, head.seq FROM wanted, LATERAL (
            SELECT first.seq FROM redrive.tracked first WHERE first.stream = of_stream AND first.key = wanted.key
            AND first.state IN (0, 2, 6) /* waiting; dead, holding; leased */ ORDER BY first.seq LIMIT 1 FOR SHARE SKIP LOCKED
        ) head
    ) SELECT array_agg(key), array_agg(seq) INTO names, heads
        FROM (SELECT * FROM fresh UNION ALL SELECT * FROM tracked) locked;
    UPDATE redrive.fresh SET blocked = true WHERE fresh.seq = ANY(seqs) AND NOT fresh.blocked
        AND EXISTS (SELECT 1 FROM unnest(names, heads) AS head (key, seq)
        WHERE head.key = fresh.key AND head.seq < fresh.seq);
    GET DIAGNOSTICS marked = ROW_COUNT;
    -- The last lock, as above.
    PERFORM 1 FROM redrive.shard WHERE id = of_shard AND epoch = of_epoch AND incarnation = of_incarnation
        AND owner IS NOT NULL FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'RD001', MESSAGE = 'the shard has another owner';
    END IF;
END $$;
