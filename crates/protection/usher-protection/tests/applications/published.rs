//! The policies that the paper on application-aware IPsec shows are read as they stand, and mean
//! what the paper says of them.

use std::time::Duration;

use usher_base::HostName;
use usher_protection::{Application, Names, Traffic, Verdict, compile, warnings};

use crate::{ip, read};

const FIGURES: [(&str, &str); 7] = [
    ("3", include_str!("published/figure-3.policy")),
    ("4, ftp", include_str!("published/figure-4-ftp.policy")),
    (
        "4, vsftpd",
        include_str!("published/figure-4-vsftpd.policy"),
    ),
    (
        "7, client",
        include_str!("published/figure-7-client.policy"),
    ),
    (
        "7, server",
        include_str!("published/figure-7-server.policy"),
    ),
    ("9, fast", include_str!("published/figure-9-fast.policy")),
    (
        "9, secure",
        include_str!("published/figure-9-secure.policy"),
    ),
];

fn text_of(figure: &str) -> &'static str {
    let found = FIGURES.into_iter().find(|(name, _)| *name == figure);
    found.expect("a figure of this name").1
}

fn figure(figure: &str) -> Vec<Application> {
    read(text_of(figure))
}

/// A figure's treatment of a program's traffic: `bypass`, `discard`, or kind and level. The text and
/// the tables say the same.
fn traffic(policy: &[Application], names: &Names, peer: &str, local: u16, remote: u16) -> String {
    let peer = ip(peer);
    let tables = compile(policy, names, u16::MAX).expect("tables");
    let (said, treated) = match policy[0].traffic(names, peer, local, remote) {
        Traffic::Bypass => ("bypass".to_owned(), Verdict::Bypass),
        Traffic::Discard => ("discard".to_owned(), Verdict::Discard),
        Traffic::Protect(item) => (
            format!("{} {}", item.kind, item.level),
            Verdict::Protect(item.class(), item.level),
        ),
    };
    assert_eq!(
        tables.treat(0, peer, local, remote),
        treated,
        "{peer} {local} {remote}"
    );
    said
}

#[test]
fn every_figure_is_read_as_it_stands_and_survives_its_own_text() {
    for (name, text) in FIGURES {
        let policy = figure(name);
        assert_eq!(policy.len(), 1, "figure {name}");
        assert_eq!(read(&policy[0].to_text()), policy, "figure {name}");
        let windows = text.replace('\n', "\r\n");
        assert_eq!(
            read(&windows),
            policy,
            "figure {name} with Windows line ends"
        );
        let one_line = text.replace('\n', " ");
        assert_eq!(read(&one_line), policy, "figure {name} in one line");
    }
}

// Threat model: P56
#[test]
fn figure_3_means_what_the_paper_says() {
    let policy = figure("3");
    let mut names = Names::default();
    let said = |names: &Names, peer, local| traffic(&policy, names, peer, local, 2);
    for (peer, expected) in [
        ("192.168.0.255", "bypass"),
        ("192.168.2.0", "discard"),
        ("::ffff:192.168.0.1", "bypass"),
        // Each of these may be www.abc.com until its address is known.
        ("192.168.1.0", "discard"),
        ("198.51.100.7", "discard"),
        ("2001:db8::1", "discard"),
    ] {
        assert_eq!(said(&names, peer, 123), expected, "{peer}");
    }
    let name: HostName = "www.abc.com".parse().expect("a name");
    names.answer(
        name,
        [ip("198.51.100.7"), ip("2001:db8::1")],
        Duration::ZERO,
    );
    for (peer, local, expected) in [
        ("198.51.100.7", 123, "encryption mandatory"),
        ("198.51.100.7", 124, "authentication mandatory"),
        ("198.51.100.8", 123, "authentication optional"),
        ("192.168.1.0", 123, "authentication optional"),
        ("2001:db8::1", 123, "encryption mandatory"),
        // The figure is older than IPv6: its last network is everybody else.
        ("2001:db8::2", 123, "authentication optional"),
    ] {
        assert_eq!(said(&names, peer, local), expected, "{peer}");
    }
}

