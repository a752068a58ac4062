//! Plain connect() of programs that know nothing of Usher, to a service's real address.
#![forbid(unsafe_code)]

mod greeter;

use greeter::{Result, has_ticket};
use rustix::process::Signal;
use usher_lab::{ALICE, BOB, Command, LIBRARY_PATH, Mail, PATIENCE, Role, eventually};

/// Connects to ADDRESS COUNT times and prints the greeting, or the error.
const CLIENT: &str = "
import errno, socket, sys
for _ in range(int(sys.argv[2])):
    try:
        connection = socket.create_connection((sys.argv[1], 7000))
        print(connection.makefile().readline(), end='', flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
";

/// Connects in several ways.
const PLAIN: &str = include_str!("../programs/plain.c");
const WAYS: [&str; 5] = ["blocking", "not-blocking", "ring", "multipath", "fast-open"];
/// Its exit status if the kernel lacks one of them.
const LACKING: i32 = 77;
const REFUSED: &str = "error 111\n";

const CLIENTS_POLICY: &str =
    "client greeter { users mail; service greeter at mailhost port 7000; programs any; }\n";

/// The greeter for programs that know nothing of Usher, and two of them.
fn topology() -> Result<Mail> {
    let mail = greeter::topology_for(CLIENTS_POLICY)?;
    mail.laptop.write("/var/lib/client.py", CLIENT)?;
    mail.laptop.compile_c(PLAIN, "/var/lib/plain")?;
    Ok(mail)
}

/// The client to the greeter at mailhost's IPv4 address.
fn client(mail: &Mail, user: &str, count: u32) -> Command {
    let (address, count) = (mail.mailhost.ipv4().to_string(), count.to_string());
    mail.laptop
        .command(["python3", "/var/lib/client.py", &address, &count])
        .user(user)
}

#[test]
fn a_plain_connect_is_the_users_and_the_next_ones_carry_tokens() -> Result {
    let mail = topology()?;
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    has_ticket(&mail, 1)?;
    // More if a SYN was sent again before its decision.
    let held = mail.laptop.number(Role::Signer, "plain_held")?;
    assert!(held >= 1, "{held}");
    assert_eq!(client(&mail, "alice", 3).run()?.stdout, greeting.repeat(3));
    assert_eq!(mail.laptop.number(Role::Signer, "plain_held")?, held);
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 3);
    Ok(())
}

// Threat model: A44
#[test]
fn who_is_not_permitted_is_refused_at_once() -> Result {
    let mail = topology()?;
    mail.laptop.add_account("dave", 1004)?;
    // carol is not permitted by mailhost, dave and root not by laptop.
    for user in ["carol", "dave", "root"] {
        let refused = client(&mail, user, 2).run()?;
        assert_eq!(refused.stdout, "ECONNREFUSED\nECONNREFUSED\n", "{user}");
    }
    assert_eq!(mail.laptop.number(Role::Signer, "plain_refused")?, 6);
    assert_eq!(mail.laptop.number(Role::Signer, "plain_announced")?, 0);
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    Ok(())
}

#[test]
fn without_the_statement_a_plain_connect_is_nobodys() -> Result {
    let mail = topology()?;
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    has_ticket(&mail, 1)?;
    // The ticket stays, for programs that ask.
    let asking = CLIENTS_POLICY.replace("programs any; ", "");
    mail.laptop
        .write("/etc/usher/policy.d/greeter.policy", asking)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, "ECONNREFUSED\n");
    let asked = ["usher", "connect", "mailhost:greeter"];
    assert_eq!(mail.laptop.run_as("alice", asked)?.stdout, greeting);
    mail.laptop
        .write("/etc/usher/policy.d/greeter.policy", CLIENTS_POLICY)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    Ok(())
}

#[test]
fn curl_reads_its_users_mail_from_the_services_own_address() -> Result {
    let mail = topology()?;
    let plain = "protocol imap; programs any;";
    mail.laptop
        .replace("/etc/usher/policy.d/mail.policy", "protocol imap;", plain)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let fetch = |user: &str, server: &str| {
        let url = format!("imap://{server}/INBOX;UID=1");
        let curl = ["curl", "--silent", "--show-error", &url];
        mail.laptop.command(curl).user(user).run()
    };
    let (v4, v6) = (mail.mailhost.ipv4(), format!("[{}]", mail.mailhost.ipv6()));
    for (user, subject) in [("alice", ALICE.subject), ("bob", BOB.subject)] {
        for server in [&v4.to_string(), &v6] {
            let fetched = fetch(user, server)?;
            assert!(fetched.stdout.contains(subject), "{fetched:?}");
        }
    }
    // CURLE_COULDNT_CONNECT.
    assert_eq!(fetch("carol", &v4.to_string())?.status.code(), Some(7));
    // The proxy's connections belong to its users, and are not held.
    let held = mail.laptop.number(Role::Signer, "plain_held")?;
    let login = [
        "curl",
        "--silent",
        "--user",
        "bob:none",
        "imap://mailhost/INBOX;UID=1",
    ];
    let fetched = mail.laptop.run_as("bob", login)?;
    assert!(fetched.stdout.contains(BOB.subject), "{fetched:?}");
    assert_eq!(mail.laptop.number(Role::Signer, "plain_held")?, held);
    Ok(())
}

