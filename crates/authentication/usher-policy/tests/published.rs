//! The policies that the paper on application-aware IPsec shows are read as they stand, and mean
//! what the paper says of them.

use std::net::IpAddr;

use usher_policy::{Level, Policy, Source, Traffic, Transform, parse};

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

fn read(figure: &str) -> Policy {
    let (name, text) = FIGURES
        .into_iter()
        .find(|(name, _)| *name == figure)
        .expect("a figure of this name");
    let source = Source {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    parse(&[source]).unwrap_or_else(|errors| panic!("figure {name}: {errors:?}"))
}

/// What a figure says of a program's traffic: `bypass`, `discard`, or transform and level.
fn traffic(policy: &Policy, peer: &str, local: u16, remote: u16) -> String {
    let peer: IpAddr = peer.parse().expect("an address");
    match policy.applications[0].traffic(peer, local, remote) {
        Traffic::Bypass => "bypass".to_owned(),
        Traffic::Discard => "discard".to_owned(),
        Traffic::Protect(item) => {
            let transform = match item.transform {
                Transform::Encryption => "encryption",
                Transform::Authentication => "authentication",
            };
            let level = match item.level {
                Level::Mandatory => "mandatory",
                Level::Optional => "optional",
            };
            format!("{transform} {level}")
        }
    }
}

#[test]
fn every_figure_is_read_as_it_stands_and_survives_its_own_text() {
    for (name, _) in FIGURES {
        let policy = read(name);
        assert_eq!(policy.applications.len(), 1, "figure {name}");
        let again = parse(&[Source {
            name: name.to_owned(),
            text: policy.to_text(),
        }]);
        assert_eq!(again, Ok(policy), "figure {name}");
    }
}

#[test]
fn figure_3_means_what_the_paper_says() {
    let mut policy = read("3");
    assert_eq!(traffic(&policy, "192.168.0.255", 1, 2), "bypass");
    assert_eq!(
        traffic(&policy, "192.168.1.0", 1, 2),
        "authentication optional"
    );
    assert_eq!(traffic(&policy, "192.168.2.0", 1, 2), "discard");
    // www.abc.com is one of 0.0.0.0/0 until its address is known.
    assert_eq!(
        traffic(&policy, "198.51.100.7", 123, 2),
        "authentication optional"
    );
    let address = "198.51.100.7".parse().expect("an address");
    let mut asked = Vec::new();
    let looked_up = policy.look_up_names(|name| {
        asked.push(name.to_string());
        Ok::<_, String>(vec![address])
    });
    assert_eq!((looked_up, asked), (Ok(()), vec!["www.abc.com".to_owned()]));
    assert_eq!(
        traffic(&policy, "198.51.100.7", 123, 2),
        "encryption mandatory"
    );
    assert_eq!(
        traffic(&policy, "198.51.100.7", 124, 2),
        "authentication mandatory"
    );
    assert_eq!(
        traffic(&policy, "198.51.100.8", 123, 2),
        "authentication optional"
    );
    assert_eq!(traffic(&policy, "::ffff:192.168.0.1", 1, 2), "bypass");
    // No network of the figure has IPv6 addresses.
    assert_eq!(traffic(&policy, "2001:db8::1", 123, 2), "discard");
}

#[test]
fn figures_7_and_9_mean_what_the_paper_says() {
    for figure in ["7, client", "7, server"] {
        let policy = read(figure);
        assert_eq!(
            traffic(&policy, "192.168.1.9", 40000, 22),
            "authentication mandatory"
        );
        assert_eq!(traffic(&policy, "192.168.2.9", 40000, 22), "bypass");
    }
    let fast = read("9, fast");
    let secure = read("9, secure");
    for (local, remote) in [(21, 40000), (40000, 21), (40000, 40001)] {
        let control = local == 21 || remote == 21;
        let expected = if control {
            "encryption mandatory"
        } else {
            "authentication mandatory"
        };
        assert_eq!(traffic(&fast, "192.168.1.9", local, remote), expected);
        assert_eq!(
            traffic(&secure, "192.168.1.9", local, remote),
            "encryption mandatory"
        );
        assert_eq!(traffic(&fast, "192.168.2.9", local, remote), "bypass");
    }
}

#[test]
fn a_name_that_is_not_found_is_a_mistake_at_its_network() {
    let mut policy = read("3");
    let errors = policy.look_up_names(|_| Err("no such name"));
    let errors = errors.expect_err("the name has no address");
    assert_eq!(
        errors[0].to_string(),
        "3:5:3: the address of `www.abc.com` cannot be found: no such name"
    );
    assert_eq!((errors.len(), errors[0].span.length), (1, 35));
    assert!(
        policy
            .look_up_names(|_| Ok::<_, String>(Vec::new()))
            .is_err()
    );
}
