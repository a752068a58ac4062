//! The port of a connection that was announced and abandoned, after the signer's death: its next user
//! is not taken for the announcer.

use usher_lab::{Mail, PATIENCE, Role, Running, Signal, eventually};

use crate::service::{PORT, Result, topology};

/// Has the signer announce a connection (docs/PROTOCOL.md, "Local packet") and prints its port. Then
/// connects for each line that it reads, and prints the user it is greeted as.
const ANNOUNCED: &str = r#"
import array, socket, sys
signer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
signer.connect("/run/usher/signer/applications.sock")
stream = socket.socket()
name = lambda text: bytes([len(text)]) + text
passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [stream.fileno()]))]
signer.sendmsg([bytes([1, 1]) + name(b"mailhost") + name(b"storm")], passed)
assert signer.recv(256)[1] == 129
print(stream.getsockname()[1], flush=True)
sys.stdin.readline()
stream.connect((sys.argv[1], int(sys.argv[2])))
print(stream.makefile().readline().strip(), flush=True)
"#;

/// Connects from a port and prints the user it is greeted as, or the error. Prints a line first if its
/// SYN was sent and not answered.
const FROM_PORT: &str = r#"
import errno, select, socket, struct, sys
stream = socket.socket()
stream.bind(("", int(sys.argv[3])))
stream.setblocking(False)
stream.connect_ex((sys.argv[1], int(sys.argv[2])))
def has_ended():
    return select.select([], [stream], [], 0.05)[1]
def sent_again():
    return stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[2]
while not has_ended() and not sent_again():
    pass
if not has_ended():
    print("waits", flush=True)
while not has_ended():
    pass
failed = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
stream.setblocking(True)
print(errno.errorcode[failed] if failed else stream.makefile().readline().strip(), flush=True)
"#;

fn python(mail: &Mail, user: &str, program: &str, more: &[&str]) -> Result<Running> {
    let (address, port) = (mail.mailhost.ipv4().to_string(), PORT.to_string());
    let words = [&["python3", "-c", program, &address, &port], more].concat();
    Ok(mail.laptop.command(words).user(user).spawn()?)
}

fn line(running: &mut Running) -> Result<String> {
    Ok(running.read_past("\n", PATIENCE)?.trim().to_owned())
}

/// The user's process with an announced connection that has not begun, and its port. A worker of the
/// user runs, so that any connection that reaches the queue is greeted without the keeper.
fn announced(mail: &Mail, user: &str) -> Result<(Running, String)> {
    let greeted = mail
        .laptop
        .command(["usher", "connect", "mailhost:storm"])
        .user(user)
        .input("")
        .run()?;
    assert!(greeted.stdout.starts_with("20"), "{greeted:?}");
    let mut process = python(mail, user, ANNOUNCED, &[])?;
    let port = line(&mut process)?;
    Ok((process, port))
}

/// Like a host that crashes in the middle of everything: its announcements stand.
fn stop_the_server(mail: &mut Mail) -> Result {
    mail.keeper.kill(Signal::STOP)?;
    mail.verifier.kill(Signal::STOP)?;
    Ok(())
}

fn kill_the_signer(mail: &mut Mail) -> Result {
    mail.signer.kill(Signal::KILL)?;
    mail.signer.wait(PATIENCE)?;
    Ok(())
}

// Threat model: A41
#[test]
fn who_gets_the_port_of_a_dead_announcer_is_not_served_as_him() -> Result {
    let mut mail = topology()?;
    let (mut bob, port) = announced(&mail, "bob")?;
    stop_the_server(&mut mail)?;
    kill_the_signer(&mut mail)?;
    bob.end()?;
    // A user with a key, and an unknown one. The announcement stands: the server would admit.
    mail.laptop.add_account("mallory", 1005)?;
    for user in ["mallory", "alice"] {
        let mut process = python(&mail, user, FROM_PORT, &[&port])?;
        assert_eq!(line(&mut process)?, "waits", "{user}");
        process.end()?;
    }
    mail.keeper.kill(Signal::CONT)?;
    mail.verifier.kill(Signal::CONT)?;
    // When the announcement has been withdrawn, the port is free again.
    mail.signer.start()?;
    eventually("alice is served as alice from the same port", || {
        let mut process = python(&mail, "alice", FROM_PORT, &[&port])?;
        let said = process.read_past("\n", PATIENCE)?;
        process.end()?;
        assert!(
            ["waits", "2001", "ECONNREFUSED"].contains(&said.trim()),
            "{said}"
        );
        Ok(said.trim() == "2001")
    })?;
    Ok(())
}

#[test]
fn the_announcer_is_served_after_the_signers_death() -> Result {
    let mut mail = topology()?;
    let (mut bob, _port) = announced(&mail, "bob")?;
    stop_the_server(&mut mail)?;
    kill_the_signer(&mut mail)?;
    bob.write("go on\n")?;
    assert_eq!(line(&mut bob)?, "2002");
    mail.keeper.kill(Signal::CONT)?;
    mail.verifier.kill(Signal::CONT)?;
    Ok(())
}

// Threat model: A41
#[test]
fn a_held_connections_port_stays_gated_after_the_signers_death() -> Result {
    let mut mail = topology()?;
    stop_the_server(&mut mail)?;
    // The signer has sent its request to the server, and does not learn the result.
    let mut carol = python(&mail, "carol", FROM_PORT, &["41234"])?;
    eventually("carol's connection is gated", || {
        Ok(mail.laptop.number(Role::Signer, "plain_gates")? == 1)
    })?;
    kill_the_signer(&mut mail)?;
    carol.end()?;
    let mut alice = python(&mail, "alice", FROM_PORT, &["41234"])?;
    assert_eq!(line(&mut alice)?, "waits");
    // From another port she is refused at once, because nothing was announced for her.
    let mut alice = python(&mail, "alice", FROM_PORT, &["41235"])?;
    assert_eq!(line(&mut alice)?, "ECONNREFUSED");
    mail.keeper.kill(Signal::CONT)?;
    mail.verifier.kill(Signal::CONT)?;
    Ok(())
}

// Threat model: A41
#[test]
fn what_a_dead_signers_host_had_announced_is_withdrawn() -> Result {
    let mut mail = topology()?;
    let (mut bob, port) = announced(&mail, "bob")?;
    kill_the_signer(&mut mail)?;
    bob.end()?;
    let withdrawn = "what an ended channel had announced is withdrawn";
    assert!(mail.verifier.wait_log(withdrawn, PATIENCE)?);
    eventually("nothing is announced", || {
        let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
        Ok(!who.contains("\"announced\""))
    })?;
    // Like on a kernel that accepts no gates.
    mail.laptop.run(["rm", "-r", "/sys/fs/bpf/usher_signer"])?;
    let mut alice = python(&mail, "alice", FROM_PORT, &[&port])?;
    assert_eq!(line(&mut alice)?, "ECONNREFUSED");
    Ok(())
}
