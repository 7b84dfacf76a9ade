//! The caller's own statements, portable over every SQL store.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use redrive::Redrive;
use redrive::store::sql::{SqlError, Value};

async fn opened(folder: &tempfile::TempDir) -> Redrive {
    Redrive::open(&format!("sqlite:{}", folder.path().join("store.db").display())).await.unwrap()
}

#[tokio::test]
async fn the_number_in_a_placeholder_counts_and_not_where_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let redrive = opened(&folder).await;
    let rows = redrive
        .transact(|tx| {
            tx.execute(
                "CREATE TABLE cabin (number INTEGER PRIMARY KEY, guest TEXT, paid REAL, scan BLOB)",
                &[],
            )?;
            let values = [Value::from(1.5), "Ada".into(), 7.into(), b"\xff".as_slice().into()];
            let insert = "INSERT INTO cabin (number, guest, paid, scan) VALUES ($3, $2, $1, $4)";
            assert_eq!(tx.execute(insert, &values)?, 1);
            assert_eq!(tx.execute("INSERT INTO cabin (number) VALUES ($1)", &[8.into()])?, 1);
            assert_eq!(tx.execute("UPDATE cabin SET paid = $1", &[Value::from(2.5)])?, 2);
            tx.query(
                "SELECT number, guest, paid, scan, guest = $1 FROM cabin ORDER BY number",
                &["Ada".into()],
            )
        })
        .await
        .unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].get::<i64>(0).unwrap(), 7);
    assert_eq!(rows[0].get::<String>(1).unwrap(), "Ada");
    assert!((rows[0].get::<f64>(2).unwrap() - 2.5).abs() < f64::EPSILON);
    assert_eq!(rows[0].get::<Vec<u8>>(3).unwrap(), b"\xff");
    assert!(rows[0].get::<bool>(4).unwrap());
    assert_eq!(rows[1].get::<Option<String>>(1).unwrap(), None);
    let wrong = rows[1].get::<String>(1).unwrap_err();
    assert_eq!(wrong.to_string(), "column 1 is nothing, not a text");
    assert!(matches!(rows[1].get::<String>(9), Err(SqlError::Column { column: 9, columns: 5 })));
}

#[tokio::test]
async fn a_statement_that_is_refused_says_why_and_takes_everything_back() {
    let folder = tempfile::tempdir().unwrap();
    let redrive = opened(&folder).await;
    redrive.transact(|tx| tx.execute("CREATE TABLE t (a INTEGER)", &[])).await.unwrap();
    let refused = redrive
        .transact(|tx| {
            tx.execute("INSERT INTO t VALUES ($1)", &[1.into()])?;
            tx.execute("INSERT INTO nowhere VALUES ($1)", &[1.into()])
        })
        .await;
    assert!(format!("{:#}", refused.unwrap_err()).contains("no such table: nowhere"));
    let too_few = redrive.transact(|tx| tx.execute("INSERT INTO t VALUES ($1 + $2)", &[1.into()])).await;
    assert!(too_few.is_err(), "a value is missing");
    let rows = redrive.transact(|tx| tx.query("SELECT count(*) FROM t", &[])).await.unwrap();
    assert_eq!(rows[0].get::<i64>(0).unwrap(), 0);
}

#[tokio::test]
async fn a_store_without_sql_says_so() {
    let redrive = Redrive::open("memory:").await.unwrap();
    let refused = redrive.transact(|tx| tx.query("SELECT 1", &[])).await.unwrap_err();
    assert!(refused.to_string().contains("no SQL"), "{refused}");
}
