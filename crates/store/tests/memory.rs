//! The store in memory keeps every promise, with one shard and with several.

use std::sync::Arc;

use redrive_store::{Memory, Store, Tx, memory};
use redrive_testkit::conformance::Subject;

/// With how many shards, the store.
struct InMemory<const SHARDS: u32>(Memory);

impl<const SHARDS: u32> Subject for InMemory<SHARDS> {
    async fn fresh() -> Self {
        Self(Memory::with_shards(SHARDS))
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn crash_and_reopen(self) -> Self {
        Self(self.0.reopen())
    }

    fn effect(tx: &mut dyn Tx, name: &str) {
        memory::table(tx).unwrap().insert(name.to_owned(), Vec::new());
    }

    async fn effects(&self) -> usize {
        self.0.table_snapshot().len()
    }
}

mod with_one_shard {
    redrive_testkit::conformance_tests!(super::InMemory<1>);
}

mod with_three_shards {
    redrive_testkit::conformance_tests!(super::InMemory<3>);
}