/// As a temporary address of privacy extensions would be.
#[test]
fn a_preferred_address_that_is_not_the_hosts_is_named() -> Result {
    let mail = topology()?;
    let (own, other) = (mail.laptop.ipv6(), "fd77::face");
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    let greeted = || {
        let address = mail.mailhost.ipv6().to_string();
        let client = ["python3", "/var/lib/client.py", &address, "1"];
        Ok::<_, usher_lab::LabError>(mail.laptop.command(client).user("alice").run()?.stdout)
    };
    let doctor = || {
        let doctor = mail.laptop.command(["usher", "doctor"]).run();
        doctor.map(|output| output.stdout)
    };
    assert_eq!(greeted()?, greeting);
    let told = doctor()?;
    let fine =
        "ok       source addresses: plain connections leave from addresses of this host's block";
    assert!(told.contains(fine), "{told}");
    let preferred = |address: &str, how: &str| {
        let change = format!("ip address replace {address}/64 dev eth0 nodad {how}");
        mail.laptop.run(["sh", "-c", &change]).map(drop)
    };
    preferred(other, "")?;
    preferred(&own.to_string(), "preferred_lft 0 valid_lft forever")?;
    assert_eq!(greeted()?, "ECONNREFUSED\n");
    let told = doctor()?;
    let found = format!(
        "absent   source addresses: those to mailhost ({}) from {other}",
        mail.mailhost.ipv6()
    );
    assert!(told.contains(&found), "{told}");
    // A connection of a program that asks is bound to the host's address.
    let asked = ["usher", "connect", "mailhost:greeter"];
    assert_eq!(mail.laptop.run_as("alice", asked)?.stdout, greeting);
    preferred(&own.to_string(), "preferred_lft forever valid_lft forever")?;
    mail.laptop.run([
        "ip",
        "address",
        "del",
        &format!("{other}/64"),
        "dev",
        "eth0",
    ])?;
    assert_eq!(greeted()?, greeting);
    assert!(doctor()?.contains(fine));
    Ok(())
}

/// One of the ways to the greeter; none if this kernel lacks it.
fn connect(mail: &Mail, user: &str, way: &str, address: &str) -> Result<Option<String>> {
    let output = mail
        .laptop
        .command(["/var/lib/plain", way, address, "7000"])
        .environment("LD_LIBRARY_PATH", LIBRARY_PATH)
        .user(user)
        .run()?;
    if output.status.code() == Some(LACKING) {
        println!("skipped: this kernel has no {way}");
        return Ok(None);
    }
    assert!(output.status.success(), "{way}: {output:?}");
    Ok(Some(output.stdout))
}

#[test]
fn every_way_to_connect_is_held_first_in_either_family() -> Result {
    let mut mail = topology()?;
    let addresses = [
        mail.mailhost.ipv4().to_string(),
        mail.mailhost.ipv6().to_string(),
    ];
    let greeting = format!("{}\n", BOB.mailhost_uid);
    for address in &addresses {
        for way in WAYS {
            // No ticket of the former way is left.
            mail.signer.restart()?;
            let Some(first) = connect(&mail, "bob", way, address)? else {
                continue;
            };
            assert_eq!(first, greeting, "{way} to {address}");
            assert!(
                mail.laptop.number(Role::Signer, "plain_held")? >= 1,
                "{way}"
            );
            has_ticket(&mail, 1)?;
            let next = connect(&mail, "bob", way, address)?;
            assert_eq!(next.as_ref(), Some(&greeting), "{way} to {address} again");
            let refused = connect(&mail, "carol", way, address)?;
            assert_eq!(refused.as_deref(), Some(REFUSED), "{way} to {address}");
        }
    }
    Ok(())
}

#[test]
fn fifty_first_connections_at_once_open_one_session() -> Result {
    let mail = topology()?;
    let mut programs = Vec::new();
    for _ in 0..50 {
        programs.push(client(&mail, "alice", 1).spawn()?);
    }
    for program in &mut programs {
        program.read_past(&ALICE.mailhost_uid.to_string(), PATIENCE)?;
    }
    let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
    let view: serde_json::Value = serde_json::from_str(&who)?;
    assert_eq!(view["sessions"].as_array().map(Vec::len), Some(1), "{who}");
    Ok(())
}

