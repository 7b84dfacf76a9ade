//! The desk's pages, as a browser without scripts sees them.

#[path = "desk/browser.rs"]
mod browser;
#[path = "api/dead_letters.rs"]
#[allow(dead_code, reason = "shared with the API's tests")]
mod dead_letters;
#[path = "desk/hostile.rs"]
mod hostile;
#[path = "desk/html.rs"]
mod html;
#[path = "desk/plain.rs"]
mod plain;
#[path = "desk/policy.rs"]
mod policy;
#[path = "desk/same.rs"]
mod same;
#[path = "api/test_server.rs"]
#[allow(dead_code, reason = "shared with the API's tests")]
mod test_server;
#[path = "desk/true_figures.rs"]
mod true_figures;
