//! The operators' desk over a running engine: a store in memory, and the same in a file.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod controls;
mod exchange;
mod jobs;
mod leases;
mod letters;
mod processes;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::engine::Desk;
use redrive::prelude::*;
use redrive::store::operate::EventRef;
use redrive::{AfterDead, Delivery, Event, Failure, Policy, Redrive, testing};
use tokio::sync::Notify;

const SECOND: Duration = Duration::from_secs(1);

/// A service that fails for the given ids.
#[derive(Clone, Default)]
struct Service {
    broken: Arc<Mutex<BTreeSet<String>>>,
    calls: Arc<Mutex<Vec<String>>>,
    called: Arc<Notify>,
}

impl Service {
    fn breaks(&self, ids: &[&str]) {
        self.broken.lock().unwrap().extend(ids.iter().map(|id| (*id).to_owned()));
    }

    fn mend(&self) {
        self.broken.lock().unwrap().clear();
    }

    /// The ids of its calls since the last time.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// Waits until it was called this often since its calls were taken.
    async fn until_called(&self, times: usize) {
        loop {
            let called = self.called.notified();
            if self.calls.lock().unwrap().len() >= times {
                return;
            }
            called.await;
        }
    }

    fn call(&self, delivery: &Delivery) -> Result<(), Failure> {
        let id = delivery.id().to_owned();
        let broken = self.broken.lock().unwrap().contains(&id);
        self.calls.lock().unwrap().push(id.clone());
        self.called.notify_waiters();
        if broken {
            Err(Failure::permanent_text(format!("no customer for {id}")).code("404"))
        } else {
            Ok(())
        }
    }
}

/// An ordered queue that parks behind its dead letters.
async fn orders(redrive: &Redrive, service: &Service) {
    let service = service.clone();
    redrive
        .queue("orders")
        .policy(patient())
        .after_dead(AfterDead::Park)
        .handle(move |it| std::future::ready(service.call(&it)))
        .await
        .unwrap();
}

/// A queue without order.
async fn mails(redrive: &Redrive, service: &Service) {
    let service = service.clone();
    let handler = move |it: Delivery| std::future::ready(service.call(&it));
    redrive.queue("mails").policy(patient()).handle(handler).await.unwrap();
}

async fn publish(redrive: &Redrive, queue: &str, key: Option<&str>, ids: &[&str]) {
    for id in ids {
        let event = Event::new(queue, *id).payload(id.as_bytes());
        let event = key.map_or(event.clone(), |key| event.key(key));
        redrive.publish(event).await.unwrap();
    }
}

fn order(id: &str) -> Vec<EventRef> {
    vec![EventRef::new("", "orders", id)]
}

fn mail(id: &str) -> Vec<EventRef> {
    vec![EventRef::new("", "mails", id)]
}

fn desk(redrive: &Redrive) -> Desk {
    redrive.desk("ada", "test")
}

/// Three attempts, a second apart, no budget.
fn patient() -> Policy {
    Policy::builder().attempts(3).backoff(Backoff::constant(SECOND)).no_budget().build().unwrap()
}

/// An engine over memory with both queues, started.
async fn started(service: &Service) -> Redrive {
    let redrive = testing::memory();
    orders(&redrive, service).await;
    mails(&redrive, service).await;
    redrive.start().await.unwrap();
    redrive
}
