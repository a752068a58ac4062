//! The task that drives charon, beside a charon with faults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_ike::vici::{LARGEST_MESSAGE, Section};
use usher_ike::{
    Configuration, Ike, IkeKey, KernelSad, KernelSas, Peer, PeerClass, PeerState, Placed, Report,
    SetMark,
};
use usher_protection::{Class, Kind, Profile};

use super::{LONG, SHORT};
use crate::impostor::{Act, Impostor, answer, conns, event, packet};

/// A kernel without SAs.
struct NoSas;

impl KernelSad for NoSas {
    fn list(&mut self) -> std::io::Result<KernelSas> {
        Ok(KernelSas::new())
    }

    fn has(&mut self, _: Placed) -> std::io::Result<bool> {
        Ok(false)
    }

    fn place(&mut self, _: Placed) -> std::io::Result<()> {
        Ok(())
    }

    fn place_last(&mut self, _: Placed) -> std::io::Result<()> {
        Ok(())
    }

    fn place_first(&mut self, _: Placed) -> std::io::Result<()> {
        Ok(())
    }

    fn keep_places(&mut self, _: &KernelSas) -> std::io::Result<()> {
        Ok(())
    }
}

fn configuration() -> Configuration {
    Configuration {
        host: "laptop".parse().expect("a name"),
        keys: vec![Arc::new(IkeKey::from_seed([1; 32]))],
        stated: vec![IkeKey::from_seed([1; 32]).public()],
        peers: vec![Peer {
            name: "mailhost".parse().expect("a name"),
            addresses: vec!["192.0.2.1".parse().expect("an address")],
            keys: vec![IkeKey::from_seed([2; 32]).public()],
            unlabelled: None,
        }],
        classes: vec![PeerClass {
            class: Class::new(Kind::Encryption, Profile::Standard),
            reqid: 0x7500,
            mark: SetMark { value: 1, mask: 1 },
        }],
        on_demand: std::collections::BTreeSet::new(),
    }
}

/// An endless answer ends at the limit of bytes or of time, whichever the machine reaches first.
const ENDLESS: &str = "does not ";

