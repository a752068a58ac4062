//! The objections to a connection, and their remedies.

use usher_analysis::{Disagreement, HostPolicy, Matter, Network, Question, Universe};
use usher_policy::Moment;
use usher_proto::HostPublicKey;

use super::{asked, network};

/// The objections to this user's connection from laptop to imap of mailhost: reason and remedy.
fn objections(network: &Network, user: &str) -> Vec<(String, Option<String>)> {
    let decision = network.decide(&asked(user)).expect("both are known");
    let told = decision
        .objections
        .iter()
        .map(|objection| &objection.reason);
    told.map(|reason| (reason.to_string(), reason.remedy()))
        .collect()
}

fn told(text: &str, remedy: &str) -> (String, Option<String>) {
    (text.to_owned(), Some(remedy.to_owned()))
}

#[test]
fn a_guest_whose_time_is_over_is_told_so_and_who_is_none_is_not() {
    let guests = "bob; guest olga until 2026-01-01T00:00Z; guest nora until 2026-03-01T00:00Z; }
        users more { guest olga until 2026-01-02T00:00Z";
    let changes = [
        ("laptop", "alice, bob", "alice, olga, nora, eve"),
        ("mailhost", "bob", guests),
        ("mailhost", "users mail; hosts", "users mail, more; hosts"),
    ];
    let later = |host: &HostPolicy| {
        let now = "2026-02-01T00:00Z"
            .parse::<Moment>()
            .expect("a time")
            .unix_time();
        HostPolicy {
            policy: host.policy.at(now),
            ..host.clone()
        }
    };
    let before = network(&changes);
    let after = Network::new(before.hosts().map(later)).expect("two hosts");
    for user in ["olga", "nora"] {
        assert_eq!(objections(&before, user), []);
    }
    assert_eq!(objections(&after, "nora"), []);
    assert_eq!(
        objections(&after, "olga"),
        [told(
            "olga was a guest of `service imap` of mailhost, and that is over since \
             2026-01-02T00:00Z",
            "write a later time for the guest olga on mailhost"
        )]
    );
    assert_eq!(
        objections(&after, "eve"),
        [told(
            "`service imap` of mailhost does not admit eve",
            "add eve to one of the `users` blocks that it names on mailhost, or name another one"
        )]
    );
    // The client's side.
    let changes = [(
        "laptop",
        "alice, bob",
        "alice; guest bob until 2026-01-01T00:00Z",
    )];
    let before = network(&changes);
    let after = Network::new(before.hosts().map(later)).expect("two hosts");
    assert_eq!(objections(&before, "bob"), []);
    assert_eq!(
        objections(&after, "bob"),
        [told(
            "bob was a guest of `client mail` of laptop, and that is over since 2026-01-01T00:00Z",
            "write a later time for the guest bob on laptop"
        )]
    );
}

#[test]
fn a_service_that_demands_protection_asks_it_of_the_client() {
    let with = |kind: &str, application: &str| {
        let demanded = format!("listen 143; protection {kind};");
        let client = format!("{application}\nclient mail {{");
        network(&[
            ("mailhost", "listen 143;", &demanded),
            ("laptop", "client mail {", &client),
        ])
    };
    let unprotected = |kind: &str| {
        told(
            &format!(
                "imap demands {kind} by IPsec, and laptop protects no program's connections with \
                 mailhost at port 143 by it"
            ),
            &format!(
                "write `protection {kind};` in the `client` block on laptop that names imap at mailhost"
            ),
        )
    };
    let block = |item: &str| {
        format!(
            "application curl, /usr/bin/mutt {{ network mailhost protected P; network 0.0.0.0/0 trusted; \
             protection P {{ localport=any {item}; }} }}"
        )
    };
    for (kind, item, meets) in [
        ("encryption", "", false),
        ("encryption", "remoteport=143 encryption mandatory", true),
        ("encryption", "remoteport=any encryption optional", true),
        ("encryption", "remoteport=144 encryption mandatory", false),
        (
            "encryption",
            "remoteport=143 authentication mandatory",
            false,
        ),
        (
            "authentication",
            "remoteport=143 authentication mandatory",
            true,
        ),
        (
            "authentication",
            "remoteport=143 encryption mandatory",
            true,
        ),
    ] {
        let application = match item {
            "" => String::new(),
            item => block(item),
        };
        let network = with(kind, &application);
        let expected = if meets {
            Vec::new()
        } else {
            vec![unprotected(kind)]
        };
        assert_eq!(objections(&network, "alice"), expected, "{kind}: {item}");
        let mut universe = Universe::new(&[&network]);
        assert_eq!(universe.rights(&network).len(), usize::from(meets));
        // Only refusals of the service: the block of the program may lack an answer, too.
        let of_service = |found: &Disagreement| matches!(found.matter, Matter::Refused { .. });
        let disagreements = universe.disagreements(&network).into_iter();
        let found: Vec<String> = disagreements
            .filter(of_service)
            .map(|found| found.matter.to_string())
            .collect();
        let reasons: Vec<String> = expected.into_iter().map(|(reason, _)| reason).collect();
        assert_eq!(found, reasons, "{kind}: {item}");
        let decision = network.decide(&asked("alice")).expect("both are known");
        let programs: &[&str] = if meets {
            &["curl", "/usr/bin/mutt"]
        } else {
            &[]
        };
        assert_eq!(decision.how.protected_programs, programs);
    }
}

#[test]
fn a_client_block_protects_as_the_service_demands() {
    let demand = |kind: &str| match kind {
        "" => "listen 143;".to_owned(),
        kind => format!("listen 143; protection {kind};"),
    };
    let without_sas = |kind: &str| {
        format!(
            "laptop has its connections with imap protected by {kind} of IPsec, and mailhost negotiates \
             no SAs for it"
        )
    };
    for (demanded, given, refused) in [
        ("encryption", "encryption", false),
        ("authentication", "encryption", false),
        ("authentication", "authentication", false),
        ("", "encryption", true),
    ] {
        let client = format!("client mail {{ protection {given};");
        let network = network(&[
            ("mailhost", "listen 143;", &demand(demanded)),
            ("laptop", "client mail {", &client),
        ]);
        let remedy = format!("write `protection {given};` in `service imap` on mailhost");
        let expected = if refused {
            vec![told(&without_sas(given), &remedy)]
        } else {
            Vec::new()
        };
        assert_eq!(
            objections(&network, "alice"),
            expected,
            "{demanded}: {given}"
        );
        let rights = Universe::new(&[&network]).rights(&network).len();
        assert_eq!(rights, usize::from(!refused));
        let decision = network.decide(&asked("alice")).expect("both are known");
        let request = decision.how.client.expect("a client");
        assert_eq!(
            request.protection.map(|kind| kind.to_string()),
            Some(given.to_owned())
        );
    }
    // Less than the service demands: neither passes.
    let network = network(&[
        (
            "mailhost",
            "listen 143;",
            "listen 143; protection encryption;",
        ),
        (
            "laptop",
            "client mail {",
            "client mail { protection authentication;",
        ),
    ]);
    assert_eq!(objections(&network, "alice").len(), 2);
}

/// A peer without Ed25519 needs a host that has an ECDSA key as well, and each must choose the same.
#[test]
fn hosts_without_a_common_algorithm_of_keys_are_refused() {
    let ed25519 = |number: u8| HostPublicKey::from_bytes([50 + number; 32]).to_openssh();
    let [of_laptop, of_mailhost] = ["AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBKAwlr/JGZRb4wEUSl4zr+AOQtCBRsTKJWC0FSZUrUpFeqjlx19P6UjYLx2U+TXpgSZ4STL4jRDF8eSfv20ArlE=", "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBCabAhs15TvyJacTxF4e9kYfa1c8oXr8qbRRB5XZ8C/Ye+8rneXtKa6TJFCNVBtzXzZgr5ZzR2J5mWier+E3Fb8="].map(|key| format!("ecdsa-sha2-nistp256 {key}"));
    let demand = (
        "mailhost",
        "listen 143;",
        "listen 143; protection encryption;",
    );
    let request = (
        "laptop",
        "client mail {",
        "client mail { protection encryption;",
    );
    let (laptop, mailhost) = (ed25519(1), ed25519(2));
    let both = format!("{laptop}\", \"{of_laptop}");
    let only = [
        ("laptop", mailhost.as_str(), of_mailhost.as_str()),
        ("mailhost", mailhost.as_str(), of_mailhost.as_str()),
    ];
    let lacking = |host: &str, other: &str| {
        told(
            &format!(
                "IPsec must protect connections with {other}, and on {host} the `ike-key`s of {host} and of \
                 {other} are of different algorithms: no SAs are negotiated"
            ),
            &format!(
                "make a key of {other}'s algorithm on {host}, and add it, after a comma, to the `ike-key` of \
                 {host} on both hosts (docs/protection.md, Keys)"
            ),
        )
    };
    let without = network(&[demand, request, only[0], only[1]]);
    let found = objections(&without, "alice");
    assert_eq!(found.len(), 2, "{found:?}");
    for expected in [lacking("laptop", "mailhost"), lacking("mailhost", "laptop")] {
        assert!(found.contains(&expected), "{found:?}");
    }
    // The twin: the laptop has a second key.
    let of_both = ["laptop", "mailhost"].map(|at| (at, laptop.as_str(), both.as_str()));
    let with = network(&[demand, request, only[0], only[1], of_both[0], of_both[1]]);
    assert_eq!(objections(&with, "alice"), []);
    // Both hosts have both keys, and mailhost knows only one of the laptop's.
    let two = format!("{mailhost}\", \"{of_mailhost}");
    let differing = network(&[
        demand,
        request,
        of_both[0],
        ("laptop", &mailhost, &two),
        ("mailhost", &mailhost, &two),
        ("mailhost", &laptop, &of_laptop),
    ]);
    let found = objections(&differing, "alice");
    let expected = told(
        "IPsec must protect connections with mailhost, and laptop has Ed25519 keys for it, where mailhost has \
         ECDSA P-256 keys for laptop",
        "write the same `ike-key` statements for laptop and mailhost on both",
    );
    assert_eq!(found, [expected]);
    // A host's policy has another key for its peer than the peer shows.
    let other = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBFhn1HOK6HyEoewlqxRYv0VPIozENZmggnpSbUi6yYFBChWY7neURgy9AE40D0ebiBhJMJIfq1Eick3VP4ENqg4=";
    let wrong = network(&[
        demand,
        request,
        only[1],
        of_both[1],
        ("laptop", &laptop, &both),
        ("laptop", &mailhost, other),
    ]);
    let found = objections(&wrong, "alice");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]
            .0
            .contains("is not the one that mailhost has for itself"),
        "{found:?}"
    );
}

