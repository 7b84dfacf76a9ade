//! An event and its handler in words: the first lines of a trace.

use super::{Act, Intent};

impl Intent {
    /// What is published, and what its handler will do.
    pub(in super::super) fn words(&self) -> String {
        use redrive_core::event::{Expiry, When};
        let event = &self.event;
        let mut words = vec![format!("event {}: queue {}", event.id, event.queue)];
        words.extend((!event.tenant.is_empty()).then(|| format!("tenant {}", event.tenant)));
        words.extend(event.key.as_ref().map(|key| format!("key {key}")));
        words.extend(if let When::After(delay) = event.when { Some(format!("in {delay:?}")) } else { None });
        words.extend(if let Some(Expiry::After(time)) = event.expires {
            Some(format!("expires after {time:?}"))
        } else {
            None
        });
        words.extend(self.child.map(|child| format!("its handler publishes e{child}")));
        let script: Vec<String> = self.script.iter().map(|act| act.words()).collect();
        format!("{}; its handler {}", words.join(", "), script.join(", then "))
    }
}

impl Act {
    fn words(self) -> String {
        match self {
            Self::Succeed => "succeeds".into(),
            Self::SucceedWith(_) => "succeeds with a result".into(),
            Self::Fail => "fails".into(),
            Self::FailAsking(wait) => format!("fails and asks for a pause of {wait:?}"),
            Self::Overload => "reports an overload".into(),
            Self::Permanent => "fails permanently".into(),
            Self::Unclassified => "fails in an unclassified way".into(),
            Self::Discard => "discards the event".into(),
            Self::Panic => "panics".into(),
            Self::Undecodable => "cannot decode the event".into(),
            Self::Linger => "succeeds after its deadline".into(),
            Self::Kill => "kills its process".into(),
            Self::Transact => "commits in a transaction".into(),
            Self::Abort => "aborts its transaction".into(),
            Self::LateTransact => "commits in a transaction after its deadline".into(),
        }
    }
}
