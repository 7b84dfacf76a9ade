-- What there is to run, for whoever looks around and whoever takes a shard. The planner is told how: it takes any stamp that
-- is asked for to be a common one, and any stream to have events, and where ten million wait it went through all of them
-- at each look, or compiled the statement before.

-- What arrived since a snapshot: the streams with events whose stamp was in progress in it or began after it, and is none
-- of the caller's `own`. `snapshot`: the one to ask with next; `orders`: how many were given; `company`: whether others
-- than `me` are alive. One statement, so that all of it is as of one commit.
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
            SELECT stream, stamp FROM redrive.live WHERE stamp >= began
            UNION ALL SELECT stream, stamp FROM redrive.live WHERE stamp = ANY(open)
            UNION ALL SELECT stream, stamp FROM redrive.held WHERE stamp >= began
            UNION ALL SELECT stream, stamp FROM redrive.held WHERE stamp = ANY(open)
        ) event WHERE stamp <> ALL(mine))
    INTO snapshot, orders, company, streams FROM redrive.meta;
END $$;

-- The streams with events that a load of this shard may find, now or when their time has come. Those that are told of
-- when they come back are left out: dead letters, and whoever is behind another one of its key.
CREATE FUNCTION redrive.streams_in_use(of_shard BIGINT) RETURNS SETOF BIGINT
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    SET max_parallel_workers_per_gather = 0 SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT stream.id FROM redrive.stream WHERE
        EXISTS (SELECT 1 FROM redrive.live WHERE live.stream = stream.id AND shard = of_shard AND NOT blocked)
        OR EXISTS (SELECT 1 FROM redrive.held WHERE held.stream = stream.id AND shard = of_shard AND state = 0)
        OR EXISTS (SELECT 1 FROM redrive.held WHERE held.stream = stream.id AND state = 6)
        OR EXISTS (SELECT 1 FROM redrive.held WHERE held.stream = stream.id AND shard = of_shard AND state = 2
            AND park_until IS NOT NULL)
        OR EXISTS (SELECT 1 FROM redrive.held WHERE held.stream = stream.id AND shard = of_shard AND state = 2
            AND park_count IS NOT NULL)
        ORDER BY stream.id;
END $$;
