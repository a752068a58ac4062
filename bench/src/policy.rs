//! Measures checking and applying a large policy, by the administrators' commands. There is nothing to
//! compare to: the figures are seconds and bytes.

use std::error::Error;
use std::fmt::Write as _;

use usher_lab::hostile::fresh_user_key;
use usher_lab::{Host, Lab};

use crate::numbers;
use crate::report::Row;

/// Users, each with a key.
const USERS: usize = 10_000;
/// Services, and `application` blocks.
const APPLICATIONS: usize = 2_000;
/// Networks of all `application` blocks together, besides the two in each for all other peers.
const NETWORKS: usize = 5_000;
/// Users per `users` block.
const BLOCK: usize = 100;
/// The first of the services' ports.
const PORTS: usize = 10_000;

/// Runs a command, and prints its nanoseconds and its peak memory in thousandths of a byte: the reader
/// divides both by a thousand.
const MEASURE: &str = "
import resource, subprocess, sys, time
begun = time.monotonic_ns()
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
taken = time.monotonic_ns() - begun
if ended.returncode != 0:
    sys.exit(ended.stderr[-1000:].decode())
print(taken, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 * 1000)
";

/// Measures each command this many times.
pub fn measure(times: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    eprintln!("making two hosts, one with {USERS} users and {APPLICATIONS} services ...");
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let key = fresh_user_key().public_key().to_openssh()?;
    for user in 0..USERS {
        host.write(
            format!("/etc/usher/users/{}/authorized_keys", name(user)),
            &key,
        )?;
    }
    host.write("/etc/usher/policy.d/large.policy", services())?;
    host.write("/etc/usher/applications", applications())?;
    let mut rows = Vec::new();
    for (row, command) in [
        // The whole folder, including users' keys.
        ("policy/check", &["usher", "policy", "check"][..]),
        ("policy/apply", &["usher", "policy", "apply"]),
        (
            "policy/check_applications",
            &["usher", "policy", "check", "/etc/usher/applications"],
        ),
    ] {
        rows.extend(repeated(host, row, command, times)?);
    }
    Ok(rows)
}

fn repeated(
    host: &Host,
    row: &str,
    command: &[&str],
    times: usize,
) -> Result<[Row; 2], Box<dyn Error>> {
    let (mut taken, mut memory) = (Vec::new(), 0.0_f64);
    for _ in 0..times {
        let measured = ["python3", "-c", MEASURE].into_iter();
        let output = host.run(measured.chain(command.iter().copied()))?;
        let [seconds, bytes] = numbers(&output.stdout)?;
        taken.extend(seconds);
        memory = bytes.into_iter().fold(memory, f64::max);
    }
    Ok([
        Row::new(row, taken),
        Row::bytes(&format!("{row}_memory"), memory),
    ])
}

fn name(user: usize) -> String {
    format!("user{user}")
}

fn services() -> String {
    let mut text = String::new();
    for block in 0..USERS / BLOCK {
        let members: Vec<String> = (block * BLOCK..(block + 1) * BLOCK).map(name).collect();
        let _ = writeln!(text, "users u{block} {{ member {}; }}", members.join(", "));
    }
    for service in 0..APPLICATIONS {
        let _ = writeln!(
            text,
            "service s{service} {{ program \"/bin/cat\"; listen {}; users u{}; hosts any; style \
             connection; }}",
            PORTS + service,
            service % (USERS / BLOCK)
        );
    }
    text
}

fn applications() -> String {
    let mut text = String::new();
    for application in 0..APPLICATIONS {
        let _ = writeln!(text, "application /opt/program{application} {{");
        let share = NETWORKS / APPLICATIONS + usize::from(application < NETWORKS % APPLICATIONS);
        for network in 0..share {
            let number = application * 3 + network;
            let _ = writeln!(
                text,
                "  network 10.{}.{}.0/24 protected P;",
                number / 256 % 256,
                number % 256
            );
        }
        text += "  network 0.0.0.0/0 untrusted;\n  network ::/0 untrusted;\n  protection P { \
                 localport=any remoteport=any encryption mandatory; }\n}\n";
    }
    text
}
