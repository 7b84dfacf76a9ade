
-- Publishing from any language, inside its own transaction: `SELECT redrive.publish('orders', 'order-17', …)`. The
-- rows equal those of a publisher in Rust, to the last bit; `store/tests/postgres_publish.rs` compares them.

-- A number as eight bytes, the lowest first. An expression and no more, so that it costs no call.
CREATE FUNCTION redrive.low_first(number BIGINT) RETURNS BYTEA LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(int8send(number), 8, 1) || substr(int8send(number), 7, 1) || substr(int8send(number), 6, 1)
        || substr(int8send(number), 5, 1) || substr(int8send(number), 4, 1) || substr(int8send(number), 3, 1)
        || substr(int8send(number), 2, 1) || substr(int8send(number), 1, 1)
$$;

-- Bytes with their length before them, as checksums take them; NULL has the length -1.
CREATE FUNCTION redrive.summed(part BYTEA) RETURNS BYTEA LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(redrive.low_first(octet_length(part)) || part, '\xffffffffffffffff'::bytea)
$$;

-- The same as hashes have them, the highest byte first.
CREATE FUNCTION redrive.hashed(part BYTEA) RETURNS BYTEA LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT int8send(octet_length(part)) || part
$$;

-- CRC-32, four bytes at a time. Its tables are worked out here, once.
DO $make$
DECLARE
    tables BIGINT[] := array_fill(0::bigint, ARRAY[1024]);
    crc BIGINT;
BEGIN
    FOR n IN 0..255 LOOP
        crc := n;
        FOR bit IN 1..8 LOOP
            crc := (crc >> 1) # (CASE WHEN crc & 1 = 1 THEN 3988292384 ELSE 0 END);
        END LOOP;
        tables[n + 1] := crc;
    END LOOP;
    FOR n IN 257..1024 LOOP
        crc := tables[n - 256];
        tables[n] := (crc >> 8) # tables[(crc & 255) + 1];
    END LOOP;
    EXECUTE format($create$
        CREATE FUNCTION redrive.crc32(bytes BYTEA) RETURNS BIGINT LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
        DECLARE
            t CONSTANT BIGINT[] := %L;
            crc BIGINT := 4294967295;
            whole CONSTANT INT := octet_length(bytes) / 4 - 1;
        BEGIN
            FOR n IN 0..whole LOOP
                crc := crc # (get_byte(bytes, 4 * n) + get_byte(bytes, 4 * n + 1) * 256
                    + get_byte(bytes, 4 * n + 2) * 65536 + get_byte(bytes, 4 * n + 3) * 16777216::bigint);
                crc := t[(crc & 255) + 769] # t[((crc >> 8) & 255) + 513] # t[((crc >> 16) & 255) + 257]
                    # t[(crc >> 24) + 1];
            END LOOP;
            FOR n IN 4 * (whole + 1)..octet_length(bytes) - 1 LOOP
                crc := (crc >> 8) # t[((crc # get_byte(bytes, n)) & 255) + 1];
            END LOOP;
            RETURN crc # 4294967295;
        END $$
    $create$, tables);
END $make$;

-- A duration or a moment in nanoseconds, as far as numbers go.
CREATE FUNCTION redrive.nanos(seconds NUMERIC) RETURNS BIGINT LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(round(seconds * 1000000000), 0), 9223372036854775807)::bigint
$$;

-- Refuses a part of an event that is too long or unprintable; returns its length.
CREATE FUNCTION redrive.check_part(part TEXT, value TEXT, most INT) RETURNS INT LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    bytes CONSTANT INT := coalesce(octet_length(convert_to(value, 'UTF8')), 0);
BEGIN
    IF bytes > most THEN
        RAISE EXCEPTION 'the % has % bytes; the limit is %', part, bytes, most USING ERRCODE = 'check_violation';
    ELSIF value ~ '[\x01-\x1f\x7f]' THEN
        RAISE EXCEPTION 'the % % contains a control character', part, to_json(value) USING ERRCODE = 'check_violation';
    END IF;
    RETURN bytes;
END $$;