#[test]
fn hosts_that_cannot_negotiate_are_refused_where_ipsec_must_protect() {
    let ike = |number: u8| {
        let key = HostPublicKey::from_bytes([50 + number; 32]).to_openssh();
        format!("ike-key \"{key}\";")
    };
    let (laptop, mailhost, other) = (ike(1), ike(2), ike(3));
    let demand = (
        "mailhost",
        "listen 143;",
        "listen 143; protection encryption;",
    );
    let request = (
        "laptop",
        "client mail {",
        "client mail { protection encryption;",
    );
    let none = |host: &str, of: &str, other: &str| {
        told(
            &format!(
                "IPsec must protect connections with {other}, and `host {of}` of {host} has no \
                 `ike-key`: no SAs are negotiated"
            ),
            &format!(
                "write the key of its /etc/usher/ike/key.pub as `ike-key` into `host {of}` on {host}"
            ),
        )
    };
    let differs = told(
        "IPsec must protect connections with mailhost, and the `ike-key` that laptop has for mailhost \
         is not the one that mailhost has for itself",
        "compare with /etc/usher/ike/key.pub on mailhost, for ECDSA with ecdsa_key.pub beside it, and correct \
         `host mailhost` on laptop",
    );
    for (at, from, to, expected) in [
        ("laptop", &laptop, "", none("laptop", "laptop", "mailhost")),
        (
            "laptop",
            &mailhost,
            "",
            none("laptop", "mailhost", "mailhost"),
        ),
        (
            "mailhost",
            &laptop,
            "",
            none("mailhost", "laptop", "laptop"),
        ),
        (
            "mailhost",
            &mailhost,
            "",
            none("mailhost", "mailhost", "laptop"),
        ),
        ("laptop", &mailhost, other.as_str(), differs),
    ] {
        let without = (at, from.as_str(), to);
        let network = network(&[demand, request, without]);
        assert_eq!(
            objections(&network, "alice"),
            std::slice::from_ref(&expected),
            "{without:?}"
        );
        let mut universe = Universe::new(&[&network]);
        assert_eq!(universe.rights(&network).len(), 0, "{without:?}");
        let found = universe.disagreements(&network);
        let found: Vec<String> = found.iter().map(|one| one.matter.to_string()).collect();
        assert_eq!(found, [expected.0], "{without:?}");
    }
    // Only one side has the statement.
    for (at, from, to) in [
        ("laptop", &mailhost, demand),
        ("mailhost", &laptop, request),
    ] {
        let host = if at == "laptop" { request } else { demand };
        let both = network(&[host, (at, from.as_str(), "")]);
        let one = both
            .hosts()
            .filter(|known| known.name.as_ref() == at)
            .cloned();
        let one = Network::new(one).expect("one host");
        assert_eq!(objections(&one, "alice").len(), 1, "{at}, not {to:?}");
        assert_eq!(Universe::new(&[&one]).rights(&one).len(), 0, "{at}");
    }
    // The key is another host's concern where IPsec protects nothing, and one of two is enough.
    let keyless = network(&[("laptop", &mailhost, ""), ("mailhost", &laptop, "")]);
    assert_eq!(objections(&keyless, "alice"), []);
    let two = other.replace(';', &mailhost.replace("ike-key", ","));
    let replacing = network(&[demand, request, ("mailhost", &mailhost, &two)]);
    assert_eq!(objections(&replacing, "alice"), []);
    // The IKE daemon knows its peer by the name of the block.
    let called = [
        demand,
        request,
        ("laptop", "host mailhost", "host post"),
        ("laptop", "at mailhost", "at post"),
    ];
    assert_eq!(
        objections(&network(&called), "alice"),
        [told(
            "IPsec must protect connections with mailhost, and laptop calls it `post`: its IKE daemon \
             authenticates mailhost by that name only",
            "rename `host post` to `host mailhost` on laptop"
        )]
    );
    // Traffic that stays on a host needs no IPsec.
    let own = network(&[
        (
            "mailhost",
            "listen 143;",
            "listen 143; protection encryption;",
        ),
        ("mailhost", "hosts laptop", "hosts any"),
        ("mailhost", &mailhost, ""),
        (
            "mailhost",
            "service imap {",
            "client here { users mail; service imap at mailhost port 143; }\nservice imap {",
        ),
    ]);
    let question = Question {
        client: "mailhost".parse().expect("a host name"),
        ..asked("alice")
    };
    assert_eq!(own.decide(&question).expect("known").objections, []);
}

