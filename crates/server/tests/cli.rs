//! The command line: the built program, against a server and against a store file.

#[allow(dead_code, reason = "the tests of the API use all of it")]
#[path = "api/dead_letters.rs"]
mod dead_letters;
#[path = "cli/program.rs"]
mod program;
#[allow(dead_code, reason = "the tests of the API use all of it")]
#[path = "api/requests.rs"]
mod requests;
#[allow(dead_code, reason = "the tests of the API use all of it")]
#[path = "api/test_server.rs"]
mod test_server;

#[path = "cli/dead.rs"]
mod dead;
#[path = "cli/failing.rs"]
mod failing;
#[path = "cli/file.rs"]
mod file;
#[path = "cli/help_texts.rs"]
mod help_texts;
#[path = "cli/ledger.rs"]
mod ledger;
#[path = "cli/move_store.rs"]
mod move_store;
#[path = "cli/nodes.rs"]
mod nodes;
#[path = "cli/queue.rs"]
mod queue;
#[path = "cli/verbs.rs"]
mod verbs;