-- Headers as pairs, from an object or from a list of pairs.
CREATE FUNCTION redrive.header_pairs(headers JSONB) RETURNS TABLE (name TEXT, value TEXT) LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF jsonb_typeof(headers) = 'object' THEN
        RETURN QUERY SELECT each.key, each.value FROM jsonb_each_text(headers) AS each;
    ELSIF jsonb_typeof(headers) = 'array' THEN
        RETURN QUERY SELECT pair->>0, pair->>1 FROM jsonb_array_elements(headers) WITH ORDINALITY AS p (pair, n) ORDER BY n;
    END IF;
END $$;

-- Wakes the processes that run events: call it after the commit. Without it they find the event a little later.
CREATE FUNCTION redrive.wake() RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_notify('redrive_' || nspname, '') FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = 'redrive.fresh'::regclass
$$;

-- Publishes an event: `accepted`, or `duplicate` if the same was published before. A role that may use the schema may
-- call it, and needs no other right in it. Plans go by the keys, whatever the tables were like when they were made.
CREATE FUNCTION redrive.publish(
    queue TEXT,
    id TEXT,
    payload BYTEA DEFAULT ''::bytea,
    key TEXT DEFAULT NULL,
    tenant TEXT DEFAULT '',
    content_type TEXT DEFAULT NULL,
    headers JSONB DEFAULT NULL,
    type TEXT DEFAULT NULL,
    delay INTERVAL DEFAULT NULL,
    due TIMESTAMPTZ DEFAULT NULL,
    expires_after INTERVAL DEFAULT NULL,
    expires_at TIMESTAMPTZ DEFAULT NULL,
    correlation TEXT DEFAULT NULL,
    causation TEXT DEFAULT NULL,
    notify BOOLEAN DEFAULT false
) RETURNS TEXT LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    of_queue redrive.queue%ROWTYPE;
    known redrive.dedupe%ROWTYPE;
    in_stream BIGINT;
    new_seq BIGINT;
    in_shard BIGINT;
    published_at BIGINT;
    runs_at BIGINT;
    calm_until BIGINT;
    kept_until BIGINT;
    meta_bytes INT;
    pairs TEXT;
    meta TEXT;
    point TEXT;
    ends TEXT;
    extras BYTEA;
    print BYTEA;
    spread BYTEA;
    bytes_of_queue BYTEA;
    bytes_of_tenant BYTEA;
    bytes_of_id BYTEA;
    bytes_of_key BYTEA;
    ordered_key TEXT;
    loose_key TEXT;
    row_sum BIGINT;
    nothing CONSTANT BYTEA := '\xffffffffffffffff';
    none CONSTANT BYTEA := '\x0000000000000000';
