//! `usher protection peers`: the hosts with which SAs are negotiated.

use usher_daemon::clock::unix_time;
use usher_daemon::control::ask;
use usher_local::requests::Peers;
use usher_local::roles;
use usher_policy::protection::{PeerState, Report};

use crate::failure::Failure;
use crate::output::{Output, row, table};

/// Prints them.
///
/// # Errors
/// When the protector does not answer.
pub fn run(output: &Output) -> Result<(), Failure> {
    let report = ask(roles::Protector, &Peers {})?;
    output.print(&report, || text(&report, unix_time()));
    Ok(())
}

fn text(report: &Report, now: u64) -> String {
    let mut text = match (&report.trouble, &report.charon) {
        (Some(trouble), _) => format!("trouble: {trouble}\n"),
        (None, Some(charon)) => format!("{charon}\n"),
        (None, None) => "nothing is negotiated: the policy in force protects no traffic\n".into(),
    };
    let since = |since: Option<u64>| {
        since.map_or("-".to_owned(), |since| {
            format!("{} s", now.saturating_sub(since))
        })
    };
    let rows = report.peers.iter().flat_map(|peer| {
        let state = match peer.state {
            PeerState::Unreached => "unreached",
            PeerState::Negotiating => "negotiating",
            PeerState::Established => "established",
        };
        peer.classes.iter().map(move |class| {
            let why_not = class.why_not.as_ref().or(peer.why_not.as_ref());
            row![
                peer.name,
                peer.address,
                state,
                since(peer.since),
                class.class,
                since(class.since),
                class.algorithms.as_deref().unwrap_or("-"),
                class.bytes_in,
                class.bytes_out,
                match class.protected {
                    true => "-",
                    false => why_not.map_or("not negotiated yet", String::as_str),
                },
            ]
        })
    });
    let heading = [
        "HOST",
        "ADDRESS",
        "STATE",
        "FOR",
        "CLASS",
        "PROTECTED FOR",
        "ALGORITHMS",
        "BYTES IN",
        "BYTES OUT",
        "WHY NOT",
    ];
    text += &table(heading, rows);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_policy::protection::{ClassReport, PeerReport};

    fn report(protected: bool) -> Report {
        let class = ClassReport {
            class: "encryption".into(),
            protected,
            since: protected.then_some(90),
            algorithms: protected.then(|| "ESP AES_GCM_16-256".into()),
            spi_in: None,
            spi_out: None,
            bytes_in: 0,
            bytes_out: 0,
            why_not: (!protected).then(|| "it does not answer".into()),
        };
        Report {
            charon: Some("charon-systemd 5.9.8".into()),
            trouble: None,
            peers: vec![PeerReport {
                name: "mailhost".parse().unwrap(),
                address: "192.0.2.1".parse().unwrap(),
                state: PeerState::Established,
                since: Some(80),
                algorithms: None,
                why_not: None,
                classes: vec![class],
            }],
        }
    }

    #[test]
    fn a_protected_class_shows_its_algorithms() {
        let told = text(&report(true), 100);
        assert!(told.contains("10 s           ESP AES_GCM_16-256"), "{told}");
        assert!(!told.contains("does not answer"), "{told}");
    }

    #[test]
    fn a_class_that_is_not_negotiated_says_why() {
        let told = text(&report(false), 100);
        assert!(told.contains("it does not answer"), "{told}");
    }

    #[test]
    fn trouble_with_charon_comes_first() {
        let mut report = report(true);
        report.trouble = Some("charon is not running".into());
        assert!(text(&report, 100).starts_with("trouble: charon is not running\n"));
    }
}
