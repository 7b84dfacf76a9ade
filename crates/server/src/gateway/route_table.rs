//! Which route a request is on: by its method and its path, as they are spelt.

use std::collections::HashMap;

use http::Method;

use crate::config::RouteSettings;

/// Routes by method and path.
#[derive(Debug, Clone)]
pub(super) struct RouteTable<T> {
    methods: HashMap<Method, matchit::Router<T>>,
}

impl<T: Clone> RouteTable<T> {
    /// A table of these routes, each as `make` makes it.
    ///
    /// # Errors
    /// With the first that is invalid or ambiguous.
    pub(super) fn of(
        routes: &[RouteSettings],
        mut make: impl FnMut(&RouteSettings) -> Result<T, String>,
    ) -> Result<Self, String> {
        let mut table = Self { methods: HashMap::new() };
        // Routes with a wildcard come last, so that others take precedence.
        let (rests, plain): (Vec<_>, Vec<_>) = routes.iter().partition(|route| route.on.contains("{*"));
        for route in plain.into_iter().chain(rests) {
            let made = make(route).map_err(|what| format!("gateway.routes `{}`: {what}", route.on))?;
            table.add(route, made)?;
        }
        Ok(table)
    }

    /// Adds a route. A wildcard also matches an empty rest.
    ///
    /// # Errors
    /// If its path is invalid or ambiguous.
    fn add(&mut self, route: &RouteSettings, to: T) -> Result<(), String> {
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

/// Checks that the routes are unambiguous.
///
/// # Errors
/// With the first that cannot.
pub fn check_routes(routes: &[RouteSettings]) -> Result<(), String> {
    RouteTable::of(routes, |_| Ok(())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(on: &str) -> RouteSettings {
        RouteSettings { on: on.to_owned(), ..RouteSettings::usual().remove(0) }
    }

    #[test]
    fn a_request_is_on_the_route_that_says_most_of_it() {
        let routes =
            ["POST /{*path}", "POST /orders", "POST /orders/{id}", "PATCH /files/{*path}"].map(route);
        let table = RouteTable::of(&routes, |route| Ok(route.on.clone())).expect("a table");
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
            assert_eq!(table.find(&method, path).map(String::as_str), on, "{method} {path}");
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
