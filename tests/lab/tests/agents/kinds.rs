//! Keys that sign only by an agent: RSA and ECDSA P-521, with and without certificates.

use usher_lab::{Host, Mail, Running, eventually};

use crate::Result;
use crate::agent::{forget_sessions, lend, refused, register, served, socket, ssh_agent, topology};

/// Makes a key pair of alice's, and returns the path of its public key.
fn make_key(mail: &Mail, name: &str, kind: &[&str]) -> Result<String> {
    let make = ["ssh-keygen", "-q", "-N", "", "-f", name, "-t"];
    mail.laptop.run_as("alice", [&make[..], kind].concat())?;
    let path = format!("/home/alice/{name}.pub");
    mail.mailhost
        .write(format!("/root/{name}.pub"), mail.laptop.read(&path)?)?;
    Ok(path)
}

fn add(host: &Host, option: &str, file: &str) -> Result<usher_lab::Output> {
    let add = ["usher", "user", "add", "alice", option, file];
    Ok(host.command(add).run()?)
}

// Threat model: A173
#[test]
fn rsa_and_p521_keys_and_certificates_admit_by_an_agent() -> Result {
    let mut mail = topology()?;
    let _agent = ssh_agent(&mail, "alice", &[])?;
    for (name, kind) in [
        ("rsa", &["rsa", "-b", "3072"][..]),
        ("p521", &["ecdsa", "-b", "521"]),
    ] {
        let public = make_key(&mail, name, kind)?;
        crate::agent::add_key(&mail, "alice", name)?;
        register(&mail, "alice", &public)?;
        // Her agent has it, and the server does not know it yet.
        let lender = lend(&mail, "alice")?;
        refused(&mail, "alice", "not_authenticated")?;
        let added = add(&mail.mailhost, "--public-key", &format!("/root/{name}.pub"))?;
        assert!(added.status.success(), "{added:?}");
        served(&mail, "alice")?;
        forget(&mut mail, lender)?;
    }

    // By certificates of authorities of both kinds, where the server has no key of hers.
    mail.mailhost.run(["rm", "-r", "/etc/usher/users/alice"])?;
    for (authority, name) in [("rsa", "p521"), ("p521", "rsa")] {
        let (ca, public) = (
            format!("/home/alice/{authority}"),
            format!("/home/alice/{name}.pub"),
        );
        mail.mailhost.write(
            "/etc/usher/user_ca_keys",
            mail.laptop.read(format!("{ca}.pub"))?,
        )?;
        mail.apply()?;
        let certify = [
            "ssh-keygen",
            "-q",
            "-s",
            &ca,
            "-I",
            "alice",
            "-n",
            "alice",
            &public,
        ];
        mail.laptop.run(certify)?;
        register(&mail, "alice", &public)?;
        let lender = lend(&mail, "alice")?;
        refused(&mail, "alice", "not_authenticated")?;
        let certificate = format!("/home/alice/{name}-cert.pub");
        let added = add(&mail.laptop, "--certificate", &certificate)?;
        assert!(added.status.success(), "{added:?}");
        served(&mail, "alice")?;
        forget(&mut mail, lender)?;
    }
    Ok(())
}

/// Ends the loan and the sessions.
fn forget(mail: &mut Mail, lender: Running) -> Result {
    drop(lender);
    forget_sessions(mail)
}

