//! Leases: attempts that are made by somebody outside the engine, told apart by their attempt and token.
//!
//! A call may come to any process, so it holds the shard rows: two calls never hand out the same event, and no owner
//! settles meanwhile.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, PoisonError};

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, StreamId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::desk::{Desk, maybe, one, rows};
use super::faults::{Fault, Step, broken};
use super::held::{Held, Mark, Stand, held_columns, read_held};
use super::keys::{holds_too_many, is_head, seq_at};
use super::office::Office;
use super::rows::{Damage, Stream, live_columns, read_live};
use crate::lease::{self, Lapse, Lapsed, Lease, LeaseSettle, LeaseSettled, Leased, Term, TokenHash};
use crate::store::QueueSpec;
use crate::stores::shared::acts::disagreement;
use crate::stores::shared::numbers::{column, from_moment, span, to_moment};

/// How many leases that are over are dealt with in one call, so that it stays short.
const LAPSED_MAX: usize = 1000;
/// How many dead letters that may hold up too many are looked at in a call.
const RELIEVED_MAX: i64 = 1000;
/// How many rows are fetched to find one that can be read.
const FETCHED: i64 = 8;

/// That nobody has a later one of its key: one that was put back out of order, or that was published by somebody who
/// took longer to commit, waits for the end of that lease.
macro_rules! not_met {
    () => {
        "(event.key IS NULL OR NOT EXISTS (SELECT 1 FROM redrive.held other WHERE other.key = event.key \
         AND other.state = 6 AND other.stream = event.stream))"
    };
}

