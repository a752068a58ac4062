//! The states of peers in `usher protection peers`, from real charons that negotiate: reachable or not,
//! and why not. With strongSwan 5 nothing here needs ESP in the kernel.

use std::process::Command;
use std::sync::Arc;

use crate::world::{
    AUTHENTICATION, ENCRYPTION, LIMIT, STRONG, World, ecdsa_key, reason_to_skip,
    strongswan_with_ml_kem, wait_for,
};
use usher_ike::vici::{Connection, Section};
use usher_ike::{Configuration, Ike, IkeKey, PeerReport, PeerState, Report};

/// strongSwan 6 does not authenticate itself to a peer for which its kernel takes no SAs.
fn needs_esp() -> bool {
    let version = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Version}", "charon-systemd"])
        .output()
        .expect("dpkg-query");
    !version.stdout.starts_with(b"5.")
}

fn in_a_runtime(test: impl Future<Output = ()>) {
    if needs_esp()
        && let Some(reason) = reason_to_skip()
    {
        println!("skipped: {reason}");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(test);
}

/// Starts IKE on each host of the world, with its configuration as `change` leaves it.
fn negotiating(world: &World, change: impl Fn(usize, &mut Configuration)) -> Vec<Ike> {
    (0..world.hosts.len())
        .map(|host| {
            let (ike, _notices) = world.hosts[host].start_ike();
            let mut configuration = world.configuration(host, &[ENCRYPTION]);
            change(host, &mut configuration);
            ike.configure(configuration);
            ike
        })
        .collect()
}

/// Waits until the peer at the first address meets the condition.
fn wait_for_peer(ike: &Ike, what: &str, is_so: impl Fn(&PeerReport) -> bool) {
    wait_for(ike, what, |report| report.peers.first().is_some_and(&is_so));
}

fn wait_until_established(ike: &Ike) {
    wait_for_peer(ike, "the peer", |peer| peer.state == PeerState::Established);
}

fn says(peer: &PeerReport, words: &str) -> bool {
    let why_not = peer.classes[0].why_not.as_deref();
    why_not.is_some_and(|why_not| why_not.contains(words))
}

/// Asks a charon by a connection of its own.
async fn ask(world: &World, host: usize, command: &str, message: &Section) -> Section {
    let connection = Connection::open(&world.hosts[host].socket(), LIMIT).await;
    let mut connection = connection.expect("charon");
    connection
        .command(command, message)
        .await
        .expect("an answer")
}

/// The answer's list of this name.
async fn list(world: &World, host: usize, command: &str, name: &str) -> Vec<String> {
    ask(world, host, command, &Section::new()).await.texts(name)
}

#[test]
fn a_peer_without_charon_does_not_answer() {
    in_a_runtime(async {
        let mut world = World::new(&["a", "b"], &[ENCRYPTION]);
        world.hosts[1].kill_charon();
        let ikes = negotiating(&world, |_, _| {});
        wait_for_peer(&ikes[0], "an attempt", |peer| {
            peer.state == PeerState::Negotiating
        });
        wait_for_peer(&ikes[0], "the reason", |peer| says(peer, "does not answer"));
        // The twin: once it is there it is reached.
        world.hosts[1].start_charon();
        wait_until_established(&ikes[0]);
    });
}

#[test]
fn a_peer_is_established_since_its_authentication() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let ikes = negotiating(&world, |_, _| {});
        for ike in &ikes {
            wait_for_peer(ike, "the peer", |peer| {
                let algorithms = peer.algorithms.as_deref().unwrap_or_default();
                peer.state == PeerState::Established
                    && peer.since.is_some_and(|since| since > 1_600_000_000)
                    && algorithms.starts_with("AES_GCM_16-256/PRF_HMAC_SHA2_384/CURVE_25519")
            });
        }
    });
}

