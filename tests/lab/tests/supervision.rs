//! Supervision of daemons: readiness, and a listener with its queue that outlives its daemon.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;

use usher_lab::{Daemon, Host, Lab, LabError, PATIENCE, Role, Signal, eventually};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// A daemon that stores its listener, and finds it again at its next start. It accepts only on SIGUSR1,
/// so that connections wait in the queue meanwhile.
const KEEPS_A_LISTENER: &str = r#"
import array, errno, os, signal, socket, sys, time

def tell(text, *descriptors):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    notify.sendmsg([text.encode()], rights if descriptors else [], 0, os.environ["NOTIFY_SOCKET"])

def listen(port):
    # A process that another test is starting has copies of former listeners until it executes its program.
    while True:
        try:
            return socket.create_server(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            time.sleep(0.01)

def accept(*_):
    connection, _ = listener.accept()
    connection.sendall(b"served by start %d\n" % start)
    connection.close()

passed = int(os.environ.get("LISTEN_FDS", "0"))
if passed:
    assert int(os.environ["LISTEN_PID"]) == os.getpid(), "descriptors of somebody else"
    assert os.environ["LISTEN_FDNAMES"] == "mail:spare", os.environ["LISTEN_FDNAMES"]
    assert passed == 2
    start = 2
    listener = socket.socket(fileno=3)
else:
    start = 1
    listener = listen(7000)
    tell("FDSTORE=1\nFDNAME=mail", listener.fileno())
    tell("FDSTORE=1\nFDNAME=spare", listen(7001).fileno())
signal.signal(signal.SIGUSR1, accept)
print("start", start, "with", passed, flush=True)
tell("READY=1\nSTATUS=start %d" % start)
while True:
    signal.pause()
"#;

fn daemon(host: &Host, name: &str, script: &str) -> std::result::Result<Daemon, LabError> {
    host.supervise(name, ["python3", "-c", script])
}

#[test]
fn a_stored_listener_and_its_queue_outlive_a_killed_daemon() -> Result {
    let lab = Lab::new()?;
    let (server, client) = (lab.host("server")?, lab.host("client")?);
    let mut daemon = daemon(&server, "keeper", KEEPS_A_LISTENER)?;
    assert_eq!(daemon.stored()?, ["mail", "spare"]);
    assert_eq!(daemon.status().as_deref(), Some("start 1"));

    let address = format!("TCP4:{}:7000", server.ipv4());
    let mut waiting = client.spawn(["socat", "-d", "-d", "-d", "-", &address])?;
    eventually("the client is connected", || {
        assert!(!waiting.has_ended()?, "{}", waiting.stderr()?);
        Ok(waiting.stderr()?.contains("successfully connected"))
    })?;

    daemon.kill(Signal::KILL)?;
    assert!(daemon.wait(PATIENCE)?.is_some());
    assert!(!daemon.is_running()?);
    // No process accepts, but the kernel still answers.
    let mut second = client.spawn(["socat", "-", &address])?;
    daemon.start()?;
    daemon.kill(Signal::USR1)?;
    assert_eq!(
        waiting.read_past("served", PATIENCE)?,
        "served by start 2\n"
    );
    daemon.kill(Signal::USR1)?;
    assert_eq!(second.read_past("served", PATIENCE)?, "served by start 2\n");
    assert_eq!(daemon.log()?, "start 1 with 0\nstart 2 with 2\n");
    Ok(())
}

#[test]
fn a_stopped_daemon_gets_nothing_back_and_a_restarted_one_does() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("server")?;
    let mut daemon = daemon(&host, "keeper", KEEPS_A_LISTENER)?;
    daemon.restart()?;
    daemon.crash()?;
    daemon.stop()?;
    assert!(!daemon.is_running()?);
    assert_eq!(daemon.stored()?, [] as [&str; 0]);
    daemon.start()?;
    let expected = [
        "start 1 with 0",
        "start 2 with 2",
        "start 2 with 2",
        "start 1 with 0",
    ];
    assert_eq!(daemon.log()?.lines().collect::<Vec<_>>(), expected);
    Ok(())
}

