//! Connections and keys that other programs take out of charon.
//!
//! `swanctl --load-all` unloads every connection and key that its files lack, whoever has loaded them.
//! strongSwan's unit runs it after each start, and when it is reloaded. SAs in force hide that until they
//! end; then nothing could be negotiated any more. So the task compares charon's lists with what it has
//! loaded, and loads again what is missing.

use std::time::Duration;

use tokio::time::Instant;

use super::Driver;
use crate::charon::{Charon, Unloaded};
use crate::error::IkeError;

/// How often charon's lists are compared.
const COMPARING: Duration = Duration::from_secs(10);

/// How often while charon is young: its unit runs `swanctl --load-all` when charon has started, which may
/// come after Usher's connections.
const COMPARING_YOUNG: Duration = Duration::from_secs(1);

/// How long charon counts as young.
const YOUNG: Duration = Duration::from_secs(60);

/// How long the report says that something was unloaded.
const REPORTING: Duration = Duration::from_secs(600);

/// When charon's lists are compared, and what the comparisons have shown.
#[derive(Debug)]
pub(super) struct Looking {
    /// When charon was connected to.
    since: Instant,
    next: Instant,
    /// How often something was missing since then.
    times: u64,
    /// When something was last missing, if that is reported.
    last: Option<Instant>,
}

impl Default for Looking {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            since: now,
            next: now,
            times: 0,
            last: None,
        }
    }
}

impl Looking {
    /// Begins again, because another charon is there.
    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self {
            since: now,
            next: now + COMPARING_YOUNG,
            times: 0,
            last: None,
        };
    }

    pub(super) fn next(&self) -> Instant {
        self.next
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    pub(super) fn at_once(&mut self, now: Instant) {
        self.next = self.next.min(now);
    }

    /// Notes that the lists were compared. Returns whether to report that something is missing. The first time
    /// within a minute of charon's start is not reported: its unit runs `swanctl --load-all`, which unloads
    /// everything.
    fn compared(&mut self, is_missing: bool, now: Instant) -> bool {
        let is_young = now < self.since + YOUNG;
        self.next = if is_young {
            now + COMPARING_YOUNG
        } else {
            now + COMPARING
        };
        self.times += u64::from(is_missing);
        let is_reported = is_missing && !(is_young && self.times == 1);
        if is_reported {
            self.last = Some(now);
        }
        is_reported
    }

    fn is_reporting(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now < last + REPORTING)
    }
}

impl Driver {
    /// Compares what charon has with what it was given. Returns whether something is missing.
    pub(super) async fn is_unloaded(&mut self, charon: &mut Charon) -> Result<bool, IkeError> {
        let unloaded = charon.find_unloaded().await?;
        let now = Instant::now();
        let is_reported = self.looking.compared(!unloaded.is_nothing(), now);
        let text = describe(unloaded, self.looking.times);
        if is_reported {
            tracing::warn!("{text}");
        } else if !unloaded.is_nothing() {
            tracing::info!("{text}");
        }
        let mut report = self.shared.report.lock();
        if is_reported {
            report.unloaded = Some(text);
        } else if !self.looking.is_reporting(now) {
            report.unloaded = None;
        }
        Ok(!unloaded.is_nothing())
    }
}

fn describe(unloaded: Unloaded, times: u64) -> String {
    let connections = match unloaded.connections {
        0 => None,
        1 => Some("a connection of Usher's".to_owned()),
        number => Some(format!("{number} of Usher's connections")),
    };
    let key = unloaded.key.then(|| "this host's IKE key".to_owned());
    let what: Vec<String> = connections.into_iter().chain(key).collect();
    format!(
        "another program has taken {} out of charon (times since Usher connected to it: {times}); Usher has \
         loaded them again. `swanctl --load-all`, and with it `systemctl reload strongswan`, unloads \
         everything that its files lack",
        what.join(" and ")
    )
}

/// Returns whether an attempt may have failed for this reason because something was taken out.
pub(super) fn may_explain(reason: &str) -> bool {
    ["not found", "does not have this host's IKE key"]
        .iter()
        .any(|words| reason.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_start_of_charon_takes_out_once_is_not_reported() {
        let began = Instant::now();
        let mut looking = Looking::default();
        looking.begin(began);
        let at = |seconds| began + Duration::from_secs(seconds);
        assert!(!looking.compared(false, at(1)));
        assert!(!looking.compared(true, at(2)));
        assert_eq!(looking.next(), at(3));
        assert!(looking.compared(true, at(4)));
        assert!(!looking.compared(false, at(70)));
        assert_eq!(looking.next(), at(80));
        assert!(looking.is_reporting(at(603)) && !looking.is_reporting(at(605)));
        // Later the first time is reported, too.
        looking.begin(began);
        assert!(!looking.is_reporting(at(5)) && looking.compared(true, at(61)));
    }
}
