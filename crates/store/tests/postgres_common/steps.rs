//! Future steps of the schema.

use redrive_store::postgres::FutureSchemaStep;

/// A step that only adds: a column to every table of the hot path, and a table of its own. It counts how often it was
/// done.
pub(crate) const ADDS: FutureSchemaStep = FutureSchemaStep {
    sql: "ALTER TABLE redrive.queue ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
          ALTER TABLE redrive.stream ADD COLUMN colour TEXT;
          ALTER TABLE redrive.shard ADD COLUMN colour TEXT;
          ALTER TABLE redrive.node ADD COLUMN colour TEXT;
          ALTER TABLE redrive.fresh ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
          ALTER TABLE redrive.tracked ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
          ALTER TABLE redrive.dedupe ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
          ALTER TABLE redrive.ending ADD COLUMN colour TEXT;
          ALTER TABLE redrive.request ADD COLUMN colour TEXT;
          CREATE INDEX live_colour ON redrive.fresh (colour) WHERE colour <> 'blue';
          CREATE TABLE IF NOT EXISTS redrive.painted (at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp());
          INSERT INTO redrive.painted DEFAULT VALUES;",
    least: 1,
};
/// A step that every program must know.
pub(crate) const TAKES: FutureSchemaStep =
    FutureSchemaStep { sql: "ALTER TABLE redrive.painted ALTER COLUMN at DROP DEFAULT;", least: 3 };
