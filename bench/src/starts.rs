//! Measures the cost of starting a worker for each connection: connections per second, of one client
//! and of eight at once, to a C server that accepts, forks, becomes the user and executes; to systemd's
//! socket activation; and to Usher's style `connection`, by token and announced, on a host without
//! other users and on one with many queues. All execute the same tiny program. The ways alternate, a
//! second each. The rows `..._work` are the processor time per connection of all processes.

use std::error::Error;
use std::io::Write as _;
use std::mem::take;

use usher_lab::{ALICE, Lab, Mail, Running};

use crate::SERVER;
use crate::report::Row;
use crate::scale::{self, Size};

/// The program that all of them execute.
pub const TINY: &str = "usher-bench-tiny";
/// The port of the server that forks and executes, and of socket activation.
const EXECUTING: &str = "7010";
const ACTIVATING: &str = "7011";

const SERVICE: &str = r#"
service starts {
  program "/run/lab/bin/usher-bench-tiny";
  listen 7012;
  style connection;
  connections 64;
  users mail;
  hosts laptop;
}
"#;
const CLIENT: &str = "client starts { users mail; service starts at mailhost port 7012; }\n";

/// Each way's name, its host, and the argument of the measuring program.
const WAYS: [(&str, usize, &str); 5] = [
    ("accept_fork_exec", 0, EXECUTING),
    ("systemd_accept", 0, ACTIVATING),
    ("usher_token", 0, "token"),
    ("usher_announced", 0, "announced"),
    ("usher_token_10000_queues", 1, "token"),
];

/// Measures.
pub fn measure(rounds: usize, queues: u32) -> Result<Vec<Row>, Box<dyn Error>> {
    // This process stores all listeners.
    usher_system::privileges::raise_descriptor_limit()?;
    eprintln!("making two labs; {queues} queues in one of them ...");
    let (mut empty, mut full) = (Lab::mail()?, Lab::mail()?);
    let size = Size {
        sessions: queues,
        workers: queues,
    };
    for (mail, users) in [(&mut empty, 0), (&mut full, queues)] {
        scale::configure(mail, users, SERVICE, CLIENT)?;
        scale::begin_anew(mail, &size, users > 0)?;
    }
    let _servers = servers(&empty)?;
    let hosts = [&empty, &full];
    let mut rows = Vec::new();
    for (clients, prefix) in [(1, "worker_start_alone"), (8, "worker_start")] {
        eprintln!("connections of {clients} clients at once, each way by turns ...");
        let mut found: [(Vec<f64>, Vec<f64>); WAYS.len()] = Default::default();
        for round in 0..=rounds {
            for ((_, host, way), (rates, work)) in WAYS.iter().zip(&mut found) {
                let short = run(hosts[*host], way, clients)?;
                // The first round opens sessions, and warms what there is.
                if round > 0 {
                    rates.push(short.rate);
                    work.push(short.work);
                }
            }
            eprint!(".");
            std::io::stderr().flush()?;
        }
        eprintln!();
        rows.extend(table(
            prefix,
            found.each_mut().map(|(rates, _)| take(rates)),
            Row::rates,
        ));
        let work = format!("{prefix}_work");
        rows.extend(table(&work, found.map(|(_, work)| work), Row::new));
    }
    Ok(rows)
}

/// A row for each way, beside that of the server that forks and executes.
fn table(
    prefix: &str,
    found: [Vec<f64>; WAYS.len()],
    row: impl Fn(&str, Vec<f64>) -> Row,
) -> [Row; WAYS.len()] {
    let mut names = WAYS.iter().map(|(name, ..)| format!("{prefix}/{name}"));
    let rows = found.map(|samples| row(&names.next().unwrap_or_default(), samples));
    Row::relate(rows, &format!("{prefix}/accept_fork_exec"))
}

/// The servers that Usher is compared with. systemd's program starts what it accepts as the user that
/// it runs as itself, so it becomes nobody else.
fn servers(mail: &Mail) -> Result<[Running; 2], Box<dyn Error>> {
    let uid = ALICE.mailhost_uid.to_string();
    let tiny = format!("/run/lab/bin/{TINY}");
    let activating = format!(
        "exec systemd-socket-activate --accept --inetd --listen={ACTIVATING} {tiny} 2>/dev/null"
    );
    Ok([
        mail.mailhost
            .spawn([SERVER, "exec", EXECUTING, &uid, &uid, &tiny])?,
        mail.mailhost.spawn(["sh", "-c", &activating])?,
    ])
}

/// The figures of a second of alice's connections.
struct Short {
    /// Connections a second.
    rate: f64,
    /// Microseconds of processor time per connection of all processes of the lab. The machine's other
    /// work changes this figure little.
    work: f64,
}

/// Alice's connections of a second.
fn run(mail: &Mail, way: &str, clients: u32) -> Result<Short, Box<dyn Error>> {
    let before = processor_time(mail)?;
    let address = mail.mailhost.ipv4().to_string();
    let command = [
        "usher-bench-starts",
        &address,
        "mailhost",
        "starts",
        way,
        &clients.to_string(),
    ];
    let output = mail.laptop.command(command).user(ALICE.name).succeed()?;
    let (rate, count) = output.stdout.trim().split_once(' ').ok_or("no count")?;
    let work = processor_time(mail)? - before;
    Ok(Short {
        rate: rate.parse()?,
        work: work / count.parse::<f64>()?,
    })
}

/// Microseconds that all processes of the lab's hosts have taken.
fn processor_time(mail: &Mail) -> Result<f64, Box<dyn Error>> {
    let lab = mail.mailhost.cgroup().parent().ok_or("no lab")?;
    let text = std::fs::read_to_string(lab.join("cpu.stat"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "));
    Ok(line.ok_or("no usage_usec")?.parse()?)
}
