//! Differences, disagreements and the graph, on two hosts that can be read.

mod certificates;
mod objections;

use usher_analysis::{Change, HostPolicy, Matter, Network, NetworkError, Universe, UserState};
use usher_analysis::{
    Expected, Known, Question, Reason, Verdict, difference, graph, traffic_changes,
};
use usher_policy::{Programs, Source, parse_policy};
use usher_proto::HostPublicKey;

const LAPTOP: &str = "
users mail { member alice, bob; }
client mail { users mail; service imap at mailhost port 143; }
";
const MAILHOST: &str = "
users mail { member alice, bob; }
service imap { program \"/x\"; listen 143; users mail; hosts laptop; style user; }
";

fn hosts_text() -> String {
    let block = |number: u8, name: &str| {
        let key = |number| HostPublicKey::from_bytes([number; 32]).to_openssh();
        let (key, ike) = (key(number), key(50 + number));
        format!(
            "host {name} {{ address 10.77.0.{number}, fd77::{number}; key \"{key}\"; \
             ike-key \"{ike}\"; }}\n"
        )
    };
    block(1, "laptop") + &block(2, "mailhost")
}

/// A connection of a user from laptop to imap of mailhost.
fn asked(user: &str) -> Question {
    Question {
        user: user.parse().expect("a user name"),
        client: "laptop".parse().expect("a host name"),
        service: "imap".parse().expect("a service name"),
        server: "mailhost".parse().expect("a host name"),
        port: None,
    }
}

fn host(name: &str, text: &str) -> HostPolicy {
    let name = name.parse().expect("a host name");
    let source = Source {
        name: "answers".to_owned(),
        text: text.to_owned(),
    };
    HostPolicy {
        name,
        policy: parse_policy(&[source]).expect("a correct policy"),
        users: UserState::default(),
    }
}

/// Both hosts, each with the blocks of both, after these changes to all text.
fn network(changes: &[(&str, &str, &str)]) -> Network {
    let hosts = [("laptop", LAPTOP), ("mailhost", MAILHOST)];
    let changed = hosts.map(|(name, text)| {
        let mut text = hosts_text() + text;
        for (_, from, to) in changes.iter().filter(|(at, ..)| *at == name) {
            assert!(text.contains(from), "{name}: {from}");
            text = text.replace(from, to);
        }
        host(name, &text)
    });
    Network::new(changed).expect("two hosts")
}

fn names(users: &[usher_base::UserName]) -> Vec<&str> {
    users.iter().map(AsRef::as_ref).collect()
}

/// The only change from the network as it stands to another one.
fn change(changes: &[(&str, &str, &str)]) -> Change {
    let [change] =
        <[Change; 1]>::try_from(difference(&network(&[]), &network(changes))).expect("one change");
    change
}

#[test]
fn a_difference_tells_which_programs_are_protected_now() {
    let network = |programs: &str| {
        let block = format!(
            "application {programs} {{ network 0.0.0.0/0 protected P; protection P {{ \
             localport=any remoteport=any encryption mandatory; }} }}\nclient mail {{"
        );
        network(&[
            (
                "mailhost",
                "listen 143;",
                "listen 143; protection encryption;",
            ),
            ("laptop", "client mail {", &block),
        ])
    };
    let (before, after) = (network("mutt"), network("mutt, curl"));
    assert_eq!(difference(&before, &before), []);
    let [change] = <[Change; 1]>::try_from(difference(&before, &after)).expect("one change");
    let (before, after) = change.how.expect("served otherwise");
    assert_eq!(before.protected_programs, ["mutt"]);
    assert_eq!(after.protected_programs, ["mutt", "curl"]);
}

#[test]
fn a_difference_tells_whose_traffic_is_treated_otherwise() {
    let network = |blocks: &str| {
        let blocks = format!("{blocks}\nclient mail {{");
        network(&[("laptop", "client mail {", &blocks)])
    };
    let block = |programs: &str, networks: &str| {
        format!(
            "application {programs} {{ {networks} protection P {{ localport=any remoteport=any \
             encryption mandatory; }} }}"
        )
    };
    let trusted = "network 10.0.0.0/8 trusted; network 0.0.0.0/0 protected P;";
    let before = network(&block("ssh, scp", trusted));
    // A policy that says the same in other words, for one program more.
    let halves = "network 10.0.0.0/9 trusted; network 10.128.0.0/9 trusted; network 10.0.0.0/8 trusted; \
                  network 0.0.0.0/0 protected P;";
    let after = network(&block("ssh, scp, sftp", halves));
    let changes = traffic_changes(&before, &after);
    let told = |change: &usher_analysis::TrafficChange| {
        let lines = |lines: &Option<Vec<String>>| lines.as_ref().map(Vec::len);
        (
            change.program.clone(),
            lines(&change.before),
            lines(&change.after),
        )
    };
    let changes: Vec<_> = changes.iter().map(told).collect();
    assert_eq!(changes, [("sftp".to_owned(), None, Some(7))]);
    // Another treatment of one network, and a program less.
    let after = network(&block("ssh", &trusted.replace("trusted", "untrusted")));
    let changes = traffic_changes(&before, &after);
    let changes: Vec<_> = changes.iter().map(told).collect();
    let expected = [("scp", Some(5), None), ("ssh", Some(5), Some(5))];
    assert_eq!(
        changes,
        expected.map(|(program, had, has)| (program.to_owned(), had, has))
    );
    // The analysis does not know the addresses of names: only equal statements count as equal.
    let name = |after: &str| {
        network(&block(
            "ssh",
            &format!("network www.abc.com {after}; {trusted}"),
        ))
    };
    assert_eq!(traffic_changes(&name("trusted"), &name("trusted")), []);
    assert_eq!(
        traffic_changes(&name("trusted"), &name("untrusted")).len(),
        1
    );
}

#[test]
fn a_difference_tells_which_programs_may_now() {
    let entry = "service imap at mailhost port 143;";
    let listed = format!("{entry} programs \"/usr/bin/curl\", \"/bin/mutt\";");
    let found = change(&[("laptop", entry, &listed)]);
    assert_eq!((names(&found.gain), names(&found.lose)), (vec![], vec![]));
    let (before, after) = found.how.expect("how changes");
    let programs = |how: usher_analysis::How| how.client.map(|request| request.programs);
    assert_eq!(programs(before), Some(Programs::Asking));
    let paths = ["/bin/mutt", "/usr/bin/curl"].map(str::to_owned);
    let expected = Programs::Listed(std::sync::Arc::new(paths.into()));
    assert_eq!(programs(after), Some(expected));
    // The same list in another order is the same policy: no difference.
    let turned = format!("{entry} programs \"/bin/mutt\", \"/usr/bin/curl\";");
    let both = [&listed, &turned].map(|text| network(&[("laptop", entry, text)]));
    assert_eq!(difference(&both[0], &both[1]), []);
}

#[test]
fn a_difference_names_gains_losses_and_changes() {
    assert_eq!(difference(&network(&[]), &network(&[])), []);
    let more = ("alice, bob", "alice, carol");
    // One side alone permits no further users.
    let found = change(&[("laptop", more.0, more.1)]);
    assert_eq!(
        (names(&found.gain), names(&found.lose)),
        (vec![], vec!["bob"])
    );
    let found = change(&[("laptop", more.0, more.1), ("mailhost", more.0, more.1)]);
    assert_eq!(
        (names(&found.gain), names(&found.lose)),
        (vec!["carol"], vec!["bob"])
    );
    assert_eq!(
        (found.client.as_ref(), found.server.as_ref()),
        ("laptop", "mailhost")
    );
    assert_eq!(
        (found.service.as_ref(), found.known, found.how),
        ("imap", Known::Both, None)
    );
    let found = change(&[("mailhost", "style user;", "style user; session 1h;")]);
    assert!(found.gain.is_empty() && found.lose.is_empty());
    let (before, after) = found.how.expect("how changes");
    let session = |how: usher_analysis::How| how.server.map(|offer| offer.session_seconds);
    assert_eq!(
        (session(before), session(after)),
        (Some(28_800), Some(3600))
    );
    // A policy that says the same in other words.
    let otherwise = [
        ("laptop", "users mail", "users post"),
        ("laptop", "client mail", "client c"),
    ];
    assert_eq!(difference(&network(&[]), &network(&otherwise)), []);
}

/// The contradictions between the network's hosts.
fn matters(changes: &[(&str, &str, &str)]) -> Vec<(String, String)> {
    let network = network(changes);
    let found = Universe::new(&[&network]).disagreements(&network);
    let told = found.iter();
    told.map(|found| (found.clause.to_string(), found.matter.to_string()))
        .collect()
}

#[test]
fn hosts_with_other_keys_for_a_host_that_replaces_its_key_are_reported() {
    let key = |number: u8| HostPublicKey::from_bytes([number; 32]);
    let text = |number| format!("key \"{}\";", key(number).to_openssh());
    let both = format!(
        "key \"{}\", \"{}\";",
        key(2).to_openssh(),
        key(3).to_openssh()
    );
    let (former, next) = (text(2), text(3));
    let here = |with: &str| matters(&[("laptop", &former, with), ("mailhost", &former, &both)]);
    assert_eq!(here(&both), []);
    let told = |said: u8| {
        let matter = format!(
            "laptop has the key {} for mailhost, which has {}, {} for itself",
            key(said).fingerprint(),
            key(2).fingerprint(),
            key(3).fingerprint()
        );
        [("host mailhost: key".to_owned(), matter)]
    };
    // The hosts know each other all the same.
    assert_eq!(here(&former), told(2));
    assert_eq!(here(&next), told(3));
    // The twin: a third key is another host's.
    assert!(
        here(&text(4))
            .iter()
            .any(|(_, matter)| matter.contains("is not the one"))
    );
}

#[test]
fn only_hosts_that_disagree_are_reported() {
    assert_eq!(matters(&[]), []);
    let one = |changes: &[(&str, &str, &str)]| {
        let found = matters(changes);
        assert_eq!(found.len(), 1, "{found:?}");
        let (clause, matter) = &found[0];
        format!("{clause} | {matter}")
    };
    let target = "client mail: service imap at mailhost port 143";
    assert_eq!(
        one(&[("mailhost", "service imap", "service mail")]),
        format!("{target} | mailhost offers no service imap")
    );
    assert_eq!(
        one(&[("mailhost", "listen 143", "listen 144")]),
        format!("{target} | laptop expects the service at port 143, but it is offered at port 144")
    );
    assert_eq!(
        one(&[("mailhost", "hosts laptop", "hosts mailhost")]),
        format!("{target} | `service imap` of mailhost admits no users from laptop")
    );
    assert_eq!(
        one(&[("laptop", "alice, bob", "alice, bob, carol")]),
        format!("{target} | laptop permits carol, whom imap of mailhost does not admit")
    );
    assert_eq!(
        one(&[("mailhost", "alice, bob", "alice, bob, carol")]),
        "service imap: users | imap of mailhost admits carol from laptop, which does not permit it"
    );
    assert_eq!(
        one(&[("laptop", "10.77.0.2, fd77::2;", "10.77.0.2; control 4000;")]),
        "host mailhost: control | laptop looks for the control channel of mailhost at port 4000, \
         but it is at port 3440"
    );
    assert_eq!(
        one(&[("laptop", "10.77.0.2,", "10.77.0.3,")]),
        "host mailhost: address | laptop has the address 10.77.0.3, fd77::2 for mailhost, which has \
         10.77.0.2, fd77::2 for itself"
    );
    let many: Vec<String> = (0..10).map(|number| format!("user{number}")).collect();
    assert_eq!(
        one(&[(
            "laptop",
            "alice, bob",
            &format!("alice, bob, {}", many.join(", "))
        )]),
        format!(
            "{target} | laptop permits {} and 2 more, whom imap of mailhost does not admit",
            many[..8].join(", ")
        )
    );
    let other = [
        ("laptop", "host mailhost", "host post"),
        ("laptop", "at mailhost", "at post"),
    ];
    assert_eq!(
        one(&other),
        "host post | laptop calls the host mailhost `post`"
    );
}

/// The outcomes of these statements of mailhost's policy, in order.
fn tried(network: &[HostPolicy]) -> Vec<(Expected, usize)> {
    let network = Network::new(network.iter().cloned()).expect("different hosts");
    let outcomes = network.try_expectations().into_iter();
    outcomes
        .map(|outcome| (outcome.result, outcome.examples.len()))
        .collect()
}

#[test]
fn an_expectation_holds_fails_or_is_not_known_here() {
    let expectations = "
        expect permit user alice service imap;
        expect permit user alice at laptop service imap at mailhost port 143;
        expect permit user alice at mailhost service imap;
        expect permit user alice service imap port 144;
        expect permit user dave service imap;
        expect refuse user dave service imap;
        expect refuse user alice service imap;
        expect refuse user alice at mailhost service imap at mailhost;
        expect refuse user alice at laptop service imap;
        users others { member dave; }
    ";
    let laptop = host("laptop", &(hosts_text() + LAPTOP));
    let mailhost = host("mailhost", &(hosts_text() + MAILHOST + expectations));
    use Expected::{Fails, Holds, NotKnown};
    assert_eq!(
        tried(&[laptop, mailhost.clone()]),
        [
            (Holds, 0),
            (Holds, 0),
            // mailhost does not admit users from itself.
            (Fails, 1),
            // The examples are from both hosts.
            (Fails, 2),
            (Fails, 2),
            (Holds, 0),
            (Fails, 1),
            (Holds, 0),
            (Fails, 1),
        ]
    );
    // laptop's answer decides, unless mailhost refuses.
    assert_eq!(
        tried(&[mailhost]),
        [
            (NotKnown, 1),
            (NotKnown, 1),
            (Fails, 1),
            (Fails, 2),
            (Fails, 2),
            (Holds, 0),
            (NotKnown, 1),
            (Holds, 0),
            (NotKnown, 1),
        ]
    );
    // A service that no host offers is refused, and there is no connection to show.
    let text = hosts_text() + LAPTOP + "expect permit user alice service imap at laptop;";
    let laptop = host("laptop", &text);
    let offers_nothing = host("mailhost", &(hosts_text() + "users mail { member alice; }"));
    assert_eq!(tried(&[laptop, offers_nothing]), [(Fails, 2)]);
    let text = hosts_text() + LAPTOP + "expect permit user alice service imap;";
    let offers_nothing = host("mailhost", &(hosts_text() + "users mail { member alice; }"));
    assert_eq!(
        tried(&[host("laptop", &text), offers_nothing]),
        [(Fails, 0)]
    );
}

#[test]
fn hosts_are_found_by_either_sides_name_and_told_apart_by_key() {
    let other = [
        ("laptop", "host mailhost", "host post"),
        ("laptop", "at mailhost", "at post"),
    ];
    let network = network(&other);
    for server in ["mailhost", "post"] {
        let question = Question {
            server: server.parse().expect("a host name"),
            ..asked("alice")
        };
        let decision = network.decide(&question).expect("both are known");
        assert_eq!(decision.verdict, Verdict::Permitted, "{decision:?}");
        assert_eq!(decision.question.server.as_ref(), "mailhost");
    }
    let key = |number: u8| HostPublicKey::from_bytes([number; 32]).to_openssh();
    let text = hosts_text().replace(&key(2), &key(3)) + LAPTOP;
    let imposter = host("laptop", &text);
    let mailhost = host("mailhost", &(hosts_text() + MAILHOST));
    let network = Network::new([imposter, mailhost.clone()]).expect("two hosts");
    let found = Universe::new(&[&network]).disagreements(&network);
    let key_differs = |matter: &Matter| {
        matches!(
            matter,
            Matter::Refused {
                reason: Reason::KeyDiffers { .. }
            }
        )
    };
    assert!(
        found.iter().any(|found| key_differs(&found.matter)),
        "{found:?}"
    );
    assert!(Universe::new(&[&network]).rights(&network).is_empty());

    let same_key = hosts_text()
        .replace(&key(1), &key(4))
        .replace(&key(2), &key(1));
    let twin = host("mailhost", &(same_key + MAILHOST));
    let laptop = host("laptop", &(hosts_text() + LAPTOP));
    let refused = Network::new([laptop.clone(), twin]).expect_err("one key");
    assert!(matches!(refused, NetworkError::SameKey { .. }), "{refused}");
    let refused = Network::new([laptop.clone(), laptop]).expect_err("one name");
    assert!(matches!(refused, NetworkError::SameName(_)), "{refused}");
    let nameless = HostPolicy {
        name: "desk".parse().expect("a host name"),
        ..mailhost
    };
    let refused = Network::new([nameless]).expect_err("no block");
    assert!(
        matches!(refused, NetworkError::NoBlockForItself(_)),
        "{refused}"
    );
}

#[test]
fn rights_are_found_by_the_names_of_a_connection_request() {
    let other = [
        ("laptop", "host mailhost", "host post"),
        ("laptop", "at mailhost", "at post"),
        ("mailhost", "host laptop", "host notebook"),
        ("mailhost", "hosts laptop", "hosts notebook"),
    ];
    let (plain, renamed) = (network(&[]), network(&other));
    let found = |network: &Network, client: &str, server: &str| {
        let host = |name: &str| name.parse().expect("a host name");
        let rights = Universe::new(&[network]).rights(network);
        let [right] = rights.as_slice() else {
            panic!("{rights:?}")
        };
        let found = right.is_from(network, &host(client)) && right.is_at(network, &host(server));
        let question = Question {
            client: host(client),
            server: host(server),
            ..asked("alice")
        };
        let decision = network.decide(&question);
        // Names on both sides are asked for one at a time.
        if [client, server]
            .iter()
            .any(|name| network.host(&host(name)).is_some())
        {
            let permitted = decision.is_ok_and(|decision| decision.verdict == Verdict::Permitted);
            assert_eq!(permitted, found, "{client} {server}");
        }
        found
    };
    for (client, server) in [
        ("laptop", "mailhost"),
        ("laptop", "post"),
        ("notebook", "mailhost"),
    ] {
        assert!(found(&renamed, client, server), "{client} {server}");
    }
    for (client, server) in [
        ("laptop", "notebook"),
        ("post", "mailhost"),
        ("laptop", "desk"),
    ] {
        assert!(!found(&renamed, client, server), "{client} {server}");
    }
    assert!(found(&plain, "laptop", "mailhost") && !found(&plain, "laptop", "post"));
    // The names that others have for a host make no difference.
    assert_eq!(difference(&plain, &renamed), []);
    // A host's own name means that host, even if another policy calls another host by it.
    let text = hosts_text()
        .replace("mailhost", "post")
        .replace(".2", ".3")
        .replace("::2", "::3");
    let post_key = HostPublicKey::from_bytes([3; 32]).to_openssh();
    let text = text.replace(&HostPublicKey::from_bytes([2; 32]).to_openssh(), &post_key);
    let third = host("post", &text);
    let three = Network::new(renamed.hosts().cloned().chain([third])).expect("three hosts");
    assert!(found(&three, "laptop", "mailhost") && !found(&three, "laptop", "post"));
}

#[test]
fn the_graph_has_one_node_for_users_with_identical_rights() {
    let more = [
        ("laptop", "alice, bob", "alice, bob, carol, dave"),
        ("mailhost", "alice, bob", "alice, bob, carol"),
    ];
    let drawn = graph(&network(&more));
    assert!(drawn.contains("label=\"alice\\nbob\\ncarol\""), "{drawn}");
    assert!(!drawn.contains("dave"), "{drawn}");
    assert_eq!(drawn.matches("shape=box").count(), 1, "{drawn}");
    let edge = "\"users 0\" -> \"imap@mailhost\" [label=\"from laptop\"]";
    assert!(drawn.contains(edge), "{drawn}");
    assert!(drawn.contains("subgraph \"cluster mailhost\""), "{drawn}");
    let nothing = graph(&network(&[("mailhost", "listen 143", "listen 144")]));
    assert!(!nothing.contains("imap"), "{nothing}");
}
