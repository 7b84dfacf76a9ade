//! A program whose database was taken a step further while it was open keeps every promise.
#![cfg(all(feature = "postgres", feature = "planted", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_store::postgres::sqlx::Row as _;
use redrive_store::{Postgres, Store, Tx, postgres};
use redrive_testkit::conformance::Subject;

mod postgres_common;

use postgres_common::{Place, steps};

struct Behind {
    store: Arc<Postgres>,
    place: Place,
}

impl Behind {
    async fn open(place: Place) -> Self {
        // The user's own tables are where their connections look first.
        let url = format!("{}&options[search_path]={}", place.url, place.schema);
        let store = Arc::new(Postgres::open(&url, place.settings()).await.unwrap());
        Self { store, place }
    }
}

impl Subject for Behind {
    async fn fresh() -> Self {
        let fresh = Self::open(Place::new()).await;
        let Place { url, .. } = &fresh.place;
        let newer = Postgres::open_with(url, fresh.place.settings(), &[steps::ADDS]).await.unwrap();
        newer.close().await.unwrap();
        fresh.place.raw().await.say("CREATE TABLE redrive.effect (name TEXT)").await.unwrap();
        fresh
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    /// The next one knows no more than the one before.
    async fn crash_and_reopen(self) -> Self {
        self.place.raw().await.expire_all().await;
        drop(self.store);
        Self::open(self.place).await
    }

    fn effect(tx: &mut dyn Tx, name: &str) {
        let insert = postgres::sqlx::query("INSERT INTO effect VALUES ($1)").bind(name.to_owned());
        postgres::with(tx, async |conn| insert.execute(conn).await).unwrap().unwrap();
    }

    async fn effects(&self) -> usize {
        let mut raw = self.place.raw().await;
        let count: i64 = raw.say("SELECT count(*) FROM redrive.effect").await.unwrap()[0].get(0);
        usize::try_from(count).unwrap()
    }
}

redrive_testkit::conformance_tests!(Behind);
