//! Detects changes to events by a process that does not own them, however late it was woken.
//!
//! Most writes of a replaced process find their event gone, or with another rev, and do no harm, so the final check
//! alone would hardly reveal a missing fence. So each session names its process, and a trigger compares that with the
//! owner of the shard, at the very end of each commit: after the fence, which keeps the owner the same from then on.

use redrive::store::postgres::sqlx::{self, Connection, PgConnection};
use redrive_testkit::postgres::Server;

/// The session variable that names its process.
const WHOSE: &str = "fleet.node";

const WATCH: &str = "
    CREATE TABLE public.trespass (node TEXT, owner TEXT, what TEXT, seq BIGINT);
    CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE whose TEXT := current_setting('fleet.node', true);
    DECLARE owns TEXT := (SELECT node.name FROM redrive.shard LEFT JOIN redrive.node ON node.id = shard.owner
                          WHERE shard.id = OLD.shard);
    BEGIN
        IF whose IS DISTINCT FROM owns THEN
            INSERT INTO public.trespass VALUES (whose, owns, TG_OP || ' ' || TG_TABLE_NAME, OLD.seq);
        END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER watch AFTER UPDATE OR DELETE ON redrive.fresh DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION watch();
    CREATE CONSTRAINT TRIGGER watch AFTER UPDATE OR DELETE ON redrive.tracked DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION watch();";

/// The address by which the witness knows a process.
pub(crate) fn known_as(name: &str, url: &str) -> String {
    format!("{url}&options[{WHOSE}]={name}")
}

/// Watches from now on.
pub(crate) async fn watch(server: &Server) {
    let mut conn = PgConnection::connect(&server.url()).await.unwrap();
    sqlx::raw_sql(WATCH).execute(&mut conn).await.unwrap();
}

/// Changes to events of another owner: the first of them, and how many there were.
pub(crate) async fn trespasses(conn: &mut PgConnection) -> (Vec<String>, i64) {
    let first = "SELECT format('%s: %s of %s, which is owned by %s', node, what, seq, owner) FROM public.trespass LIMIT 10";
    let first = sqlx::query_scalar(first).fetch_all(&mut *conn).await.unwrap();
    (first, sqlx::query_scalar("SELECT count(*) FROM public.trespass").fetch_one(conn).await.unwrap())
}