// Threat model: P70
#[test]
fn a_peer_of_another_name_is_refused() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let ikes = negotiating(&world, |host, configuration| {
            if host == 1 {
                configuration.host = "impostor".parse().expect("a name");
            }
        });
        wait_for_peer(&ikes[0], "the reason", |peer| says(peer, "name"));
        let report = ikes[0].report();
        let mut peers = report.peers.iter();
        assert!(peers.all(|peer| peer.state != PeerState::Established));
        // The twin: by its own name.
        ikes[1].configure(world.configuration(1, &[ENCRYPTION]));
        wait_until_established(&ikes[0]);
    });
}

// Threat model: P70
#[test]
fn a_peer_of_another_key_is_refused() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let ikes = negotiating(&world, |host, configuration| {
            if host == 0 {
                configuration.peers[0].keys = vec![IkeKey::from_seed([99; 32]).public()];
            }
        });
        wait_for_peer(&ikes[0], "the reason", |peer| says(peer, "IKE key"));
        wait_for_peer(&ikes[1], "the other's reason", |peer| says(peer, "ike-key"));
        for ike in &ikes {
            let report = ike.report();
            let mut classes = report.peers.iter().flat_map(|peer| &peer.classes);
            assert!(classes.all(|class| !class.protected));
        }
        ikes[0].configure(world.configuration(0, &[ENCRYPTION]));
        wait_until_established(&ikes[0]);
    });
}

/// While a host replaces its key, its peers accept two.
// Threat model: P74
#[test]
fn either_of_two_keys_is_accepted_and_no_third() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let next = || IkeKey::from_seed([77; 32]);
        let both = |configuration: &mut Configuration| {
            configuration.peers[0].keys.push(next().public());
        };
        let with_key = |key: IkeKey| {
            let mut configuration = world.configuration(1, &[ENCRYPTION]);
            configuration.stated.push(key.public());
            configuration.keys = vec![std::sync::Arc::new(key)];
            configuration
        };
        let ikes = negotiating(&world, |host, configuration| match host {
            0 => both(configuration),
            _ => *configuration = with_key(IkeKey::from_seed([78; 32])),
        });
        wait_for_peer(&ikes[0], "the reason", |peer| says(peer, "IKE key"));
        for configuration in [with_key(next()), world.configuration(1, &[ENCRYPTION])] {
            ikes[1].configure(configuration);
            for ike in &ikes {
                wait_for_peer(ike, "the peer", |peer| peer.state == PeerState::Established);
            }
        }
    });
}

/// The configuration of a host of this world, with this ECDSA key beside its own or in place of it.
fn with_ecdsa(world: &World, host: usize, key: &Arc<IkeKey>, is_only: bool) -> Configuration {
    let mut configuration = world.configuration(host, &[ENCRYPTION]);
    if is_only {
        configuration.keys.clear();
        configuration.stated.clear();
    }
    configuration.keys.push(Arc::clone(key));
    configuration.stated.push(key.public());
    configuration
}

