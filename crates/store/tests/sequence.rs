//! Receivers and producers of numbered messages keep every promise, wherever their rows are, and weaker rules are found.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod memory {
    use redrive_testkit::sequence::{InMemory, PROMISES, WeakerRule};

    redrive_testkit::sequence_tests!(InMemory::default);

    #[test]
    fn each_weaker_rule_is_found() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let finds = WeakerRule::ALL.map(|rule| {
            let fails = |(name, promise): &&(&str, fn(&mut dyn redrive_testkit::sequence::Numbered))| {
                let _ = name;
                std::panic::catch_unwind(|| promise(&mut InMemory::weaker(rule))).is_err()
            };
            (rule, PROMISES.iter().filter(fails).map(|(name, _)| *name).collect::<Vec<_>>())
        });
        std::panic::set_hook(quiet);
        for (rule, found) in finds {
            println!("{rule:?}: {found:?}");
            assert!(!found.is_empty(), "{rule:?} is found by no promise");
        }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::time::Duration;

    use redrive_core::ladder::sequence::{NumberedMessage, OpenedProducer, SequenceVerdict};
    use redrive_store::sequence::sqlite;
    use redrive_testkit::sequence::Numbered;
    use rusqlite::{Connection, TransactionBehavior};

    struct File(Connection);

    fn opened() -> File {
        let file = Connection::open_in_memory().unwrap();
        sqlite::create(&file).unwrap();
        file.execute_batch("CREATE TABLE effect (n INTEGER PRIMARY KEY, payload BLOB)").unwrap();
        File(file)
    }

    impl Numbered for File {
        fn enrol(&mut self, stream: &str, producer: &str) -> OpenedProducer {
            sqlite::enrol(&self.0, stream, producer).unwrap()
        }

        fn open(&mut self, stream: &str, producer: &str) -> Option<OpenedProducer> {
            sqlite::open(&self.0, stream, producer).unwrap()
        }

        fn receive(
            &mut self,
            stream: &str,
            producer: &str,
            epoch: u64,
            message: &NumberedMessage,
            crash: bool,
        ) -> SequenceVerdict {
            let tx = self.0.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            let verdict = sqlite::accept(&tx, stream, producer, epoch, message.number).unwrap();
            if verdict == SequenceVerdict::Apply
                && let Some(payload) = &message.payload
            {
                tx.execute("INSERT INTO effect (payload) VALUES (?1)", [payload]).unwrap();
            }
            if crash {
                tx.rollback().unwrap();
            } else {
                tx.commit().unwrap();
            }
            verdict
        }

        fn forget_all(&mut self) {
            sqlite::forget(&self.0, Duration::ZERO).unwrap();
        }

        fn effects(&mut self) -> Vec<Vec<u8>> {
            let mut rows = self.0.prepare("SELECT payload FROM effect ORDER BY n").unwrap();
            rows.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
        }

        fn rows(&mut self) -> usize {
            let count = "SELECT count(*) FROM redrive_producer";
            let count: i64 = self.0.query_row(count, [], |row| row.get(0)).unwrap();
            usize::try_from(count).unwrap()
        }

        fn assign(&mut self, stream: &str, producer: &str, payload: &[u8]) -> u64 {
            sqlite::assign(&self.0, stream, producer, payload).unwrap()
        }

        fn abandon(&mut self, stream: &str, producer: &str, number: u64) -> bool {
            sqlite::abandon(&self.0, stream, producer, number).unwrap()
        }

        fn opened(&mut self, stream: &str, producer: &str, opened: OpenedProducer) {
            sqlite::opened(&self.0, stream, producer, opened).unwrap();
        }

        fn confirm(&mut self, stream: &str, producer: &str, number: u64) {
            sqlite::confirm(&self.0, stream, producer, number).unwrap();
        }

        fn pending(&mut self, stream: &str, producer: &str, from: u64) -> Vec<NumberedMessage> {
            sqlite::pending(&self.0, stream, producer, from, 1_000).unwrap()
        }
    }

    redrive_testkit::sequence_tests!(opened);
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::time::Duration;

    use redrive_core::ladder::sequence::{NumberedMessage, OpenedProducer, SequenceVerdict};
    use redrive_store::postgres::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
    use redrive_store::sequence::postgres;
    use redrive_testkit::postgres::{Server, a_name};
    use redrive_testkit::sequence::Numbered;
    use tokio::runtime::Runtime;

    struct Database(Runtime, PgConnection);

    async fn connected(schema: &str) -> PgConnection {
        let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
        let path = format!("CREATE SCHEMA IF NOT EXISTS {schema}; SET search_path TO {schema}");
        sqlx::raw_sql(AssertSqlSafe(path)).execute(&mut conn).await.unwrap();
        conn
    }

    async fn created(schema: &str) -> PgConnection {
        let mut conn = connected(schema).await;
        postgres::create(&mut conn).await.unwrap();
        let effects = "CREATE TABLE effect (n BIGSERIAL, payload BYTEA)";
        sqlx::query(effects).execute(&mut conn).await.unwrap();
        conn
    }

    fn opened() -> Database {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let conn = runtime.block_on(created(&a_name("sequence")));
        Database(runtime, conn)
    }

    async fn receive(
        conn: &mut PgConnection,
        (stream, producer, epoch): (&str, &str, u64),
        message: &NumberedMessage,
        crash: bool,
    ) -> SequenceVerdict {
        let mut tx = conn.begin().await.unwrap();
        let verdict = postgres::accept(&mut tx, stream, producer, epoch, message.number).await.unwrap();
        if verdict == SequenceVerdict::Apply
            && let Some(payload) = &message.payload
        {
            let effect = "INSERT INTO effect (payload) VALUES ($1)";
            sqlx::query(effect).bind(payload).execute(&mut *tx).await.unwrap();
        }
        if crash {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
        }
        verdict
    }

    impl Numbered for Database {
        fn enrol(&mut self, stream: &str, producer: &str) -> OpenedProducer {
            self.0.block_on(postgres::enrol(&mut self.1, stream, producer)).unwrap()
        }

        fn open(&mut self, stream: &str, producer: &str) -> Option<OpenedProducer> {
            self.0.block_on(postgres::open(&mut self.1, stream, producer)).unwrap()
        }

        fn receive(
            &mut self,
            stream: &str,
            producer: &str,
            epoch: u64,
            message: &NumberedMessage,
            crash: bool,
        ) -> SequenceVerdict {
            self.0.block_on(receive(&mut self.1, (stream, producer, epoch), message, crash))
        }

        fn forget_all(&mut self) {
            self.0.block_on(postgres::forget(&mut self.1, Duration::ZERO)).unwrap();
        }

        fn effects(&mut self) -> Vec<Vec<u8>> {
            let all = sqlx::query_scalar("SELECT payload FROM effect ORDER BY n").fetch_all(&mut self.1);
            self.0.block_on(all).unwrap()
        }

        fn rows(&mut self) -> usize {
            let count = sqlx::query_scalar("SELECT count(*) FROM redrive_producer").fetch_one(&mut self.1);
            let count: i64 = self.0.block_on(count).unwrap();
            usize::try_from(count).unwrap()
        }

        fn assign(&mut self, stream: &str, producer: &str, payload: &[u8]) -> u64 {
            self.0.block_on(postgres::assign(&mut self.1, stream, producer, payload)).unwrap()
        }

        fn abandon(&mut self, stream: &str, producer: &str, number: u64) -> bool {
            self.0.block_on(postgres::abandon(&mut self.1, stream, producer, number)).unwrap()
        }

        fn opened(&mut self, stream: &str, producer: &str, opened: OpenedProducer) {
            self.0.block_on(postgres::opened(&mut self.1, stream, producer, opened)).unwrap();
        }

        fn confirm(&mut self, stream: &str, producer: &str, number: u64) {
            self.0.block_on(postgres::confirm(&mut self.1, stream, producer, number)).unwrap();
        }

        fn pending(&mut self, stream: &str, producer: &str, from: u64) -> Vec<NumberedMessage> {
            self.0.block_on(postgres::pending(&mut self.1, stream, producer, from, 1_000)).unwrap()
        }
    }

    redrive_testkit::sequence_tests!(opened);

    #[tokio::test]
    async fn of_two_deliveries_at_once_one_is_applied_and_the_other_waits_to_hear_so() {
        let schema = a_name("sequence");
        let (mut first, mut second) = (created(&schema).await, connected(&schema).await);
        let epoch = postgres::enrol(&mut first, "payments", "shop").await.unwrap().epoch;
        let mut tx = first.begin().await.unwrap();
        assert_eq!(
            postgres::accept(&mut tx, "payments", "shop", epoch, 1).await.unwrap(),
            SequenceVerdict::Apply
        );
        let waiting =
            tokio::spawn(async move { postgres::accept(&mut second, "payments", "shop", epoch, 1).await });
        let mut watch = connected(&schema).await;
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        while sqlx::query_scalar::<_, i64>(waits).fetch_one(&mut watch).await.unwrap() == 0 {
            assert!(!waiting.is_finished(), "it did not wait");
            tokio::task::yield_now().await;
        }
        tx.commit().await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), SequenceVerdict::Duplicate);
    }
}
