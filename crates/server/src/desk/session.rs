//! Sessions of browsers: who signed in, and what a form must carry.
//!
//! A cookie is 32 random bytes; the table, in memory, knows its hash and the hash of the token that it stands for. Every
//! request looks that token up anew, so a token that a reload removes, limits or lets expire ends its sessions with
//! it. A restart ends all sessions.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::auth::token_hash;

/// Sessions at a time; the one that was idle longest makes room.
const SESSIONS_MAX: usize = 1_000;
/// How long a session lasts.
const LASTS: Duration = Duration::from_secs(12 * 3600);
/// How long it lasts without a request.
const IDLE: Duration = Duration::from_secs(3600);
/// Messages that wait for their page at a time.
const NOTICES_MAX: usize = 1_000;

/// The sessions, and the messages that the next page shows.
#[derive(Debug)]
pub(super) struct Sessions {
    table: Mutex<HashMap<[u8; 32], Session>>,
    notices: Mutex<Vec<(String, Notice)>>,
    /// Signs form tokens; new with each start.
    key: [u8; 32],
}

#[derive(Debug, Clone, Copy)]
struct Session {
    /// The hash of its token.
    token: [u8; 32],
    began: Instant,
    seen: Instant,
}

/// A message for the next page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Notice {
    /// `ok`, `warn` or `bad`.
    pub(crate) kind: &'static str,
    /// What was done, or refused.
    pub(crate) text: String,
    /// For whom.
    pub(crate) who: String,
}

impl Notice {
    /// Something was done.
    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Self { kind: "ok", text: text.into(), ..Self::default() }
    }

    /// Something was refused.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self { kind: "bad", text: text.into(), ..Self::default() }
    }
}

impl Sessions {
    /// No sessions.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        Ok(Self { table: Mutex::default(), notices: Mutex::default(), key })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session of a token; the value of its cookie.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub(super) fn begin(&self, token: [u8; 32], now: Instant) -> Result<String, getrandom::Error> {
        let cookie = random()?;
        let mut table = self.table();
        table.retain(|_, session| session.lasts(now));
        if table.len() >= SESSIONS_MAX
            && let Some(idle) = table.iter().min_by_key(|(_, session)| session.seen).map(|(id, _)| *id)
        {
            table.remove(&idle);
        }
        table.insert(token_hash(&cookie), Session { token, began: now, seen: now });
        Ok(cookie)
    }

    /// The token's hash of a cookie's session.
    pub(super) fn find(&self, cookie: &str, now: Instant) -> Option<[u8; 32]> {
        let mut table = self.table();
        let session = table.get_mut(&token_hash(cookie)).filter(|session| session.lasts(now))?;
        session.seen = now;
        Some(session.token)
    }

    /// Ends a session.
    pub(super) fn end(&self, cookie: &str) {
        self.table().remove(&token_hash(cookie));
    }

    /// What the forms of a session carry; `None` for a local browser, which has no cookie.
    pub(super) fn form_token(&self, cookie: Option<&str>) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key) else { return String::new() };
        mac.update(cookie.unwrap_or("local").as_bytes());
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
    }

    /// Whether a form is one of this session.
    pub(super) fn is_form_token(&self, cookie: Option<&str>, sent: &str) -> bool {
        let token = self.form_token(cookie);
        !token.is_empty() && bool::from(token.as_bytes().ct_eq(sent.as_bytes()))
    }

    /// Keeps a message for the next page; its name in the address.
    pub(super) fn tell(&self, notice: Notice) -> String {
        let Ok(name) = random() else { return String::new() };
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        if notices.len() >= NOTICES_MAX {
            notices.remove(0);
        }
        notices.push((name.clone(), notice));
        name
    }

    /// A message, for whom it is. A page that is loaded again shows it again.
    pub(super) fn told(&self, name: &str, who: &str) -> Option<Notice> {
        let notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        let found = notices.iter().find(|(known, notice)| known == name && notice.who == who);
        found.map(|(_, notice)| notice.clone())
    }
}

impl Session {
    fn lasts(&self, now: Instant) -> bool {
        now.duration_since(self.began) < LASTS && now.duration_since(self.seen) < IDLE
    }
}

fn random() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_when_it_is_idle_old_or_ended() {
        let sessions = Sessions::new().expect("random bytes");
        let now = Instant::now();
        let cookie = sessions.begin([7; 32], now).expect("random bytes");
        assert_eq!(sessions.find(&cookie, now), Some([7; 32]));
        assert_eq!(sessions.find("other", now), None);
        assert_eq!(sessions.find(&cookie, now + IDLE), None);
        let cookie = sessions.begin([7; 32], now).expect("random bytes");
        let mut at = now;
        while at < now + LASTS - IDLE {
            at += IDLE / 2;
            assert!(sessions.find(&cookie, at).is_some());
        }
        assert_eq!(sessions.find(&cookie, now + LASTS), None);
        sessions.end(&cookie);
        assert_eq!(sessions.find(&cookie, at), None);
    }

    #[test]
    fn the_longest_idle_session_makes_room() {
        let sessions = Sessions::new().expect("random bytes");
        let now = Instant::now();
        let first = sessions.begin([0; 32], now).expect("random bytes");
        for _ in 0..SESSIONS_MAX {
            sessions.begin([1; 32], now + Duration::from_secs(1)).expect("random bytes");
        }
        assert_eq!(sessions.find(&first, now + Duration::from_secs(1)), None);
        assert_eq!(sessions.table().len(), SESSIONS_MAX);
    }

    #[test]
    fn a_form_token_is_of_one_session() {
        let sessions = Sessions::new().expect("random bytes");
        let token = sessions.form_token(Some("a"));
        assert!(sessions.is_form_token(Some("a"), &token));
        assert!(!sessions.is_form_token(Some("b"), &token) && !sessions.is_form_token(None, &token));
        assert!(!sessions.is_form_token(Some("a"), ""));
    }
}
