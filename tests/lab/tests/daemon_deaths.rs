//! Killing daemons: established connections stay, unannounced ones are refused, and waiting ones are
//! served afterwards.
//!
//! Threat model: A146

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use usher_lab::{
    Command, Daemon, Host, LIBRARY_PATH, Lab, Mail, PATIENCE, Running, Signal, eventually,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A per-user echo service by socket activation: prints its user and process, then echoes.
const ECHO: &str = r#"
import os, socket, threading
assert os.environ["LISTEN_PID"] == str(os.getpid()) and os.environ["LISTEN_FDS"] == "1"
listener = socket.socket(fileno=3)
def serve(connection):
    with connection:
        connection.sendall(b"uid %d pid %d\n" % (os.getuid(), os.getpid()))
        while data := connection.recv(4096):
            connection.sendall(data)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
"#;

const SERVER: &str = r#"
service echo {
  program "/usr/bin/python3" "/var/lib/echo.py";
  listen 7;
  style user;
  idle 1h;
  users mail;
  hosts laptop;
}
"#;

const CLIENT: &str = "client echo { users mail; service echo at mailhost port 7; }\n";

/// The output of the program `connects` for ENETDOWN.
const AWAY: &str = "errno 100: the signer of this host does not answer";

const CONNECTS: &str = include_str!("../programs/connects.c");

fn mail_with_echo() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    mail.mailhost.write("/var/lib/echo.py", ECHO)?;
    mail.add_policies("echo", SERVER, CLIENT)?;
    Ok(mail)
}

/// Connects to the echo service; returns the connection and the worker's own description.
fn connect(laptop: &Host, user: &str) -> Result<(Running, String), Box<dyn std::error::Error>> {
    let mut connection = laptop
        .command(["usher", "connect", "mailhost:echo"])
        .user(user)
        .spawn()?;
    let greeting = connection.read_past("\n", PATIENCE)?;
    Ok((connection, greeting.trim().to_owned()))
}

fn echoes(connection: &mut Running, word: &str) -> Outcome {
    connection.write(format!("{word}\n"))?;
    assert!(connection.read_past("\n", PATIENCE)?.contains(word));
    Ok(())
}

/// Plain connects to the service, from another host and from a local user who may use it.
fn nobody_gets_in_unannounced(mail: &Mail) -> Outcome {
    for address in [
        mail.mailhost.ipv4().to_string(),
        mail.mailhost.ipv6().to_string(),
    ] {
        let program = format!("import socket; socket.create_connection(('{address}', 7), 100)");
        for (host, user) in [(&mail.stranger, "root"), (&mail.laptop, "alice")] {
            let output = host.command(["python3", "-c", &program]).user(user).run()?;
            assert!(
                output.stderr.contains("ConnectionRefusedError"),
                "{user} at {address}: {output:?}"
            );
        }
    }
    Ok(())
}

fn sessions(mail: &Mail) -> Result<String, Box<dyn std::error::Error>> {
    let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
    let mut ids: Vec<String> = who
        .lines()
        .filter(|line| line.contains("\"session\""))
        .map(|line| line.trim().to_owned())
        .collect();
    ids.sort();
    Ok(ids.join("\n"))
}

#[test]
fn established_connections_survive_the_death_of_every_daemon() -> Outcome {
    let mut mail = mail_with_echo()?;
    let (mut alice, alice_worker) = connect(&mail.laptop, "alice")?;
    let (mut bob, bob_worker) = connect(&mail.laptop, "bob")?;
    assert!(alice_worker.starts_with("uid 2001 "), "{alice_worker}");
    assert!(bob_worker.starts_with("uid 2002 "), "{bob_worker}");
    let before = sessions(&mail)?;
    let daemons: [fn(&mut Mail) -> &mut Daemon; 5] = [
        |mail| &mut mail.keeper,
        |mail| &mut mail.verifier,
        |mail| &mut mail.signer,
        |mail| &mut mail.courier,
        |mail| &mut mail.recorder,
    ];
    for (round, daemon) in daemons.iter().cycle().take(10).enumerate() {
        let name = daemon(&mut mail).name().to_owned();
        daemon(&mut mail).kill(Signal::KILL)?;
        daemon(&mut mail).wait(PATIENCE)?;
        echoes(
            &mut alice,
            &format!("alice while the {name} is dead {round}"),
        )?;
        nobody_gets_in_unannounced(&mail)?;
        daemon(&mut mail).start()?;
        echoes(&mut bob, &format!("bob after the {name} is back {round}"))?;
        nobody_gets_in_unannounced(&mail)?;
        // The worker that served before the death serves after it.
        let (mut fresh, worker) = connect(&mail.laptop, "alice")?;
        assert_eq!(worker, alice_worker, "after the {name}'s death");
        echoes(&mut fresh, "fresh")?;
    }
    let after = sessions(&mail)?;
    for session in before.lines() {
        assert!(after.contains(session), "{session} is gone from:\n{after}");
    }
    Ok(())
}

