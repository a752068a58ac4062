//! A policy comes into force at all daemons of a host or at none.

use usher_lab::protected::World;
use usher_lab::{Host, PATIENCE, Role, Running};

use super::Outcome;

/// A stand-in for the protector. It answers the given number of requests with the given text. It closes
/// its listener before the last answer, and then ends.
const PROTECTOR: &str = "
import json, os, socket, sys
path = '/run/usher/protector/control.sock'
os.makedirs(os.path.dirname(path), exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print('ready', flush=True)
for left in reversed(range(int(sys.argv[1]))):
    connection, _ = listener.accept()
    stream = connection.makefile('rb')
    request = json.loads(stream.readline())
    stream.read(request.get('bytes', 0))
    if left == 0:
        listener.close()
        os.unlink(path)
    connection.sendall(b'\\n' + sys.argv[2].encode() + b'\\n')
    stream.close()
    connection.close()
";

const DONE: &str = r#"{"answer":"done","generation":0,"ended":[]}"#;
const FAILED: &str = r#"{"answer":"failed","reason":"not this one"}"#;

fn protector(
    host: &Host,
    requests: u8,
    answer: &str,
) -> Result<Running, Box<dyn std::error::Error>> {
    let requests = requests.to_string();
    let mut running = host.spawn(["/usr/bin/python3", "-c", PROTECTOR, &requests, answer])?;
    running.read_past("ready\n", PATIENCE)?;
    Ok(running)
}

const APPLIED: &str = "/var/lib/usher/applied.json";

/// The same with a daemon that refuses, with one that ends between its check and the change, and with one
/// that takes the policy.
// Threat model: P51
#[test]
fn a_policy_comes_in_force_everywhere_or_nowhere() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    host.run(["usher", "policy", "apply"])?;
    let keeper = host.start_daemon(Role::Keeper)?;
    world.write_secure()?;
    let apply = || host.command(["usher", "policy", "apply"]).run();
    let stored = host.read(APPLIED)?;

    let mut refusing = protector(host, 1, FAILED)?;
    let refused = apply()?;
    assert!(
        refused.stderr.contains("not this one; nothing has changed"),
        "{}",
        refused.stderr
    );
    assert_eq!(host.read(APPLIED)?, stored, "nothing was stored");
    assert!(
        !keeper.log()?.contains("generation=2"),
        "the keeper was asked only"
    );
    refusing.wait(PATIENCE)?;

    let mut dying = protector(host, 1, DONE)?;
    let refused = apply()?;
    let told = refused.stderr;
    assert!(
        told.contains("the former configuration is in force again"),
        "{told}"
    );
    let back = host.read(APPLIED)?;
    assert!(
        back != stored && !back.contains("protected Secure"),
        "{back}"
    );
    let log = keeper.log()?;
    assert!(
        log.contains("generation=2") && log.contains("generation=3"),
        "{log}"
    );
    dying.wait(PATIENCE)?;

    let mut taking = protector(host, 2, DONE)?;
    let taken = apply()?;
    assert!(taken.status.success(), "{}", taken.stderr);
    assert!(host.read(APPLIED)?.contains("protected Secure"));
    taking.wait(PATIENCE)?;
    Ok(())
}
