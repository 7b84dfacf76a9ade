//! Whether the gateway's settings can be meant together.

use std::collections::HashSet;

use http::uri::PathAndQuery;
use http::{HeaderName, StatusCode};

use super::{
    CredentialsSettings, EffectsWord, GatewaySettings, HeaderSettings, PrincipalSettings, RouteSettings,
    TenantSettings, UpstreamKeyWord,
};
use crate::config::ConfigError;
use crate::gateway::UpstreamAddress;

impl GatewaySettings {
    /// Checks what involves more than one setting.
    pub(in crate::config) fn check(&self) -> Result<(), ConfigError> {
        self.networks().map_err(ConfigError::value)?;
        if let Some(upstream) = &self.upstream {
            let wrong = |error| ConfigError::value(format!("gateway.upstream: {error}"));
            upstream.parse::<UpstreamAddress>().map_err(wrong)?;
        }
        for (name, time) in [
            ("connect_time", self.connect_time),
            ("answer_time", self.answer_time),
            ("held_time", self.held_time),
            ("tunnel_idle", self.tunnel_idle),
        ] {
            if time.is_zero() {
                return Err(ConfigError::value(format!("gateway.{name} must be above 0s")));
            }
        }
        for (name, most) in
            [("unknown_max", self.unknown_max), ("client_unknown_max", self.client_unknown_max)]
        {
            if most == 0 {
                return Err(ConfigError::value(format!("gateway.{name} must be above 0")));
            }
        }
        if self.admin == Some(self.listen) && self.listen.port() != 0 {
            return Err(ConfigError::value(
                "gateway.admin and gateway.listen must differ; the API owns every path of gateway.listen",
            ));
        }
        self.check_credentials()
            .map_err(|error| ConfigError::value(format!("gateway.credentials: {error}")))?;
        let wrong = |error| ConfigError::value(format!("gateway.upgrades: {error}"));
        crate::gateway::check_upgrades(&self.upgrades).map_err(wrong)?;
        let mut seen = HashSet::new();
        for route in &self.routes {
            let wrong = |what: String| ConfigError::value(format!("gateway.routes `{}`: {what}", route.on));
            route.check(!self.trusted.is_empty()).map_err(wrong)?;
            if route.body_max > self.client_bodies_max {
                return Err(wrong("body_max exceeds gateway.client_bodies_max; raise that, too".to_owned()));
            }
            if !seen.insert(&route.on) {
                return Err(wrong("listed twice".to_owned()));
            }
        }
        crate::gateway::check_routes(&self.routes).map_err(ConfigError::value)
    }
}

impl GatewaySettings {
    /// A guess is safe and may refuse repetitions. Who serves others than this machine has chosen it, or has not.
    fn check_credentials(&self) -> Result<(), String> {
        match &self.credentials {
            None if self.uses_credentials() && !self.listen.ip().is_loopback() => Err(format!(
                "{} serves other machines, so say which headers identify a caller: credentials = [\"authorization\"], \
                 with account headers such as \"stripe-account\" beside the token; or \"guess\", by which every header \
                 counts that is not known to be neutral; or have a trusted proxy name callers on each route",
                self.listen
            )),
            Some(CredentialsSettings::Headers(names)) if names.is_empty() => {
                Err("lists no header; list those that identify a caller, or use \"guess\"".to_owned())
            }
            Some(CredentialsSettings::Headers(names)) => names.iter().try_for_each(|name| {
                let wrong = |_| format!("`{name}` is not a valid header name");
                HeaderName::try_from(name).map(drop).map_err(wrong)
            }),
            None | Some(CredentialsSettings::Word(_)) => Ok(()),
        }
    }
}