/// Waits until the report meets the condition.
async fn wait_for(ike: &Ike, what: &str, is_so: impl Fn(&Report) -> bool) {
    let end = Instant::now() + LONG;
    while !is_so(&ike.report()) {
        let report = ike.report();
        assert!(
            Instant::now() < end,
            "waited in vain for {what}: {report:#?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The peer is listed and not protected, and charon has answered.
fn is_at_work(report: &Report) -> bool {
    let classes = || report.peers.iter().flat_map(|peer| &peer.classes);
    report.trouble.is_none() && classes().count() == 1 && classes().all(|class| !class.protected)
}

/// Another program at charon's socket is named; once it answers like charon the work begins.
// Threat model: P69
#[tokio::test]
async fn an_impostor_is_named_and_a_charon_after_it_is_used() {
    let many = event("list-sa", &many_sas()).repeat(9);
    let faults = [
        ("version", Act::Send(packet(&[0x5a; 100])), "nonsense"),
        ("version", Act::Send(vec![0xff; 100]), "nonsense"),
        ("version", Act::Send(packet(b"\x02")), "5.9.8 or later"),
        ("version", Act::Send(Vec::new()), "does not answer"),
        ("version", Act::End(Vec::new()), "ended the connection"),
        (
            "get-algorithms",
            Act::End(vec![0, 0]),
            "ended the connection",
        ),
        ("ike-updown", Act::Send(packet(b"\x06")), "5.9.8 or later"),
        (
            "child-updown",
            Act::Send(answer(&Section::new())),
            "nonsense",
        ),
        (
            "list-sa",
            Act::Repeat(event("e", &sa()).repeat(1_000)),
            ENDLESS,
        ),
        ("load-key", Act::Send(packet(b"\x05")), "nonsense"),
        (
            "load-key",
            Act::Send(answer(&refusal())),
            "refuses \"load-key\"",
        ),
        ("load-conn", Act::Send(Vec::new()), "does not answer"),
        ("list-conns", Act::Send(packet(b"\x01\x01")), "nonsense"),
        (
            "list-sas",
            Act::Repeat(event("list-sa", &sa()).repeat(1_000)),
            ENDLESS,
        ),
        (
            "list-sas",
            Act::Send([many, answer(&Section::new())].concat()),
            "elements",
        ),
        (
            "list-sas",
            Act::End(event("list-sa", &sa())),
            "ended the connection",
        ),
    ];
    let cases = faults.map(|(question, act, expected)| async move {
        let impostor = Impostor::with_fault(question, act);
        let (ike, _notices) = Ike::start(impostor.path.clone(), NoSas);
        ike.configure(configuration());
        let what = format!("\"{expected}\" after a fault at {question}");
        wait_for(&ike, &what, |report| {
            let trouble = report.trouble.as_deref();
            trouble.is_some_and(|trouble| trouble.contains(expected))
        })
        .await;
        impostor.repent();
        wait_for(&ike, &format!("work after {what}"), is_at_work).await;
    });
    let mut running = tokio::task::JoinSet::new();
    for case in cases {
        running.spawn(case);
    }
    running.join_all().await;
}

/// Answers that charon could send, but to another question, or of other types.
// Threat model: P69
#[tokio::test]
async fn answers_to_other_questions_protect_nothing() {
    let wrong_types = Section::new()
        .list("state", ["ESTABLISHED"])
        .section("established", Section::new())
        .value("child-sas", "encryption");
    let wrong_types = Section::new().section(&connection(), wrong_types);
    let other = || {
        answer(
            &Section::new()
                .value("daemon", "charon")
                .list("conns", ["home"]),
        )
    };
    let listed = |event: Vec<u8>| Act::Send([event, answer(&Section::new())].concat());
    let cases = [
        ("version", Act::Send(answer(&wrong_types))),
        ("get-algorithms", Act::Send(other())),
        ("load-key", Act::Send(other())),
        ("load-conn", Act::Send(other())),
        ("list-conns", Act::Send(answer(&sa()))),
        ("list-sas", Act::Send(other())),
        ("list-sas", listed(event("list-sa", &wrong_types))),
        ("list-sas", listed(event("ike-updown", &Section::new()))),
        ("initiate", Act::Send(other())),
    ];
    for (question, act) in cases {
        let impostor = Impostor::with_fault(question, act);
        let (ike, _notices) = Ike::start(impostor.path.clone(), NoSas);
        ike.configure(configuration());
        wait_for(&ike, &format!("work in spite of {question}"), is_at_work).await;
    }
    // The twin: the SAs that charon lists are shown.
    let (_impostor, ike, _notices) = with_sas(&sa()).await;
    assert_eq!(ike.report().peers[0].state, PeerState::Established);
}

/// A charon that lists this IKE SA, and a task that has seen its SAs. The last value must live as long.
async fn with_sas(sa: &Section) -> (Impostor, Ike, impl Sized + use<>) {
    let listed = [event("list-sa", sa), answer(&Section::new())].concat();
    let impostor = Impostor::with_fault("list-sas", Act::Send(listed));
    let (ike, notices) = Ike::start(impostor.path.clone(), NoSas);
    ike.configure(configuration());
    wait_for(&ike, "the SAs", |report| {
        report.peers.iter().any(|peer| peer.classes[0].protected)
    })
    .await;
    (impostor, ike, notices)
}

/// The kernel measures their age by the wall clock, which may be set back. Then Usher has them rekeyed.
// Threat model: P76
#[tokio::test]
async fn sas_that_are_too_old_are_rekeyed() {
    for (seconds, is_due) in [("-61", true), ("-60", false), ("1000", false)] {
        let (impostor, ike, _notices) = with_sas(&sa_due_in(Some(seconds))).await;
        // By the time that charon has sent two more lists, the task has acted on the first one.
        let end = Instant::now() + LONG;
        let lists = || {
            let asked = impostor.asked();
            asked.iter().filter(|name| *name == "list-sas").count()
        };
        let before = lists();
        while lists() < before + 2 {
            assert!(Instant::now() < end, "{:?}", impostor.asked());
            ike.configure(configuration());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let asked = impostor.asked();
        assert_eq!(
            asked.contains(&"rekey".to_owned()),
            is_due,
            "{seconds}: {asked:?}"
        );
    }
}

/// charon refuses each attempt, and the report has charon's words.
#[tokio::test]
async fn a_failed_attempt_has_charon_s_words() {
    let impostor = Impostor::plausible();
    let (ike, _notices) = Ike::start(impostor.path.clone(), NoSas);
    ike.configure(configuration());
    wait_for(&ike, "its words", |report| {
        let why_not = report
            .peers
            .iter()
            .filter_map(|peer| peer.why_not.as_deref());
        why_not
            .into_iter()
            .any(|words| words.contains("no network"))
    })
    .await;
    assert_eq!(ike.report().peers[0].state, PeerState::Unreached);
}

/// A process that wants nothing takes away what an earlier one has left, and the private key first.
// Threat model: A142
#[tokio::test]
async fn what_an_earlier_process_left_is_taken_away() {
    let listed = conns(&["home", &connection()]);
    let keys = Section::new().list(
        "keys",
        [format!("9ad19e0f16eef714{}", "0".repeat(24)).as_str(), "ab"],
    );
    let impostor = Impostor::with_fault("list-conns", Act::Send(listed));
    impostor.fault("get-keys", Act::Send(answer(&keys)));
    let (ike, _notices) = Ike::start(impostor.path.clone(), NoSas);
    // No configuration is set yet: charon is left alone.
    tokio::time::sleep(SHORT).await;
    assert!(impostor.asked().is_empty(), "{:?}", impostor.asked());
    ike.configure(None);
    let end = Instant::now() + LONG;
    while !impostor.asked().contains(&"list-sas".to_owned()) {
        assert!(Instant::now() < end, "{:?}", impostor.asked());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let asked = impostor.asked();
    let place = |name: &str| asked.iter().position(|asked| asked == name);
    assert!(place("unload-key") < place("unload-conn"), "{asked:?}");
    for unloaded in ["unload-key", "unload-conn"] {
        let count = asked.iter().filter(|name| *name == unloaded).count();
        assert_eq!(count, 1, "Usher's, and not the administrator's: {asked:?}");
    }
}

/// A host has had more peers than names fit into one message of charon's.
#[tokio::test]
async fn all_connections_of_many_peers_are_taken_away() {
    let names: Vec<String> = (0..7_000)
        .map(|n| connection().replace("mailhost", &format!("{n:060}")))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(names.concat().len() > LARGEST_MESSAGE);
    let impostor = Impostor::with_fault("list-conns", Act::Send(conns(&names)));
    let (ike, _notices) = Ike::start(impostor.path.clone(), NoSas);
    ike.configure(None);
    let end = Instant::now() + LONG;
    while !impostor.asked().contains(&"list-sas".to_owned()) {
        assert!(Instant::now() < end, "the end of the work");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(impostor.values("unload-conn", "name").len(), names.len());
}

/// charon may refuse the next key for ever.
// Threat model: P74
#[tokio::test]
async fn a_refused_key_keeps_nothing_that_was_revoked() {
    for revokes in [true, false] {
        let conns = conns(&["home", &connection()]);
        let listed = [event("list-sa", &sa()), answer(&Section::new())].concat();
        let impostor = Impostor::with_fault("load-key", Act::Send(answer(&refusal())));
        impostor.fault("list-conns", Act::Send(conns));
        impostor.fault("list-sas", Act::Send(listed));
        let mut present = configuration();
        let next = IkeKey::from_seed([3; 32]).public();
        if revokes {
            present.peers[0].keys = vec![next]
        } else {
            present.peers[0].keys.push(next)
        }
        let (ike, _notices) = Ike::start(impostor.path.clone(), NoSas);
        ike.configure(present);
        wait_for(&ike, "the refusal", |report| {
            let trouble = report.trouble.as_deref();
            trouble.is_some_and(|trouble| trouble.contains("load-key"))
        })
        .await;
        for (question, value) in [("terminate", "ike"), ("unload-conn", "name")] {
            let gone = impostor.values(question, value);
            assert_eq!(
                gone.contains(&connection()),
                revokes,
                "{question}: {gone:?}"
            );
            assert!(gone.iter().all(|name| *name == connection()), "{gone:?}");
        }
    }
}

/// charon chooses its names of keys.
#[tokio::test]
async fn a_former_key_takes_no_other_key_with_it() {
    let own = format!("ab{}", "0".repeat(38));
    let loaded = |id: &str| Act::Send(answer(&Section::new().value("id", id)));
    let keys = Section::new().list("keys", ["ab", &own, "cd"]);
    let impostor = Impostor::with_fault("load-key", loaded("ab"));
    impostor.fault("get-keys", Act::Send(answer(&keys)));
    let (ike, _notices) = Ike::start(impostor.path.clone(), NoSas);
    ike.configure(configuration());
    wait_for(&ike, "the first key", is_at_work).await;
    assert!(impostor.values("unload-key", "id").is_empty());
    impostor.fault("load-key", loaded("cd"));
    let mut next = configuration();
    next.keys = vec![Arc::new(IkeKey::from_seed([9; 32]))];
    next.stated = vec![next.keys[0].public()];
    ike.configure(next);
    let end = Instant::now() + LONG;
    let loads = || {
        let asked = impostor.asked();
        asked.iter().filter(|name| *name == "load-conn").count()
    };
    while loads() < 2 {
        assert!(Instant::now() < end, "{:?}", impostor.asked());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ike.configure(None);
    while impostor.values("unload-key", "id").len() < 2 {
        assert!(Instant::now() < end, "{:?}", impostor.asked());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(impostor.values("unload-key", "id"), ["ab", "cd"]);
}

/// The next configuration may have another mask of marks, but the SAs have marks of the former mask.
#[tokio::test]
async fn no_sas_outlast_a_moment_without_a_configuration() {
    for leaves in [true, false] {
        let (impostor, ike, _notices) = with_sas(&sa()).await;
        let loaded = || {
            let asked = impostor.asked();
            asked.iter().filter(|name| *name == "load-key").count()
        };
        let before = loaded();
        // The driver's task runs when this one awaits, so it sees only the second call.
        if leaves {
            ike.configure(None);
        }
        ike.configure(configuration());
        let end = Instant::now() + LONG;
        while loaded() == before {
            assert!(Instant::now() < end, "{:?}", impostor.asked());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let asked = impostor.asked();
        let is_ended = asked.contains(&"terminate".to_owned());
        assert_eq!(is_ended, leaves, "{asked:?}");
    }
}

/// `swanctl --load-all` unloads what its files lack. The first time after charon's start it is what
/// charon's unit does; later it is reported.
#[tokio::test]
async fn what_others_unload_is_loaded_again() {
    let impostor = Impostor::plausible();
    let (ike, _notices) = Ike::start(impostor.path.clone(), NoSas);
    ike.configure(configuration());
    let count = |question: &str| {
        let asked = impostor.asked();
        asked.iter().filter(|name| *name == question).count()
    };
    for times in 1..=3 {
        wait_for(&ike, "the connection and the key", |_| {
            count("load-conn") >= times && count("load-key") >= times
        })
        .await;
        if times < 3 {
            assert_eq!(ike.report().unloaded, None);
            impostor.unload();
        }
    }
    let told = ike.report().unloaded.expect("a report");
    let both = "a connection of Usher's and this host's IKE key out of charon";
    assert!(told.contains(both), "{told}");
    assert_eq!(count("load-conn"), 3, "only what is missing");
}

/// The connection of [`configuration`]: `usher-` NAME `-` ADDRESS `-` KEYS.
fn connection() -> String {
    // The beginnings of SHA-1 of this host's public key and of the peer's public key.
    "usher-mailhost-192.0.2.1-9ad19e0f16eef7148139770e".to_owned()
}

fn refusal() -> Section {
    Section::new().value("success", "no").value("errmsg", "no")
}

/// An IKE SA of the connection, with SAs.
fn sa() -> Section {
    sa_due_in(None)
}

/// As [`sa`], with SAs that are to be rekeyed in this many seconds.
fn sa_due_in(seconds: Option<&str>) -> Section {
    let mut child = Section::new()
        .value("name", "encryption")
        .value("uniqueid", "1")
        .value("state", "INSTALLED")
        .value("protocol", "ESP");
    if let Some(seconds) = seconds {
        child = child.value("rekey-time", seconds);
    }
    let sa = Section::new()
        .value("state", "ESTABLISHED")
        .value("local-host", "192.0.2.2")
        .section("child-sas", Section::new().section("encryption-1", child));
    Section::new().section(&connection(), sa)
}

/// 8,000 IKE SAs of the connection without anything in them, in one message.
fn many_sas() -> Section {
    let connection = connection();
    (0..8_000).fold(Section::new(), |all, _| {
        all.section(&connection, Section::new())
    })
}
