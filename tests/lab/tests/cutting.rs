//! `usher user disable` cuts off: on a full disk, with a keeper that hangs, and for good when it
//! returns.
#![forbid(unsafe_code)]

mod attack;
mod reading;
#[path = "cutting/unheard.rs"]
mod unheard;
mod users;

use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use attack::{Attack, Result};
use reading::{connect, connect_to, is_cut, lives};
use users::{json, refused};
use usher_lab::hostile::{Asked, Channel, Port, id_of};
use usher_lab::{ALICE, Lab, Mail, Signal, eventually};
use usher_proto::SessionId;
use usher_proto::ssh_key::PrivateKey;

/// Puts a folder on a small disk of its own.
const MOUNT: &str = r#"
    cp -a $0 /root/copy
    mount -t tmpfs -o mode=755,size=512k tmpfs $0
    cp -a /root/copy/. $0/
    rm -r /root/copy
"#;

/// Leaves no room in a folder's disk.
const FILL: &str = "head -c 1M /dev/zero >$0/filler 2>/dev/null || true";

/// The mail topology, with these folders of mailhost on small disks.
fn with_small_disks(folders: &[&str]) -> Result<Mail> {
    let mut mail = Lab::mail()?;
    let daemons = [&mut mail.keeper, &mut mail.recorder, &mut mail.verifier];
    for daemon in daemons {
        daemon.end()?;
    }
    for folder in folders {
        mail.mailhost.run(["sh", "-e", "-c", MOUNT, folder])?;
    }
    // Their confinement is for the folders that were there when they started.
    for daemon in [&mut mail.keeper, &mut mail.recorder, &mut mail.verifier] {
        daemon.start()?;
    }
    // The courier's connection is made anew.
    eventually("alice is served", || {
        let connect = ["usher", "connect", "mailhost:imap"];
        let connect = mail.laptop.command(connect).user("alice");
        Ok(connect
            .input("x LOGOUT\r\n")
            .run()?
            .stdout
            .contains("as alice"))
    })?;
    Ok(mail)
}

const FOLDERS: [&str; 2] = ["/etc/usher", "/var/lib/usher"];
const DISABLE: [&str; 4] = ["usher", "user", "disable", "alice"];

// Threat model: A84
#[test]
fn a_full_disk_keeps_nobody_from_being_cut_off() -> Result {
    for full in [&FOLDERS[..], &FOLDERS[..1], &FOLDERS[1..]] {
        let mut mail = with_small_disks(full)?;
        let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
        for folder in full {
            mail.mailhost.run(["sh", "-c", FILL, folder])?;
        }
        let disabled = mail.mailhost.command(DISABLE).run()?;
        assert_eq!(disabled.status.code(), Some(5), "{full:?}: {disabled:?}");
        for text in [
            "ended: alice from laptop at imap, 1 connection(s): the user is disabled",
            "alice has been cut off, and these daemons refuse alice: keeper, verifier. This is NOT stored",
            "No space left on device",
            "ends when they restart",
        ] {
            assert!(
                disabled.stderr.contains(text),
                "{full:?}: {text}: {disabled:?}"
            );
        }
        is_cut(&mut alice)?;
        let said = refused(&mail, "alice", "mailhost:imap")?;
        assert!(said.contains("disabled"), "{full:?}: {said}");
        lives(&mut bob)?;
        let doctor = mail.mailhost.command(["usher", "doctor"]).run()?;
        let told = "could not store it: alice";
        let is_unstored = full.contains(&"/var/lib/usher");
        assert_eq!(doctor.stdout.contains(told), is_unstored, "{doctor:?}");
        if is_unstored {
            let refused = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
            assert_eq!(refused.status.code(), Some(4), "{refused:?}");
            let said = "nothing has changed";
            assert!(refused.stderr.contains(said), "{refused:?}");
        }

        // There is room again, and something else is applied.
        for folder in full {
            mail.mailhost.run(["rm", &format!("{folder}/filler")])?;
        }
        mail.mailhost.run(["usher", "policy", "apply"])?;
        refused(&mail, "alice", "mailhost:imap")?;
        let doctor = mail.mailhost.command(["usher", "doctor"]).run()?;
        let is_marked = !full.contains(&"/etc/usher");
        assert_eq!(doctor.stdout.contains(told), !is_marked, "{doctor:?}");
        mail.mailhost.run(["usher", "user", "enable", "alice"])?;
        lives(&mut connect(&mail, "alice")?)?;
        // With room it outlives the daemons.
        mail.mailhost.run(DISABLE)?;
        mail.keeper.restart()?;
        mail.verifier.restart()?;
        eventually("alice is refused", || {
            let said = refused(&mail, "alice", "mailhost:imap")?;
            Ok(said.contains("disabled"))
        })?;
    }
    Ok(())
}

