//! Compares users' first connections to a full mutual TLS handshake. In every sample the user has no
//! session: between two passes over all users a policy that forbids the service is in force for a
//! moment, on the laptop, which ends the sessions, or on the mailhost, which also ends the users'
//! workers.

use std::error::Error;
use std::time::Duration;

use usher_lab::hostile::fresh_user_key;
use usher_lab::{Host, Mail};
use usher_proto::ssh_key::LineEnding;

use crate::report::Row;
use crate::{PLAIN, columns};

/// The number of users: more than one, so that a pass takes longer than the change of policies after
/// it.
const USERS: u32 = 32;
const FIRST_UID: u32 = 3000;
const TLS: &str = "7004";
const POLICY: &str = "/etc/usher/policy.d/first.policy";
/// The server closes the sessions in the background, after the policy is in force on the client.
const SETTLED: Duration = Duration::from_millis(200);

const SERVICE: &str = r#"
service first {
  program "/run/lab/bin/usher-bench-server" "worker";
  listen 7005;
  style user;
  users newcomers;
  hosts laptop;
}
"#;
const CLIENT: &str = "client first { users newcomers; service first at mailhost port 7005; }\n";

/// Measures; pauses are in microseconds.
pub fn measure(mail: &Mail, samples: usize, pause: u64) -> Result<Vec<Row>, Box<dyn Error>> {
    eprintln!("making {USERS} users ...");
    make_users(mail)?;
    let members: Vec<String> = (0..USERS).map(name).collect();
    let users = format!("users newcomers {{ member {}; }}\n", members.join(", "));
    let (server, client) = (users.clone() + SERVICE, users.clone() + CLIENT);
    mail.add_policies("first", &server, &client)?;
    let laptop_key = mail.laptop.read("/etc/usher/host_key.pub")?;
    let _tls = mail
        .mailhost
        .spawn(["usher-bench-tls", TLS, laptop_key.trim()])?;

    // A pass is one connection of each user; the first one also opens the control channel.
    pass(mail, pause)?;
    let passes = samples.div_ceil(USERS as usize).div_ceil(5);
    eprintln!("first connections: {passes} passes of {USERS} users, with and without a worker ...");
    let [mut plain, mut tls, mut usher, mut fresh] = [const { Vec::new() }; 4];
    for _ in 0..passes {
        for (host, with, others) in [
            (&mail.laptop, &client, &mut usher),
            (&mail.mailhost, &server, &mut fresh),
        ] {
            for text in [&users, with] {
                host.write(POLICY, text)?;
                host.run(["usher", "policy", "apply"])?;
            }
            std::thread::sleep(SETTLED);
            let [without, handshakes, ours] = pass(mail, pause)?;
            plain.extend(without);
            tls.extend(handshakes);
            others.extend(ours);
        }
    }
    Ok(Row::relate(
        [
            Row::new("handshake/plain", plain),
            Row::new("handshake/tls13_mutual_full", tls),
            Row::new("connect_send_recv/usher_first", usher),
            Row::new("connect_send_recv/usher_first_and_worker", fresh),
        ],
        "handshake/tls13_mutual_full",
    )
    .into())
}

fn pass(mail: &Mail, pause: u64) -> Result<[Vec<f64>; 3], Box<dyn Error>> {
    let address = mail.mailhost.ipv4().to_string();
    let key = mail.mailhost.read("/etc/usher/host_key.pub")?;
    let (uid, users) = (FIRST_UID.to_string(), USERS.to_string());
    columns(mail.laptop.command([
        "usher-bench-first",
        &address,
        PLAIN,
        TLS,
        key.trim(),
        "mailhost",
        "first",
        &uid,
        &users,
        &pause.to_string(),
    ]))
}

fn name(number: u32) -> String {
    format!("newcomer{number}")
}

/// Makes accounts on both hosts, and a key on the laptop that the mailhost knows.
fn make_users(mail: &Mail) -> Result<(), Box<dyn Error>> {
    let (mut private, mut public) = (Vec::new(), Vec::new());
    for _ in 0..USERS {
        let key = fresh_user_key();
        private.push(key.to_openssh(LineEnding::LF)?.to_string());
        public.push(key.public_key().to_openssh()?);
    }
    add_users(&mail.laptop, "--private-key", &private)?;
    add_users(&mail.mailhost, "--public-key", &public)
}

fn add_users(host: &Host, option: &str, keys: &[String]) -> Result<(), Box<dyn Error>> {
    for (number, key) in (0..).zip(keys) {
        host.write(format!("/root/{}", name(number)), key)?;
    }
    let script = format!(
        "set -e; number=0
         while [ $number -lt {USERS} ]; do
             name=newcomer$number
             useradd --create-home --shell /bin/sh --uid $(({FIRST_UID} + number)) $name
             usher user add $name {option} /root/$name
             rm /root/$name
             number=$((number + 1))
         done"
    );
    host.command(["sh", "-c", &script])
        .limit(Duration::from_secs(300))
        .succeed()?;
    Ok(())
}
