//! Four users connect in every possible way, and abandon connections, while daemons are killed at
//! random instants, or stopped for a while and continued. No connection ever reaches another user, and
//! no established one is lost. A fifth user is disabled and enabled meanwhile, and is not served while
//! disabled.
//!
//! USHER_STORM_SECONDS: the duration (40). USHER_STORM_DAEMONS: the daemons to kill, separated by
//! commas (all of them). USHER_STORM_STALL: how many seconds a stall may last (3).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use usher_lab::{Daemon, Host, LIBRARY_PATH, Mail, PATIENCE, Running, Signal};

use crate::disabling::Disabling;
use crate::service::{Account, PORT, Result, USERS, topology};

const STORM: &str = include_str!("../../programs/storm.c");

/// The ways to connect, and their destinations.
const WAYS: [(&str, bool); 7] = [
    ("user", false),
    ("plain", false),
    ("plain", true),
    ("fleeting-user", false),
    ("fleeting-plain", false),
    ("lasting-user", false),
    ("lasting-plain", false),
];

/// The proxy's address for mailhost.
const PROXY: &str = "127.0.1.1";

fn start(mail: &Mail) -> Result<Vec<(String, Running)>> {
    mail.laptop.compile_c(STORM, "/var/lib/storm")?;
    let address = mail.mailhost.ipv4().to_string();
    let mut running = Vec::new();
    for user in USERS {
        for (way, by_proxy) in WAYS {
            let to = if by_proxy { PROXY } else { address.as_str() };
            let name = if by_proxy { "proxy" } else { way };
            let client = client(&mail.laptop, user, way, to)?;
            running.push((format!("{} {name}", user.0), client));
        }
    }
    Ok(running)
}

/// Connects again and again, as `programs/storm.c` says.
pub fn client(laptop: &Host, (user, uid): Account, way: &str, to: &str) -> Result<Running> {
    let (port, uid) = (PORT.to_string(), uid.to_string());
    let command = laptop
        .command(["/var/lib/storm", way, to, &port, &uid])
        .environment("LD_LIBRARY_PATH", LIBRARY_PATH)
        .user(user);
    Ok(command.spawn()?)
}

/// Ends it and reads its counts.
pub fn counts(mut running: Running) -> Result<BTreeMap<String, u64>> {
    running.close_input();
    let line = running.read_past("\n", PATIENCE)?;
    // The connections that reached another user.
    print!("{}", running.stderr()?);
    let mut counts = BTreeMap::new();
    for word in line.split_whitespace() {
        let (name, count) = word.split_once('=').ok_or("no count")?;
        counts.insert(name.to_owned(), count.parse()?);
    }
    Ok(counts)
}

/// What happened to daemons.
#[derive(Debug, Default)]
struct Deaths {
    kills: u32,
    stalls: u32,
}

/// Kills the named daemons one by one, and sometimes two at once, or stops one for at most `stall`,
/// until the time is over.
fn kill(mail: &mut Mail, names: &[String], time: Duration, stall: Duration) -> Result<Deaths> {
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)?
        .as_secs();
    println!("seed {seed}");
    let mut random = seed;
    let mut next = move |below: usize| {
        // Knuth's MMIX generator: reproducible from the seed.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap_or_default() % below
    };
    let all: [fn(&mut Mail) -> &mut Daemon; 6] = [
        |mail| &mut mail.signer,
        |mail| &mut mail.courier,
        |mail| &mut mail.proxy,
        |mail| &mut mail.verifier,
        |mail| &mut mail.recorder,
        |mail| &mut mail.keeper,
    ];
    let mut daemons = Vec::new();
    for daemon in all {
        if names.is_empty() || names.iter().any(|name| name == daemon(mail).name()) {
            daemons.push(daemon);
        }
    }
    let (begun, mut deaths) = (Instant::now(), Deaths::default());
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(50 + next(1000) as u64));
        let (one, other) = (next(daemons.len()), next(daemons.len()));
        let first = daemons[one];
        let act = next(8);
        if act == 0 && !stall.is_zero() {
            first(mail).kill(Signal::STOP)?;
            std::thread::sleep(Duration::from_millis(
                next(stall.as_millis() as usize) as u64
            ));
            first(mail).kill(Signal::CONT)?;
            deaths.stalls += 1;
        } else if act < 3 && one != other {
            // It stays away while another one dies.
            first(mail).kill(Signal::KILL)?;
            first(mail).wait(PATIENCE)?;
            daemons[other](mail).crash()?;
            first(mail).start()?;
            deaths.kills += 2;
        } else {
            first(mail).crash()?;
            deaths.kills += 1;
        }
    }
    Ok(deaths)
}

// Threat model: A41
#[test]
fn in_a_storm_of_deaths_each_connection_is_its_users() -> Result {
    let setting = |name| std::env::var(name).unwrap_or_default();
    let seconds = setting("USHER_STORM_SECONDS").parse().unwrap_or(40);
    let stall = setting("USHER_STORM_STALL").parse().unwrap_or(3);
    let names: Vec<_> = setting("USHER_STORM_DAEMONS")
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    let mut mail = topology()?;
    // So few ports that each soon passes to another user.
    mail.laptop
        .run(["sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 41023"])?;
    let running = start(&mail)?;
    let disabling = Disabling::begin(&mail);
    let deaths = kill(
        &mut mail,
        &names,
        Duration::from_secs(seconds),
        Duration::from_secs(stall),
    )?;
    let disablings = disabling.end()?;
    let mut sums = BTreeMap::<String, u64>::new();
    let mut served = BTreeMap::<String, u64>::new();
    for (who, running) in running {
        let counts = counts(running)?;
        println!("{who}: {counts:?}");
        // Each user, and each way except the one that never waits.
        for name in who.split(' ').filter(|name| *name != "fleeting-plain") {
            *served.entry(name.to_owned()).or_default() += counts["right"];
        }
        for (name, count) in counts {
            *sums.entry(name).or_default() += count;
        }
    }
    println!("{deaths:?}, {disablings:?} in {seconds} s: {sums:?}");
    assert_eq!(disablings.served_after_disable, 0, "{disablings:?}");
    assert_eq!(sums["wrong"], 0, "{sums:?}");
    assert_eq!(sums["lost"], 0, "{sums:?}");
    assert!(served.values().all(|right| *right > 0), "{served:?}");
    assert!(sums["right"] > 200, "{sums:?}");
    Ok(())
}
