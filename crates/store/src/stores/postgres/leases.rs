//! Leases: attempts of workers outside the engine, identified by attempt and token.
//!
//! A call may reach any process, so it locks the shard rows: two calls never hand out the same event, and no owner
//! settles meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};

use redrive_core::Moment;
use redrive_core::queue_entry::{EventChange, QueueEntry, StreamId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::database::Database;
use super::events::fresh::{Damage, Stream, fresh_columns, read_fresh};
use super::events::tracked::{LastLease, RowState, TrackedEvent, read_tracked, tracked_columns};
use super::faults::{Step, broken};
use super::keys::{holds_too_many, is_head, seq_at};
use super::tx::{OwnTx, maybe, one, rows};
use crate::lease::{DecideExpiry, LeasePeriod, LeaseRequest, LeasedEvents, TokenHash};
use crate::store::QueueSpec;
use crate::stores::shared::numbers::{column, from_moment, span, to_moment};
use crate::stores::shared::tracked::states;

mod settle;

/// How many expired leases one call handles, so that it stays short.
const LAPSED_MAX: usize = 1000;
/// How many dead letters that may block too many events a call checks.
const RELIEVED_MAX: i64 = 1000;
/// How many rows are fetched to find a readable one.
const FETCHED: i64 = 8;

/// SQL condition: no worker holds a later event of its key. An event that was redriven out of order, or whose
/// publisher took longer to commit, waits for the end of that lease.
macro_rules! not_met {
    () => {
        concat!("(event.key IS NULL OR NOT EXISTS (SELECT 1 FROM redrive.tracked other WHERE other.key = event.key \
         AND other.state = ", states!(Leased), " AND other.stream = event.stream))")
    };
}

/// Selects `$1` of each shard in the order `$2` of its index, and then of all. A query over all shards at once would
/// read every waiting event.
macro_rules! of_each_shard {
    ($what:expr, $order:literal) => {
        concat!(
            " FROM (SELECT id AS number FROM redrive.shard) part, LATERAL (SELECT * FROM redrive.tracked event \
             WHERE shard = part.number AND ",
            $what,
            " ORDER BY ",
            $order,
            " LIMIT $2) event ORDER BY ",
            $order,
            " LIMIT $2"
        )
    };
}

/// The parameters of a call, without its decision function.
struct Wish {
    queue: String,
    tenant: Option<String>,
    at: Moment,
    until: Moment,
    tokens: Vec<TokenHash>,
    bytes_max: usize,
}

impl Database {
    /// Up to where the dead letters of streams were checked.
    fn relieved<T>(&self, look: impl FnOnce(&mut HashMap<StreamId, i64>) -> T) -> T {
        look(&mut self.cache.relieved.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OwnTx {
    /// Leases due events to a worker.
    pub(super) async fn lease(&mut self, call: &mut LeaseRequest) -> Step<LeasedEvents> {
        let wish = Wish {
            queue: call.queue.clone(),
            tenant: call.tenant.clone(),
            at: call.at,
            until: call.until,
            tokens: call.tokens.clone(),
            bytes_max: call.bytes_max,
        };
        self.grant_wish(&wish, &mut call.lapsed).await
    }

    async fn grant_wish(&mut self, call: &Wish, lapsed: &mut DecideExpiry) -> Step<LeasedEvents> {
        // Leases of a queue that is no longer pulled from still lapse: no other call handles them.
        let may = |queue: &QueueSpec| queue.pull || call.tokens.is_empty();
        if !self.spec(&call.queue).await?.is_some_and(|queue| may(&queue)) {
            let what = format!("workers cannot pull from the queue `{}`; declare it with `pull`", call.queue);
            return Err(broken(what).into());
        }
        self.lock_shards().await?;
        self.advance_clock(call.at);
        let streams = self.streams_for(call).await?;
        let lapsed = self.lapse(&streams, call.at, lapsed).await?;
        if lapsed > 0 {
            self.tell_owners(&call.queue).await?;
        }
        self.let_overdue_go(&streams, call.at).await?;
        let entries = self.lease_due(&streams, call).await?;
        Ok(LeasedEvents { entries, lapsed, next_due: self.next_for(&streams, call.at).await? })
    }

    /// The streams of a call: all of its queue, beginning after the one that was served last; or the one of its
    /// tenant.
    async fn streams_for(&mut self, call: &Wish) -> Step<Vec<Arc<Stream>>> {
        if let Some(tenant) = &call.tenant {
            return Ok(self.find_stream(&call.queue, tenant).await?.into_iter().collect());
        }
        let mut streams = self.streams(Some(&call.queue), None).await?;
        let served = self.db.cache.served.lock().unwrap_or_else(PoisonError::into_inner);
        let next = served.get(&call.queue).map_or(0, |last| streams.partition_point(|one| one.id <= *last));
        drop(served);
        streams.rotate_left(next);
        Ok(streams)
    }

    /// Lets expired leases lapse: each is an attempt of unknown outcome.
    async fn lapse(&mut self, streams: &[Arc<Stream>], at: Moment, decide: &mut DecideExpiry) -> Step<usize> {
        let mut lapsed = 0;
        for stream in streams {
            let over = rows!(
                self,
                concat!(
                    "SELECT ",
                    tracked_columns!(),
                    " FROM redrive.tracked WHERE state = ",
                    states!(Leased),
                    " AND stream = $1 AND lease_until <= $2 \
                     ORDER BY lease_until LIMIT $3"
                ),
                i64::from(stream.id.0),
                from_moment(at),
                i64::try_from(LAPSED_MAX - lapsed).unwrap_or_default()
            )?;
            let over: Vec<TrackedEvent> =
                over.iter().filter_map(|row| read_tracked(row, stream).ok()).collect();
            lapsed += over.len();
            for tracked in over {
                let entry = tracked.clone().entry();
                let term = tracked
                    .lease
                    .map_or(LeasePeriod { from: at, until: at }, |LastLease { from, until, .. }| {
                        LeasePeriod { from, until }
                    });
                let change = decide(&entry, term);
                if let EventChange::Dead { reason, progress, park } = change {
                    let (rev, reason, died) = (tracked.rev + 1, Some(reason), Some(at));
                    let tracked = TrackedEvent { rev, reason, died, progress, ..tracked };
                    self.bury_lapsed(tracked, false, park, stream).await?;
                } else {
                    self.apply((tracked, false), &change, at, stream).await?;
                }
            }
        }
        Ok(lapsed)
    }

    /// Ends the block of dead letters whose time is over, or that block too many events: no owner loads a queue that is
    /// pulled from.
    async fn let_overdue_go(&mut self, streams: &[Arc<Stream>], at: Moment) -> Step<()> {
        for stream in streams {
            let over = rows!(
                self,
                concat!(
                    "SELECT ",
                    tracked_columns!(),
                    of_each_shard!(
                        concat!("state = ", states!(DeadHolding), " AND stream = $1 AND park_until <= $3"),
                        "park_until"
                    )
                ),
                i64::from(stream.id.0),
                i64::try_from(LAPSED_MAX).unwrap_or_default(),
                from_moment(at)
            )?;
            for dead in over.iter().filter_map(|row| read_tracked(row, stream).ok()) {
                self.let_go(stream, dead).await?;
            }
            self.relieve_some(stream).await?;
        }
        Ok(())
    }

    /// Unblocks events behind dead letters that block too many. A call checks some of the candidates, and the next
    /// call continues.
    async fn relieve_some(&mut self, stream: &Arc<Stream>) -> Step<()> {
        let after = self.db.relieved(|places| places.remove(&stream.id)).unwrap_or(i64::MIN);
        let found = rows!(
            self,
            concat!(
                "SELECT seq, key, ",
                holds_too_many!(),
                of_each_shard!(
                    concat!(
                        "state = ",
                        states!(DeadHolding),
                        " AND stream = $1 AND park_count IS NOT NULL AND seq > $3"
                    ),
                    "seq"
                )
            ),
            i64::from(stream.id.0),
            RELIEVED_MAX,
            after
        )?;
        let is_all = column(found.len() as u64) < RELIEVED_MAX;
        let last = found.last().filter(|_| !is_all).map(|row| row.try_get(0)).transpose()?;
        if let Some(last) = last {
            self.db.relieved(|places| places.insert(stream.id, last));
        }
        for row in found {
            if row.try_get(2)? {
                self.relieve(stream, row.try_get(1)?, seq_at(&row, 0)).await?;
            }
        }
        Ok(())
    }

    /// Leases due events, from each stream in turn.
    async fn lease_due(&mut self, streams: &[Arc<Stream>], call: &Wish) -> Step<Vec<QueueEntry>> {
        let mut turns: VecDeque<&Arc<Stream>> = streams.iter().collect();
        let (mut entries, mut bytes, mut tokens) = (Vec::new(), 0, call.tokens.iter());
        while bytes <= call.bytes_max
            && tokens.len() > 0
            && let Some(stream) = turns.pop_front()
        {
            let Some((tracked, was_fresh)) = self.next_due_of(stream, call.at).await? else { continue };
            turns.push_back(stream);
            let expires = tracked.row.event.expires.map(|expiry| expiry.moment(tracked.row.published));
            if expires.is_some_and(|expires| expires <= call.at) {
                let (attempts, history) = (tracked.progress.attempts, tracked.progress.history.clone());
                self.apply(
                    (tracked, was_fresh),
                    &EventChange::Expired { attempts, history },
                    call.at,
                    stream,
                )
                .await?;
            } else if let Some(token) = tokens.next() {
                let entry = self.hand(tracked, was_fresh, *token, call).await?;
                bytes += entry.event.payload.len();
                entries.push(entry);
                // A call for one tenant takes no other tenant's turn.
                if call.tenant.is_none() {
                    let mut served = self.db.cache.served.lock().unwrap_or_else(PoisonError::into_inner);
                    served.insert(call.queue.clone(), stream.id);
                }
            }
        }
        Ok(entries)
    }

    async fn hand(
        &mut self,
        mut tracked: TrackedEvent,
        was_fresh: bool,
        token: TokenHash,
        call: &Wish,
    ) -> Step<QueueEntry> {
        tracked.progress.started.get_or_insert(call.at);
        tracked.lease = Some(LastLease {
            attempt: tracked.progress.attempts + 1,
            token,
            from: call.at,
            until: call.until,
        });
        tracked.state = RowState::Leased;
        tracked.rev += 1;
        self.keep(&tracked, was_fresh).await?;
        Ok(tracked.entry())
    }

    /// The next event of a stream to lease, as far as rules allow: longest due first, whether it ran before or not.
    /// Otherwise no event would be retried while new work arrives faster than it is done.
    async fn next_due_of(&mut self, stream: &Arc<Stream>, at: Moment) -> Step<Option<(TrackedEvent, bool)>> {
        let rules = self.rules().await?;
        let withheld = self.withheld(stream).await?;
        let is_closed = |has_run| rules.controls.is_closed(&stream.queue, &stream.tenant, has_run, at);
        let mut due = Vec::new();
        let (first, last) = span(stream.id);
        if !is_closed(false) {
            let found = rows!(
                self,
                concat!(
                    "SELECT ",
                    fresh_columns!(),
                    " FROM redrive.fresh event WHERE seq BETWEEN $3 AND $4 AND (key IS NULL OR key <> ALL($1)) AND ",
                    not_met!(),
                    " AND ",
                    is_head!("event"),
                    " ORDER BY seq LIMIT $2"
                ),
                &withheld,
                FETCHED,
                first,
                last
            )?;
            let fresh = first_good(&found, |row| read_fresh(row, stream));
            due.extend(fresh.map(|row| (TrackedEvent::fresh(row, RowState::Waiting), true)));
        }
        for has_run in [false, true] {
            if !is_closed(has_run) {
                let found = rows!(
                    self,
                    concat!(
                        "SELECT ",
                        tracked_columns!(),
                        of_each_shard!(
                            concat!(
                                "state = ",
                                states!(Waiting),
                                " AND stream = $1 AND flow = $3 AND due <= $4 \
                                 AND (key IS NULL OR key <> ALL($5)) AND ",
                                not_met!(),
                                " AND ",
                                is_head!("event")
                            ),
                            "due, seq"
                        )
                    ),
                    i64::from(stream.id.0),
                    FETCHED,
                    i64::from(has_run),
                    from_moment(at),
                    &withheld
                )?;
                due.extend(
                    first_good(&found, |row| read_tracked(row, stream)).map(|tracked| (tracked, false)),
                );
            }
        }
        Ok(due.into_iter().min_by_key(|(tracked, _)| (tracked.progress.due, tracked.row.seq)))
    }

    /// When there may be more: an event is due, a lease runs out, a key is unblocked.
    async fn next_for(&mut self, streams: &[Arc<Stream>], at: Moment) -> Step<Option<Moment>> {
        let rules = self.rules().await?;
        let mut next: Option<i64> = None;
        for stream in streams {
            let id = i64::from(stream.id.0);
            let withheld = self.withheld(stream).await?;
            let closed = |has_run| rules.controls.is_closed(&stream.queue, &stream.tenant, has_run, at);
            let mut found: Vec<Option<i64>> = Vec::new();
            if !closed(false) {
                let fresh = maybe!(
                    self,
                    concat!(
                        "SELECT published FROM redrive.fresh event WHERE seq BETWEEN $2 AND $3 \
                         AND (key IS NULL OR key <> ALL($1)) AND ",
                        not_met!(),
                        " AND ",
                        is_head!("event"),
                        " ORDER BY seq LIMIT 1"
                    ),
                    &withheld,
                    span(stream.id).0,
                    span(stream.id).1
                )?;
                found.push(fresh.map(|row| row.try_get(0)).transpose()?);
            }
            for has_run in [false, true] {
                if !closed(has_run) {
                    let due = maybe!(
                        self,
                        concat!(
                            "SELECT due",
                            of_each_shard!(
                                concat!(
                                    "state = ",
                                    states!(Waiting),
                                    " AND stream = $1 AND flow = $3 AND (key IS NULL OR key <> ALL($4)) AND ",
                                    not_met!(),
                                    " AND ",
                                    is_head!("event")
                                ),
                                "due, seq"
                            )
                        ),
                        id,
                        1_i64,
                        i64::from(has_run),
                        &withheld
                    )?;
                    found.push(due.map(|row| row.try_get(0)).transpose()?);
                }
            }
            found.push(one!(
                self,
                concat!(
                    "SELECT min(lease_until) FROM redrive.tracked WHERE state = ",
                    states!(Leased),
                    " AND stream = $1"
                ),
                id
            )?);
            let freed = maybe!(
                self,
                concat!(
                    "SELECT park_until",
                    of_each_shard!(
                        concat!("state = ", states!(DeadHolding), " AND stream = $1 AND park_until > 0"),
                        "park_until"
                    )
                ),
                id,
                1_i64
            )?;
            found.push(freed.map(|row| row.try_get(0)).transpose()?);
            next = next.into_iter().chain(found.into_iter().flatten()).min();
        }
        Ok(next.map(to_moment))
    }
}

/// The first readable row.
fn first_good<T>(found: &[PgRow], read: impl Fn(&PgRow) -> Result<T, Damage>) -> Option<T> {
    found.iter().find_map(|row| read(row).ok())
}