/// Of three hosts `b` has no Ed25519, and `c` no ECDSA.
// Threat model: P70, P68
#[test]
fn a_peer_without_ed25519_has_ecdsa_keys() {
    in_a_runtime(async {
        let world = World::new(&["a", "b", "c"], &[ENCRYPTION]);
        let [own, of_b, third] = [1, 2, 3].map(|number| Arc::new(ecdsa_key(number)));
        let expecting = |key: &IkeKey| {
            let mut configuration = with_ecdsa(&world, 0, &own, false);
            configuration.peers[0].keys = vec![key.public()];
            configuration
        };
        let only_a = |configuration: &mut Configuration| {
            let peers = &mut configuration.peers;
            peers.retain(|peer| peer.name.as_str() == "a");
        };
        let ikes = negotiating(&world, |host, configuration| {
            match host {
                0 => *configuration = expecting(&third),
                1 => {
                    *configuration = with_ecdsa(&world, 1, &of_b, true);
                    configuration.peers[0].keys = vec![own.public()];
                }
                _ => {}
            }
            if host != 0 {
                only_a(configuration);
            }
        });
        let peer = |name: &'static str, is_so: fn(&PeerReport) -> bool| {
            wait_for(&ikes[0], name, |report| {
                let mut peers = report.peers.iter();
                peers.any(|peer| peer.name.as_str() == name && is_so(peer))
            });
        };
        peer("b", |peer| {
            says(peer, "IKE key") && peer.state != PeerState::Established
        });
        peer("c", |peer| peer.state == PeerState::Established);
        ikes[0].configure(expecting(&of_b));
        peer("b", |peer| peer.state == PeerState::Established);
        // Both keys are loaded again when another program unloads them. Without a peer that needs it, the
        // ECDSA key is removed.
        let keys = async |expected: usize| {
            let end = std::time::Instant::now() + LIMIT;
            loop {
                let keys = list(&world, 0, "get-keys", "keys").await;
                if keys.len() == expected {
                    return;
                }
                assert!(std::time::Instant::now() < end, "not {expected}: {keys:?}");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        keys(2).await;
        world.hosts[0].load_all();
        keys(2).await;
        let mut without = expecting(&of_b);
        without.peers.remove(0);
        ikes[0].configure(without);
        keys(1).await;
        peer("c", |peer| peer.state == PeerState::Established);
    });
}

/// An attacker may have the weaker key of a peer that has both, and takes whatever this host shows.
// Threat model: P81
#[test]
fn ecdsa_is_refused_where_both_have_ed25519() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let [own, weaker] = [1, 2].map(|number| Arc::new(ecdsa_key(number)));
        let (ike, _notices) = world.hosts[0].start_ike();
        configure_by_hand(&world, &weaker, Some("encryption")).await;
        let mut configuration = with_ecdsa(&world, 0, &own, false);
        configuration.peers[0].keys.push(weaker.public());
        ike.configure(configuration);
        wait_for_peer(&ike, "the reason", |peer| {
            says(peer, "its IKE key is not the `ike-key`") && peer.state != PeerState::Established
        });
        // The twin: the peer itself.
        configure_by_hand(&world, &world.hosts[1].key, Some("encryption")).await;
        wait_until_established(&ike);
    });
}

// Threat model: P70
#[test]
fn a_peer_without_common_algorithms_is_refused() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let (ike, _notices) = world.hosts[0].start_ike();
        // Somebody has configured charon by hand, for all hosts.
        let side = |id: &str| Section::new().value("auth", "psk").value("id", id);
        let by_hand = Section::new()
            .value("version", "2")
            .list("proposals", ["aes128-sha256-modp2048"])
            .section("local", side("b"))
            .section("remote", side("a"));
        let by_hand = Section::new().section("by-hand", by_hand);
        ask(&world, 1, "load-conn", &by_hand).await;
        ike.configure(world.configuration(0, &[ENCRYPTION]));
        wait_for_peer(&ike, "the reason", |peer| {
            says(peer, "no algorithm in common")
        });
        // The twin: with Usher's configuration beside it.
        let (other, _notices) = world.hosts[1].start_ike();
        other.configure(world.configuration(1, &[ENCRYPTION]));
        wait_until_established(&ike);
        let conns = list(&world, 1, "get-conns", "conns").await;
        assert!(
            conns.contains(&"by-hand".to_owned()),
            "it is left alone: {conns:?}"
        );
    });
}

