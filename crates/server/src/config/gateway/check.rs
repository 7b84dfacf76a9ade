//! Whether the gateway's settings can be meant together.

use std::collections::HashSet;

use http::{HeaderName, StatusCode};

use super::{
    EffectsWord, GatewaySettings, HeaderSettings, PrincipalSettings, RouteSettings, TenantSettings,
    UpstreamKeyWord,
};
use crate::config::ConfigError;
use crate::gateway::Address;

impl GatewaySettings {
    /// Checks what no single setting shows.
    pub(in crate::config) fn check(&self) -> Result<(), ConfigError> {
        self.networks().map_err(ConfigError::value)?;
        if let Some(upstream) = &self.upstream {
            let wrong = |error| ConfigError::value(format!("gateway.upstream: {error}"));
            upstream.parse::<Address>().map_err(wrong)?;
        }
        for (name, time) in [("connect_time", self.connect_time), ("answer_time", self.answer_time)] {
            if time.is_zero() {
                return Err(ConfigError::value(format!("gateway.{name} of 0s reaches nobody")));
            }
        }
        if self.admin == Some(self.listen) && self.listen.port() != 0 {
            return Err(ConfigError::value(
                "gateway.admin is gateway.listen; the API has all of that address",
            ));
        }
        for name in &self.credentials {
            let wrong = |_| ConfigError::value(format!("gateway.credentials: `{name}` is no header"));
            HeaderName::try_from(name).map_err(wrong)?;
        }
        let mut seen = HashSet::new();
        for route in &self.routes {
            let wrong = |what: String| ConfigError::value(format!("gateway.routes `{}`: {what}", route.on));
            route.check(!self.trusted.is_empty()).map_err(wrong)?;
            if !seen.insert(&route.on) {
                return Err(wrong("it is there twice".to_owned()));
            }
        }
        crate::gateway::check_routes(&self.routes).map_err(ConfigError::value)
    }
}

impl RouteSettings {
    fn check(&self, somebody_is_trusted: bool) -> Result<(), String> {
        self.method_and_path()?;
        match (self.effects, self.on_unknown) {
            (EffectsWord::Transactional, _) => {
                return Err(
                    "effects cannot be transactional: the API commits by itself, and the gateway is not \
                            in its transaction; say keyed if the API knows idempotency keys, or opaque"
                        .to_owned(),
                );
            }
            (EffectsWord::Keyed, Some(_)) => {
                return Err("on_unknown is for opaque effects; keyed ones are run again".to_owned());
            }
            (EffectsWord::Keyed, None) | (EffectsWord::Opaque, _) => {}
        }
        if self.effects != EffectsWord::Keyed && self.upstream_key != UpstreamKeyWord::default() {
            return Err(
                "upstream_key is for keyed effects; to others the key is passed on as it came".to_owned()
            );
        }
        if self.tenant == TenantSettings::Fixed(String::new()) {
            return Err("a tenant has a name".to_owned());
        }
        for (what, header) in self.headers() {
            HeaderName::try_from(header).map_err(|_| format!("{what}: `{header}` is no header"))?;
            if !somebody_is_trusted {
                return Err(format!(
                    "{what}: anybody could send `{header}`; name the proxy that sets it in gateway.trusted"
                ));
            }
        }
        for name in &self.fingerprint.headers {
            HeaderName::try_from(name).map_err(|_| format!("fingerprint.headers: `{name}` is no header"))?;
        }
        for pointer in self.fingerprint.only.iter().chain(&self.fingerprint.without) {
            if !pointer.starts_with('/') {
                return Err(format!("fingerprint: a JSON pointer begins with `/`, and not as `{pointer}`"));
            }
        }
        if let Some(pointer) = self.identity.iter().find(|pointer| !pointer.starts_with('/')) {
            return Err(format!("identity: a JSON pointer begins with `/`, and not as `{pointer}`"));
        }
        for status in &self.not_executed {
            let known = StatusCode::from_u16(*status).ok().filter(|status| status.as_u16() >= 400);
            known.ok_or_else(|| format!("not_executed: {status} is no status of a refusal, 400 to 599"))?;
        }
        if [self.body_max, self.reply_max].contains(&0) {
            return Err("body_max and reply_max of 0 serve nobody".to_owned());
        }
        // The rest is the layer's to know.
        crate::gateway::endpoint(self)
            .and_then(|endpoint| endpoint.check().map_err(|error| error.to_string()))
    }

    /// Headers that only a proxy in front may set.
    pub(crate) fn named_by(&self) -> impl Iterator<Item = &str> {
        self.headers().map(|(_, header)| header)
    }

    /// The same, with what each is for.
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
            ("effects = \"keyed\"\non_unknown = \"hold\"", "on_unknown is for opaque"),
            ("effects = \"opaque\"\nupstream_key = \"derived\"", "upstream_key is for keyed"),
            ("effects = \"keyed\"\nprincipal = { header = \"x-user\" }", "principal: anybody could send"),
            ("effects = \"keyed\"\nnot_executed = [200]", "not_executed: 200"),
            ("effects = \"keyed\"\nbody_max = 0", "body_max"),
            ("effects = \"keyed\"\nlease = \"10ms\"", "lease is between"),
            ("effects = \"keyed\"\nfingerprint.only = [\"a\"]", "fingerprint: a JSON pointer"),
            ("effects = \"keyed\"\nidentity = [\"a\"]", "identity: a JSON pointer"),
            (
                "effects = \"keyed\"\nhorizon = \"2days\"",
                "answers are kept for 86400s, but clients may repeat",
            ),
            ("effects = \"keyed\"\nskew = \"2days\"", "skew is between"),
            ("effects = \"keyed\"\nredact.body = [\"a\"]", "redact: `a` is no JSON pointer"),
            ("effects = \"keyed\"\nfingerprint.headers = [\"a b\"]", "fingerprint.headers"),
        ] {
            let told = told(&route(&format!("tenant = \"acme\"\n{lines}"))).expect_err(lines);
            assert!(told.starts_with(&format!("gateway.routes `POST /a/{{id}}`: {why}")), "{lines}: {told}");
        }
        for (settings, why) in [
            ("gateway.upstream = \"127.0.0.1:80\"", "gateway.upstream: it begins with"),
            ("gateway.trusted = [\"here\"]", "gateway.trusted"),
            ("gateway.credentials = [\"a b\"]", "gateway.credentials: `a b`"),
            ("gateway.answer_time = \"0s\"", "gateway.answer_time"),
            ("gateway.admin = \"127.0.0.1:8081\"", "gateway.admin is gateway.listen"),
        ] {
            let told = told(settings).expect_err(settings);
            assert!(told.starts_with(why), "{settings}: {told}");
        }
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