#[test]
fn mandatory_traffic_of_a_program_needs_an_answer_of_the_other_host() {
    let server = |item: &str| {
        format!(
            "application vsftpd {{ network laptop protected P; network 0.0.0.0/0 trusted; \
             protection P {{ localport=21 remoteport=any {item}; localport=any remoteport=any \
             authentication optional; }} }}\nservice imap {{"
        )
    };
    let client = |network: &str, items: &str| {
        format!(
            "application ftp {{ {network}; network 0.0.0.0/0 untrusted; protection P {{ {items} }} }}\n\
             client mail {{"
        )
    };
    let mandatory = server("encryption mandatory");
    let told = "`application vsftpd` of mailhost demands `localport=21 remoteport=any encryption \
                mandatory`, and no block of laptop protects traffic with mailhost like that: none of it \
                passes";
    let to_it = "network mailhost protected P";
    for (server, client, expected) in [
        (&mandatory, "client mail {".to_owned(), &[told][..]),
        (
            &server("encryption optional"),
            "client mail {".to_owned(),
            &[],
        ),
        (
            &mandatory,
            client(to_it, "localport=any remoteport=21 encryption optional;"),
            &[],
        ),
        (
            &mandatory,
            client(to_it, "localport=any remoteport=any encryption mandatory;"),
            &[],
        ),
        // Another port, another class, another peer.
        (
            &mandatory,
            client(to_it, "localport=any remoteport=22 encryption optional;"),
            &[told],
        ),
        (
            &mandatory,
            client(
                to_it,
                "localport=any remoteport=21 authentication optional;",
            ),
            &[told],
        ),
        (
            &mandatory,
            client(
                "network 10.9.9.9 protected P",
                "localport=any remoteport=21 encryption optional;",
            ),
            &[told],
        ),
        // An item that never decides answers nothing.
        (
            &mandatory,
            client(
                to_it,
                "localport=any remoteport=any authentication optional; localport=any remoteport=21 \
                 encryption optional;",
            ),
            &[told],
        ),
        // The `client` block answers for every program.
        (
            &mandatory,
            "client ftp { users mail; service ftp at mailhost port 21; protection encryption; }\n\
             client mail {"
                .to_owned(),
            &["mailhost offers no service ftp"],
        ),
    ] {
        let network = network(&[
            ("mailhost", "service imap {", server),
            ("laptop", "client mail {", &client),
        ]);
        let found = Universe::new(&[&network]).disagreements(&network);
        let found: Vec<String> = found.iter().map(|one| one.matter.to_string()).collect();
        assert_eq!(found, expected, "{server} {client}");
    }
    // A host without IKE keys does not count as one that answers.
    let key = HostPublicKey::from_bytes([52; 32]).to_openssh();
    let keyless = network(&[
        ("mailhost", "service imap {", &mandatory),
        (
            "laptop",
            "client mail {",
            &client(to_it, "localport=any remoteport=21 encryption optional;"),
        ),
        ("laptop", &format!("ike-key \"{key}\";"), ""),
    ]);
    let found = Universe::new(&[&keyless]).disagreements(&keyless);
    let found: Vec<String> = found.iter().map(|one| one.matter.to_string()).collect();
    assert_eq!(
        found,
        [
            "IPsec must protect connections with mailhost, and `host mailhost` of laptop has no `ike-key`: no \
             SAs are negotiated"
        ]
    );
}