/// Gives the charon of `b` a connection with `a` as an administrator without Usher does, by this key.
async fn configure_by_hand(world: &World, own: &IkeKey, label: Option<&str>) {
    let key = Section::new()
        .value("type", "any")
        .value("data", own.to_pkcs8().as_slice());
    ask(world, 1, "load-key", &key).await;
    let side = |id: &str, key: &IkeKey| {
        let side = Section::new().value("auth", "pubkey").value("id", id);
        side.list("pubkeys", [key.public().to_spki()])
    };
    let mut child = Section::new()
        .value("mode", "transport")
        .value("policies", "no")
        .list("esp_proposals", ["aes256gcm16-x25519"]);
    if let Some(label) = label {
        child = child.value("label", label).value("label_mode", "simple");
    }
    let connection = Section::new()
        .value("version", "2")
        .list("proposals", ["aes256gcm16-prfsha384-x25519"])
        .section("local", side("b", own))
        .section("remote", side("a", &world.hosts[0].key))
        .section("children", Section::new().section("any", child));
    let connection = Section::new().section("by-hand", connection);
    ask(world, 1, "load-conn", &connection).await;
}

/// As an appliance's may be: its keys and names are right, and its child has no label.
// Threat model: P70
#[test]
fn a_peer_without_labels_is_named() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let (ike, _notices) = world.hosts[0].start_ike();
        let key = &world.hosts[1].key;
        configure_by_hand(&world, key, None).await;
        ike.configure(world.configuration(0, &[ENCRYPTION]));
        wait_for_peer(&ike, "the reason", |peer| says(peer, "security label"));
        // The twin: whether this kernel then takes the SAs or not, the label is there.
        configure_by_hand(&world, key, Some("encryption")).await;
        wait_for_peer(&ike, "no such reason", |peer| {
            peer.state == PeerState::Established && !says(peer, "security label")
        });
    });
}

// Threat model: P70
#[test]
fn a_class_that_the_peer_does_not_have_is_named() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let ikes = negotiating(&world, |host, configuration| {
            if host == 0 {
                *configuration = world.configuration(0, &[AUTHENTICATION]);
            }
        });
        wait_for_peer(&ikes[0], "the reason", |peer| {
            peer.state == PeerState::Established && says(peer, "no such class")
        });
    });
}

/// Debian 12's charon has no ML-KEM. The other class is negotiated all the same.
// Threat model: P75
#[test]
fn strong_says_what_charon_lacks() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let algorithms = ask(&world, 0, "get-algorithms", &Section::new()).await;
        let has_ml_kem = algorithms
            .sections()
            .any(|(_, section)| section.names().any(|name| name == "ML_KEM_768"));
        let ikes: Vec<Ike> = negotiating(&world, |host, configuration| {
            *configuration = world.configuration(host, &[ENCRYPTION, STRONG]);
        });
        wait_until_established(&ikes[0]);
        let report: Report = ikes[0].report();
        assert_eq!(report.lacks.is_none(), has_ml_kem, "{report:?}");
        if has_ml_kem {
            let algorithms = report.peers[0].algorithms.as_deref().unwrap_or_default();
            assert!(algorithms.contains("ML_KEM_768"), "{algorithms}");
            return;
        }
        let lacks = report.lacks.expect("what it lacks");
        for words in ["ML-KEM", "encryption-strong", "strongSwan 6.0"] {
            assert!(lacks.contains(words), "{words}: {lacks}");
        }
        let why_not = report.peers[0].classes[1].why_not.as_deref();
        assert!(
            why_not.is_some_and(|words| words.contains("ML-KEM")),
            "{why_not:?}"
        );
        // The twin: without the word nothing is lacking.
        ikes[0].configure(world.configuration(0, &[ENCRYPTION]));
        wait_for(&ikes[0], "nothing lacking", |report| report.lacks.is_none());
    });
}