#[test]
fn a_full_disk_renames_no_host() -> Result {
    const FOLDER: &str = "/etc/usher";
    let mail = with_small_disks(&[FOLDER])?;
    let host = &mail.mailhost;
    let files = || host.run(["sh", "-c", "cd /etc/usher/policy.d && ls -A && cat *"]);
    let before = files()?.stdout;
    host.run(["sh", "-c", FILL, FOLDER])?;
    // There is room for one file of the two.
    host.run(["sh", "-c", "truncate -s -4096 $0/filler", FOLDER])?;
    let rename = ["usher", "host", "rename", "laptop", "notebook"];
    let renamed = host.command(rename).run()?;
    assert_eq!(renamed.status.code(), Some(4), "{renamed:?}");
    let why = "mail.policy: No space left on device";
    assert!(renamed.stderr.contains(why), "{renamed:?}");
    assert_eq!(files()?.stdout, before);
    host.run(["usher", "policy", "check"])?;
    host.run(["rm", "/etc/usher/filler"])?;
    host.run(rename)?;
    let after = files()?.stdout;
    assert!(after.contains("host-notebook.policy\n"), "{after}");
    assert!(!after.contains("host-laptop.policy\n"), "{after}");
    Ok(())
}

#[test]
fn a_user_who_is_not_known_is_not_disabled_in_memory_either() -> Result {
    let mail = Lab::mail()?;
    let unknown = mail
        .mailhost
        .command(["usher", "user", "disable", "eve"])
        .run()?;
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    // She comes, and is like anybody.
    mail.mailhost.add_account("eve", 2099)?;
    mail.laptop.add_account("eve", 1099)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let key = users::keygen(&mail.laptop, "eve")?;
    mail.mailhost.write("/root/eve.pub", key)?;
    users::add(&mail.laptop, "eve", &["--private-key", "/root/eve"])?;
    users::add(&mail.mailhost, "eve", &["--public-key", "/root/eve.pub"])?;
    for host in [&mail.laptop, &mail.mailhost] {
        let policy = "/etc/usher/policy.d/mail.policy";
        host.replace(policy, "member alice,", "member eve, alice,")?;
    }
    mail.apply()?;
    let mut eve = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("eve")
        .spawn()?;
    let greeting = eve.read_past("\n", usher_lab::PATIENCE)?;
    assert!(greeting.contains("as eve"), "{greeting}");
    Ok(())
}

// Threat model: A85
#[test]
fn a_keeper_that_hangs_is_told_and_the_next_one_cuts() -> Result {
    let mut mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    mail.keeper.kill(Signal::STOP)?;
    let hangs = "the keeper has not answered for 10 s: it hangs";
    let who = mail.mailhost.command(["usher", "who"]).run()?;
    assert_eq!(who.status.code(), Some(3), "{who:?}");
    assert!(who.stderr.contains(hangs), "{who:?}");
    let doctor = mail.mailhost.command(["usher", "doctor"]).run()?;
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    assert!(doctor.stdout.contains(hangs), "{doctor:?}");
    let disabled = mail.mailhost.command(DISABLE).run()?;
    assert_eq!(disabled.status.code(), Some(3), "{disabled:?}");
    for text in [
        "alice is disabled",
        "have NOT been ended",
        hangs,
        "kill -s KILL usher-keeper",
    ] {
        assert!(disabled.stderr.contains(text), "{text}: {disabled:?}");
    }
    lives(&mut alice)?;
    // The message advises this, and a watchdog does it.
    mail.keeper.crash()?;
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    mail.mailhost.run(["usher", "who"])?;
    Ok(())
}

