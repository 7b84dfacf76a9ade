//! The command line: the built program, against a server and against a store file.

#[allow(dead_code, reason = "the tests of the API use all of it")]
#[path = "api/house.rs"]
mod house;
#[allow(dead_code, reason = "the tests of the API use all of it")]
#[path = "api/letters.rs"]
mod letters;
#[path = "cli/program.rs"]
mod program;
#[allow(dead_code, reason = "the tests of the API use all of it")]
#[path = "api/requests.rs"]
mod requests;

#[path = "cli/dead.rs"]
mod dead;
#[path = "cli/file.rs"]
mod file;
#[path = "cli/flow.rs"]
mod flow;
#[path = "cli/ledger.rs"]
mod ledger;
#[path = "cli/moving.rs"]
mod moving;
#[path = "cli/nodes.rs"]
mod nodes;
#[path = "cli/words.rs"]
mod words;
