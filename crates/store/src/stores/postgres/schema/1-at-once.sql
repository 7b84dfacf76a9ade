-- A publish or a settle as one statement, which is its own transaction: one round trip, and nobody who stands still can
-- leave it open. Locks are taken in the order of the statements in it, each of which sees what was committed before it
-- began; so the fence, which comes last, is as good as one before a COMMIT. Plans go by the keys, whatever the tables
-- were like when they were made.

-- Keeps events that are simply new, in the order of their identities. `fresh`: the seqs of those that are; of the others
-- nothing was kept. `number`: that of the transaction. Queues that are not as the caller thinks: nothing is kept at all.
CREATE FUNCTION redrive.publish_at_once(
    wait BIGINT,
    queues TEXT[], ordereds BIGINT[], remembereds BIGINT[], horizons BIGINT[], pulls BIGINT[],
    ids TEXT[], streams BIGINT[], prints BYTEA[], seqs BIGINT[], publisheds BIGINT[], untils BIGINT[], sums BIGINT[],
    keys TEXT[], tags TEXT[], payloads BYTEA[], extras BYTEA[], calms BIGINT[], crcs BIGINT[], shards BIGINT[],
    OUT fresh BIGINT[], OUT number TEXT
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE known BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    SELECT count(*) INTO known
        FROM unnest(queues, ordereds, remembereds, horizons, pulls) AS spec (name, ordered, remembered, horizon, pull)
        JOIN redrive.queue USING (name, ordered, remembered, horizon, pull);
    IF known < cardinality(queues) THEN
        RAISE EXCEPTION USING ERRCODE = 'RD002', MESSAGE = 'a queue was declared anew';
    END IF;
    WITH new AS (
        INSERT INTO redrive.receipt (id, stream, fingerprint, seq, published, until, crc)
        SELECT * FROM unnest(ids, streams, prints, seqs, publisheds, untils, sums)
        ON CONFLICT DO NOTHING RETURNING seq
    ) SELECT array_agg(seq) INTO fresh FROM new;
    IF cardinality(fresh) = cardinality(seqs) THEN
        INSERT INTO redrive.live (seq, id, key, tag, payload, extra, published, calm, crc, stream, shard)
        SELECT * FROM unnest(seqs, ids, keys, tags, payloads, extras, publisheds, calms, crcs, streams, shards);
    ELSE
        INSERT INTO redrive.live (seq, id, key, tag, payload, extra, published, calm, crc, stream, shard)
        SELECT * FROM unnest(seqs, ids, keys, tags, payloads, extras, publisheds, calms, crcs, streams, shards)
            AS event (seq) WHERE event.seq = ANY(fresh);
    END IF;
    number := pg_current_xact_id()::text;
END $$;

-- Takes away events that ran once, with success and without a key. `gone`: which; of the others nothing was changed.
-- `shards` with their epochs and incarnations are the rights in which it is done.
CREATE FUNCTION redrive.done_at_once(
    wait BIGINT, seqs BIGINT[], ats BIGINT[], places BIGINT[],
    shards BIGINT[], epochs BIGINT[], incarnations BIGINT[],
    OUT gone BIGINT[]
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE held BIGINT;
BEGIN
    PERFORM set_config('lock_timeout', wait::text, true);
    WITH done AS (
        DELETE FROM redrive.live USING unnest(seqs, ats, places) AS settle (seq, at, place)
        WHERE live.seq = settle.seq AND live.shard = settle.place AND live.key IS NULL AND live.calm >= settle.at
        RETURNING live.seq
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