/// A keeper that is stopped misses the order. What waits in its socket meanwhile is refused, too.
// Threat model: A85
#[test]
fn a_keeper_that_goes_on_takes_the_disable_that_it_missed() -> Result {
    let mut mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    mail.keeper.kill(Signal::STOP)?;
    let disable = ["usher", "user", "disable", "bob"];
    let disabled = mail.mailhost.command(disable).run()?;
    assert_eq!(disabled.status.code(), Some(3), "{disabled:?}");
    let said = "ends them when it goes on";
    assert!(disabled.stderr.contains(said), "{disabled:?}");
    lives(&mut alice)?;
    lives(&mut bob)?;

    let again = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
    let mut waiting = again.user("bob").spawn()?;
    mail.keeper.kill(Signal::CONT)?;
    is_cut(&mut bob)?;
    is_cut(&mut waiting)?;
    let greeted = waiting.read_past("PREAUTH", std::time::Duration::ZERO);
    assert!(greeted.is_err(), "{greeted:?}");
    let said = refused(&mail, "bob", "mailhost:imap")?;
    assert!(said.contains("disabled"), "{said}");
    lives(&mut alice)?;
    lives(&mut connect(&mail, "alice")?)?;
    let ended = users::recent(&mail)?;
    assert!(!ended.is_empty(), "{ended:?}");
    let bobs = |(user, reason): &(String, String)| user == "bob" && reason == "disabled_user";
    assert!(ended.iter().all(bobs), "{ended:?}");

    // The order itself came late as well, and leaves nothing behind that is not stored.
    let doctor = mail.mailhost.command(["usher", "doctor"]).run()?;
    assert!(!doctor.stdout.contains("could not store it"), "{doctor:?}");
    let mark = "/etc/usher/users/bob/disabled";
    mail.mailhost.run(["rm", mark])?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    lives(&mut connect(&mail, "bob")?)
}

/// A service that gives each user one place, and a client host half a minute to answer.
const PLACE: &str = concat!(
    "service place { program ",
    usher_lab::imap!(),
    "; listen 1201; style connection; connections 1; keepalive 30s; users mail; hosts laptop; }\n"
);
const PLACE_CLIENT: &str = "client place { users mail; service place at mailhost port 1201; }\n";

// Threat model: A82
#[test]
fn a_host_that_vanished_holds_no_place_of_its_user() -> Result {
    let mail = Lab::mail()?;
    mail.add_policies("place", PLACE, PLACE_CLIENT)?;
    let _alice = connect_to(&mail, "alice", "mailhost:place")?;
    let _bob = connect(&mail, "bob")?;
    mail.laptop.run(["ip", "link", "set", "eth0", "down"])?;
    let said = "connections have ended because their client host has not answered";
    assert!(mail.keeper.wait_log(said, usher_lab::PATIENCE)?);
    let users = || -> Result<Vec<String>> {
        let view = json(&mail.mailhost, &["who"])?;
        let workers = view["workers"].as_array().ok_or("no list")?;
        let users = workers.iter().filter_map(|worker| worker["user"].as_str());
        Ok(users.map(str::to_owned).collect())
    };
    // The twin has fifteen minutes.
    eventually("alice's process has ended", || Ok(users()? == ["bob"]))?;
    mail.laptop.run(["ip", "link", "set", "eth0", "up"])?;
    eventually("alice has her place again", || {
        let again = mail.laptop.command(["usher", "connect", "mailhost:place"]);
        let said = again.user("alice").input("x LOGOUT\r\n").run()?;
        Ok(said.stdout.contains("Logged in as alice"))
    })
}

/// Services that write by themselves: to alice a line each second, and to bob as much as fits.
const WRITING: &str = r#"
service ticks {
  program "/bin/sh" "-c" "echo '* PREAUTH'; while echo tick; do sleep 1; done";
  listen 1202; style connection; connections 1; keepalive 30s; users mail; hosts laptop;
}
service floods {
  program "/bin/sh" "-c" "echo '* PREAUTH'; exec seq 1000000000";
  listen 1203; style connection; connections 1; keepalive 30s; users mail; hosts laptop;
}
"#;
const WRITING_CLIENT: &str = "client writing { users mail; service ticks at mailhost port 1202;\n  \
                              service floods at mailhost port 1203; }\n";

/// Linux sends no probes of keepalive while the server's own bytes are unacknowledged.
// Threat model: A82
#[test]
fn a_server_that_writes_keeps_no_place_for_a_host_that_vanished() -> Result {
    let mail = Lab::mail()?;
    mail.add_policies("writing", WRITING, WRITING_CLIENT)?;
    let mut alice = connect_to(&mail, "alice", "mailhost:ticks")?;
    // Nothing takes what comes for her twin, so his client does not read. His host answers probes for room.
    let mut bob = connect_to(&mail, "bob", "mailhost:floods")?;
    alice.read_past("tick\n", usher_lab::PATIENCE)?;
    let vanishes = "ipproto tcp dport 1202 blackhole";
    let rule = |deed| {
        mail.laptop
            .run(["ip", "rule", deed].into_iter().chain(vanishes.split(' ')))
    };
    rule("add")?;
    let said = "connections have ended because their client host has not answered";
    assert!(mail.keeper.wait_log(said, usher_lab::PATIENCE)?);
    eventually("alice's process has ended", || {
        let view = json(&mail.mailhost, &["who"])?;
        let workers = view["workers"].as_array().ok_or("no list")?;
        let users = workers.iter().filter_map(|worker| worker["user"].as_str());
        Ok(users.collect::<Vec<_>>() == ["bob"])
    })?;
    rule("del")?;
    let mut alice = connect_to(&mail, "alice", "mailhost:ticks")?;
    alice.read_past("tick\n", usher_lab::PATIENCE)?;
    // Bob's connection is as old as hers was.
    let held = mail
        .mailhost
        .run(["ss", "-Htn", "state", "established", "sport", "= 1203"])?;
    assert_eq!(held.stdout.lines().count(), 1, "{held:?}");
    bob.read_past("100000\n", usher_lab::PATIENCE)?;
    Ok(())
}

