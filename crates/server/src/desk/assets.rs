//! Style, script and icon: files of this program, with their content's hash in their names.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use sha2::{Digest as _, Sha256};

use super::page;

const STYLE: &str = include_str!("../../templates/desk/desk.css");
const SCRIPT: &str = include_str!("../../templates/desk/desk.js");
const ICON: &str = include_str!("../../templates/desk/icon.svg");

/// A file, and the name under which it is served.
struct Asset {
    name: String,
    media_type: &'static str,
    text: &'static str,
}

static ASSETS: LazyLock<[Asset; 3]> = LazyLock::new(|| {
    [
        asset("desk", "css", "text/css; charset=utf-8", STYLE),
        asset("desk", "js", "text/javascript; charset=utf-8", SCRIPT),
        asset("icon", "svg", "image/svg+xml", ICON),
    ]
});

fn asset(stem: &str, end: &str, media_type: &'static str, text: &'static str) -> Asset {
    let hash: String = Sha256::digest(text).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Asset { name: format!("{stem}-{hash}.{end}"), media_type, text }
}

/// The addresses of style, script and icon.
pub(super) fn addresses() -> [String; 3] {
    [0, 1, 2].map(|at: usize| format!("/desk/assets/{}", ASSETS[at].name))
}

/// One of the files.
pub(super) async fn serve(Path(name): Path<String>) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return page::bare(StatusCode::NOT_FOUND, "there is no such file; load the page again");
    };
    let mut response = asset.text.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    response
}