/// What is `$1` of each shard, in the order `$2` of an index over them, and then of all. Asked for in all of them at once,
/// every event that waits would be looked at.
macro_rules! of_each_shard {
    ($what:expr, $order:literal) => {
        concat!(
            " FROM (SELECT id AS number FROM redrive.shard) part, LATERAL (SELECT * FROM redrive.held event \
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

/// What a call wants, beside what it decides.
struct Wish {
    queue: String,
    tenant: Option<String>,
    at: Moment,
    until: Moment,
    tokens: Vec<TokenHash>,
    bytes_max: usize,
}

impl Office {
    /// Up to where the dead letters of streams were looked at.
    fn relieved<T>(&self, look: impl FnOnce(&mut HashMap<StreamId, i64>) -> T) -> T {
        look(&mut self.relieved.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Desk {
    /// Hands out what is due to somebody outside.
    pub(super) async fn lease(&mut self, call: &mut Lease) -> Step<Leased> {
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

    async fn grant_wish(&mut self, call: &Wish, lapsed: &mut Lapse) -> Step<Leased> {
        // Leases of a queue that is not pulled from any more lapse all the same: nobody else would look after them.
        let may = |queue: &QueueSpec| queue.pull || call.tokens.is_empty();
        if !self.spec(&call.queue).await?.is_some_and(|queue| may(&queue)) {
            let what =
                format!("the queue `{}` is not one that is pulled from; declare it with `pull`", call.queue);
            return Err(broken(what).into());
        }
        self.lock_shards().await?;
        self.see(call.at);
        let streams = self.streams_for(call).await?;
        let lapsed = self.lapse(&streams, call.at, lapsed).await?;
        if lapsed > 0 {
            self.tell_owners(&call.queue).await?;
        }
        self.let_overdue_go(&streams, call.at).await?;
        let entries = self.lease_due(&streams, call).await?;
        Ok(Leased { entries, lapsed, next_due: self.next_for(&streams, call.at).await? })
    }

    /// The streams that a call is for: all of its queue, the one after the one that was served last first; or the one
    /// of its tenant.
    async fn streams_for(&mut self, call: &Wish) -> Step<Vec<Arc<Stream>>> {
        if let Some(tenant) = &call.tenant {
            return Ok(self.find_stream(&call.queue, tenant).await?.into_iter().collect());
        }
        let mut streams = self.streams(Some(&call.queue), None).await?;
        let served = self.office.served.lock().unwrap_or_else(PoisonError::into_inner);
        let next = served.get(&call.queue).map_or(0, |last| streams.partition_point(|one| one.id <= *last));
        drop(served);
        streams.rotate_left(next);
        Ok(streams)
    }

    /// Deals with leases that are over: each is an attempt of unknown outcome.
    async fn lapse(&mut self, streams: &[Arc<Stream>], at: Moment, decide: &mut Lapse) -> Step<usize> {
        let mut lapsed = 0;
        for stream in streams {
            let over = rows!(
                self,
                concat!(
                    "SELECT ",
                    held_columns!(),
                    " FROM redrive.held WHERE state = 6 AND stream = $1 AND lease_until <= $2 \
                     ORDER BY lease_until LIMIT $3"
                ),
                i64::from(stream.id.0),
                from_moment(at),
                i64::try_from(LAPSED_MAX - lapsed).unwrap_or_default()
            )?;
            let over: Vec<Held> = over.iter().filter_map(|row| read_held(row, stream).ok()).collect();
            lapsed += over.len();
            for held in over {
                let entry = held.clone().entry();
                let term = held
                    .lease
                    .map_or(Term { from: at, until: at }, |Mark { from, until, .. }| Term { from, until });
                let change = decide(&entry, term);
                if let Change::Dead { reason, progress, park } = change {
                    let (rev, reason, died) = (held.rev + 1, Some(reason), Some(at));
                    let held = Held { rev, reason, died, progress, ..held };
                    self.bury_lapsed(held, false, park, stream).await?;
                } else {
                    self.apply((held, false), &change, at, stream).await?;
                }
            }
        }
        Ok(lapsed)
    }

    /// Ends the hold of dead letters whose time is over, or that hold up too many: of a queue that is pulled from,
    /// nobody else may look.
    async fn let_overdue_go(&mut self, streams: &[Arc<Stream>], at: Moment) -> Step<()> {
        for stream in streams {
            let over = rows!(
                self,
                concat!(
                    "SELECT ",
                    held_columns!(),
                    of_each_shard!("state = 2 AND stream = $1 AND park_until <= $3", "park_until")
                ),
                i64::from(stream.id.0),
                i64::try_from(LAPSED_MAX).unwrap_or_default(),
                from_moment(at)
            )?;
            for dead in over.iter().filter_map(|row| read_held(row, stream).ok()) {
                self.let_go(stream, dead).await?;
            }
            self.relieve_some(stream).await?;
        }
        Ok(())
    }

    /// Lets those go on that wait behind a dead letter which holds up too many. A call looks at some of those that may, and
    /// the next call at the next.
    async fn relieve_some(&mut self, stream: &Arc<Stream>) -> Step<()> {
        let after = self.office.relieved(|places| places.remove(&stream.id)).unwrap_or(i64::MIN);
        let found = rows!(
            self,
            concat!(
                "SELECT seq, key, ",
                holds_too_many!(),
                of_each_shard!("state = 2 AND stream = $1 AND park_count IS NOT NULL AND seq > $3", "seq")
            ),
            i64::from(stream.id.0),
            RELIEVED_MAX,
            after
        )?;
        let is_all = column(found.len() as u64) < RELIEVED_MAX;
        let last = found.last().filter(|_| !is_all).map(|row| row.try_get(0)).transpose()?;
        if let Some(last) = last {
            self.office.relieved(|places| places.insert(stream.id, last));
        }
        for row in found {
            if row.try_get(2)? {
                self.relieve(stream, row.try_get(1)?, seq_at(&row, 0)).await?;
            }
        }
        Ok(())
    }

    /// Leases what is due, a turn for each stream.
    async fn lease_due(&mut self, streams: &[Arc<Stream>], call: &Wish) -> Step<Vec<Entry>> {
        let mut turns: VecDeque<&Arc<Stream>> = streams.iter().collect();
        let (mut entries, mut bytes, mut tokens) = (Vec::new(), 0, call.tokens.iter());
        while bytes <= call.bytes_max
            && tokens.len() > 0
            && let Some(stream) = turns.pop_front()
        {
            let Some((held, was_live)) = self.next_due_of(stream, call.at).await? else { continue };
            turns.push_back(stream);
            let expires = held.row.event.expires.map(|expiry| expiry.moment(held.row.published));
            if expires.is_some_and(|expires| expires <= call.at) {
                let (attempts, story) = (held.progress.attempts, held.progress.story.clone());
                self.apply((held, was_live), &Change::Expired { attempts, story }, call.at, stream).await?;
            } else if let Some(token) = tokens.next() {
                let entry = self.hand(held, was_live, *token, call).await?;
                bytes += entry.event.payload.len();
                entries.push(entry);
                // Whoever asks for one tenant takes nobody else's turn.
                if call.tenant.is_none() {
                    let mut served = self.office.served.lock().unwrap_or_else(PoisonError::into_inner);
                    served.insert(call.queue.clone(), stream.id);
                }
            }
        }
        Ok(entries)
    }

    async fn hand(&mut self, mut held: Held, was_live: bool, token: TokenHash, call: &Wish) -> Step<Entry> {
        held.progress.started.get_or_insert(call.at);
        held.lease =
            Some(Mark { attempt: held.progress.attempts + 1, token, from: call.at, until: call.until });
        held.stand = Stand::Leased;
        held.rev += 1;
        self.keep(&held, was_live).await?;
        Ok(held.entry())
    }

    /// What is to be leased next of a stream, as far as rules let it: what has been due for longest, whether it ran
    /// before or not. Otherwise nothing would be tried again while new work comes faster than it is done.
    async fn next_due_of(&mut self, stream: &Arc<Stream>, at: Moment) -> Step<Option<(Held, bool)>> {
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
                    live_columns!(),
                    " FROM redrive.live event WHERE seq BETWEEN $3 AND $4 AND (key IS NULL OR key <> ALL($1)) AND ",
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
            let live = first_good(&found, |row| read_live(row, stream));
            due.extend(live.map(|row| (Held::fresh(row, Stand::Waits), true)));
        }
        for has_run in [false, true] {
            if !is_closed(has_run) {
                let found = rows!(
                    self,
                    concat!(
                        "SELECT ",
                        held_columns!(),
                        of_each_shard!(
                            concat!(
                                "state = 0 AND stream = $1 AND flow = $3 AND due <= $4 \
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
                due.extend(first_good(&found, |row| read_held(row, stream)).map(|held| (held, false)));
            }
        }
        Ok(due.into_iter().min_by_key(|(held, _)| (held.progress.due, held.row.seq)))
    }

    /// When there may be something next: an event is due, a lease is over, a key goes on.
    async fn next_for(&mut self, streams: &[Arc<Stream>], at: Moment) -> Step<Option<Moment>> {
        let rules = self.rules().await?;
        let mut next: Option<i64> = None;
        for stream in streams {
            let id = i64::from(stream.id.0);
            let withheld = self.withheld(stream).await?;
            let closed = |has_run| rules.controls.is_closed(&stream.queue, &stream.tenant, has_run, at);
            let mut found: Vec<Option<i64>> = Vec::new();
            if !closed(false) {
                let live = maybe!(
                    self,
                    concat!(
                        "SELECT published FROM redrive.live event WHERE seq BETWEEN $2 AND $3 \
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
                found.push(live.map(|row| row.try_get(0)).transpose()?);
            }
            for has_run in [false, true] {
                if !closed(has_run) {
                    let due = maybe!(
                        self,
                        concat!(
                            "SELECT due",
                            of_each_shard!(
                                concat!(
                                    "state = 0 AND stream = $1 AND flow = $3 AND (key IS NULL OR key <> ALL($4)) AND ",
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
                "SELECT min(lease_until) FROM redrive.held WHERE state = 6 AND stream = $1",
                id
            )?);
            let freed = maybe!(
                self,
                concat!(
                    "SELECT park_until",
                    of_each_shard!("state = 2 AND stream = $1 AND park_until > 0", "park_until")
                ),
                id,
                1_i64
            )?;
            found.push(freed.map(|row| row.try_get(0)).transpose()?);
            next = next.into_iter().chain(found.into_iter().flatten()).min();
        }
        Ok(next.map(to_moment))
    }

    /// Makes leases good for longer.
    pub(super) async fn extend(
        &mut self,
        leases: &[lease::Held],
        at: Moment,
        until: Moment,
    ) -> Step<Vec<LeaseSettled>> {
        self.lock_shards().await?;
        self.see(at);
        let mut said = Vec::with_capacity(leases.len());
        for lease in leases {
            let held = match self.leased(lease).await? {
                Some((held, _)) if held.stand == Stand::Leased => held,
                there => {
                    said.push(match (self.disagree(lease).await?, there) {
                        (LeaseSettled::Conflict(found), Some(_)) => LeaseSettled::Lapsed(found),
                        (other, _) => other,
                    });
                    continue;
                }
            };
            let mark = held.lease.map(|mark| Mark { until, ..mark });
            self.update_held(&Held { lease: mark, ..held }).await?;
            said.push(LeaseSettled::Applied);
        }
        Ok(said)
    }

    /// Writes what became of leased events.
    pub(super) async fn settle_leased(&mut self, settles: &mut [LeaseSettle]) -> Step<Vec<LeaseSettled>> {
        self.lock_shards().await?;
        let mut said = Vec::with_capacity(settles.len());
        let queues: BTreeSet<String> = settles.iter().map(|settle| settle.lease.queue.clone()).collect();
        for settle in settles {
            said.push(self.settle_lease(settle).await?);
        }
        for queue in queues {
            self.tell_owners(&queue).await?;
        }
        Ok(said)
    }

    /// Where a queue is not pulled from any more, whoever owns the next one of the key has to hear of it: it was not
    /// written, so no stamp says so.
    async fn tell_owners(&mut self, queue: &str) -> Step<()> {
        if self.spec(queue).await?.is_some_and(|queue| !queue.pull) {
            self.recall = true;
            self.raise_version().await?;
        }
        Ok(())
    }

    async fn settle_lease(&mut self, settle: &mut LeaseSettle) -> Step<LeaseSettled> {
        let LeaseSettle { lease, at, decide } = settle;
        self.see(*at);
        let Some((mut held, stream)) = self.leased(lease).await? else { return self.disagree(lease).await };
        // Where the lease was over, that was written down as an attempt; now there is more to say of it.
        held.progress = held.progress.before(lease.attempt);
        let lapsed = held.lapsed();
        let entry = held.clone().entry();
        let change = decide(&entry, lapsed);
        let change = match Lapsed::bounded(lapsed, change) {
            Change::Done => {
                let story = held.progress.story.clone();
                Change::DoneWith { result: None, attempts: lease.attempt, story }
            }
            change => change,
        };
        self.apply((held, false), &change, *at, &stream).await?;
        Ok(LeaseSettled::Applied)
    }

    /// The event that a lease is for, if it lives or is dead by the end of that lease, and no attempt was made since.
    async fn leased(&mut self, lease: &lease::Held) -> Step<Option<(Held, Arc<Stream>)>> {
        let Some(stream) = self.find_stream(&lease.queue, &lease.tenant).await? else { return Ok(None) };
        let there = match self.receipt(stream.id, &lease.id).await {
            Ok(Some(receipt)) => self.row_of(&receipt, &stream).await,
            Ok(None) => return Ok(None),
            Err(fault) => Err(fault),
        };
        let there = match there {
            Ok(there) => there,
            // Of what is damaged nobody knows who has it.
            Err(Fault::Refused(_)) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let held = there.map(|(held, _)| held).filter(|held| held.is_leased_last(lease));
        Ok(held.map(|held| (held, stream)))
    }

    /// What is said of a lease that is not the last one.
    async fn disagree(&mut self, lease: &lease::Held) -> Step<LeaseSettled> {
        let Some(stream) = self.find_stream(&lease.queue, &lease.tenant).await? else {
            return Ok(LeaseSettled::Unknown);
        };
        let view = self.view().await?;
        let known = match self.receipt(stream.id, &lease.id).await {
            Ok(Some(receipt)) => {
                let by = receipt.end.as_ref().and_then(|end| end.token);
                self.found(receipt, &view).await.map(|found| (found, by))
            }
            Ok(None) => return Ok(LeaseSettled::Unknown),
            Err(fault) => Err(fault),
        };
        match known {
            Ok((found, by)) => Ok(disagreement(found, by, lease)),
            Err(Fault::Refused(_)) => Ok(LeaseSettled::Unknown),
            Err(fault) => Err(fault),
        }
    }
}

/// The first row that can be read.
fn first_good<T>(found: &[PgRow], read: impl Fn(&PgRow) -> Result<T, Damage>) -> Option<T> {
    found.iter().find_map(|row| read(row).ok())
}
