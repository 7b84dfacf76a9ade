//! Signatures, as Standard Webhooks has them: HMAC-SHA-256 over id, time and body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The value of `webhook-signature`: one for each secret, the newest first.
pub(super) fn signatures<'s>(
    secrets: impl IntoIterator<Item = &'s [u8]>,
    id: &str,
    timestamp: u64,
    body: &[u8],
) -> String {
    let signatures = secrets.into_iter().filter_map(|secret| {
        // Any length; refused values do not occur.
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    });
    signatures.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn it_signs_as_the_specification_has_it() {
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("base64");
        let body = br#"{"test": 2432232314}"#;
        let signed = signatures([secret.as_slice()], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
