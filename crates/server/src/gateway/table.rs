//! Which route a request is on: by its method and its path, as they are spelt.

use std::collections::HashMap;

use http::Method;

use crate::config::RouteSettings;

/// Routes by method and path.
#[derive(Debug, Clone)]
pub(super) struct Table<T> {
    methods: HashMap<Method, matchit::Router<T>>,
}

impl<T: Clone> Table<T> {
    pub(super) fn new() -> Self {
        Self { methods: HashMap::new() }
    }

    /// Adds a route. One that has the rest of a path has no rest as well.
    ///
    /// # Errors
    /// Where its path is none, or cannot be told from another's.
    pub(super) fn add(&mut self, route: &RouteSettings, to: T) -> Result<(), String> {
        let wrong = |what: String| format!("gateway.routes `{}`: {what}", route.on);
        let (method, path) = route.method_and_path().map_err(wrong)?;
        let paths = self.methods.entry(method).or_default();
        paths.insert(path, to.clone()).map_err(|error| wrong(error.to_string()))?;
        if let Some((before, _)) = path.split_once("{*") {
            // Another route may have it for itself.
            let _ = paths.insert(before, to);
        }
        Ok(())
    }

    /// The route of a request.
    pub(super) fn find(&self, method: &Method, path: &str) -> Option<&T> {
        self.methods.get(method)?.at(path).ok().map(|found| found.value)
    }
}

/// Whether these routes can be told apart.
///
/// # Errors
/// With the first that cannot.
pub fn check_routes(routes: &[RouteSettings]) -> Result<(), String> {
    let mut table = Table::new();
    // Those with the rest of a path come last, so that what they take as well is free for others.
    let is_rest = |route: &&RouteSettings| route.on.contains("{*");
    routes.iter().filter(|route| !is_rest(route)).try_for_each(|route| table.add(route, ()))?;
    routes.iter().filter(is_rest).try_for_each(|route| table.add(route, ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(on: &str) -> RouteSettings {
        RouteSettings { on: on.to_owned(), ..RouteSettings::usual().remove(0) }
    }

    #[test]
    fn a_request_is_on_the_route_that_says_most_of_it() {
        let mut table = Table::new();
        for on in ["POST /orders", "POST /orders/{id}", "POST /{*path}", "PATCH /files/{*path}"] {
            table.add(&route(on), on).expect("a route");
        }
        for (method, path, on) in [
            (Method::POST, "/orders", Some("POST /orders")),
            (Method::POST, "/orders/17", Some("POST /orders/{id}")),
            (Method::POST, "/orders/17/pay", Some("POST /{*path}")),
            (Method::POST, "/", Some("POST /{*path}")),
            (Method::PUT, "/orders", None),
            (Method::PATCH, "/files/", Some("PATCH /files/{*path}")),
            (Method::PATCH, "/files/a/b", Some("PATCH /files/{*path}")),
            (Method::PATCH, "/other", None),
        ] {
            assert_eq!(table.find(&method, path).copied(), on, "{method} {path}");
        }
    }

    #[test]
    fn a_template_that_is_none_is_refused() {
        for on in ["POST /{a}{b}", "POST /{", "POST /{*rest}/more"] {
            let told = check_routes(&[route(on)]).expect_err(on);
            assert!(told.starts_with(&format!("gateway.routes `{on}`: ")), "{told}");
        }
    }
}
