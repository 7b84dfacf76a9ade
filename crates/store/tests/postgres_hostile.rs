//! A schema that another role made, or can change, is refused before anything in it is read or called.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use redrive_store::postgres::PostgresSettings;
use redrive_store::postgres::sqlx::{AssertSqlSafe, Connection, PgConnection, Row, raw_sql};
use redrive_store::{DeclaredBy, Postgres, QueueSpec, prelude::*};
use redrive_testkit::postgres::{Server, a_name};

async fn run(sql: &str) {
    let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
    raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
}

async fn open(schema: &str) -> Result<(), String> {
    let mut settings = PostgresSettings::default();
    (settings.schema, settings.shards) = (schema.to_owned(), 1);
    let opened = Postgres::open(&Server::shared().url(), settings).await;
    match opened {
        Ok(store) => {
            store.close().await.unwrap();
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_squatted_schema_is_refused_and_nothing_of_it_is_called() {
    let (schema, mallory) = (a_name("squatted"), a_name("mallory"));
    let trap = a_name("trap");
    run(&format!(
        "CREATE ROLE {mallory}; CREATE SCHEMA {schema}; CREATE TABLE public.{trap} (what text); \
         GRANT ALL ON public.{trap} TO PUBLIC; ALTER SCHEMA {schema} OWNER TO {mallory}; SET ROLE {mallory}; \
         GRANT ALL ON SCHEMA {schema} TO PUBLIC; \
         CREATE FUNCTION {schema}.steal() RETURNS bigint LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO public.{trap} VALUES (current_user); RETURN 1; END $$; \
         CREATE VIEW {schema}.meta AS SELECT {schema}.steal() AS schema, 1::bigint AS shards, 1::bigint AS least"
    ))
    .await;
    let told = open(&schema).await.unwrap_err();
    assert!(told.contains(&format!("belongs to the role {mallory}")), "{told}");
    let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
    let called = raw_sql(AssertSqlSafe(format!("SELECT count(*) FROM public.{trap}")));
    assert_eq!(called.fetch_one(&mut conn).await.unwrap().get::<i64, _>(0), 0, "its function was called");
    // The control: the statement that the program once ran first springs the trap.
    raw_sql(AssertSqlSafe(format!("SELECT schema FROM {schema}.meta"))).fetch_one(&mut conn).await.unwrap();
    let called = raw_sql(AssertSqlSafe(format!("SELECT count(*) FROM public.{trap}")));
    assert_eq!(called.fetch_one(&mut conn).await.unwrap().get::<i64, _>(0), 1, "the trap is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_in_which_others_create_objects_is_refused() {
    let (schema, mallory) = (a_name("shared"), a_name("mallory"));
    run(&format!("CREATE SCHEMA {schema}; GRANT CREATE ON SCHEMA {schema} TO PUBLIC")).await;
    let told = open(&schema).await.unwrap_err();
    assert!(told.contains("every role may create objects"), "{told}");
    run(&format!(
        "CREATE ROLE {mallory}; SET ROLE {mallory}; CREATE TABLE {schema}.event (id bigint); RESET ROLE; \
         REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC"
    ))
    .await;
    let told = open(&schema).await.unwrap_err();
    assert!(told.contains(&format!("event in the schema belongs to the role {mallory}")), "{told}");
    run(&format!("DROP TABLE {schema}.event")).await;
    open(&schema).await.expect("it is ours alone");
    open(&schema).await.expect("and stays so");
}

/// As in docs/operate/security.md.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_a_function_of_its_own_publishes_to_its_queue_alone() {
    let (schema, role) = (a_name("bound"), a_name("shop"));
    let mut settings = PostgresSettings::default();
    (settings.schema, settings.shards) = (schema.clone(), 1);
    let store = Postgres::open(&Server::shared().url(), settings).await.unwrap();
    for name in ["orders", "refunds"] {
        let spec = QueueSpec { name: name.to_owned(), ..QueueSpec::default() };
        store.declare(spec, DeclaredBy::Runner).await.unwrap();
    }
    store.close().await.unwrap();
    run(&format!(
        "CREATE ROLE {role}; CREATE SCHEMA {role}; GRANT USAGE ON SCHEMA {role} TO {role}; \
         REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC; \
         CREATE FUNCTION {role}.publish_order(id text, payload jsonb) RETURNS text LANGUAGE sql SECURITY DEFINER \
         SET search_path = pg_catalog, pg_temp \
         AS $$ SELECT {schema}.publish('orders', id, payload, tenant => 'acme') $$; \
         REVOKE EXECUTE ON FUNCTION {role}.publish_order FROM PUBLIC; \
         GRANT EXECUTE ON FUNCTION {role}.publish_order TO {role}"
    ))
    .await;
    let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
    raw_sql(AssertSqlSafe(format!("SET ROLE {role}"))).execute(&mut conn).await.unwrap();
    let own = format!("SELECT {role}.publish_order('1', '{{}}'::jsonb)");
    let said = raw_sql(AssertSqlSafe(own)).fetch_one(&mut conn).await.unwrap();
    assert_eq!(said.get::<String, _>(0), "accepted");
    let other = format!("SELECT {schema}.publish('refunds', '1', '{{}}'::jsonb)");
    let refused = raw_sql(AssertSqlSafe(other)).execute(&mut conn).await.unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
}
