//! The starter makes workers, which outlive it.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::troubled::troubled;
use super::*;

/// The starter of the mailhost's keeper.
fn starter(mail: &Mail) -> Result<u32, Box<dyn std::error::Error>> {
    let mut found = None;
    eventually("there is a starter", || {
        let processes = mail.mailhost.processes()?;
        // A child is called so, too, until it executes its program. While its starter is ending, it may
        // be the only one, still root's, and serve a connection before the caller kills it.
        let is_keeper = |pid: u32| {
            processes
                .iter()
                .any(|process| process.pid == pid && process.command.contains("usherd keeper"))
        };
        let starter = processes
            .iter()
            .find(|process| process.command == "usherd starter" && is_keeper(process.parent));
        found = starter.map(|process| process.pid);
        Ok(found.is_some())
    })?;
    Ok(found.ok_or("no starter")?)
}

#[test]
fn the_starter_holds_three_capabilities_and_no_queue() -> Outcome {
    let mail = mail()?;
    let mut connections = Vec::new();
    let descriptors = |pid: u32| -> Result<usize, Box<dyn std::error::Error>> {
        let listed = mail.mailhost.run(["ls", &format!("/proc/{pid}/fd")])?;
        Ok(listed.stdout.lines().count())
    };
    let starter = starter(&mail)?;
    connections.push(reveal(&mail, "alice", "each")?);
    let before = descriptors(starter)?;
    for (user, service) in [("alice", "one"), ("bob", "each"), ("bob", "one")] {
        connections.push(reveal(&mail, user, service)?);
    }
    eventually(
        "all births are over",
        || Ok(descriptors(starter)? <= before),
    )?;
    let status = mail.mailhost.read(format!("/proc/{starter}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.trim().to_owned())
    };
    // CAP_KILL, CAP_SETGID, CAP_SETUID.
    let three = Some("00000000000000e0".to_owned());
    let none = Some("0000000000000000".to_owned());
    assert_eq!(field("CapPrm:"), three);
    assert_eq!(field("CapEff:"), three);
    assert_eq!(field("CapBnd:"), none);
    assert_eq!(field("CapInh:"), none);
    assert_eq!(field("Threads:"), Some("1".to_owned()));
    let environment = mail.mailhost.read(format!("/proc/{starter}/environ"))?;
    assert!(!environment.contains("NOTIFY_SOCKET"), "{environment}");
    Ok(())
}

#[test]
fn workers_outlive_the_starter_and_another_starts_more() -> Outcome {
    let mut mail = mail()?;
    let (first, said) = reveal(&mail, "alice", "each")?;
    let pid = number(&said, "pid");
    let dead = starter(&mail)?;
    mail.mailhost.run(["kill", "-KILL", &dead.to_string()])?;
    let (_second, said) = reveal(&mail, "alice", "each")?;
    assert_ne!(number(&said, "pid"), pid);
    assert_ne!(starter(&mail)?, dead);
    let lives = |mail: &Mail| -> Result<bool, Box<dyn std::error::Error>> {
        let processes = mail.mailhost.processes()?;
        Ok(processes
            .iter()
            .any(|process| process.pid.to_string() == pid))
    };
    assert!(lives(&mail)?, "the worker has ended with its starter");
    // It still counts, and its end is noticed: the policy permits two.
    let mut third = open(&mail, "alice", "each")?;
    drop(first);
    assert!(third.read_past("\n", PATIENCE)?.contains("\"uid\": [2001"));
    assert!(!lives(&mail)?);
    assert!(mail.keeper.is_running()?);
    // The starter ends with its keeper, and the workers do not.
    let last = starter(&mail)?;
    mail.keeper.crash()?;
    assert_ne!(starter(&mail)?, last);
    Ok(())
}

/// The numbers of a user's workers at a service, by `usher who`.
fn workers(mail: &Mail, service: &str) -> Result<Vec<u64>, Box<dyn std::error::Error>> {
    let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
    let who: Value = serde_json::from_str(&who)?;
    let workers = who["workers"].as_array().ok_or("no list")?;
    let of_service = workers.iter().filter(|worker| worker["service"] == service);
    Ok(of_service
        .filter_map(|worker| worker["pid"].as_u64())
        .collect())
}

#[test]
fn a_workers_helpers_are_no_workers_after_a_death() -> Outcome {
    let mut mail = troubled()?;
    let (first, said) = reveal(&mail, "alice", "helped")?;
    // The order for the next connection goes to a starter that is replaced before it has answered.
    let stuck = starter(&mail)?;
    mail.mailhost.run(["kill", "-STOP", &stuck.to_string()])?;
    let (second, again) = reveal(&mail, "alice", "helped")?;
    let mut expected = [said, again].map(|said| number(&said, "pid").parse().unwrap_or(0));
    expected.sort_unstable();
    eventually("both workers are known", || {
        Ok(workers(&mail, "helped")? == expected)
    })?;
    mail.keeper.crash()?;
    assert_eq!(workers(&mail, "helped")?, expected);
    drop((first, second));
    eventually("the helpers have ended", || {
        let processes = mail.mailhost.processes()?;
        Ok(!processes
            .iter()
            .any(|process| process.command.contains("reveal.py helped")))
    })
}

#[test]
fn a_stuck_starter_is_replaced_and_another_is_not() -> Outcome {
    let mail = mail()?;
    let present = starter(&mail)?;
    let (_first, _) = reveal(&mail, "alice", "each")?;
    let (_second, _) = reveal(&mail, "bob", "one")?;
    assert_eq!(starter(&mail)?, present, "a starter that serves");
    mail.mailhost.run(["kill", "-STOP", &present.to_string()])?;
    let (_third, said) = reveal(&mail, "bob", "each")?;
    assert!(said.contains("\"uid\": [2002, 2002, 2002]"), "{said}");
    assert_ne!(starter(&mail)?, present);
    assert!(mail.keeper.log()?.contains("it has not answered"));
    Ok(())
}

#[test]
fn no_connection_is_lost_while_starters_are_killed() -> Outcome {
    const ROUNDS: usize = 20;
    /// Starters killed one after the other, before one is let live until it has served.
    const AT_ONCE: usize = 5;
    // Longer than connections wait when starters end without having served.
    let until = Instant::now() + Duration::from_secs(17);
    let mail = mail()?;
    reveal(&mail, "alice", "each")?;
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let users = [("alice", 2001), ("bob", 2002)].map(|(user, uid)| {
            let (mail, served) = (&mail, &served);
            scope.spawn(move || {
                let mut rounds = 0;
                while rounds < ROUNDS || Instant::now() < until {
                    let (_connection, said) =
                        reveal(mail, user, "each").map_err(|error| error.to_string())?;
                    let own = format!("\"uid\": [{uid}, {uid}, {uid}]");
                    if !said.contains(&own) {
                        return Err(said);
                    }
                    rounds += 1;
                    served.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        let go_on = || users.iter().any(|user| !user.is_finished());
        let mut killed = 0;
        while go_on() {
            let before = served.load(Ordering::Relaxed);
            for _ in 0..AT_ONCE {
                let starter = starter(&mail)?.to_string();
                // It may have ended by itself: its keeper has not, so another one comes.
                killed += usize::from(mail.mailhost.run(["kill", "-KILL", &starter]).is_ok());
            }
            // On a busy machine a starter may die before it has served a connection.
            while go_on() && served.load(Ordering::Relaxed) == before {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for user in users {
            user.join().map_err(|_| "a thread failed")??;
        }
        assert!(killed > 0);
        Ok(())
    })
}

#[test]
fn a_users_group_goes_with_the_queue_and_is_made_anew() -> Outcome {
    let mail = mail()?;
    let id = |uid: u32| {
        let group = format!("keeper/workers/user-{uid}/service-each");
        let group = mail.mailhost.cgroup().join(group);
        std::fs::metadata(group).map(|group| group.ino()).ok()
    };
    reveal(&mail, "alice", "each")?;
    reveal(&mail, "bob", "each")?;
    let (alices, bobs) = (id(2001), id(2002));
    assert!(alices.is_some() && bobs.is_some(), "{alices:?} {bobs:?}");
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    eventually("her group is gone", || Ok(id(2001).is_none()))?;
    mail.mailhost.run(["usher", "user", "enable", "alice"])?;
    // A session of its own, and no process has been killed in its group.
    let (_connection, said) = reveal(&mail, "alice", "each")?;
    assert!(said.contains("workers/user-2001/service-each"), "{said}");
    assert!(id(2001).is_some_and(|id| Some(id) != alices));
    // Bob's queue has lost its worker, and keeps its group.
    reveal(&mail, "bob", "each")?;
    assert_eq!(id(2002), bobs);
    Ok(())
}
