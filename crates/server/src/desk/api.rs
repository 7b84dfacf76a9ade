//! The API, called in process in the visitor's name.

use axum::body::{Body, Bytes};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::link;
use super::visitor::Visitor;
use crate::api::ApiProblem;

/// Why a page cannot be shown, or a form was refused.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// The last part of the problem's type.
    pub(crate) kind: String,
    /// What happened, and what to do.
    pub(crate) detail: String,
}

impl Problem {
    /// A problem of the pages' own.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, kind: String::new(), detail: detail.into() }
    }

    /// A field is missing or wrong.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

impl From<ApiProblem> for Problem {
    fn from(problem: ApiProblem) -> Self {
        Self { status: problem.status, kind: problem.kind.to_owned(), detail: problem.detail }
    }
}

impl From<redrive::StoreError> for Problem {
    fn from(error: redrive::StoreError) -> Self {
        ApiProblem::from(error).into()
    }
}

impl Visitor {
    /// Sends a GET to the API.
    pub(crate) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Problem> {
        let address = link::address(path, query.iter().copied());
        json(&self.send(Method::GET, &address, None).await?.1)
    }

    /// Sends a POST to the API.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Problem> {
        json(&self.send(Method::POST, path, Some(body)).await?.1)
    }

    /// Sends a request whose answer is not read here.
    pub(crate) async fn stream(&self, address: &str) -> Result<Body, Problem> {
        let response = self.call(Method::GET, address, None).await;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let (status, bytes) = (response.status(), whole(response.into_body()).await?);
        Err(refused(status, &bytes))
    }

    async fn send(
        &self,
        method: Method,
        address: &str,
        body: Option<&Value>,
    ) -> Result<(HeaderMap, Bytes), Problem> {
        let response = self.call(method, address, body).await;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = whole(response.into_body()).await?;
        if status.is_success() { Ok((headers, bytes)) } else { Err(refused(status, &bytes)) }
    }

    async fn call(&self, method: Method, address: &str, body: Option<&Value>) -> axum::response::Response {
        let mut request = Request::builder().method(method).uri(address).extension(self.caller.clone());
        if let Some(origin) = &self.origin {
            request = request.extension(origin.clone());
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = match request.body(body) {
            Ok(request) => request,
            Err(error) => {
                let problem = ApiProblem::bad_request(format!("this cannot be asked for: {error}"));
                return axum::response::IntoResponse::into_response(problem);
            }
        };
        match self.shared.api.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

async fn whole(body: Body) -> Result<Bytes, Problem> {
    let collected = body.collect().await.map_err(|error| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the store cannot be read: {error}"))
    });
    Ok(collected?.to_bytes())
}

fn json(bytes: &Bytes) -> Result<Value, Problem> {
    serde_json::from_slice(bytes)
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("no JSON: {error}")))
}

fn refused(status: StatusCode, bytes: &Bytes) -> Problem {
    let document: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let kind = document["code"].as_str().unwrap_or_default();
    let (kind, detail) = (kind.to_owned(), document["detail"].as_str().unwrap_or("refused").to_owned());
    Problem { status, kind, detail }
}