#[test]
fn a_keeper_restart_needs_no_new_signature() -> Outcome {
    let mut mail = mail_with_echo()?;
    drop(connect(&mail.laptop, "alice")?);
    let before = sessions(&mail)?;
    mail.keeper.crash()?;
    mail.verifier.crash()?;
    mail.courier.crash()?;
    drop(connect(&mail.laptop, "alice")?);
    assert_eq!(sessions(&mail)?, before);
    Ok(())
}

#[test]
fn an_answer_that_comes_too_late_refuses_no_connection() -> Outcome {
    let mut mail = mail_with_echo()?;
    // The channel is open: what is late is the answer on it.
    drop(connect(&mail.laptop, "bob")?);
    mail.keeper.kill(Signal::STOP)?;
    let mut connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:echo"])
        .user("alice")
        .spawn()?;
    assert!(
        mail.signer
            .wait_log("no answer yet; trying again", PATIENCE)?
    );
    // It now opens a session for each of the two attempts, with the same connection.
    mail.keeper.kill(Signal::CONT)?;
    let greeting = connection.read_past("\n", PATIENCE)?;
    assert!(greeting.starts_with("uid 2001 "), "{greeting}");
    echoes(&mut connection, "late")?;
    // The session that the signer did not know of is closed.
    eventually("alice and bob have one session each", || {
        Ok(sessions(&mail)?.lines().count() == 2)
    })?;
    Ok(())
}

/// A program of alice's that connects to the echo service once, by connect_by_user(3).
fn connects(laptop: &Host) -> Command {
    laptop
        .command(["/var/lib/connects", "mailhost", "echo", "1", "1"])
        .environment("LD_LIBRARY_PATH", LIBRARY_PATH)
        .user("alice")
}

#[test]
fn who_connects_while_the_signer_restarts_is_served() -> Outcome {
    let mut mail = mail_with_echo()?;
    mail.laptop.compile_c(CONNECTS, "/var/lib/connects")?;
    eventually("a signer that is back in time serves", || {
        mail.signer.kill(Signal::KILL)?;
        mail.signer.wait(PATIENCE)?;
        let mut program = connects(&mail.laptop).spawn()?;
        eventually("the program runs", || {
            let processes = mail.laptop.processes()?;
            let runs = processes.iter().any(|process| process.name == "connects");
            Ok(runs || program.has_ended()?)
        })?;
        std::thread::sleep(Duration::from_secs(1));
        mail.signer.start()?;
        let said = program.read_past("\n", PATIENCE)?;
        let is_served = said == "1 connections\n";
        // Other daemons may be late, too; EACCES and ECONNREFUSED would be answers.
        let is_refused = ["errno 13:", "errno 111:"].map(|told| said.starts_with(told));
        assert_eq!(is_refused, [false; 2], "{said}");
        Ok(is_served)
    })?;
    // The twin: it stays away.
    mail.signer.kill(Signal::KILL)?;
    mail.signer.wait(PATIENCE)?;
    let output = connects(&mail.laptop).run()?;
    assert!(output.stdout.starts_with(AWAY), "{output:?}");
    assert!(output.elapsed > Duration::from_secs(4), "{output:?}");
    Ok(())
}

