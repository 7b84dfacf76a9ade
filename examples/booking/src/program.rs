//! The programs' common parts: a free port, and an end when they are no longer needed.
//!
//! A program prints its address on stdout, and ends when its stdin closes. So its parent may die in any way and
//! leaves nothing running.

use std::io::Read;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;

/// The prefix of the printed address.
pub(crate) const LISTENING: &str = "listening on ";

/// Serves until stdin ends.
pub(crate) async fn serve(router: Router) -> anyhow::Result<()> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    println!("{LISTENING}{}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}

/// Ends the process when stdin does.
pub(crate) fn end_with_stdin() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

/// The idempotency key of a request, as written.
pub(crate) fn key(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("idempotency-key")?.to_str().ok()?;
    Some(text.trim_matches('"').to_owned()).filter(|key| !key.is_empty())
}

/// Something is wrong with the program's own file.
pub(crate) fn broken(error: &std::io::Error) -> Response {
    eprintln!("cannot write it down: {error}");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}
