//! Users who need a certificate with a principal, on the same two hosts.

use usher_analysis::{Change, Expected, HostPolicy, Network, Universe, UserState, Verdict};
use usher_analysis::{difference, graph};

use super::{LAPTOP, MAILHOST, asked, change, host, hosts_text, matters, names, network, tried};

const CERTIFIED: (&str, &str, &str) = (
    "mailhost",
    "users mail { member alice, bob; }",
    "users mail { member alice; principal ops, dev; }",
);

/// With these users known on mailhost, where an authority in bob's list is trusted with `ops`.
fn with_lines(mut hosts: Vec<HostPolicy>) -> Network {
    let set = |names: &[&str]| {
        names
            .iter()
            .map(|name| name.parse().expect("a name"))
            .collect()
    };
    for host in hosts
        .iter_mut()
        .filter(|host| host.name.as_ref() == "mailhost")
    {
        host.users = UserState {
            keys: Some([(None, set(&["alice", "bob", "carol"]))].into()),
            authorities: [(None, [("ops".to_owned(), set(&["bob"]))].into())].into(),
            ..UserState::default()
        };
    }
    Network::new(hosts).expect("different hosts")
}

/// The verdict on somebody from laptop, with the principals and how many objections.
fn decided(network: &Network, user: &str) -> (Verdict, String, usize) {
    let decision = network.decide(&asked(user)).expect("one is known");
    let names: Vec<&str> = decision.principals.iter().map(AsRef::as_ref).collect();
    (decision.verdict, names.join(","), decision.objections.len())
}

#[test]
fn users_who_need_a_certificate_are_listed_with_the_principal() {
    let both = network(&[CERTIFIED]);
    let needed = |names: &str| (Verdict::WithCertificate, names.to_owned(), 0);
    let refused = |objections| (Verdict::Refused, String::new(), objections);
    assert_eq!(
        decided(&both, "alice"),
        (Verdict::Permitted, String::new(), 0)
    );
    assert_eq!(decided(&both, "bob"), needed("dev,ops"));
    // A certificate does not help a user whom the client does not permit.
    assert_eq!(
        decided(&both, "carol"),
        (Verdict::Refused, "dev,ops".to_owned(), 1)
    );
    let hosts: Vec<HostPolicy> = both.hosts().cloned().collect();
    let known = with_lines(hosts.clone());
    assert_eq!(decided(&known, "bob"), needed("ops"));
    let mailhost = hosts
        .into_iter()
        .filter(|host| host.name.as_ref() == "mailhost");
    let alone = with_lines(mailhost.clone().collect());
    assert_eq!(decided(&alone, "bob"), needed("ops"));
    assert_eq!(decided(&alone, "carol"), refused(1));
    // dave has no key, either.
    assert_eq!(decided(&alone, "dave"), refused(2));
    let alone = Network::new(mailhost).expect("one host");
    for user in ["bob", "dave"] {
        assert_eq!(decided(&alone, user), needed("dev,ops"));
    }
    assert_eq!(decided(&alone, "root"), refused(1));
    let mut universe = Universe::new(&[&alone]);
    let rights = universe.rights(&alone);
    let found: Vec<_> = rights[0]
        .by_certificate
        .iter()
        .map(|by| by.anybody)
        .collect();
    assert_eq!(found, [true, true]);
    let needs = |user: &str| {
        let user = user.parse().expect("a user name");
        rights[0].principals_for(&universe, &user).len()
    };
    assert_eq!((needs("alice"), needs("dave"), needs("root")), (0, 2, 0));
    let drawn = graph(&alone);
    assert!(
        drawn.contains("label=\"whoever's certificate\\nnames ops\""),
        "{drawn}"
    );
    let drawn = graph(&known);
    assert!(
        drawn.contains("[label=\"from laptop\\nif a certificate names ops\"]"),
        "{drawn}"
    );
    assert_eq!(drawn.matches("shape=box").count(), 2, "{drawn}");
}

#[test]
fn an_expectation_that_needs_a_certificate_stays_open() {
    let expectations = "
        expect permit user bob service imap;
        expect refuse user bob service imap;
        expect refuse user bob at mailhost service imap;
        expect permit user alice service imap;
        expect refuse user dave service imap;
    ";
    let text = hosts_text() + &MAILHOST.replace(CERTIFIED.1, CERTIFIED.2) + expectations;
    let laptop = host("laptop", &(hosts_text() + LAPTOP));
    use Expected::{Holds, NotKnown};
    assert_eq!(
        tried(&[laptop, host("mailhost", &text)]),
        [
            (NotKnown, 1),
            (NotKnown, 1),
            (Holds, 0),
            (Holds, 0),
            (Holds, 0)
        ]
    );
}

#[test]
fn a_difference_tells_who_gains_and_who_loses_by_a_certificate() {
    let told = |found: &Change| -> Vec<String> {
        let changes = found.certificates.iter();
        changes
            .map(|change| {
                let (gain, lose) = (names(&change.gain), names(&change.lose));
                let anybody = (change.anybody_gains, change.anybody_loses);
                format!("{} {gain:?} {lose:?} {anybody:?}", change.principal)
            })
            .collect()
    };
    let found = change(&[CERTIFIED]);
    assert_eq!(
        (names(&found.gain), names(&found.lose)),
        (vec![], vec!["bob"])
    );
    let gained = [
        "dev [\"bob\"] [] (false, false)",
        "ops [\"bob\"] [] (false, false)",
    ];
    assert_eq!(told(&found), gained);
    // The way back: bob needs no certificate, and loses nothing.
    let back = difference(&network(&[CERTIFIED]), &network(&[]));
    assert_eq!(
        (names(&back[0].gain), told(&back[0]).len()),
        (vec!["bob"], 0)
    );
    // Only users with a certificate are served in another way than before.
    let none = ("mailhost", "member alice; ", "");
    let later = ("mailhost", "style user;", "style user; session 1h;");
    let (before, after) = (
        network(&[CERTIFIED, none]),
        network(&[CERTIFIED, none, later]),
    );
    let found = difference(&before, &after);
    assert!(
        found[0].how.is_some() && told(&found[0]).is_empty(),
        "{found:?}"
    );
    // The client's policy is not known: anybody there may hold such a certificate.
    let alone = |changes: &[(&str, &str, &str)]| {
        let network = network(changes);
        let hosts = network
            .hosts()
            .filter(|host| host.name.as_ref() == "mailhost");
        Network::new(hosts.cloned()).expect("one host")
    };
    let fewer = ("mailhost", "principal ops, dev", "principal ops");
    let found = difference(&alone(&[CERTIFIED]), &alone(&[CERTIFIED, fewer]));
    assert_eq!(told(&found[0]), ["dev [] [] (false, true)"]);
}

#[test]
fn hosts_agree_on_users_who_need_a_certificate() {
    assert_eq!(matters(&[CERTIFIED]), []);
    let account = ("mailhost", "program \"/x\"", "account bob");
    let found = matters(&[CERTIFIED, account]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]
            .1
            .contains("permits bob, whom imap of mailhost does not admit"),
        "{found:?}"
    );
}