impl RouteSettings {
    fn check(&self, somebody_is_trusted: bool) -> Result<(), String> {
        self.method_and_path()?;
        match (self.effects, self.on_unknown) {
            (EffectsWord::Transactional, _) => {
                return Err(
                    "effects cannot be transactional: the gateway does not take part in the API's transaction; use keyed if the API honours idempotency keys, otherwise opaque"
                        .to_owned(),
                );
            }
            (EffectsWord::Keyed, Some(_)) => {
                return Err(
                    "on_unknown applies to opaque effects only; keyed ones are always run again".to_owned()
                );
            }
            (EffectsWord::Keyed, None) | (EffectsWord::Opaque, _) => {}
        }
        if self.effects != EffectsWord::Keyed && self.upstream_key != UpstreamKeyWord::default() {
            return Err(
                "upstream_key applies to keyed effects only; otherwise the key is forwarded unchanged"
                    .to_owned(),
            );
        }
        if self.tenant == TenantSettings::Fixed(String::new()) {
            return Err("the tenant must not be empty".to_owned());
        }
        for (what, header) in self.headers() {
            HeaderName::try_from(header)
                .map_err(|_| format!("{what}: `{header}` is not a valid header name"))?;
            if !somebody_is_trusted {
                return Err(format!(
                    "{what}: any client could send `{header}`; list the proxy that sets it in gateway.trusted"
                ));
            }
        }
        for name in &self.fingerprint.headers {
            HeaderName::try_from(name)
                .map_err(|_| format!("fingerprint.headers: `{name}` is not a valid header name"))?;
        }
        for pointer in self.fingerprint.only.iter().chain(&self.fingerprint.without) {
            if !pointer.starts_with('/') {
                return Err(format!("fingerprint: a JSON pointer begins with `/`, unlike `{pointer}`"));
            }
        }
        if let Some(pointer) = self.identity.iter().find(|pointer| !pointer.starts_with('/')) {
            return Err(format!("identity: a JSON pointer begins with `/`, unlike `{pointer}`"));
        }
        if let Some(path) = &self.authorise
            && (!path.starts_with('/') || path.parse::<PathAndQuery>().is_err())
        {
            return Err(format!("authorise: `{path}` is not a path, such as /auth"));
        }
        for status in &self.not_executed {
            let known = StatusCode::from_u16(*status).ok().filter(|status| status.as_u16() >= 400);
            known.ok_or_else(|| format!("not_executed: {status} is not a status from 400 to 599"))?;
        }
        if [self.body_max, self.reply_max].contains(&0) {
            return Err("body_max and reply_max must be above 0".to_owned());
        }
        // The rest is the layer's to know.
        crate::gateway::endpoint(self)
            .and_then(|endpoint| endpoint.check().map_err(|error| error.to_string()))
    }

    /// Headers that only a proxy in front may set.
    pub(crate) fn named_by(&self) -> impl Iterator<Item = &str> {
        self.headers().map(|(_, header)| header)
    }