#[test]
fn an_early_end_of_a_daemon_is_reported_with_its_log() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("server")?;
    let script = "import sys; print('no configuration', file=sys.stderr); sys.exit(3)";
    match daemon(&host, "keeper", script) {
        Err(LabError::NotReady { log, reason, .. }) => {
            assert!(log.contains("no configuration"), "{log}");
            assert!(reason.contains("exit status: 3"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[test]
fn what_a_daemon_started_outlives_it_and_not_the_lab() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("server")?;
    let script = "import subprocess; subprocess.Popen(['sleep', '1000']); ".to_owned()
        + "import os, socket, signal; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
        + "s.sendto(b'READY=1', os.environ['NOTIFY_SOCKET']); signal.pause()";
    let mut daemon = daemon(&host, "keeper", &script)?;
    let sleeping = || -> Result<usize> {
        Ok(host
            .processes()?
            .iter()
            .filter(|process| process.name == "sleep")
            .count())
    };
    daemon.kill(Signal::KILL)?;
    assert!(daemon.wait(PATIENCE)?.is_some());
    daemon.end()?;
    assert_eq!(sleeping()?, 1);
    drop(daemon);
    assert_eq!(sleeping()?, 1);
    let group = host.cgroup().join("keeper");
    assert!(group.exists());
    drop(lab);
    assert!(!group.exists());
    Ok(())
}

/// Stops a daemon, and returns when all its threads have stopped.
fn stop(daemon: &mut Daemon) -> Result {
    daemon.kill(Signal::STOP)?;
    let threads = format!("/proc/{}/task", daemon.pid()?);
    eventually("all threads have stopped", || {
        for thread in fs::read_dir(&threads)? {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            // The state follows the name, which is in parentheses.
            let state = stat.rsplit(") ").next().unwrap_or_default();
            if !state.starts_with('T') {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

#[test]
fn a_daemon_that_loads_programs_has_more_time_to_start() -> Result {
    let mail = Lab::mail()?;
    // The keeper loads several objects.
    assert!(mail.keeper.extensions()? > 2);
    for daemon in [&mail.recorder, &mail.verifier, &mail.courier] {
        assert_eq!(daemon.extensions()?, 0, "{}", daemon.name());
    }
    Ok(())
}

// Threat model: A85
#[test]
fn every_daemon_tells_its_watchdog_that_it_is_alive() -> Result {
    let mut mail = Lab::mail()?;
    let mut daemons = [
        &mut mail.keeper,
        &mut mail.recorder,
        &mut mail.verifier,
        &mut mail.signer,
        &mut mail.courier,
        &mut mail.proxy,
    ];
    for daemon in &mut daemons {
        assert_eq!(daemon.beats()?, 0, "{} has no watchdog", daemon.name());
        daemon.set_launcher(["env", "WATCHDOG_USEC=400000"]);
        daemon.restart()?;
        eventually(daemon.name(), || Ok(daemon.beats()? > 3))?;
    }
    for number in 0..daemons.len() {
        let (stopped, other) = (number, (number + 1) % daemons.len());
        stop(daemons[stopped])?;
        let (before, others) = (daemons[stopped].beats()?, daemons[other].beats()?);
        // Another daemon's message shows that enough time has passed.
        eventually("another daemon speaks", || {
            Ok(daemons[other].beats()? > others + 3)
        })?;
        let daemon = &mut daemons[stopped];
        assert_eq!(daemon.beats()?, before, "{}", daemon.name());
        daemon.kill(Signal::CONT)?;
        eventually(daemon.name(), || Ok(daemon.beats()? > before))?;
    }
    Ok(())
}

#[test]
fn a_role_that_has_not_been_built_is_reported() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("server")?;
    match host.start_daemon(Role::Keeper) {
        Err(LabError::NotBuilt { path }) => assert!(path.ends_with("usherd")),
        // The program exists, and fails because accounts and keys are missing.
        Err(LabError::NotReady { daemon, .. }) => assert_eq!(daemon, "keeper"),
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[test]
fn every_daemon_ends_with_status_0_when_asked() -> Result {
    let mut mail = Lab::mail()?;
    for daemon in [
        &mut mail.proxy,
        &mut mail.courier,
        &mut mail.signer,
        &mut mail.verifier,
        &mut mail.recorder,
        &mut mail.keeper,
    ] {
        daemon.kill(Signal::TERM)?;
        let status = daemon.wait(PATIENCE)?.ok_or("it goes on")?;
        assert_eq!(status.code(), Some(0), "{}: {status}", daemon.name());
    }
    Ok(())
}