#[test]
fn keys_that_cannot_be_used_are_refused_with_the_remedy() -> Result {
    let mail = topology()?;
    let refused = |host: &Host, option: &str, file: &str, parts: &[&str]| -> Result {
        let output = add(host, option, file)?;
        assert_eq!(output.status.code(), Some(1), "{file}: {output:?}");
        for part in parts.iter().chain(&[file]) {
            assert!(output.stderr.contains(part), "{part}: {output:?}");
        }
        Ok(())
    };
    let (laptop, mailhost) = (&mail.laptop, &mail.mailhost);
    // Short RSA keys, on both hosts and in a list that somebody edits.
    let short = make_key(&mail, "short", &["rsa", "-b", "1024"])?;
    let size = [
        "this RSA key has 1024 bits",
        "2048 to 4096",
        "ssh-keygen -t ed25519",
    ];
    refused(laptop, "--agent-key", &short, &size)?;
    let output = add(mailhost, "--public-key", "/root/short.pub")?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for part in size {
        assert!(output.stderr.contains(part), "{output:?}");
    }
    let list = "/etc/usher/users/alice/authorized_keys";
    let former = mailhost.read(list)?;
    mailhost.write(
        list,
        format!("{former}{}", mailhost.read("/root/short.pub")?),
    )?;
    let apply = mailhost.command(["usher", "policy", "apply"]).run()?;
    assert!(!apply.status.success(), "{apply:?}");
    for part in [&["authorized_keys", "line 2"][..], &size].concat() {
        assert!(apply.stderr.contains(part), "{part}: {apply:?}");
    }
    mailhost.write(list, former)?;
    mail.apply()?;

    // Private keys of kinds that only an agent may use, in all forms, and any with a passphrase.
    let by_agent = ["ssh-agent", "--agent-key", "usher agent"];
    make_key(&mail, "rsa", &["rsa", "-b", "2048"])?;
    make_key(&mail, "pem", &["rsa", "-b", "2048", "-m", "PEM"])?;
    make_key(&mail, "p521", &["ecdsa", "-b", "521"])?;
    for key in ["rsa", "pem", "p521"] {
        refused(
            laptop,
            "--private-key",
            &format!("/home/alice/{key}"),
            &by_agent,
        )?;
    }
    for key in ["rsa", "p521", ".ssh/id_ed25519"] {
        let copy = ["cp", key, "locked"];
        laptop.run_as("alice", copy)?;
        let lock = ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", "locked"];
        laptop.run_as("alice", lock)?;
        refused(
            laptop,
            "--private-key",
            "/home/alice/locked",
            &by_agent[..2],
        )?;
    }
    let added = add(laptop, "--private-key", "/home/alice/.ssh/id_ed25519")?;
    assert!(added.status.success(), "{added:?}");
    served(&mail, "alice")
}

/// An agent that has another one sign, with other flags than requested (hexadecimal, in a file).
const OLD: &str = r#"
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(sys.argv[1])
listener.listen()
def packet(connection):
    length = connection.recv(4, socket.MSG_WAITALL)
    return length + connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
while True:
    connection, _ = listener.accept()
    request = packet(connection)
    if not request:
        connection.close()
        continue
    flags = open("flags").read()
    if request[4:5] == b"\x0d" and flags:
        request = request[:-4] + bytes.fromhex(flags)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.connect(sys.argv[2])
        agent.sendall(request)
        connection.sendall(packet(agent))
    connection.close()
"#;

// Threat model: A173
#[test]
fn an_agent_that_signs_with_another_hash_is_refused() -> Result {
    let mail = topology()?;
    let public = make_key(&mail, "rsa", &["rsa", "-b", "2048"])?;
    add(&mail.mailhost, "--public-key", "/root/rsa.pub")?;
    register(&mail, "alice", &public)?;
    let _agent = ssh_agent(&mail, "alice", &["rsa"])?;
    let old = "/home/alice/old.sock";
    let _old = mail
        .laptop
        .command(["python3", "-c", OLD, old, &socket("alice")])
        .user("alice")
        .spawn()?;
    eventually("the agent listens", || Ok(mail.laptop.path(old).exists()))?;
    let mut lender = mail
        .laptop
        .command(["usher", "agent"])
        .environment("SSH_AUTH_SOCK", old)
        .user("alice")
        .spawn()?;
    eventually("the agent is lent", || Ok(crate::agent::loans(&mail)? > 0))?;
    for (flags, told) in [
        (
            "00000000",
            "signed with SHA-1 (ssh-rsa), although rsa-sha2-512 was requested",
        ),
        (
            "00000002",
            "signed with rsa-sha2-256, although rsa-sha2-512 was requested",
        ),
    ] {
        mail.laptop.write("/home/alice/flags", flags)?;
        refused(&mail, "alice", "agent_refused")?;
        eventually("the agent's user learns the cause", || {
            Ok(lender.stderr()?.contains(told))
        })?;
    }
    assert!(lender.stderr()?.contains("OpenSSH's ssh-agent"));
    mail.laptop.write("/home/alice/flags", "")?;
    served(&mail, "alice")
}
