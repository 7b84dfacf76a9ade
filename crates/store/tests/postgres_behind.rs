//! A program whose database was migrated one step further while it was open keeps every guarantee.
#![cfg(all(feature = "postgres", feature = "planted", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_store::postgres::sqlx::Row as _;
use redrive_store::{Postgres, Store, Tx, postgres};
use redrive_testkit::conformance::Subject;

mod postgres_common;

use postgres_common::{TestStore, steps};

struct Behind {
    store: Arc<Postgres>,
    store_dir: TestStore,
}

impl Behind {
    async fn open(store_dir: TestStore) -> Self {
        // The user's own tables are first in the search path.
        let url = format!("{}&options[search_path]={}", store_dir.url, store_dir.schema);
        let store = Arc::new(Postgres::open(&url, store_dir.settings()).await.unwrap());
        Self { store, store_dir }
    }
}

impl Subject for Behind {
    async fn fresh() -> Self {
        let fresh = Self::open(TestStore::new()).await;
        let TestStore { url, .. } = &fresh.store_dir;
        let newer = Postgres::open_with(url, fresh.store_dir.settings(), &[steps::ADDS]).await.unwrap();
        newer.close().await.unwrap();
        fresh.store_dir.raw().await.say("CREATE TABLE redrive.effect (name TEXT)").await.unwrap();
        fresh
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    /// The next process knows no more steps than the previous one.
    async fn crash_and_reopen(self) -> Self {
        self.store_dir.raw().await.expire_all().await;
        drop(self.store);
        Self::open(self.store_dir).await
    }

    fn effect(tx: &mut dyn Tx, name: &str) {
        let insert = postgres::sqlx::query("INSERT INTO effect VALUES ($1)").bind(name.to_owned());
        postgres::with(tx, async |conn| insert.execute(conn).await).unwrap().unwrap();
    }

    async fn effects(&self) -> usize {
        let mut raw = self.store_dir.raw().await;
        let count: i64 = raw.say("SELECT count(*) FROM redrive.effect").await.unwrap()[0].get(0);
        usize::try_from(count).unwrap()
    }
}

redrive_testkit::conformance_tests!(Behind);