/// A session of alice's, on the one channel that a pair of hosts has.
struct Announcing {
    channel: Channel,
    key: PrivateKey,
    asked: Asked,
    session: Option<SessionId>,
}

impl Announcing {
    fn new(attack: &Attack) -> Result<Self> {
        Ok(Self {
            channel: attack.channel()?,
            key: attack.user_key("alice")?,
            asked: attack.asked("alice")?,
            session: None,
        })
    }

    /// Announces a connection from this port, in a session that is opened when there is none; it may
    /// be refused.
    fn announce(&mut self, attack: &Attack, port: &Port) -> Result {
        let Ok(announcement) = attack.announcement(&mut self.asked, port) else {
            return self.forget(attack);
        };
        let verdict = match self.session {
            Some(session) => self.channel.announce(session, announcement)?,
            None => {
                let authenticator = self.asked.sign(&self.key)?;
                self.session = Some(id_of(&authenticator));
                self.channel.open_session(&authenticator, announcement)?
            }
        };
        match verdict {
            Ok(()) => Ok(()),
            Err(_) => self.forget(attack),
        }
    }

    fn forget(&mut self, attack: &Attack) -> Result {
        (self.asked, self.session) = (attack.asked("alice")?, None);
        Ok(())
    }
}

/// Connects again and again, each time announced, until enough attempts began after this was said to
/// be over. Returns whether one of those was served.
fn connects_after(
    attack: &Attack,
    announcing: &Mutex<Announcing>,
    over: &AtomicBool,
) -> Result<bool> {
    let mut attempts_after = 0;
    while attempts_after < 5 {
        let begun_after = over.load(Ordering::SeqCst);
        attempts_after += u32::from(begun_after);
        let port = attack.port()?;
        let mut announcing = announcing.lock().map_err(|_| "a thread failed")?;
        announcing.announce(attack, &port)?;
        drop(announcing);
        // Also where it was not granted.
        let Ok(mut stream) = port.connect(attack.server()) else {
            continue;
        };
        let served = stream.read(&mut [0; 64]).is_ok_and(|count| count > 0);
        if served && begun_after {
            return Ok(true);
        }
    }
    Ok(false)
}

// Threat model: A86
#[test]
fn when_disable_returns_nothing_of_the_user_runs_or_is_accepted() -> Result {
    let attack = Attack::new()?;
    let host = &attack.mail.mailhost;
    let mut bob = connect(&attack.mail, "bob")?;
    for round in 0..8 {
        let over = AtomicBool::new(false);
        let announcing = Mutex::new(Announcing::new(&attack)?);
        let served_after = std::thread::scope(|scope| -> Result<bool> {
            let connecting: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        connects_after(&attack, &announcing, &over)
                            .map_err(|error| error.to_string())
                    })
                })
                .collect();
            let look = || -> Result {
                eventually("alice is served", || {
                    Ok(host
                        .processes()?
                        .iter()
                        .any(|p| p.uid == ALICE.mailhost_uid))
                })?;
                host.run(DISABLE)?;
                // At once, and not in the end.
                let left = host.processes()?;
                over.store(true, Ordering::SeqCst);
                let left: Vec<_> = left
                    .iter()
                    .filter(|p| p.uid == ALICE.mailhost_uid)
                    .collect();
                assert!(left.is_empty(), "round {round}: {left:?}");
                let view = json(host, &["who"])?;
                let sessions = view["sessions"].as_array().ok_or("no list")?;
                assert!(
                    !sessions.iter().any(|session| session["user"] == "alice"),
                    "{view}"
                );
                Ok(())
            };
            let looked = look();
            // Also where looking has failed: the threads end by it.
            over.store(true, Ordering::SeqCst);
            let mut served = false;
            for thread in connecting {
                served |= thread.join().map_err(|_| "a thread failed")??;
            }
            looked?;
            Ok(served)
        })?;
        assert!(
            !served_after,
            "round {round}: served after disable had returned"
        );
        lives(&mut bob)?;
        host.run(["usher", "user", "enable", "alice"])?;
    }
    lives(&mut connect(&attack.mail, "alice")?)
}
