//! SAs are rekeyed while programs send: nothing is lost, and one pair of SAs stays.
//!
//! USHER_STORM_SECONDS: for how long `no_datagram_is_lost_by_rekeyings` rekeys, by both hosts in every order, and
//! again and again within milliseconds, which may lose some (docs/adr/0093). Else it rekeys four times, one by one.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sas::pair;
use crate::world::{Counting, ENCRYPTION, World, all_protected, mark, wait, wait_for};
use tokio::runtime::Runtime;
use usher_ike::Ike;

/// Makes the charon at this socket rekey the SAs for encryption.
fn rekey(socket: &Path) {
    let status = Command::new("swanctl")
        .args(["--rekey", "--child", "encryption", "--uri"])
        .arg(format!("unix://{}", socket.display()))
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("swanctl").success());
}

/// The other host, while one rekeys its SAs.
#[derive(Clone, Copy)]
enum Second {
    None,
    /// It rekeys the same SAs before it has heard of the first rekeying.
    AtOnce,
    /// It rekeys the new SAs as soon as it has granted them, before the first host has their keys.
    ThatIsNew,
    /// Both rekey whatever is there, many times in a row: again and again before the protectors have taken charon's
    /// events.
    Often,
}

/// How many times a host rekeys in a row.
const OFTEN: usize = 20;

/// Makes the other threads stop when this is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Rekeys the SAs of two hosts while other programs send as much as they can. The network has this delay.
fn rekey_without_loss(delay: Option<Duration>, rekeyings: impl Iterator<Item = (usize, Second)>) {
    let (world, _ikes, _marks) = pair(&[ENCRYPTION]);
    let hosts = [&world.hosts[0], &world.hosts[1]];
    let other = |host: usize| hosts[1 - host];
    let is_quiet = |host: usize, former: &[String]| {
        let spis = hosts[host].spis_to(other(host));
        spis.len() == 1 && spis != former && hosts[host].is_placed_to(other(host))
    };
    for host in [0, 1] {
        wait("the SAs", || is_quiet(host, &[]));
    }
    let _accepted = world.hosts[0].serve();
    if let Some(delay) = delay {
        for host in hosts {
            host.delay(delay);
        }
    }
    let made = hosts[0].pairs_made();
    let counting = Counting::begin(hosts, ENCRYPTION);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when something fails: the others would go on for ever.
        let _over = Over(&is_over);
        for host in [0, 1] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let address = other(host).addresses[0];
                    let outcome = hosts[host].converse(ENCRYPTION, address, 20, |_| {});
                    outcome.expect("every byte comes back");
                }
            });
        }
        for (first, second) in rekeyings {
            let former = [0, 1].map(|host| hosts[host].spis_to(other(host)));
            std::thread::scope(|scope| {
                let rekey = |host: usize| {
                    let socket = hosts[host].socket();
                    scope.spawn(move || rekey(&socket))
                };
                rekey(first);
                match second {
                    Second::None => {}
                    Second::AtOnce => drop(rekey(1 - first)),
                    Second::ThatIsNew => {
                        let is_new =
                            || hosts[1 - first].spis_to(other(1 - first)) != former[1 - first];
                        wait("the new SAs", is_new);
                        rekey(1 - first);
                    }
                    Second::Often => {
                        for _ in 1..OFTEN {
                            drop(rekey(1 - first));
                            rekey(first).join().expect("no panic");
                        }
                    }
                }
            });
            for host in [0, 1] {
                wait("the new SAs alone", || is_quiet(host, &former[host]));
            }
        }
    });
    println!("{} rekeyings", hosts[0].pairs_made() - made);
    counting.end_without_loss();
}