#[test]
fn what_waits_in_a_queue_survives_the_keeper_and_the_worker() -> Outcome {
    let mut mail = mail_with_echo()?;
    let (first, worker) = connect(&mail.laptop, "alice")?;
    let pid = worker.rsplit(' ').next().unwrap_or_default().to_owned();
    // The worker cannot accept, so a new connection waits. A thread that waits in accept() and has not
    // stopped yet would take it along.
    mail.mailhost.run(["kill", "-STOP", &pid])?;
    let states = format!("cat /proc/{pid}/task/*/stat");
    eventually("all threads of the worker have stopped", || {
        let states = mail.mailhost.run(["sh", "-c", &states])?.stdout;
        Ok(states.lines().all(|state| state.contains(") T ")))
    })?;
    let mut waiting = mail
        .laptop
        .command(["usher", "connect", "mailhost:echo"])
        .user("alice")
        .spawn()?;
    waiting.write("I was here before the crash\n")?;
    eventually("the waiting connection is established", || {
        let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
        Ok(who.matches("\"established\"").count() >= 2)
    })?;
    mail.keeper.crash()?;
    mail.mailhost.run(["kill", "-KILL", &pid])?;
    let greeting = waiting.read_past("before the crash", PATIENCE)?;
    assert!(greeting.starts_with("uid 2001 pid "), "{greeting}");
    assert!(!greeting.contains(&format!("pid {pid}\n")), "{greeting}");
    drop(first);
    Ok(())
}

// Threat model: A1
#[test]
fn no_death_at_any_instant_drops_or_admits_a_connection() -> Outcome {
    let mut mail = mail_with_echo()?;
    let (mut lasting, _) = connect(&mail.laptop, "alice")?;
    let laptop = mail.laptop.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    let served = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&served);
    // Bob connects all the time; every successful connection must be complete and his.
    let bob = std::thread::spawn(move || {
        while !stopping.load(Ordering::Relaxed) {
            let output = laptop
                .command(["usher", "connect", "mailhost:echo"])
                .user("bob")
                .input("mine\n")
                .run();
            match output {
                Ok(output) if output.status.success() => {
                    assert!(output.stdout.starts_with("uid 2002 pid "), "{output:?}");
                    assert!(output.stdout.ends_with("mine\n"), "{output:?}");
                    counting.fetch_add(1, Ordering::Relaxed);
                }
                // Refused while a daemon was dead, with a message.
                Ok(output) => assert!(output.stderr.starts_with("usher: "), "{output:?}"),
                Err(error) => panic!("{error}"),
            }
        }
    });
    let seed: u64 = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)?
        .as_secs();
    println!("seed {seed}");
    let mut random = seed;
    for round in 0..16 {
        // Knuth's MMIX generator: reproducible from the seed.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(random >> 33 & 127));
        let victim: fn(&mut Mail) -> &mut Daemon = match random >> 60 {
            0..4 => |mail| &mut mail.keeper,
            4..8 => |mail| &mut mail.verifier,
            8..11 => |mail| &mut mail.signer,
            11..13 => |mail| &mut mail.recorder,
            _ => |mail| &mut mail.courier,
        };
        victim(&mut mail).kill(Signal::KILL)?;
        victim(&mut mail).wait(PATIENCE)?;
        nobody_gets_in_unannounced(&mail)?;
        victim(&mut mail).start()?;
        echoes(&mut lasting, &format!("round {round}"))?;
    }
    // On a busy machine, each of his connections may have met a death.
    eventually("bob is served", || {
        Ok(served.load(Ordering::Relaxed) > 0 || bob.is_finished())
    })?;
    stop.store(true, Ordering::Relaxed);
    bob.join().map_err(|_| "bob's thread failed")?;
    let (mut after, greeting) = connect(&mail.laptop, "bob")?;
    assert!(greeting.starts_with("uid 2002 "), "{greeting}");
    echoes(&mut after, "after it all")?;
    Ok(())
}

#[test]
fn a_worker_runs_since_it_was_started_whatever_keeper_asks() -> Outcome {
    let mut mail = mail_with_echo()?;
    let (mut alice, _) = connect(&mail.laptop, "alice")?;
    let seconds = |mail: &Mail| -> Result<f64, Box<dyn std::error::Error>> {
        let told = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
        let told: serde_json::Value = serde_json::from_str(&told)?;
        Ok(told["workers"][0]["seconds"].as_f64().ok_or("no worker")?)
    };
    // The kernel counts in hundredths.
    eventually("it has run for a while", || Ok(seconds(&mail)? > 0.5))?;
    let before = seconds(&mail)?;
    mail.keeper.crash()?;
    let after = seconds(&mail)?;
    assert!(after >= before, "{before} s, then {after} s");
    echoes(&mut alice, "still here")
}
