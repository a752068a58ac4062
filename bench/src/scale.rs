//! Measures many sessions and many workers on one host: their memory, and their cost to the connections
//! of another user. Two labs of the same kind have tables of the same size, in one of them full; short
//! runs alternate.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use usher_base::ConnectionTuple;
use usher_bench::crowd;
use usher_bench::exchange::exchange;
use usher_lab::hostile::{Channel, Identity, Port, fresh_user_key};
use usher_lab::{Daemon, Lab, Mail};
use usher_proto::Announcement;
use usher_system::privileges::raise_descriptor_limit;

use crate::report::Row;
use crate::successive::{CLIENT, SERVICE, connections, start_forking, steps};
use crate::{PLAIN, SERVER};

/// Rounds of one short run.
const ROUNDS: usize = 200;
/// Free places in the tables beside the sessions that fill them.
const SPARE: u32 = 512;
const CONNECTIONS: u32 = 65_536;
/// The time for the keeper to start: with ten thousand users it looks each of them up.
const RESTART: Duration = Duration::from_secs(600);

/// The time that the verifier may then take to open a channel.
const PATIENCE: Duration = Duration::from_secs(60);

/// The size of the crowd.
pub struct Size {
    /// Sessions, each with a slot for tokens.
    pub sessions: u32,
    /// Users who share them, each with a worker.
    pub workers: u32,
}

/// Measures; pauses are in microseconds.
pub fn measure(size: &Size, samples: usize, pause: u64) -> Result<Vec<Row>, Box<dyn Error>> {
    // This process stores all listeners; the keeper raises its own limit.
    raise_descriptor_limit()?;
    let Size { sessions, workers } = *size;
    eprintln!("making two labs; {sessions} sessions of {workers} users in one of them ...");
    let (mut empty, mut full) = (Lab::mail()?, Lab::mail()?);
    configure(&empty, 0, SERVICE, CLIENT)?;
    configure(&full, workers, SERVICE, CLIENT)?;
    let without = begin_anew(&mut empty, size, false)?;
    let with = begin_anew(&mut full, size, true)?;
    eprintln!("the keeper took up {sessions} sessions in {:.1} s", with.0);
    let idle = resident(&mut full.keeper)?;
    let begun = Instant::now();
    start_workers(&full, workers)?;
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("{workers} workers started one after the other in {seconds:.0} s");
    let present = workers_of(&full)?;
    if present < workers as usize {
        return Err(format!("{present} workers of {workers}").into());
    }
    let mut rows = compare(&empty, &full, samples, pause)?;
    let bytes = |name: &str, bytes: u64| Row::bytes(name, bytes as f64 / f64::from(sessions));
    rows.extend([
        bytes("scale/tables_per_session", with.1),
        bytes("scale/keeper_per_session", idle.saturating_sub(without.2)),
        Row::bytes(
            "scale/keeper_per_worker",
            resident(&mut full.keeper)?.saturating_sub(idle) as f64 / f64::from(workers),
        ),
    ]);
    Ok(rows)
}

/// Puts the policy in force: the bench's `service` for alice, and another for a crowd that has
/// accounts on the mailhost and one key for all.
pub fn configure(
    mail: &Mail,
    users: u32,
    service: &str,
    client: &str,
) -> Result<(), Box<dyn Error>> {
    let host = &mail.mailhost;
    let key = fresh_user_key().public_key().to_openssh()?;
    let mut accounts = host.read("/etc/passwd")?;
    for user in 0..users {
        let (name, uid) = (crowd::name(user), crowd::uid(user));
        writeln!(accounts, "{name}:x:{uid}:{uid}::/:/bin/sh")?;
        host.write(format!("/etc/usher/users/{name}/authorized_keys"), &key)?;
    }
    host.write("/etc/passwd", accounts)?;
    let mut policy = service.to_owned();
    if users > 0 {
        let members: Vec<String> = (0..users).map(crowd::name).collect();
        write!(
            policy,
            "users crowd {{ member {}; }}
             service {} {{ program \"/run/lab/bin/{SERVER}\" \"worker\"; listen {}; style user;
                 users crowd; hosts {}; idle 24h; }}",
            members.join(", "),
            crowd::SERVICE,
            crowd::PORT,
            crowd::HOST,
        )?;
    }
    Ok(mail.add_policies("bench", &policy, client)?)
}