#[test]
fn a_stopped_signer_holds_connections_and_an_ended_one_does_not() -> Result {
    let mut mail = topology()?;
    mail.signer.kill(Signal::STOP)?;
    let mut waiting = client(&mail, "alice", 1).spawn()?;
    let mut refused = client(&mail, "carol", 1).spawn()?;
    eventually("both connect", || {
        let connecting = mail.laptop.run(["ss", "-Htn", "state", "syn-sent"])?.stdout;
        Ok(connecting.lines().count() == 2)
    })?;
    for program in [&mut waiting, &mut refused] {
        assert!(!program.has_ended()?, "no signer has decided yet");
    }
    mail.signer.kill(Signal::CONT)?;
    waiting.read_past(&ALICE.mailhost_uid.to_string(), PATIENCE)?;
    refused.read_past("ECONNREFUSED", PATIENCE)?;

    // No courier carries the next announcement, which the signer tries for a while.
    mail.signer.crash()?;
    mail.courier.stop()?;
    let mut waiting = client(&mail, "alice", 1).spawn()?;
    eventually("her SYN is held", || {
        Ok(mail.laptop.number(Role::Signer, "plain_held")? >= 1)
    })?;
    // The next signer would announce a SYN that the kernel sends again.
    mail.signer.kill(Signal::KILL)?;
    assert!(mail.signer.wait(PATIENCE)?.is_some());
    waiting.read_past("ECONNREFUSED", PATIENCE)?;
    mail.courier.start()?;
    mail.signer.start()?;
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    Ok(())
}

#[test]
fn a_held_connection_is_refused_once_policy_forbids_it() -> Result {
    let mut mail = topology()?;
    // No courier carries the announcement, which the signer tries for a while.
    mail.courier.stop()?;
    let mut waiting = client(&mail, "alice", 1).spawn()?;
    eventually("her SYN is held", || {
        Ok(mail.laptop.number(Role::Signer, "plain_held")? >= 1)
    })?;
    mail.laptop
        .write("/etc/usher/policy.d/greeter.policy", "users none { }\n")?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    mail.courier.start()?;
    waiting.read_past("ECONNREFUSED", PATIENCE)?;
    assert_eq!(mail.laptop.number(Role::Signer, "plain_announced")?, 0);
    assert_eq!(mail.laptop.number(Role::Signer, "plain_refused")?, 1);
    Ok(())
}

#[test]
fn connections_of_programs_that_ask_are_not_held() -> Result {
    let mail = topology()?;
    let asked = ["usher", "connect", "mailhost:greeter"];
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(mail.laptop.run_as("alice", asked)?.stdout, greeting);
    has_ticket(&mail, 1)?;
    assert_eq!(mail.laptop.run_as("alice", asked)?.stdout, greeting);
    assert_eq!(mail.laptop.number(Role::Signer, "plain_held")?, 0);
    assert_eq!(
        client(&mail, "bob", 1).run()?.stdout,
        format!("{}\n", BOB.mailhost_uid)
    );
    assert!(mail.laptop.number(Role::Signer, "plain_held")? >= 1);
    Ok(())
}

/// Three users without an account, each with 300 unanswered connections.
const FLOOD: &str = "
import os, socket, sys
for uid in range(50000, 50003):
    if os.fork() == 0:
        os.setuid(uid)
        kept = [socket.socket() for _ in range(300)]
        for one in kept:
            one.setblocking(False)
            one.connect_ex((sys.argv[1], 7000))
        print('begun', flush=True)
        sys.stdin.readline()
        os._exit(0)
sys.stdin.readline()
";

// Threat model: A47
#[test]
fn uids_without_an_account_share_one_quota() -> Result {
    let mail = topology()?;
    // This address has no host, and no answer at all.
    let desert = "10.77.0.99";
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t";
    let neighbour = format!("neigh add {desert} lladdr 02:00:00:00:00:63 dev eth0");
    mail.laptop
        .run(["ip"].into_iter().chain(neighbour.split(' ')))?;
    let host = ["usher", "host", "add", "desert", "--address", desert];
    mail.laptop.run([&host[..], &["--key", key]].concat())?;
    mail.laptop.write(
        "/etc/usher/policy.d/desert.policy",
        "client desert { users mail; service greeter at desert port 7000; programs any; }\n",
    )?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let gates = || mail.laptop.number(Role::Signer, "plain_gates");
    let mut flood = mail
        .laptop
        .command(["python3", "-c", FLOOD, desert])
        .spawn()?;
    eventually("the quota is full, and that is said", || {
        Ok(mail.signer.log()?.contains("reason=\"overloaded\""))
    })?;
    let refused = gates()?;
    assert!(refused <= 512, "{refused}");
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    // As soon as they are gone, everything works as before.
    flood.write("\n\n\n\n")?;
    drop(flood);
    eventually("no gate is left", || Ok(gates()? == 0))?;
    assert_eq!(client(&mail, "carol", 1).run()?.stdout, "ECONNREFUSED\n");
    Ok(())
}

#[test]
fn after_a_refused_token_the_next_connection_is_announced() -> Result {
    let mut mail = topology()?;
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    has_ticket(&mail, 1)?;
    // The server ends her session without notifying her host.
    mail.courier.stop()?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    mail.mailhost.run(["usher", "user", "enable", "alice"])?;
    mail.courier.start()?;
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, "ECONNREFUSED\n");
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_unknown")?, 1);
    has_ticket(&mail, 0)?;
    assert_eq!(client(&mail, "alice", 2).run()?.stdout, greeting.repeat(2));
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_unknown")?, 1);
    assert_eq!(mail.laptop.number(Role::Signer, "plain_announced")?, 3);
    Ok(())
}
