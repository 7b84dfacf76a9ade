//! Which route a request is on: by its method and its path, as they are spelt; and which one the API may read in them.

use std::collections::HashMap;

use http::Method;

use super::lookalike;
use crate::config::RouteSettings;

/// Routes by method and path, each with its number.
type Paths<T> = HashMap<Method, matchit::Router<(usize, T)>>;

/// Routes by method and path.
#[derive(Debug, Clone)]
pub(super) struct RouteTable<T> {
    methods: Paths<T>,
    /// The same routes in the one spelling that all others are read as.
    plain: Paths<T>,
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
        let mut table = Self { methods: HashMap::new(), plain: HashMap::new() };
        // Routes with a wildcard come last, so that others take precedence.
        let (rests, plain): (Vec<_>, Vec<_>) = routes.iter().partition(|route| route.on.contains("{*"));
        for (number, route) in plain.into_iter().chain(rests).enumerate() {
            let made = make(route).map_err(|what| format!("gateway.routes `{}`: {what}", route.on))?;
            table.add(route, (number, made))?;
        }
        Ok(table)
    }

    /// Adds a route. A wildcard also matches an empty rest.
    ///
    /// # Errors
    /// If its path is invalid or ambiguous.
    fn add(&mut self, route: &RouteSettings, to: (usize, T)) -> Result<(), String> {
        let wrong = |what: String| format!("gateway.routes `{}`: {what}", route.on);
        let (method, path) = route.method_and_path().map_err(wrong)?;
        // Where two routes differ in nothing but their spelling, either may stand for both.
        let _ = self.plain.entry(method.clone()).or_default().insert(lookalike::template(path), to.clone());
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
        Some(&self.methods.get(method)?.at(path).ok()?.value.1)
    }

    /// The route that an API may take a request for although it is not on it, as it is spelt.
    pub(super) fn lookalike(&self, method: &Method, path: &str) -> Option<&T> {
        let found = self.methods.get(method).and_then(|paths| paths.at(path).ok()).map(|found| found.value.0);
        if found.is_some() && !lookalike::is_odd(path) {
            return None;
        }
        let upper = Method::from_bytes(method.as_str().to_ascii_uppercase().as_bytes()).ok()?;
        let (number, route) = self.plain.get(&upper)?.at(&lookalike::plain(path)).ok()?.value;
        (found != Some(*number)).then_some(route)
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
    fn another_spelling_of_a_route_is_known_for_one() {
        let routes =
            ["POST /orders", "POST /orders/{id}/pay", "POST /Files/", "PATCH /any/{*rest}", "POST /pay"];
        let table = RouteTable::of(&routes.map(route), |route| Ok(route.on.clone())).expect("a table");
        for (method, path, is) in [
            ("POST", "//orders", Some("POST /orders")),
            ("POST", "/orders/", Some("POST /orders")),
            ("POST", "/ORDERS", Some("POST /orders")),
            ("post", "/orders", Some("POST /orders")),
            ("POST", "/./orders", Some("POST /orders")),
            ("POST", "/a/../orders", Some("POST /orders")),
            ("POST", "/../orders", Some("POST /orders")),
            ("POST", "/..;/orders", Some("POST /orders")),
            ("POST", "/orders;a=b", Some("POST /orders")),
            ("POST", "/%6Frders", Some("POST /orders")),
            ("POST", "/%256frders", Some("POST /orders")),
            ("POST", "/a%2f..%2Forders", Some("POST /orders")),
            ("POST", "/orders%20", Some("POST /orders")),
            ("POST", "/orders%00.json", Some("POST /orders")),
            ("POST", "/orders\\17\\pay", Some("POST /orders/{id}/pay")),
            ("POST", "/orders/17/pay/", Some("POST /orders/{id}/pay")),
            ("POST", "/orders//17/pay", Some("POST /orders/{id}/pay")),
            ("POST", "/files", Some("POST /Files/")),
            ("PATCH", "/x/../any/1/2", Some("PATCH /any/{*rest}")),
            // On one route as it is spelt, and on another as it may be read.
            ("POST", "/orders/%2e%2e/pay", Some("POST /pay")),
            // As it is spelt, or no route in any spelling.
            ("POST", "/orders", None),
            ("POST", "/orders/17/pay", None),
            ("POST", "/orders/a%2Fb/pay", None),
            ("POST", "/orders/%31/pay", None),
            ("POST", "/Files/", None),
            ("PATCH", "/any//1/", None),
            ("POST", "/mails//", None),
            ("PUT", "//orders", None),
            ("GET", "//orders", None),
        ] {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            assert_eq!(table.lookalike(&method, path).map(String::as_str), is, "{method} {path}");
        }
        // All paths are one route: there is nothing else that one of them could be taken for.
        let all = RouteTable::of(&[route("POST /{*path}")], |route| Ok(route.on.clone())).expect("a table");
        assert_eq!(all.lookalike(&Method::POST, "//a/../b;c/%2e"), None);
    }

    #[test]
    fn a_template_that_is_none_is_refused() {
        for on in ["POST /{a}{b}", "POST /{", "POST /{*rest}/more"] {
            let told = check_routes(&[route(on)]).expect_err(on);
            assert!(told.starts_with(&format!("gateway.routes `{on}`: ")), "{told}");
        }
    }
}