    /// The same, with the purpose of each.
    fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let tenant = match &self.tenant {
            TenantSettings::Header(HeaderSettings { header }) => Some(("tenant", header.as_str())),
            TenantSettings::Fixed(_) => None,
        };
        let principal = match &self.principal {
            PrincipalSettings::Header(HeaderSettings { header }) => Some(("principal", header.as_str())),
            PrincipalSettings::Word(_) => None,
        };
        tenant.into_iter().chain(principal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn told(text: &str) -> Result<(), String> {
        let config: Config = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        config.check().map_err(|error| error.to_string())
    }

    fn route(lines: &str) -> String {
        format!("[[gateway.routes]]\nmatch = \"POST /a/{{id}}\"\n{lines}\n")
    }

    const FINE: &str = "tenant = \"acme\"\neffects = \"keyed\"";

    #[test]
    fn what_cannot_work_is_refused_with_its_route() {
        assert_eq!(told(&route(FINE)), Ok(()));
        for (lines, why) in [
            ("effects = \"transactional\"", "effects cannot be transactional"),
            ("effects = \"keyed\"\non_unknown = \"hold\"", "on_unknown applies to opaque"),
            ("effects = \"opaque\"\nupstream_key = \"derived\"", "upstream_key applies to keyed"),
            ("effects = \"keyed\"\nprincipal = { header = \"x-user\" }", "principal: any client could send"),
            ("effects = \"keyed\"\nnot_executed = [200]", "not_executed: 200"),
            ("effects = \"keyed\"\nbody_max = 0", "body_max"),
            ("effects = \"keyed\"\nauthorise = \"auth\"", "authorise: `auth` is not a path"),
            ("effects = \"keyed\"\nlease = \"10ms\"", "lease must be between"),
            ("effects = \"keyed\"\nfingerprint.only = [\"a\"]", "fingerprint: a JSON pointer"),
            ("effects = \"keyed\"\nidentity = [\"a\"]", "identity: a JSON pointer"),
            (
                "effects = \"keyed\"\nhorizon = \"2days\"",
                "replies are kept for 86400s, but clients may repeat",
            ),
            ("effects = \"keyed\"\nskew = \"2days\"", "skew must be between"),
            ("effects = \"keyed\"\nredact.body = [\"a\"]", "redact: `a` is not a JSON pointer"),
            ("effects = \"keyed\"\nfingerprint.headers = [\"a b\"]", "fingerprint.headers"),
        ] {
            let told = told(&route(&format!("tenant = \"acme\"\n{lines}"))).expect_err(lines);
            assert!(told.starts_with(&format!("gateway.routes `POST /a/{{id}}`: {why}")), "{lines}: {told}");
        }
        for (settings, why) in [
            ("gateway.upstream = \"127.0.0.1:80\"", "gateway.upstream: must begin with"),
            ("gateway.trusted = [\"here\"]", "gateway.trusted"),
            ("gateway.credentials = [\"a b\"]", "gateway.credentials: `a b`"),
            ("gateway.credentials = []", "gateway.credentials: lists no header"),
            ("gateway.listen = \"0.0.0.0:8081\"", "gateway.credentials: 0.0.0.0:8081 serves other machines"),
            ("gateway.answer_time = \"0s\"", "gateway.answer_time"),
            ("gateway.upgrades = [\"h2c\"]", "gateway.upgrades: `h2c` would carry HTTP past every route"),
            ("gateway.admin = \"127.0.0.1:8081\"", "gateway.admin and gateway.listen must differ"),
        ] {
            let told = told(settings).expect_err(settings);
            assert!(told.starts_with(why), "{settings}: {told}");
        }
    }

    #[test]
    fn who_serves_other_machines_says_how_callers_are_told_apart() {
        for said in ["gateway.credentials = \"guess\"", "gateway.credentials = [\"authorization\"]"] {
            assert_eq!(told(&format!("gateway.listen = \"0.0.0.0:8081\"\n{said}")), Ok(()), "{said}");
        }
        let all = format!("gateway.listen = \"0.0.0.0:8081\"\n{}principal = \"none\"\n", route(FINE));
        assert_eq!(told(&all), Ok(()), "no route asks");
        let proxied = "gateway.listen = \"0.0.0.0:8081\"\ngateway.trusted = [\"10.0.0.5\"]\n";
        let named = format!("{proxied}{}principal = {{ header = \"x-user\" }}\n", route(FINE));
        assert_eq!(told(&named), Ok(()), "a proxy names them");
    }

    #[test]
    fn a_tenant_and_effects_have_to_be_said() {
        for (lines, missing) in
            [("effects = \"keyed\"", "missing field `tenant`"), ("tenant = \"a\"", "missing field `effects`")]
        {
            assert_eq!(told(&route(lines)), Err(missing.to_owned()));
        }
        let wrong = route("effects = \"keyed\"\ntenant = { haeder = \"x\" }");
        assert!(told(&wrong).expect_err("no tenant").contains("a tenant is a name"));
    }

    #[test]
    fn routes_that_cannot_be_told_apart_are_refused() {
        let other = route(FINE).replace("{id}", "{name}");
        let told = told(&format!("{}{other}", route(FINE))).expect_err("both match");
        assert!(told.starts_with("gateway.routes `POST /a/{name}`"), "{told}");
        for on in ["GET /a", "post /a", "POST a", "POST", "POST  /a"] {
            let route = route(FINE).replace("POST /a/{id}", on);
            assert!(self::told(&route).is_err(), "{on}");
        }
    }

    #[test]
    fn what_is_enrolled_usually_can_be() {
        let usual = GatewaySettings { routes: RouteSettings::usual(), ..GatewaySettings::default() };
        usual.check().expect("it can be meant");
    }
}