#[test]
fn figure_4_means_what_the_paper_says_of_both_ends() {
    let (ftp, vsftpd) = (figure("4, ftp"), figure("4, vsftpd"));
    let names = Names::default();
    for peer in ["198.51.100.7", "2001:db8::1"] {
        for (local, remote, client, server) in [
            (40000, 21, "encryption mandatory", "authentication optional"),
            (21, 40000, "authentication mandatory", "encryption optional"),
            (
                40000,
                40001,
                "authentication mandatory",
                "authentication optional",
            ),
        ] {
            assert_eq!(traffic(&ftp, &names, peer, local, remote), client);
            assert_eq!(traffic(&vsftpd, &names, peer, local, remote), server);
        }
    }
    assert_eq!(traffic(&ftp, &names, "1.1.1.9", 40000, 21), "bypass");
    assert_eq!(traffic(&vsftpd, &names, "2.2.2.9", 21, 40000), "bypass");
}

#[test]
fn no_figure_leaves_an_address_or_a_port_out() {
    for (name, _) in FIGURES {
        let found = warnings(&figure(name), &Names::default());
        assert_eq!(found, [], "figure {name}");
    }
}

#[test]
fn figures_7_and_9_mean_what_the_paper_says() {
    let names = Names::default();
    for name in ["7, client", "7, server"] {
        let policy = figure(name);
        assert_eq!(
            traffic(&policy, &names, "192.168.1.9", 40000, 22),
            "authentication mandatory"
        );
        assert_eq!(traffic(&policy, &names, "192.168.2.9", 40000, 22), "bypass");
    }
    let fast = figure("9, fast");
    let secure = figure("9, secure");
    for (local, remote) in [(21, 40000), (40000, 21), (40000, 40001)] {
        let control = local == 21 || remote == 21;
        let expected = if control {
            "encryption mandatory"
        } else {
            "authentication mandatory"
        };
        assert_eq!(
            traffic(&fast, &names, "192.168.1.9", local, remote),
            expected
        );
        assert_eq!(
            traffic(&secure, &names, "192.168.1.9", local, remote),
            "encryption mandatory"
        );
        assert_eq!(
            traffic(&fast, &names, "192.168.2.9", local, remote),
            "bypass"
        );
    }
}

#[test]
fn the_statement_that_decides_is_named() {
    let policy = read(
        "application ftp {\n\
         network 10.0.0.1 trusted;\n\
         network 10.0.0.2 untrusted;\n\
         network 10.0.0.0/8 protected P;\n\
         protection P {\n\
         localport=any remoteport=21 encryption mandatory;\n\
         localport=20 remoteport=any authentication optional;\n\
         }\n\
         }\n",
    );
    let deciding = policy[0].deciding(&Names::default());
    let line = |peer: &str, local, remote| {
        let (traffic, origin) = deciding.traffic(ip(peer), local, remote);
        let again = policy[0].traffic(&Names::default(), ip(peer), local, remote);
        assert_eq!(traffic, again, "{peer} {local} {remote}");
        origin.map(|origin| origin.place.line)
    };
    assert_eq!(line("10.0.0.1", 1, 21), Some(2));
    assert_eq!(line("::ffff:10.0.0.2", 1, 21), Some(3));
    assert_eq!(line("10.0.0.3", 1, 21), Some(6));
    assert_eq!(line("10.0.0.3", 20, 21), Some(6), "the first item");
    assert_eq!(line("10.0.0.3", 20, 22), Some(7));
    assert_eq!(line("10.0.0.3", 1, 22), Some(5), "no item");
    assert_eq!(line("192.0.2.1", 1, 21), Some(1), "no network");
    assert_eq!(line("127.0.0.1", 1, 21), None);
}