BEGIN
    -- Invalid events are refused, in the words of the publisher in Rust.
    IF octet_length(convert_to(publish.queue, 'UTF8')) > 100 THEN
        PERFORM redrive.check_part('queue', publish.queue, 100);
    ELSIF coalesce(publish.queue, '') !~ '^[A-Za-z0-9._-]+$' THEN
        RAISE EXCEPTION '`%` is not a valid queue name; use letters, digits, `.`, `_` and `-`', publish.queue
            USING ERRCODE = 'check_violation';
    ELSIF coalesce(publish.id, '') = '' THEN
        RAISE EXCEPTION 'an event needs an id, minted by the owner of the intent; use the same id for a retry'
            USING ERRCODE = 'check_violation';
    END IF;
    tenant := coalesce(tenant, '');
    payload := coalesce(payload, ''::bytea);
    PERFORM redrive.check_part('id', publish.id, 256), redrive.check_part('tenant', tenant, 128),
        redrive.check_part('key', publish.key, 256);
    IF octet_length(payload) > 1048576 THEN
        RAISE EXCEPTION 'the payload has % bytes; the limit is 1048576', octet_length(payload)
            USING ERRCODE = 'check_violation';
    ELSIF delay IS NOT NULL AND due IS NOT NULL OR expires_after IS NOT NULL AND expires_at IS NOT NULL THEN
        RAISE EXCEPTION 'an event has a delay or is due at a time, and expires after a while or at a time'
            USING ERRCODE = 'check_violation';
    ELSIF extract(epoch FROM delay) < 0 OR extract(epoch FROM expires_after) < 0 THEN
        RAISE EXCEPTION 'a time that has to pass is not negative' USING ERRCODE = 'check_violation';
    ELSIF extract(epoch FROM expires_after) <= extract(epoch FROM delay) THEN
        RAISE EXCEPTION 'it may run % after it is published and expires after %: it would never run', delay, expires_after
            USING ERRCODE = 'check_violation';
    END IF;
    meta_bytes := redrive.check_part('content type', content_type, 16384)
        + redrive.check_part('correlation', correlation, 16384) + redrive.check_part('causation', causation, 16384);
    IF headers IS NOT NULL AND (jsonb_typeof(headers) NOT IN ('object', 'array', 'null')
        OR EXISTS (SELECT 1 FROM redrive.header_pairs(headers) AS h WHERE h.name IS NULL OR h.value IS NULL))
    THEN
        RAISE EXCEPTION 'headers are an object with texts in it, or a list of pairs of texts' USING ERRCODE = 'check_violation';
    ELSIF headers IS NOT NULL OR type IS NOT NULL THEN
        SELECT meta_bytes + coalesce(sum(redrive.check_part('name of a header', h.name, 16384)
                + redrive.check_part('value of a header', h.value, 16384)), 0),
            string_agg('[' || to_json(h.name)::text || ',' || to_json(h.value)::text || ']', ',' ORDER BY h.n)
            INTO meta_bytes, pairs
            FROM (SELECT * FROM redrive.header_pairs(headers) WITH ORDINALITY
                UNION ALL SELECT 'ce-type', type, 2147483647 WHERE type IS NOT NULL) AS h (name, value, n);
    END IF;
    IF meta_bytes > 16384 THEN
        RAISE EXCEPTION 'the headers has % bytes; the limit is 16384', meta_bytes USING ERRCODE = 'check_violation';
    END IF;
    SELECT * INTO of_queue FROM redrive.queue AS q WHERE q.name = publish.queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no queue `%`; %; declare it before publishing', publish.queue,
            (SELECT coalesce('known are: ' || string_agg(q.name, ', ' ORDER BY q.name), 'none is known')
             FROM redrive.queue AS q) USING ERRCODE = 'undefined_object';
    END IF;

    -- When: by the database's clock, and in the form that it was given.
    published_at := redrive.nanos(extract(epoch FROM clock_timestamp()));
    runs_at := CASE WHEN due IS NOT NULL THEN redrive.nanos(extract(epoch FROM due))
        ELSE least(published_at::numeric + coalesce(redrive.nanos(extract(epoch FROM delay)), 0), 9223372036854775807) END;
    calm_until := least(greatest(runs_at, published_at)::numeric + of_queue.horizon, 9223372036854775807);
    kept_until := least(greatest(runs_at, published_at)::numeric + of_queue.horizon + of_queue.dedupe_window, 9223372036854775807);
    point := CASE WHEN delay IS NOT NULL THEN '["after",' || redrive.nanos(extract(epoch FROM delay)) || ']'
        WHEN due IS NOT NULL THEN '["at",' || redrive.nanos(extract(epoch FROM due)) || ']' ELSE 'null' END;
    ends := CASE WHEN expires_after IS NOT NULL THEN '["after",' || redrive.nanos(extract(epoch FROM expires_after)) || ']'
        WHEN expires_at IS NOT NULL THEN '["at",' || redrive.nanos(extract(epoch FROM expires_at)) || ']' ELSE 'null' END;
    meta := CASE WHEN pairs IS NULL AND content_type IS NULL AND correlation IS NULL AND causation IS NULL THEN 'null'
        ELSE format('{"headers":[%s],"content_type":%s,"correlation":%s,"causation":%s,"tuning":null}', coalesce(pairs, ''),
            coalesce(to_json(content_type)::text, 'null'), coalesce(to_json(correlation)::text, 'null'),
            coalesce(to_json(causation)::text, 'null')) END;
    IF meta <> 'null' OR point <> 'null' OR ends <> 'null' THEN
        extras := convert_to('[' || meta || ',' || point || ',' || ends || ']', 'UTF8');
    END IF;

    bytes_of_queue := convert_to(publish.queue, 'UTF8');
    bytes_of_tenant := convert_to(tenant, 'UTF8');
    bytes_of_id := convert_to(publish.id, 'UTF8');
    bytes_of_key := convert_to(publish.key, 'UTF8');

    -- Where: a stream for each tenant of a queue, a shard by the key.
    SELECT s.id INTO in_stream FROM redrive.stream AS s WHERE s.queue = publish.queue AND s.tenant = publish.tenant;
    WHILE in_stream IS NULL LOOP
        INSERT INTO redrive.stream AS s (queue, tenant) VALUES (publish.queue, publish.tenant)
            ON CONFLICT DO NOTHING RETURNING s.id INTO in_stream;
        IF in_stream IS NULL THEN
            SELECT s.id INTO in_stream FROM redrive.stream AS s WHERE s.queue = publish.queue AND s.tenant = publish.tenant;
        END IF;
    END LOOP;
    print := convert_to(coalesce(content_type, ''), 'UTF8');
    print := substr(sha256(redrive.hashed(print) || redrive.hashed(payload)), 1, 16);
    spread := convert_to(coalesce(publish.key, publish.id), 'UTF8');
    spread := sha256(redrive.hashed(bytes_of_tenant) || redrive.hashed(bytes_of_queue) || redrive.hashed(spread));
    in_shard := ('x' || encode(substr(spread, 1, 4), 'hex'))::bit(32)::bigint;
    in_shard := in_shard % (SELECT m.shards FROM redrive.meta AS m WHERE m.singleton = 1);
    IF of_queue.ordered <> 0 THEN
        ordered_key := publish.key;
    ELSE
        loose_key := publish.key;
    END IF;
    new_seq := in_stream << 40 | nextval('redrive.place');

    -- The identity first, without a lookup: the unique index waits for a transaction that is about to commit the same
    -- one.
    LOOP
        INSERT INTO redrive.dedupe AS r (id, stream, fingerprint, seq, published, until, crc)
            VALUES (publish.id, in_stream, print, new_seq, published_at, kept_until, redrive.crc32(
                redrive.low_first(in_stream) || redrive.summed(bytes_of_id) || redrive.summed(print)
                || redrive.low_first(new_seq) || redrive.low_first(published_at) || redrive.low_first(kept_until)
                || nothing || none || none || nothing || nothing || nothing))
            ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
        SELECT * INTO known FROM redrive.dedupe AS r WHERE r.id = publish.id AND r.stream = in_stream;
        CONTINUE WHEN NOT FOUND;
        IF known.until < published_at
            AND NOT EXISTS (SELECT 1 FROM redrive.fresh AS e WHERE e.seq = known.seq AND e.id = known.id)
            AND NOT EXISTS (SELECT 1 FROM redrive.tracked AS e WHERE e.seq = known.seq AND e.id = known.id)
        THEN
            -- It has expired.
            WITH gone AS (DELETE FROM redrive.dedupe AS r WHERE r.id = known.id AND r.stream = in_stream
                AND r.seq = known.seq AND r.until < published_at RETURNING r.seq, r.state)
                DELETE FROM redrive.ending AS e WHERE e.seq IN (SELECT gone.seq FROM gone WHERE gone.state IS NULL);
            CONTINUE;
        END IF;
        IF known.fingerprint <> print THEN
            RAISE EXCEPTION 'the id `%` of queue `%` was published before with another payload; one intent, one id: mint a new one for a new intent',
                publish.id, publish.queue USING ERRCODE = 'unique_violation';
        END IF;
        RETURN 'duplicate';
    END LOOP;

    row_sum := redrive.crc32(redrive.summed(bytes_of_queue) || redrive.summed(bytes_of_tenant)
        || redrive.low_first(new_seq) || redrive.summed(bytes_of_id)
        || CASE WHEN ordered_key IS NULL THEN nothing || redrive.summed(bytes_of_key)
            ELSE redrive.summed(bytes_of_key) || nothing END
        || redrive.summed(payload) || redrive.summed(extras) || redrive.low_first(published_at) || redrive.low_first(calm_until));
    IF runs_at > published_at THEN
        INSERT INTO redrive.tracked (seq, id, key, tag, payload, extra, published, dedupe_ok_until, crc, stream, shard, flow, rev, state,
            due, attempts, mode, previous, crash_count, suspect, out_of_order, redriven, progress_crc)
            VALUES (new_seq, publish.id, ordered_key, loose_key, payload, extras, published_at, calm_until, row_sum, in_stream, in_shard, 0, 0, 0,
            runs_at, 0, 'live', 0, 0, 0, 0, 0, redrive.crc32(redrive.low_first(new_seq) || none || none
                || redrive.low_first(runs_at) || none || redrive.summed('live') || none || none || none || none || nothing
                || nothing || none || none || none || nothing || none || none || none || none || none || none || nothing
                || none || none));
    ELSE
        INSERT INTO redrive.fresh (seq, id, key, tag, payload, extra, published, dedupe_ok_until, crc, stream, shard)
            VALUES (new_seq, publish.id, ordered_key, loose_key, payload, extras, published_at, calm_until, row_sum, in_stream, in_shard);
    END IF;
    IF notify THEN
        PERFORM redrive.wake();
    END IF;
    RETURN 'accepted';