/// Restarts the keeper with tables of this size, full or not. Returns the seconds until it was ready,
/// and the bytes of its tables and of its own memory.
pub fn begin_anew(
    mail: &mut Mail,
    size: &Size,
    filled: bool,
) -> Result<(f64, u64, u64), Box<dyn Error>> {
    let (sessions, listeners) = (size.sessions + SPARE, size.workers + SPARE);
    let [sessions, listeners, connections] =
        [sessions, listeners, CONNECTIONS].map(|limit| limit.to_string());
    mail.keeper.stop()?;
    // Tables keep their size while they are pinned.
    mail.mailhost.run(["rm", "-r", "/sys/fs/bpf/usher"])?;
    if filled {
        let cgroup = mail.mailhost.cgroup().join("keeper");
        let (count, users) = (size.sessions.to_string(), size.workers.to_string());
        mail.mailhost
            .command([
                "usher-bench-fill",
                &cgroup.to_string_lossy(),
                &sessions,
                &listeners,
                &connections,
                &count,
                &users,
            ])
            .limit(RESTART)
            .succeed()?;
    }
    mail.keeper.add_arguments([
        "--sessions",
        &sessions,
        "--listeners",
        &listeners,
        "--connections",
        &connections,
    ]);
    let begun = Instant::now();
    mail.keeper.start_without_waiting()?;
    mail.keeper.wait_ready(RESTART)?;
    let seconds = begun.elapsed().as_secs_f64();
    let keeper = &mut mail.keeper;
    Ok((seconds, tables(keeper)?, resident(keeper)?))
}

/// Bytes of kernel memory of the tables that the keeper has open.
fn tables(keeper: &mut Daemon) -> Result<u64, Box<dyn Error>> {
    let mut maps = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{}/fdinfo", keeper.pid()?))? {
        let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        let number = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        // Programs report their memory as well, with an id of another name.
        if let (Some(map), Some(bytes)) = (number("map_id:"), number("memlock:")) {
            maps.insert(map, bytes);
        }
    }
    Ok(maps.values().sum())
}

/// Bytes of a daemon's own memory.
fn resident(daemon: &mut Daemon) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes.ok_or("no VmRSS")?.parse::<u64>()? * 1024)
}

/// Makes an announced connection as each user of the crowd, in one of the user's sessions, which starts
/// the user's worker.
fn start_workers(mail: &Mail, users: u32) -> Result<(), Box<dyn Error>> {
    let identity = Identity::of(&mail.laptop)?;
    let mut channel = open_channel(mail, &identity)?;
    let server = (mail.mailhost.ipv4(), crowd::PORT).into();
    for user in 0..users {
        let port = Port::any(&mail.laptop, mail.laptop.ipv4())?;
        let announcement = Announcement {
            element: crowd::chain(user).next().ok_or("an empty chain")?,
            connection: ConnectionTuple {
                client: port.address,
                server,
            },
        };
        channel
            .announce(crowd::session(user), announcement)?
            .map_err(|refusal| format!("{}: {refusal}", crowd::name(user)))?;
        exchange(port.connect(server)?)
            .map_err(|error| format!("{}: {error}", crowd::name(user)))?;
    }
    Ok(())
}

/// Opens a channel. A keeper that has just taken up ten thousand queues may not sign the handshake in
/// time, so this tries again, as a courier does.
fn open_channel(mail: &Mail, identity: &Identity) -> std::io::Result<Channel> {
    let begun = Instant::now();
    loop {
        match Channel::connect(&mail.laptop, &mail.mailhost, identity) {
            Err(error) if begun.elapsed() < PATIENCE => {
                eprintln!("no channel yet: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
            outcome => return outcome,
        }
    }
}

fn workers_of(mail: &Mail) -> Result<usize, Box<dyn Error>> {
    let processes = mail.mailhost.processes()?;
    let is_worker = |process: &&usher_lab::Process| process.uid >= crowd::uid(0);
    Ok(processes.iter().filter(is_worker).count())
}

/// Measures alice's connections by token, and the answers to her announcements, on both hosts
/// alternately.
fn compare(
    empty: &Mail,
    full: &Mail,
    samples: usize,
    pause: u64,
) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut servers = Vec::new();
    for mail in [empty, full] {
        servers.push(mail.mailhost.spawn([SERVER, "plain", PLAIN])?);
        servers.push(start_forking(mail)?);
    }
    let mut found: [[Vec<f64>; 3]; 2] = Default::default();
    eprintln!("alice's connections, on the empty host and the full one by turns ...");
    for _ in 0..samples.div_ceil(ROUNDS) {
        for (mail, found) in [empty, full].into_iter().zip(&mut found) {
            let [plain, _, token] = connections(mail, ROUNDS, pause)?;
            let [_, announced, ..] = steps(mail, ROUNDS, pause)?;
            for (found, samples) in found.iter_mut().zip([plain, token, announced]) {
                found.extend(samples);
            }
        }
        eprint!(".");
        std::io::stderr().flush()?;
    }
    eprintln!();
    let [empty, full] = found;
    let mut rows = Vec::new();
    for (name, (empty, full)) in ["plain", "usher_successive", "announce"]
        .into_iter()
        .zip(empty.into_iter().zip(full))
    {
        let base = format!("scale/empty/{name}");
        rows.extend(Row::relate(
            [
                Row::new(&base, empty),
                Row::new(&format!("scale/full/{name}"), full),
            ],
            &base,
        ));
    }
    Ok(rows)
}
