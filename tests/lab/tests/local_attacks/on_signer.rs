//! A user against the signer.

use crate::attack::{Result, alice_reads, listen};
use crate::programs::{connect, local, packet, python, start};
use usher_lab::{Lab, PATIENCE, Signal};
use usher_proto::{LocalReply, LocalRequest, Refusal};

// Threat model: A40
#[test]
fn the_signer_accepts_only_a_fresh_tcp_socket_of_its_network() -> Result {
    let mail = Lab::mail()?;
    let program = r#"
CONNECT = @connect@
DONE = @done@
here = socket.create_server(("127.0.0.1", 0))

def shared(option):
    s = tcp()
    s.setsockopt(socket.SOL_SOCKET, option, 1)
    return s

def connected():
    s = tcp(socket.AF_INET)
    s.connect(here.getsockname())
    return s

def bound():
    s = tcp()
    s.bind(("::", 0))
    return s

def try_one(what, packet, *sockets):
    reply, peer = ask(SIGNER, packet, *sockets)
    tell(what + ":" + reply)

def of_another_network():
    """A socket of a network namespace of the user's own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.fork() == 0:
        import ctypes
        NEWUSER, NEWNET = 0x10000000, 0x40000000
        if ctypes.CDLL(None, use_errno=True).unshare(NEWUSER | NEWNET):
            os._exit(1)
        there = tcp()
        socket.send_fds(theirs, [b"."], [there.fileno()])
        os._exit(0)
    theirs.close()
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=descriptors[0])

try_one("another network's", CONNECT, of_another_network())
try_one("address shared", CONNECT, shared(socket.SO_REUSEADDR))
try_one("port shared", CONNECT, shared(socket.SO_REUSEPORT))
try_one("datagram", CONNECT, tcp(kind=socket.SOCK_DGRAM))
try_one("datagram over IPv4", CONNECT, tcp(socket.AF_INET, socket.SOCK_DGRAM))
try_one("local", CONNECT, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
try_one("connected", CONNECT, connected())
try_one("a pipe", CONNECT, os.pipe()[0])
try_one("a file", CONNECT, os.open("/etc/passwd", os.O_RDONLY))
try_one("no descriptor", CONNECT)
try_one("unbound", CONNECT, bound())
try_one("listening", CONNECT, here)
try_one("three descriptors", CONNECT, tcp(), tcp(), tcp())
try_one("a byte", b"\1", tcp())
try_one("another version", b"\2" + CONNECT[1:], tcp())
try_one("another type", b"\1\x7f" + CONNECT[2:], tcp())
try_one("cut short", CONNECT[:-1], tcp())
try_one("and more", CONNECT + b"x", tcp())
try_one("an end before the beginning", DONE, tcp())
try_one("a line end in a name", CONNECT.replace(b"mailhost", b"mail\nost"), tcp())
try_one("too long", CONNECT + bytes(4000), tcp())
try_one("another host", CONNECT.replace(b"mailhost", b"nailhost"), tcp())
try_one("another service", CONNECT.replace(b"imap", b"smtp"), tcp())
for number in range(200):
    peer = reach(SIGNER)
    send(peer, os.urandom(number), tcp(), tcp())
    peer.close()

# The twin: the same packet, a fresh socket.
for family in socket.AF_INET, socket.AF_INET6:
    fresh = tcp(family)
    reply, peer = ask(SIGNER, CONNECT, fresh)
    tell("fresh:" + reply)
    host = "@address@" if family == socket.AF_INET else "::ffff:@address@"
    fresh.connect((host, 143))
    tell("greeting:" + fresh.makefile().readline().strip())
    send(peer, DONE)
    tell("done:" + answer(peer))
"#
    .replace("@connect@", &connect()?)
    .replace(
        "@done@",
        &packet(&LocalRequest::Done { connected: true }.encode()),
    )
    .replace("@address@", &mail.mailhost.ipv4().to_string());
    let lines = python(&mail.laptop, "bob", &program)?;
    let said = |what: &str| -> Vec<&str> {
        lines
            .iter()
            .filter_map(|line| line.strip_prefix(what)?.strip_prefix(':'))
            .collect()
    };
    let refused = |what: &str, reason: Refusal| {
        let replies: Vec<_> = said(what).into_iter().map(local).collect();
        assert_eq!(replies, [Some(LocalReply::Refused(reason))], "{what}");
    };
    for what in [
        "another network's",
        "address shared",
        "port shared",
        "datagram",
        "datagram over IPv4",
        "local",
        "connected",
        "a pipe",
        "a file",
        "no descriptor",
        "another type",
        "and more",
        "an end before the beginning",
        "a line end in a name",
    ] {
        refused(what, Refusal::Malformed);
    }
    refused("another version", Refusal::UnknownVersion);
    refused("a byte", Refusal::Truncated);
    refused("cut short", Refusal::Truncated);
    refused("another host", Refusal::UnknownHost);
    refused("another service", Refusal::ClientPolicy);
    // Refused as well, for any reason: no Ready.
    for what in ["unbound", "listening"] {
        assert!(
            matches!(said(what)[..], [reply] if matches!(local(reply), Some(LocalReply::Refused(_)))),
            "{what}: {:?}",
            said(what)
        );
    }
    // Not even read.
    for what in ["three descriptors", "too long"] {
        assert_eq!(said(what), ["-"], "{what}");
    }
    let ready = LocalReply::Ready {
        server: (mail.mailhost.ipv4(), 143).into(),
    };
    for reply in said("fresh") {
        assert_eq!(local(reply), Some(ready));
    }
    let greetings = said("greeting");
    assert_eq!(greetings.len(), 2);
    for greeting in greetings {
        assert!(greeting.starts_with("* PREAUTH"), "{greeting}");
        assert!(greeting.contains("as bob"), "{greeting}");
    }
    for reply in said("done") {
        assert_eq!(local(reply), Some(LocalReply::Finished));
    }
    Ok(())
}

// Threat model: A37, A136
#[test]
fn nobody_but_the_proxy_speaks_on_behalf_of_others() -> Result {
    let mail = Lab::mail()?;
    let request = LocalRequest::ConnectOnBehalf {
        host: "mailhost".parse()?,
        service: "imap".parse()?,
    };
    // Bob would need alice's connection to the proxy; he has only his own, which is enough to make a
    // request.
    let program = format!(
        r#"
local = socket.create_connection(("127.0.1.1", 143))
reply, _ = ask(SIGNER, {}, tcp(), local)
tell(reply)
"#,
        packet(&request.encode())
    );
    for user in ["bob", "root", "usher-courier"] {
        let heard = listen(&mail.signer)?;
        let lines = python(&mail.laptop, user, &program)?;
        let refused = Some(LocalReply::Refused(Refusal::ClientPolicy));
        assert_eq!(local(&lines[0]), refused, "{user}");
        heard.line(&mail.signer, &["is not the proxy"])?;
    }
    // The proxy itself, for a connection of its own: it may speak only for connected users.
    let lines = python(&mail.laptop, "usher-proxy", &program)?;
    assert!(
        matches!(local(&lines[0]), Some(LocalReply::Refused(_))),
        "{lines:?}"
    );
    alice_reads(&mail)
}

// Threat model: A46
#[test]
fn a_user_who_floods_the_signer_keeps_himself_waiting_only() -> Result {
    let mail = Lab::mail()?;
    let program = r#"
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
peers = [reach(SIGNER) for _ in range(600)]
overloaded = []
for number, peer in enumerate(peers):
    if number >= 512:
        overloaded.append(answer(peer))
tell("overloaded", len(overloaded), *sorted(set(overloaded)))
sys.stdin.readline()
for peer in peers:
    peer.close()
while True:
    reply, peer = ask(SIGNER, @connect@, tcp())
    if reply != overloaded[0]:
        break
tell("after", reply)
"#
    .replace("@connect@", &connect()?);
    let mut bob = start(&mail.laptop, "bob", &program)?;
    let flooded = bob.read_past("overloaded", PATIENCE)?;
    let words: Vec<&str> = flooded.split_whitespace().collect();
    assert_eq!(words[1], "88", "{flooded}");
    assert_eq!(words.len(), 3, "{flooded}");
    let refused = Some(LocalReply::Refused(Refusal::Overloaded));
    assert_eq!(local(words[2]), refused);
    // alice is served meanwhile, by the library and by the proxy.
    alice_reads(&mail)?;
    let connect = format!(
        "reply, peer = ask(SIGNER, {}, tcp())\ntell(reply)",
        connect()?
    );
    let ready = python(&mail.laptop, "alice", &connect)?;
    assert!(matches!(local(&ready[0]), Some(LocalReply::Ready { .. })));
    // And bob when he has stopped.
    bob.write("\n")?;
    let after = bob.read_past("after", PATIENCE)?;
    let reply = after.split_whitespace().nth(1).and_then(local);
    assert!(matches!(reply, Some(LocalReply::Ready { .. })), "{after}");
    Ok(())
}

// Threat model: A53
#[test]
fn many_requests_while_the_channel_opens_fail_no_one() -> Result {
    let mut mail = Lab::mail()?;
    let program = r#"
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
reply, first = ask(SIGNER, @connect@, tcp())
tell("open", reply)
sys.stdin.readline()
asked = [(reach(SIGNER), tcp()) for _ in range(400)]
for peer, stream in asked:
    send(peer, @connect@, stream)
tell("sent", "all")
tell("answers", *sorted({answer(peer) for peer, _ in asked}))
"#
    .replace("@connect@", &connect()?);
    // With a session, each request is a frame at once.
    let mut bob = start(&mail.laptop, "bob", &program)?;
    bob.read_past("open ", PATIENCE)?;
    // Its kernel takes the courier's connection meanwhile.
    mail.courier.stop()?;
    mail.verifier.kill(Signal::STOP)?;
    mail.courier.start()?;
    bob.write("\n")?;
    bob.read_past("sent ", PATIENCE)?;
    let mut alice = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    mail.wait_until_courier_connects()?;
    mail.verifier.kill(Signal::CONT)?;
    alice.read_past("Logged in as alice", PATIENCE)?;
    let answers = bob.read_past("answers ", PATIENCE)?;
    let all_alike = answers.trim().strip_prefix("answers ").and_then(local);
    assert!(
        matches!(all_alike, Some(LocalReply::Ready { .. })),
        "{answers}"
    );
    Ok(())
}

// Threat model: A46
#[test]
fn a_descriptor_that_takes_long_to_close_keeps_nobody_waiting() -> Result {
    let mail = Lab::mail()?;
    // The last to close a socket that lingers waits until its bytes are taken, which is never.
    let program = r#"
import struct, threading
CONNECT = @connect@
here = socket.create_server(("127.0.0.1", 0))

def lingering():
    s = socket.create_connection(here.getsockname())
    s.setblocking(False)
    try:
        while True:
            s.send(bytes(65536))
    except BlockingIOError:
        pass
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return s

def close(s):
    # Waits itself when the signer was faster.
    threading.Thread(target=s.close, daemon=True).start()

peers = []
for count, packet in [(1, CONNECT), (2, CONNECT), (9, CONNECT), (1, b"x" * 9999)]:
    sockets = [lingering() for _ in range(count)]
    peers.append(reach(SIGNER))
    send(peers[-1], packet, *sockets)
    for s in sockets:
        close(s)

# One that the signer never takes: it is busy withdrawing, and then done with this request.
last = lingering()
reply, peer = ask(SIGNER, CONNECT, tcp())
send(peer, @done@)
send(peer, b"more", last)
close(last)
peers.append(peer)
# Taken up: each is answered or its peer closed.
for peer in peers:
    answer(peer)
tell("sent")
sys.stdin.readline()
"#
    .replace("@connect@", &connect()?)
    .replace(
        "@done@",
        &packet(&LocalRequest::Done { connected: false }.encode()),
    );
    let mut bob = start(&mail.laptop, "bob", &program)?;
    bob.read_past("sent", PATIENCE)?;
    alice_reads(&mail)
}
