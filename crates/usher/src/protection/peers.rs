//! `usher protection peers`: the hosts with which SAs are negotiated.

use usher_daemon::clock::unix_time;
use usher_daemon::control::ask_daemon;
use usher_local::requests::Peers;
use usher_local::roles;
use usher_policy::protection::{PeerState, Report};

use crate::commands::log::utc;
use crate::failure::Failure;
use crate::output::{Output, or_dash, row, table};

/// Prints the peers.
///
/// # Errors
/// When the protector does not answer.
pub fn run(output: &Output) -> Result<(), Failure> {
    let report = ask_daemon(roles::Protector, &Peers {})?;
    // JSON of `usher protection peers`: [`Report`].
    output.print(&report, || peers_text(&report, unix_time()));
    Ok(())
}

fn peers_text(report: &Report, now: u64) -> String {
    let mut text = match (&report.trouble, &report.charon) {
        (Some(trouble), _) => format!("trouble: {trouble}\n"),
        (None, Some(charon)) => format!("{charon}\n"),
        (None, None) => "nothing is negotiated: the policy in force protects no traffic\n".into(),
    };
    text.extend(
        report
            .lacks
            .iter()
            .map(|lacks| format!("lacking: {lacks}\n")),
    );
    let unloaded = report.unloaded.iter();
    text.extend(unloaded.map(|unloaded| format!("trouble: {unloaded}\n")));
    let since =
        |since: Option<u64>| or_dash(since.map(|since| format!("{} s", now.saturating_sub(since))));
    let rows = report.peers.iter().flat_map(|peer| {
        let state = match peer.state {
            PeerState::Unreached => "unreached",
            PeerState::Negotiating => "negotiating",
            PeerState::Established => "established",
        };
        peer.classes.iter().map(move |class| {
            let of_peer = peer.why_not.as_ref().filter(|_| !class.protected);
            let why_not = class.why_not.as_ref().or(of_peer);
            row![
                peer.name,
                peer.address,
                state,
                since(peer.since),
                class.class,
                since(class.since),
                or_dash(class.held_since.map(utc)),
                or_dash(class.algorithms.as_ref()),
                class.bytes_in,
                class.bytes_out,
                match (why_not, class.protected) {
                    (Some(why_not), _) => why_not,
                    (None, true) => "-",
                    (None, false) => "not negotiated yet",
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
        "HELD SINCE",
        "ALGORITHMS",
        "BYTES IN",
        "BYTES OUT",
        "WHY NOT",
    ];
    text += &table(heading, rows);
    for peer in &report.peers {
        for class in &peer.classes {
            let (name, address, class_name) = (&peer.name, peer.address, &class.class);
            text.extend(class.sources_without.iter().map(|source| {
                format!(
                    "programs send from {source} to {name} at {address}: that address has no SAs of \
                     {class_name}\n"
                )
            }));
        }
    }
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
            held_since: protected.then_some(86_400),
            sources_without: Vec::new(),
        };
        Report {
            charon: Some("charon-systemd 5.9.8".into()),
            trouble: None,
            lacks: None,
            unloaded: None,
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
        let told = peers_text(&report(true), 100);
        assert!(
            told.contains("10 s           1970-01-02T00:00:00Z  ESP AES_GCM_16-256"),
            "{told}"
        );
        assert!(!told.contains("does not answer"), "{told}");
    }

    #[test]
    fn a_class_that_is_not_negotiated_says_why() {
        let told = peers_text(&report(false), 100);
        assert!(told.contains("it does not answer"), "{told}");
    }

    #[test]
    fn an_address_without_sas_is_named() {
        let mut report = report(true);
        report.peers[0].classes[0].sources_without = vec!["192.0.2.77".parse().unwrap()];
        let told = peers_text(&report, 100);
        assert!(told.contains("from 192.0.2.77 to mailhost"), "{told}");
    }

    #[test]
    fn what_charon_lacks_is_said_before_the_peers() {
        let mut report = report(true);
        report.lacks = Some("charon-systemd 5.9.8 has no ML-KEM".into());
        let told = peers_text(&report, 100);
        assert_eq!(
            told.lines().nth(1),
            Some("lacking: charon-systemd 5.9.8 has no ML-KEM")
        );
    }

    #[test]
    fn what_was_taken_out_of_charon_is_a_trouble() {
        let mut report = report(true);
        assert!(!peers_text(&report, 100).contains("trouble"));
        report.unloaded = Some("another program has taken it out".into());
        let told = peers_text(&report, 100);
        assert!(told.contains("\ntrouble: another program"), "{told}");
    }

    #[test]
    fn trouble_with_charon_comes_first() {
        let mut report = report(true);
        report.trouble = Some("charon is not running".into());
        assert!(peers_text(&report, 100).starts_with("trouble: charon is not running\n"));
    }
}