/// With a charon that has ML-KEM, the IKE SA already has the hybrid exchange, from which the keys of all
/// SAs derive. A peer whose charon has no ML-KEM is reached without it.
// Threat model: P75
#[test]
fn strong_hosts_have_a_hybrid_exchange() {
    let Some(strongswan) = strongswan_with_ml_kem() else {
        println!("skipped: needs a strongSwan with ML-KEM, which scripts/setup-vm fetches");
        return;
    };
    in_a_runtime(async {
        let with = vec![Some(strongswan.clone()), Some(strongswan), None];
        let world = World::with_strongswans(&["a", "b", "c"], &[ENCRYPTION], with);
        let ikes = negotiating(&world, |host, configuration| {
            *configuration = world.configuration(host, &[ENCRYPTION, STRONG]);
        });
        let algorithms = |report: &Report, name: &str| {
            let mut peers = report.peers.iter();
            let peer = peers.find(|peer| peer.name.as_str() == name)?;
            peer.algorithms.clone()
        };
        for (peer, is_hybrid) in [("b", true), ("c", false)] {
            wait_for(&ikes[0], peer, |report| algorithms(report, peer).is_some());
            let algorithms = algorithms(&ikes[0].report(), peer).unwrap_or_default();
            assert_eq!(algorithms.contains("ML_KEM_768"), is_hybrid, "{algorithms}");
        }
        assert_eq!(ikes[0].report().lacks, None);
        assert!(ikes[2].report().lacks.is_some());
    });
}

/// Debian's unit of strongSwan runs swanctl at each start and each reload.
// Threat model: P68
#[test]
fn what_swanctl_unloads_is_loaded_again() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let ikes = negotiating(&world, |_, _| {});
        wait_until_established(&ikes[0]);
        let is_there = async || {
            let conns = list(&world, 0, "get-conns", "conns").await;
            let keys = list(&world, 0, "get-keys", "keys").await;
            conns.len() == 2 && keys.len() == 1
        };
        assert!(is_there().await);
        for is_reported in [false, true] {
            world.hosts[0].load_all();
            assert!(!is_there().await, "everything of Usher's is gone");
            let end = std::time::Instant::now() + LIMIT;
            while !is_there().await {
                assert!(std::time::Instant::now() < end, "loaded again in vain");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            let told = ikes[0].report().unloaded.unwrap_or_default();
            let is_told = told.contains("2 of Usher's connections and this host's IKE key");
            assert_eq!(is_told, is_reported, "{told}");
        }
        assert_eq!(ikes[1].report().unloaded, None);
    });
}

/// A private key leaves charon when it changes and when protection ends, whichever process loaded it.
// Threat model: A142
#[test]
fn a_former_key_does_not_stay_in_charon() {
    in_a_runtime(async {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        // An administrator's own.
        let own = IkeKey::from_seed([77; 32]);
        let message = Section::new()
            .value("type", "any")
            .value("data", own.to_pkcs8().as_slice());
        let own = ask(&world, 0, "load-key", &message)
            .await
            .text("id")
            .expect("an id");
        let keys = async || list(&world, 0, "get-keys", "keys").await;
        let mut former = Vec::new();
        for seed in [1, 2] {
            // The process before has ended without a word.
            let (ike, _notices) = world.hosts[0].start_ike();
            let mut configuration = world.configuration(0, &[ENCRYPTION]);
            configuration.keys = vec![std::sync::Arc::new(IkeKey::from_seed([seed; 32]))];
            configuration.stated = vec![configuration.keys[0].public()];
            ike.configure(configuration);
            wait_for(&ike, "the peers", |report| !report.peers.is_empty());
            let now = keys().await;
            assert_eq!(now.len(), 2, "this one and the administrator's: {now:?}");
            assert!(
                now.contains(&own) && now != former,
                "{now:?}, before {former:?}"
            );
            former = now;
        }
        let (ike, _notices) = world.hosts[0].start_ike();
        ike.configure(None);
        let end = std::time::Instant::now() + LIMIT;
        while keys().await != [own.clone()] {
            assert!(std::time::Instant::now() < end, "{:?}", keys().await);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let conns = async || list(&world, 0, "get-conns", "conns").await;
        while !conns().await.is_empty() {
            assert!(std::time::Instant::now() < end, "{:?}", conns().await);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
}
