//! Attacks from inside: a user against the signer, one daemon's account against another's sockets,
//! one user against another's announced port.
#![forbid(unsafe_code)]

mod attack;

use attack::{Attack, LONG, Result, listen};
use usher_lab::{Host, Lab, Mail, Running};
use usher_proto::ssh_key::{HashAlg, PublicKey};
use usher_proto::{
    ClientFrame, KEEPER_RECORD_SIZE, KeeperReply, KeeperRequest, LocalReply, LocalRequest, Refusal,
    SessionId,
};

/// What the attackers' programs begin with. `ask` sends a packet with descriptors and prints the
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

/// A program in the host, and its lines.
fn python(host: &Host, user: &str, program: &str) -> Result<Vec<String>> {
    let program = format!("{PRELUDE}{program}");
    let command = host.command(["python3", "-c", &program]);
    let command = match user {
        "root" => command,
        _ => command.user(user),
    };
    let output = command.succeed()?;
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

fn bytes(hexadecimal: &str) -> Option<Vec<u8>> {
    (0..hexadecimal.len())
        .step_by(2)
        .map(|place| u8::from_str_radix(hexadecimal.get(place..place + 2)?, 16).ok())
        .collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A packet as Python writes it.
fn packet(bytes: &[u8]) -> String {
    format!("bytes.fromhex('{}')", hexadecimal(bytes))
}

fn local(hexadecimal: &str) -> Option<LocalReply> {
    LocalReply::decode(&bytes(hexadecimal)?).ok()
}

fn connect() -> Result<String> {
    let request = LocalRequest::Connect {
        host: "mailhost".parse()?,
        service: "imap".parse()?,
    };
    Ok(packet(&request.encode()))
}

fn alice_reads(mail: &Mail) -> Result {
    let url = "imap://mailhost/INBOX;MAILINDEX=1";
    let read = mail
        .laptop
        .run_as("alice", ["curl", "-sS", "--user", "alice:", url])?;
    assert!(read.stdout.contains("hive has swarmed"), "{}", read.stdout);
    Ok(())
}

#[test]
fn the_signer_takes_a_fresh_tcp_socket_of_its_own_and_nothing_else() -> Result {
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
try_one("another type", b"\1\x09" + CONNECT[2:], tcp())
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
    // Refused as well, with whatever reason: no Ready.
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

#[test]
fn nobody_but_the_proxy_speaks_on_behalf_of_others() -> Result {
    let mail = Lab::mail()?;
    let request = LocalRequest::ConnectOnBehalf {
        host: "mailhost".parse()?,
        service: "imap".parse()?,
    };
    // A connection of alice's to the proxy, in bob's hands, would be just what he wants; he has one
    // of his own, which is enough to ask with.
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
    // The proxy itself, for a connection of its own: it speaks for who is connected, not for whom
    // it likes.
    let lines = python(&mail.laptop, "usher-proxy", &program)?;
    assert!(
        matches!(local(&lines[0]), Some(LocalReply::Refused(_))),
        "{lines:?}"
    );
    alice_reads(&mail)
}

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
time.sleep(0)
while True:
    reply, peer = ask(SIGNER, @connect@, tcp())
    if reply != overloaded[0]:
        break
tell("after", reply)
"#
    .replace("@connect@", &connect()?);
    let program = format!("{PRELUDE}{program}");
    let mut bob = mail
        .laptop
        .command(["python3", "-c", &program])
        .user("bob")
        .spawn()?;
    let flooded = bob.read_past("overloaded", LONG)?;
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
    let after = bob.read_past("after", LONG)?;
    let reply = after.split_whitespace().nth(1).and_then(local);
    assert!(matches!(reply, Some(LocalReply::Ready { .. })), "{after}");
    Ok(())
}

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
time.sleep(1)
tell("sent")
sys.stdin.readline()
"#
    .replace("@connect@", &connect()?)
    .replace(
        "@done@",
        &packet(&LocalRequest::Done { connected: false }.encode()),
    );
    let program = format!("{PRELUDE}{program}");
    let mut bob = mail
        .laptop
        .command(["python3", "-c", &program])
        .user("bob")
        .spawn()?;
    bob.read_past("sent", LONG)?;
    alice_reads(&mail)
}

#[test]
fn a_user_reaches_no_key_and_no_socket_of_the_daemons() -> Result {
    let mut mail = Lab::mail()?;
    alice_reads(&mail)?;
    let program = r#"
def attempt(what, act, *arguments):
    try:
        act(*arguments)
        tell("reached", what, arguments)
    except PermissionError:
        tell("refused", what, arguments)

def read(path):
    open(path, "rb").read(1)

def stream(path):
    socket.socket(socket.AF_UNIX).connect(path)

for path in "@keys@".split():
    attempt("read", read, path)
for path in "@folders@".split():
    attempt("list", os.listdir, path)
for path in "@sockets@".split():
    attempt("packet", reach, path)
    attempt("unlink", os.unlink, path)
for path in "@controls@".split():
    attempt("stream", stream, path)
    attempt("unlink", os.unlink, path)
"#;
    let keys = [
        "/var/lib/usher/keys/alice /etc/usher/host_key",
        "/etc/usher/host_key",
    ];
    let folders = ["/var/lib/usher/keys", "/sys/fs/bpf/usher"];
    let sockets = [
        "/run/usher/signer/relay.sock /run/usher/signer/host-key.sock",
        "/run/usher/keeper/records.sock /run/usher/keeper/host-key.sock",
    ];
    let controls = ["signer courier proxy", "keeper verifier"].map(|roles| {
        let paths = roles
            .split(' ')
            .map(|role| format!("/run/usher/{role}/control.sock"));
        paths.collect::<Vec<_>>().join(" ")
    });
    let (laptop, mailhost) = (mail.laptop.clone(), mail.mailhost.clone());
    for (number, host) in [&laptop, &mailhost].into_iter().enumerate() {
        let program = program
            .replace("@keys@", keys[number])
            .replace("@folders@", folders[number])
            .replace("@sockets@", sockets[number])
            .replace("@controls@", &controls[number]);
        let lines = python(host, "bob", &program)?;
        assert!(lines.len() > 6, "{lines:?}");
        for line in &lines {
            assert!(
                line.starts_with("refused"),
                "bob on {}: {line}",
                host.name()
            );
        }
        // The twin: root reads and reaches all that is there to read and to reach.
        let without_unlink = program.replace("    attempt(\"unlink\", os.unlink, path)\n", "");
        for line in python(host, "root", &without_unlink)? {
            assert!(
                line.starts_with("reached"),
                "root on {}: {line}",
                host.name()
            );
        }
    }
    // One daemon's account against another's sockets and keys.
    for (host, user, path) in [
        (&laptop, "usher-courier", "/var/lib/usher/keys/alice"),
        (&laptop, "usher-proxy", "/var/lib/usher/keys/alice"),
        (&laptop, "usher-courier", "/etc/usher/host_key"),
        (&laptop, "usher-signer", "/etc/usher/host_key"),
        (&mailhost, "usher-verifier", "/etc/usher/host_key"),
    ] {
        let read = host.command(["cat", path]).user(user).run()?;
        assert!(!read.status.success(), "{user} reads {path}");
        assert!(read.stderr.contains("Permission denied"), "{}", read.stderr);
    }
    let signer = mail
        .laptop
        .command(["head", "-c1", "/var/lib/usher/keys/alice"])
        .user("usher-signer")
        .run()?;
    assert!(signer.status.success(), "{}", signer.stderr);
    // Nor does bob reach into the signer's memory.
    let signer = mail.laptop.processes()?;
    let signer = signer
        .iter()
        .find(|process| process.command.contains("usherd signer"))
        .ok_or("no signer")?;
    for file in ["mem", "environ", "fd/0"] {
        let path = format!("/proc/{}/{file}", signer.pid);
        let read = mail
            .laptop
            .command(["head", "-c1", &path])
            .user("bob")
            .run()?;
        assert!(!read.status.success(), "bob reads {path}");
    }
    assert!(mail.signer.is_running()?);
    alice_reads(&mail)
}

/// What a TLS 1.3 CertificateVerify of a side signs (RFC 8446, section 4.4.3).
fn handshake(side: &str, hash: usize) -> Vec<u8> {
    let context = format!("TLS 1.3, {side} CertificateVerify");
    [&[b' '; 64], context.as_bytes(), &[0], &vec![0x5a; hash]].concat()
}

#[test]
fn the_host_keys_handle_signs_handshakes_of_its_side_for_its_process_only() -> Result {
    let mail = Lab::mail()?;
    let sides = [
        (
            &mail.laptop,
            "usher-courier",
            "/run/usher/signer/host-key.sock",
            "client",
            "server",
        ),
        (
            &mail.mailhost,
            "usher-verifier",
            "/run/usher/keeper/host-key.sock",
            "server",
            "client",
        ),
    ];
    for (host, user, path, own, other) in sides {
        let sshsig = b"SSHSIG\0\0\0\x13authenticator@usher\0\0\0\0\0\0\0\x06sha512".to_vec();
        let mut cut = handshake(own, 32);
        cut.pop();
        let mut without_padding = handshake(own, 32);
        without_padding[3] = b'x';
        let refused = [
            handshake(other, 32),
            handshake(own, 33),
            handshake(own, 64),
            [handshake(own, 48), vec![0]].concat(),
            cut,
            without_padding,
            sshsig,
            vec![0; 32],
            b"x".to_vec(),
            vec![b' '; 4096],
        ];
        let ask = |message: &[u8]| format!("tell(ask('{path}', {})[0])", packet(message));
        let program: Vec<String> = refused.iter().map(|message| ask(message)).collect();
        for line in python(host, user, &program.join("\n"))? {
            assert_eq!(line, "-", "{path} signs what is no handshake");
        }
        // The twins: a handshake, and only for the process that makes handshakes.
        let right = [ask(&handshake(own, 32)), ask(&handshake(own, 48))].join("\n");
        for line in python(host, user, &right)? {
            assert_eq!(line.len(), 2 * 64, "{line}");
        }
        for line in python(host, "root", &right)? {
            assert_eq!(line, "-", "{path} signs for root");
        }
    }
    alice_reads(&mail)
}

#[test]
fn the_keeper_believes_the_verifier_only_and_not_beyond_its_own_policy() -> Result {
    let mut attack = Attack::new()?;
    let mailhost = attack.mail.mailhost.clone();
    let records = "/run/usher/keeper/records.sock";
    // Not even root: the verifier in place stays.
    let close = KeeperRequest::Close {
        request: 1,
        session: SessionId::from_bytes([1; 16]),
        host: "laptop".parse()?,
    };
    let ask = |record: &[u8]| format!("tell(ask('{records}', {})[0])", packet(record));
    let heard = listen(&attack.mail.keeper)?;
    let lines = python(&mailhost, "root", &ask(&close.encode()))?;
    assert_eq!(lines, ["-"]);
    heard.line(
        &attack.mail.keeper,
        &["refused a verifier that is not ours"],
    )?;
    alice_reads(&attack.mail)?;

    // A verifier that was taken over: it can claim who is there, within the keeper's policy.
    mailhost.run(["useradd", "-o", "-u", "0", "-M", "toor"])?;
    let policy = "/etc/usher/policy.d/mail.policy";
    let text = mailhost.read(policy)?;
    let with_toor = text.replace(
        "member alice, bob;",
        "member alice, bob, toor, ghost, stray;",
    );
    mailhost.write(policy, with_toor)?;
    let key = mailhost.read("/etc/usher/users/alice/authorized_keys")?;
    for user in ["toor", "ghost"] {
        let folder = format!("/etc/usher/users/{user}");
        mailhost.run(["mkdir", &folder])?;
        mailhost.write(format!("{folder}/authorized_keys"), &key)?;
    }
    mailhost.run(["usher", "policy", "apply"])?;
    attack.mail.verifier.stop()?;
    let key_fingerprint = PublicKey::from_openssh(&key)?
        .fingerprint(HashAlg::Sha256)
        .sha256()
        .ok_or("no SHA-256")?;
    let open = |number: u8, user: &str, service: &str, host: &str| -> Result<KeeperRequest> {
        Ok(KeeperRequest::Open {
            request: u64::from(number),
            session: SessionId::from_bytes([number; 16]),
            user: user.parse()?,
            service: service.parse()?,
            host: host.parse()?,
            key_fingerprint: match number {
                10 => [2; 32],
                _ => key_fingerprint,
            },
            chain_anchor: [3; 16],
            token_anchor: [3; 11],
            chain_salt: [4; 16],
            chain_length: 8,
            expires: usher_lab::hostile::now() + 60,
        })
    };
    let cases = [
        (
            open(2, "carol", "imap", "laptop")?,
            Err(Refusal::UserNotPermitted),
        ),
        (
            open(3, "root", "imap", "laptop")?,
            Err(Refusal::UserNotPermitted),
        ),
        (
            open(4, "alice", "smtp", "laptop")?,
            Err(Refusal::UnknownService),
        ),
        (
            open(5, "alice", "imap", "elsewhere")?,
            Err(Refusal::HostNotPermitted),
        ),
        (
            open(6, "toor", "imap", "laptop")?,
            Err(Refusal::PrivilegedAccount),
        ),
        (
            open(7, "ghost", "imap", "laptop")?,
            Err(Refusal::NoLocalAccount),
        ),
        (
            open(9, "stray", "imap", "laptop")?,
            Err(Refusal::UnknownUser),
        ),
        (
            open(10, "alice", "imap", "laptop")?,
            Err(Refusal::UnknownKey),
        ),
        (close, Err(Refusal::UnknownSession)),
        (open(8, "alice", "imap", "laptop")?, Ok(())),
        (open(8, "alice", "imap", "laptop")?, Err(Refusal::Replayed)),
    ];
    let program: Vec<String> = cases
        .iter()
        .map(|(request, _)| ask(&request.encode()))
        .collect();
    let lines = python(&mailhost, "usher-verifier", &program.join("\n"))?;
    assert_eq!(lines.len(), cases.len());
    for ((request, expected), line) in cases.iter().zip(&lines) {
        let reply = bytes(line).and_then(|record| KeeperReply::decode(&record).ok());
        let number = request.request();
        let verdict = match reply {
            Some(KeeperReply::Verdict { request, verdict }) if request == number => verdict,
            other => panic!("{request:?}: {other:?}"),
        };
        assert_eq!(verdict, *expected, "{request:?}");
    }
    // What is no record ends the connection and nothing else.
    let mut unknown = close_record(&cases)?;
    unknown[1] = 200;
    let mut version = close_record(&cases)?;
    version[0] = 9;
    let mut padded = close_record(&cases)?;
    padded[KEEPER_RECORD_SIZE - 1] = 1;
    let frame = ClientFrame::Ping { request: 1 }.encode();
    let records = [unknown, version, padded, frame, vec![0; 255], vec![0; 4000]];
    let program: Vec<String> = records.iter().map(|record| ask(record)).collect();
    for line in python(&mailhost, "usher-verifier", &program.join("\n"))? {
        assert_eq!(line, "-");
    }
    attack.mail.verifier.start()?;
    alice_reads(&attack.mail)
}

fn close_record(cases: &[(KeeperRequest, std::result::Result<(), Refusal>)]) -> Result<Vec<u8>> {
    let close = cases
        .iter()
        .find(|(request, _)| matches!(request, KeeperRequest::Close { .. }));
    Ok(close.ok_or("no such case")?.0.encode().to_vec())
}

#[test]
fn nobody_takes_over_an_announced_port() -> Result {
    let mail = Lab::mail()?;
    // alice has her connection announced, closes her socket and lives on.
    let alice = r#"
mine = tcp(socket.AF_INET)
reply, peer = ask(SIGNER, @connect@, mine)
port = mine.getsockname()[1]
if "@connects@" == "yes":
    mine.connect(("@server@", 143))
    tell("greeting", mine.makefile().readline().strip())
mine.close()
tell("port", port)
sys.stdin.readline()
"#
    .replace("@connect@", &connect()?)
    .replace("@server@", &mail.mailhost.ipv4().to_string());
    // bob wants her port from then on until he has it.
    let bob = r#"
refusals = 0
deadline = time.monotonic() + 60
while True:
    try:
        mine = tcp(socket.AF_INET)
        mine.bind(("@client@", @port@))
        break
    except OSError as error:
        assert error.errno == errno.EADDRINUSE, error
        assert time.monotonic() < deadline
        if refusals == 0:
            tell("taken")
        refusals += 1
try:
    mine.connect(("@server@", 143))
    tell("connected", mine.makefile().readline())
except ConnectionRefusedError:
    tell("reset", refusals)
"#
    .replace("@server@", &mail.mailhost.ipv4().to_string())
    .replace("@client@", &mail.laptop.ipv4().to_string());

    let alice = |connects: &str| -> Result<(Running, String)> {
        let program = format!("{PRELUDE}{}", alice.replace("@connects@", connects));
        let command = mail.laptop.command(["python3", "-c", &program]);
        let mut alice = command.user("alice").spawn()?;
        let said = alice.read_past("port", LONG)?;
        Ok((alice, said))
    };
    for ends in [true, false] {
        let (mut alice, said) = alice("no")?;
        let port = said.split_whitespace().last().ok_or("no port")?;
        let program = format!("{PRELUDE}{}", bob.replace("@port@", port));
        let command = mail.laptop.command(["python3", "-c", &program]);
        let mut bob = command.user("bob").spawn()?;
        bob.read_past("taken", LONG)?;
        if ends {
            alice.end()?;
        }
        // While alice lives the signer lets go when the announcement has expired.
        let said = bob.read_past("re", LONG * 2)?;
        assert!(said.starts_with("reset"), "alice ends: {ends}: {said}");
    }
    // The twin: alice herself.
    let (_alice, said) = alice("yes")?;
    assert!(said.contains("* PREAUTH"), "{said}");
    Ok(())
}
