//! `redrive move`, as it is typed. What it does to stores is tested where stores are.

use crate::house::House;
use crate::letters::{die, publish};
use crate::program::run;

const QUEUE: &str = "[queues.orders.pull]\n";

#[tokio::test]
async fn a_store_is_moved_told_of_and_taken_back() {
    let mut house = House::open(QUEUE).await;
    publish(&house, "orders", "", None, &["a", "b"]).await;
    die(&house, "orders").await;
    publish(&house, "orders", "", None, &["c"]).await;
    let folder = house.folder.path().to_owned();
    let file = async |args: &[&str]| run(&folder, args, &[], "").await;
    let there = ["move", "--from", "sqlite:redrive.db", "--to", "sqlite:new.db"];

    let busy = file(&there).await;
    assert_eq!(busy.code, Some(1));
    assert!(
        busy.err.contains("a server runs on redrive.db (pid ") && busy.err.contains("stop it first"),
        "{busy:?}"
    );
    house.stop().await;
    let letters = file(&["dead", "ls", "--store", "sqlite:redrive.db", "--json"]).await.fine().json();

    let moved = file(&[&there[..], &["--json"]].concat()).await.fine();
    let answer = moved.json();
    let tables = answer["tables"].as_array().expect("tables");
    let rows =
        |name: &str| tables.iter().find(|table| table["table"] == name).map(|table| table["rows"].clone());
    assert_eq!(
        (rows("events"), rows("receipts"), rows("audit")),
        (Some(3.into()), Some(3.into()), Some(0.into()))
    );
    assert!(
        tables.iter().all(|table| table["checksum"].as_str().is_some_and(|sum| sum.len() == 32)),
        "{answer}"
    );
    assert!(moved.err.contains("both were read again, and are the same"), "{moved:?}");

    let closed = file(&["dead", "ls", "--store", "sqlite:redrive.db"]).await;
    assert_eq!(closed.code, Some(1));
    assert!(closed.err.contains("it was moved to sqlite:") && closed.err.contains("new.db"), "{closed:?}");
    let same = file(&["dead", "ls", "--store", "sqlite:new.db", "--json"]).await.fine().json();
    assert_eq!(letters, same);
    let again = file(&there).await;
    assert_eq!(again.code, Some(1));
    assert!(again.err.contains("was moved to") && again.err.contains("already"), "{again:?}");

    let undone = file(&["move", "--undo", "--from", "sqlite:redrive.db"]).await.fine();
    assert!(undone.out.contains("It can be used again.") && undone.out.contains("new.db"), "{undone:?}");
    file(&["dead", "ls", "--store", "sqlite:redrive.db"]).await.fine();
    let nothing = file(&["move", "--undo", "--from", "sqlite:redrive.db"]).await.fine();
    assert_eq!(nothing.out, "It was not moved.\n");
    let full = file(&there).await;
    assert!(full.code == Some(1) && full.err.contains("is not empty"), "{full:?}");
}

#[tokio::test]
async fn what_cannot_be_moved_is_told_with_what_to_do_and_without_passwords() {
    let mut house = House::open(QUEUE).await;
    house.stop().await;
    let from = ["move", "--from", "sqlite:redrive.db", "--to"];
    for (to, told) in [
        ("memory:", "a store in memory cannot be moved"),
        ("orders.db", "write sqlite:FILE or postgres://"),
        ("postgres:hush", "write sqlite:FILE or postgres://"),
        ("postgres://ann:hush@127.0.0.1:1/shop", "it cannot be reached"),
        ("postgres://ann:hush@127.0.0.1:noport/shop", "not one of a PostgreSQL database"),
        ("sqlite:nowhere/new.db", "there is no folder nowhere; make it first"),
    ] {
        let said = run(house.folder.path(), &[&from[..], &[to]].concat(), &[], "").await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains(told) && !said.err.contains("hush") && said.out.is_empty(), "{said:?}");
    }
    let flags = run(house.folder.path(), &["move", "--from", "sqlite:redrive.db"], &[], "").await;
    assert_eq!(flags.code, Some(2));
    // Nothing came of any of it.
    run(house.folder.path(), &["dead", "ls", "--store", "sqlite:redrive.db"], &[], "").await.fine();
}