#[test]
fn whom_no_policy_can_admit_no_remedy_adds() {
    let account = [("mailhost", "program \"/x\"", "account vmail")];
    let network = network(&account);
    for user in ["root", "usher-signer", "vmail"] {
        let found = objections(&network, user);
        let never = found
            .iter()
            .find(|(text, _)| text.contains("can never admit"));
        assert_eq!(never.map(|(_, remedy)| remedy), Some(&None), "{found:?}");
        // vmail may be a user of another host's services.
        let added = found.iter().flat_map(|(_, remedy)| remedy);
        assert_eq!(added.count(), usize::from(user == "vmail"), "{found:?}");
    }
    let found = objections(&network, "dave");
    assert!(
        found.len() == 2 && found.iter().all(|(_, remedy)| remedy.is_some()),
        "{found:?}"
    );
}

#[test]
fn a_remedy_names_blocks_of_the_file_to_change() {
    let other = [
        ("laptop", "host mailhost", "host post"),
        ("laptop", "at mailhost", "at post"),
        ("mailhost", "host laptop", "host notebook"),
        ("mailhost", "hosts laptop", "hosts notebook"),
    ];
    let with = |change| network(&[&other[..], &[change]].concat());
    assert_eq!(objections(&network(&other), "alice"), []);
    let control = ("laptop", "10.77.0.2, fd77::2;", "10.77.0.2; control 4000;");
    assert_eq!(
        objections(&with(control), "alice"),
        [told(
            "laptop looks for the control channel of mailhost at port 4000, but it is at port 3440",
            "write `control 3440;` in `host post` on laptop"
        )]
    );
    let address = ("laptop", "10.77.0.2, fd77::2;", "10.77.0.3;");
    let none = "laptop and mailhost agree on no addresses that a connection between them can have";
    let write = "write the addresses that the two hosts have in";
    assert_eq!(
        objections(&with(address), "alice"),
        [
            told(
                none,
                &format!("{write} `host laptop` and `host post` on laptop")
            ),
            told(
                none,
                &format!("{write} `host mailhost` and `host notebook` on mailhost")
            ),
        ]
    );
    // A host with another's name has a block of that name.
    let key = |number: u8| HostPublicKey::from_bytes([number; 32]).to_openssh();
    let wrong = network(&[("laptop", &key(2), &key(3))]);
    assert_eq!(
        objections(&wrong, "alice"),
        [told(
            "the key that laptop has for mailhost is not the one that mailhost has for itself",
            "compare with /etc/usher/host_key.pub on mailhost, and correct `host mailhost` on laptop"
        )]
    );
}

