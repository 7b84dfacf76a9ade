-- The runnable events, for a process that looks for arrivals or takes a shard. The functions dictate the plan: the
-- planner assumes that any stamp is common and that any stream has events, and with ten million waiting events it
-- scanned all of them at each look, or compiled the statement first.

-- The arrivals since a snapshot: the streams with events whose stamp was in progress in it or began after it, and is
-- not among the caller's `own`. `snapshot`: the one for the next call; `orders`: how many commands there were;
-- `company`: whether other processes than `me` are alive. One statement, so that all of it is as of one commit.
--
CREATE FUNCTION redrive.arrivals(
    since TEXT, own TEXT[], me BIGINT,
    OUT snapshot TEXT, OUT orders BIGINT, OUT company BOOLEAN, OUT streams BIGINT[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET max_parallel_workers_per_gather = 0 SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    began xid8 := pg_snapshot_xmax(since::pg_snapshot);
    open xid8[] := ARRAY(SELECT pg_snapshot_xip(since::pg_snapshot));
    mine xid8[] := own::xid8[];
BEGIN
    SELECT pg_current_snapshot()::text, meta.orders,
        EXISTS (SELECT 1 FROM redrive.node WHERE id <> me AND until > clock_timestamp()),
        ARRAY(SELECT DISTINCT stream FROM (
            SELECT stream, stamp FROM redrive.fresh WHERE stamp >= began
            UNION ALL SELECT stream, stamp FROM redrive.fresh WHERE stamp = ANY(open)
            UNION ALL SELECT stream, stamp FROM redrive.tracked WHERE stamp >= began
            UNION ALL SELECT stream, stamp FROM redrive.tracked WHERE stamp = ANY(open)
        ) event WHERE stamp <> ALL(mine))
    INTO snapshot, orders, company, streams FROM redrive.meta;
END $$;

-- The streams with events that a load of this shard may find, now or when they are due. Events that are announced when
-- they become runnable are left out: dead letters, and events behind another one of their key.
CREATE FUNCTION redrive.streams_in_use(of_shard BIGINT) RETURNS SETOF BIGINT
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET max_parallel_workers_per_gather = 0 SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT stream.id FROM redrive.stream WHERE
        EXISTS (SELECT 1 FROM redrive.fresh WHERE fresh.stream = stream.id AND shard = of_shard AND NOT blocked)
        OR EXISTS (SELECT 1 FROM redrive.tracked WHERE tracked.stream = stream.id AND shard = of_shard AND state = 0 /* waiting */)
        OR EXISTS (SELECT 1 FROM redrive.tracked WHERE tracked.stream = stream.id AND state = 6 /* leased */)
        OR EXISTS (SELECT 1 FROM redrive.tracked WHERE tracked.stream = stream.id AND shard = of_shard AND state = 2 /* dead, holding */
            AND park_until IS NOT NULL)
        OR EXISTS (SELECT 1 FROM redrive.tracked WHERE tracked.stream = stream.id AND shard = of_shard AND state = 2 /* dead, holding */
            AND park_count IS NOT NULL)
        ORDER BY stream.id;
END $$;
