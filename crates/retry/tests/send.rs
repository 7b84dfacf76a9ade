//! What can move between threads, checked by the compiler.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::{Future, IntoFuture};
use std::io;
use std::rc::Rc;

use redrive_retry::{Policy, Report, Retry, Session, Start, Stopped, classify, scope};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(Policy: Send, Sync, Clone);
assert_impl_all!(Report: Send, Sync, Copy);
assert_impl_all!(Session<io::Error>: Send, Sync);
assert_impl_all!(Stopped<io::Error>: Send, Sync, std::error::Error);
// Its parts decide: an error that must stay on its thread keeps the session there.
assert_not_impl_any!(Session<Rc<()>>: Send);

fn is_send<T: Send>(value: T) -> T {
    value
}

async fn fetch() -> Result<u32, io::Error> {
    Ok(7)
}

#[tokio::test(start_paused = true)]
async fn the_futures_of_all_call_styles_are_send_when_their_parts_are() {
    let policy = Policy::default();
    let bare = is_send(fetch.retry(&policy).classify(classify::io).into_future());
    let cancellable = is_send(fetch.retry(&policy).cancel_on(std::future::pending()).into_future());
    let reporting = is_send(fetch.retry(&policy).classify(classify::io).report().into_future());
    let carried = is_send(scope::carry(fetch()));
    assert_eq!(bare.await.unwrap(), 7);
    assert_eq!(cancellable.await.unwrap(), 7);
    assert_eq!(reporting.await.into_result().unwrap(), 7);
    assert_eq!(carried.await.unwrap(), 7);

    let mut session = policy.start();
    is_send(session.next()).await;
    assert_eq!(is_send(session.run(fetch(), classify::io)).await, Some(7));
}

/// A client that needs itself mutably, as most connections do.
struct Connection {
    policy: Policy,
    broken: bool,
    sent: Vec<u32>,
}

impl Connection {
    async fn send(&mut self, number: u32) -> Result<usize, io::Error> {
        tokio::task::yield_now().await;
        if std::mem::take(&mut self.broken) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.sent.push(number);
        Ok(self.sent.len())
    }

    async fn send_with_retries(&mut self, number: u32) -> Result<usize, Stopped<io::Error>> {
        let mut session = self.policy.start();
        while session.next().await.is_some() {
            if let Some(sent) = session.run(self.send(number), classify::io).await {
                return Ok(sent);
            }
        }
        Err(session.stopped())
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_lends_out_mut_self_inside_a_spawned_task() {
    let task = tokio::spawn(async {
        let policy = Policy::default();
        let mut connection = Connection { policy, broken: true, sent: Vec::new() };
        connection.send_with_retries(1).await.unwrap();
        connection.send_with_retries(2).await.unwrap();
        connection.sent
    });
    assert_eq!(task.await.unwrap(), [1, 2]);
}

/// A generic caller, as a library has it: the bound on the future is enough.
#[tokio::test(start_paused = true)]
async fn a_generic_caller_can_spawn_it_too() {
    async fn spawned<F, Fut>(call: F) -> u32
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<u32, io::Error>> + Send,
    {
        let task = async move {
            let policy = Policy::default();
            (|| call()).retry(&policy).classify(classify::io).await
        };
        tokio::spawn(task).await.unwrap().unwrap()
    }
    assert_eq!(spawned(fetch).await, 7);
}
