//! The attackers' programs, with their requests and answers.

use crate::attack::Result;
use usher_lab::{Command, Host, Running};
use usher_proto::{LocalReply, LocalRequest};

/// The common beginning of the attackers' programs. `ask` sends a packet with descriptors and prints the
/// answer in hexadecimal, `-` for none.
const PRELUDE: &str = r#"
import array, errno, os, socket, sys, time

def reach(path):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(30)
    peer.connect(path)
    return peer

def send(peer, packet, *sockets):
    numbers = array.array("i", [s if isinstance(s, int) else s.fileno() for s in sockets])
    peer.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if sockets else [])

def answer(peer):
    try:
        return peer.recv(4096).hex() or "-"
    except ConnectionResetError:
        return "-"

def ask(path, packet, *sockets):
    peer = reach(path)
    try:
        send(peer, packet, *sockets)
    except BrokenPipeError:
        return "-", peer
    return answer(peer), peer

def tcp(family=socket.AF_INET6, kind=socket.SOCK_STREAM):
    return socket.socket(family, kind)

def tell(*words):
    print(*words, flush=True)

SIGNER = "/run/usher/signer/applications.sock"
"#;

fn command(host: &Host, user: &str, program: &str) -> Command {
    let program = format!("{PRELUDE}{program}");
    let command = host.command(["python3", "-c", &program]);
    match user {
        "root" => command,
        _ => command.user(user),
    }
}

/// A program in the host, and its lines.
pub fn python(host: &Host, user: &str, program: &str) -> Result<Vec<String>> {
    let output = command(host, user, program).succeed()?;
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

/// A program that keeps running.
pub fn start(host: &Host, user: &str, program: &str) -> Result<Running> {
    Ok(command(host, user, program).spawn()?)
}

pub fn bytes(hexadecimal: &str) -> Option<Vec<u8>> {
    (0..hexadecimal.len())
        .step_by(2)
        .map(|place| u8::from_str_radix(hexadecimal.get(place..place + 2)?, 16).ok())
        .collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A packet as a Python literal.
pub fn packet(bytes: &[u8]) -> String {
    format!("bytes.fromhex('{}')", hexadecimal(bytes))
}

pub fn local(hexadecimal: &str) -> Option<LocalReply> {
    LocalReply::decode(&bytes(hexadecimal)?).ok()
}

pub fn connect() -> Result<String> {
    let request = LocalRequest::Connect {
        host: "mailhost".parse()?,
        service: "imap".parse()?,
    };
    Ok(packet(&request.encode()))
}
