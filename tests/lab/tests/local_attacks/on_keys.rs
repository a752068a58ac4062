//! Attacks on keys, and on the sockets that lead to them.

use crate::attack::{Result, alice_reads};
use crate::programs::{packet, python};
use usher_lab::Lab;

// Threat model: A37
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
        "/var/lib/usher/keys/alice /etc/usher/host_key /etc/usher/ike/key",
        "/etc/usher/host_key /etc/usher/ike/key",
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
        // The twin: root reads and reaches everything.
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
        (&mailhost, "usher-verifier", "/etc/usher/ike/key"),
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
    // Bob cannot reach into the signer's memory either.
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

/// The message that a TLS 1.3 CertificateVerify of a side signs (RFC 8446, section 4.4.3).
fn handshake(side: &str, hash: usize) -> Vec<u8> {
    let context = format!("TLS 1.3, {side} CertificateVerify");
    [&[b' '; 64], context.as_bytes(), &[0], &vec![0x5a; hash]].concat()
}

// Threat model: A132
#[test]
fn the_host_key_signs_only_handshakes_of_its_own_process() -> Result {
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