guest_test! {
    fn rekeying_loses_nothing() {
        let (world, ikes, marks) = pair(&[ENCRYPTION]);
        let spi = |ike: &Ike| ike.report().peers[0].classes[0].spi_out.clone();
        let before = spi(&ikes[0]);
        let socket = world.hosts[0].socket();
        let meanwhile = move |round: usize| {
            if round % 50 == 25 {
                rekey(&socket);
            }
        };
        let address = world.hosts[1].addresses[0];
        let outcome = world.hosts[0].converse(ENCRYPTION, address, 200, meanwhile);
        outcome.expect("every byte comes back");
        assert_eq!(*marks.lock(), [mark(ENCRYPTION)]);
        wait_for(&ikes[0], "another SPI", |report| {
            let class = &report.peers[0].classes[0];
            class.protected && class.spi_out != before
        });
    }

    // Threat model: P77
    fn rekeying_under_load_loses_nothing() {
        let (world, _ikes, marks) = pair(&[ENCRYPTION]);
        let address = world.hosts[1].addresses[0];
        let before: Vec<u64> = world.hosts.iter().map(|host| host.packets_without_sa()).collect();
        let host = &world.hosts[0];
        std::thread::scope(|scope| {
            let load: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| host.converse(ENCRYPTION, address, 300, |_| {})))
                .collect();
            // From both sides, until the load is over.
            let mut rekeyed = 0;
            while load.iter().any(|load| !load.is_finished()) {
                rekey(&world.hosts[rekeyed % 2].socket());
                rekeyed += 1;
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            assert!(rekeyed > 0);
            for load in load {
                load.join().expect("no panic").expect("every byte comes back");
            }
        });
        assert_eq!(*marks.lock(), [mark(ENCRYPTION); 4]);
        let after: Vec<u64> = world.hosts.iter().map(|host| host.packets_without_sa()).collect();
        assert_eq!(after, before, "no packet was lost for want of an SA");
    }

    // Threat model: P77
    fn no_datagram_is_lost_by_rekeyings() {
        let one_by_one = [
            (0, Second::None),
            (1, Second::None),
            (1, Second::None),
            (0, Second::None),
        ];
        let seconds = std::env::var("USHER_STORM_SECONDS").ok();
        let Some(seconds) = seconds.and_then(|seconds| seconds.parse().ok()) else {
            return rekey_without_loss(None, one_by_one.into_iter());
        };
        let end = Instant::now() + Duration::from_secs(seconds);
        let storm = [
            (0, Second::None),
            (1, Second::AtOnce),
            (1, Second::None),
            (0, Second::ThatIsNew),
            (0, Second::Often),
            (1, Second::Often),
        ];
        let storm = storm.into_iter().cycle();
        rekey_without_loss(None, storm.take_while(|_| Instant::now() < end));
    }

    /// The network is so slow that either host begins before it hears of the other one, and that new SAs have
    /// their places before anything more happens.
    // Threat model: P77
    fn no_datagram_is_lost_by_rekeyings_over_a_slow_network() {
        let all = [
            (0, Second::AtOnce),
            (1, Second::ThatIsNew),
            (1, Second::AtOnce),
            (0, Second::ThatIsNew),
            (1, Second::None),
        ];
        rekey_without_loss(Some(Duration::from_millis(500)), all.into_iter());
    }

    /// Both hosts have begun at once, and one rekeys both pairs. Before one of them ends, nothing uses it.
    // Threat model: P77
    fn of_two_pairs_of_sas_one_stays() {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let hosts = [&world.hosts[0], &world.hosts[1]];
        hosts[0].cut_off(true);
        let ikes = [0, 1].map(|host| {
            let (ike, mut notices) = hosts[host].start_ike();
            ike.configure(world.configuration(host, &[ENCRYPTION]));
            let announce = hosts[host].announcer(ENCRYPTION);
            std::thread::spawn(move || {
                while notices.blocking_recv().is_some() {
                    announce();
                }
            });
            ike
        });
        for host in hosts {
            wait("an attempt", || host.log().contains("initiating IKE_SA usher-"));
        }
        hosts[0].cut_off(false);
        for ike in &ikes {
            wait_for(ike, "SAs", all_protected);
        }
        wait("two pairs", || hosts[0].spis_to(hosts[1]).len() == 2);
        let counting = Counting::begin(hosts, ENCRYPTION);
        rekey(&hosts[1].socket());
        for host in [0, 1] {
            wait("one of them", || hosts[host].spis_to(hosts[1 - host]).len() == 1);
        }
        counting.end_without_loss();
        for ike in &ikes {
            wait_for(ike, "SAs", all_protected);
        }
    }
}
