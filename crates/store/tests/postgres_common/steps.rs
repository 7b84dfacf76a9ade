//! Steps of the schema that there might be one day.

use redrive_store::postgres::Step;

/// A step that only adds: to every table that the hot path writes, and one of its own. It counts how often it was done.
pub(crate) const ADDS: Step = Step {
    sql: "ALTER TABLE redrive.queue ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
          ALTER TABLE redrive.stream ADD COLUMN colour TEXT;
          ALTER TABLE redrive.shard ADD COLUMN colour TEXT;
          ALTER TABLE redrive.node ADD COLUMN colour TEXT;
          ALTER TABLE redrive.live ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
          ALTER TABLE redrive.held ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
          ALTER TABLE redrive.receipt ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
          ALTER TABLE redrive.ending ADD COLUMN colour TEXT;
          ALTER TABLE redrive.request ADD COLUMN colour TEXT;
          CREATE INDEX live_colour ON redrive.live (colour) WHERE colour <> 'blue';
          CREATE TABLE IF NOT EXISTS redrive.painted (at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp());
          INSERT INTO redrive.painted DEFAULT VALUES;",
    least: 1,
};
/// A step after which nobody can do without it.
pub(crate) const TAKES: Step =
    Step { sql: "ALTER TABLE redrive.painted ALTER COLUMN at DROP DEFAULT;", least: 3 };