#[test]
fn a_peer_that_has_another_class_alone_is_objected_to() {
    for (only, demanded, given, objected) in [
        ("encryption", "encryption", "encryption", [false, false]),
        ("encryption", "authentication", "encryption", [false, false]),
        (
            "authentication",
            "authentication",
            "encryption",
            [true, false],
        ),
        ("authentication", "encryption", "encryption", [true, true]),
    ] {
        let of = |at: &'static str, name: &str| {
            let block = format!("host {name} {{");
            (at, block.clone(), format!("{block} unlabelled {only};"))
        };
        let blocks = [of("laptop", "mailhost"), of("mailhost", "laptop")];
        let client = format!("client mail {{ protection {given};");
        let service = format!("listen 143; protection {demanded};");
        let mut changes = vec![
            ("mailhost", "listen 143;", service.as_str()),
            ("laptop", "client mail {", client.as_str()),
        ];
        let changed = blocks
            .iter()
            .map(|(at, from, to)| (*at, from.as_str(), to.as_str()));
        changes.extend(changed);
        let network = network(&changes);
        let says = |host: &str, of: &str, wanted: &str| {
            format!(
                "IPsec must protect connections with {of} by {wanted}, and `host {of}` of {host} says \
                 `unlabelled {only}`, the only class that it has SAs of"
            )
        };
        let expected = [
            says("laptop", "mailhost", given),
            says("mailhost", "laptop", demanded),
        ];
        let expected = expected
            .into_iter()
            .zip(objected)
            .filter(|(_, objected)| *objected);
        let found: Vec<String> = objections(&network, "alice")
            .into_iter()
            .map(|(said, _)| said)
            .collect();
        assert_eq!(
            found,
            expected.map(|(said, _)| said).collect::<Vec<_>>(),
            "{only}"
        );
        let rights = Universe::new(&[&network]).rights(&network).len();
        assert_eq!(rights, usize::from(objected == [false, false]));
    }
}