END $$;

-- The same for a payload that is a text.
CREATE FUNCTION redrive.publish(
    queue TEXT, id TEXT, payload TEXT, key TEXT DEFAULT NULL, tenant TEXT DEFAULT '', content_type TEXT DEFAULT NULL,
    headers JSONB DEFAULT NULL, type TEXT DEFAULT NULL, delay INTERVAL DEFAULT NULL, due TIMESTAMPTZ DEFAULT NULL,
    expires_after INTERVAL DEFAULT NULL, expires_at TIMESTAMPTZ DEFAULT NULL, correlation TEXT DEFAULT NULL,
    causation TEXT DEFAULT NULL, notify BOOLEAN DEFAULT false
) RETURNS TEXT LANGUAGE sql AS $$
    SELECT redrive.publish($1, $2, convert_to($3, 'UTF8'), $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
$$;

-- The same for JSON: as it is written, or as the database writes what it has taken apart. Its content type is the one that
-- HTTP gives it, so that the same event by both ways is a duplicate.
CREATE FUNCTION redrive.publish(
    queue TEXT, id TEXT, payload JSON, key TEXT DEFAULT NULL, tenant TEXT DEFAULT '', content_type TEXT DEFAULT NULL,
    headers JSONB DEFAULT NULL, type TEXT DEFAULT NULL, delay INTERVAL DEFAULT NULL, due TIMESTAMPTZ DEFAULT NULL,
    expires_after INTERVAL DEFAULT NULL, expires_at TIMESTAMPTZ DEFAULT NULL, correlation TEXT DEFAULT NULL,
    causation TEXT DEFAULT NULL, notify BOOLEAN DEFAULT false
) RETURNS TEXT LANGUAGE sql AS $$
    SELECT redrive.publish($1, $2, convert_to($3::text, 'UTF8'), $4, $5, coalesce($6, 'application/json'), $7, $8, $9, $10, $11, $12, $13, $14, $15)
$$;
CREATE FUNCTION redrive.publish(
    queue TEXT, id TEXT, payload JSONB, key TEXT DEFAULT NULL, tenant TEXT DEFAULT '', content_type TEXT DEFAULT NULL,
    headers JSONB DEFAULT NULL, type TEXT DEFAULT NULL, delay INTERVAL DEFAULT NULL, due TIMESTAMPTZ DEFAULT NULL,
    expires_after INTERVAL DEFAULT NULL, expires_at TIMESTAMPTZ DEFAULT NULL, correlation TEXT DEFAULT NULL,
    causation TEXT DEFAULT NULL, notify BOOLEAN DEFAULT false
) RETURNS TEXT LANGUAGE sql AS $$
    SELECT redrive.publish($1, $2, convert_to($3::text, 'UTF8'), $4, $5, coalesce($6, 'application/json'), $7, $8, $9, $10, $11, $12, $13, $14, $15)
$$;
