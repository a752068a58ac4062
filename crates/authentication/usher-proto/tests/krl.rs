//! Revoked keys, as ssh-keygen -k writes them and as ssh-keygen -Q reads them.
#![forbid(unsafe_code)]

mod common;

use common::ssh_keygen::{does, make_key};
use ssh_encoding::base64::{Base64, Encoding};
use std::fs;
use std::path::Path;
use usher_base::DecodeError;
use usher_proto::ssh_key::{HashAlg, PublicKey};
use usher_proto::{Certificate, RevokedKeys, RevokedKeysError};

/// Keys a, b, c, authorities ca and other, and certificates that they have signed:
/// `NAME-cert.pub` of the key NAME. Their serial numbers and key ids are in their names.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (key, kind) in [
        ("a", "ed25519"),
        ("b", "ecdsa"),
        ("c", "ecdsa"),
        ("ca", "ed25519"),
        ("other", "ecdsa"),
    ] {
        make_key(path, key, kind);
    }
    for (authority, serial) in [
        ("ca", 0_u64),
        ("ca", 1),
        ("ca", 5),
        ("ca", 6),
        ("ca", 7),
        ("ca", 64),
        ("ca", 1000),
        ("ca", u64::MAX),
        ("other", 5),
        ("other", 6),
    ] {
        let name = format!("{authority}{serial}");
        fs::copy(path.join("a.pub"), path.join(format!("{name}.pub"))).unwrap();
        let (serial, id) = (serial.to_string(), format!("id-{name}"));
        let public = format!("{name}.pub");
        let sign = [
            "-q", "-s", authority, "-I", &id, "-n", "alice", "-z", &serial, &public,
        ];
        assert!(does(path, &sign));
    }
    folder
}

/// All public keys and certificates in a folder.
fn publics(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pub"))
        .collect();
    names.sort();
    names
}

fn has(revoked: &RevokedKeys, line: &str) -> bool {
    let blob = line.split(' ').nth(1).unwrap();
    let blob = Base64::decode_vec(blob).unwrap();
    match PublicKey::from_bytes(&blob) {
        Ok(key) => revoked.has_key(&key),
        Err(_) => {
            let certificate = Certificate::decode(&blob).unwrap();
            certificate.verify().unwrap();
            let certified = certificate.certified().unwrap();
            let key = certificate
                .key
                .fingerprint(HashAlg::Sha256)
                .sha256()
                .unwrap();
            revoked.has_certified_key(&key, &certified) || revoked.has_certificate(&certified)
        }
    }
}

/// Makes a list by a specification and compares, for every key there is, what it says with what ssh-keygen
/// says. Returns the revoked ones.
fn revoked_by(folder: &Path, arguments: &[&str], specification: &str) -> Vec<String> {
    fs::write(folder.join("specification"), specification).unwrap();
    let make = [&["-q", "-k", "-f", "krl"], arguments, &["specification"]].concat();
    assert!(does(folder, &make), "{specification}");
    let krl = fs::read(folder.join("krl")).unwrap();
    let revoked = RevokedKeys::parse(&krl).unwrap();
    assert_no_part_is_taken_for_the_whole(&krl);
    let mut found = publics(folder);
    found.retain(|name| {
        let line = fs::read_to_string(folder.join(name)).unwrap();
        let by_openssh = !does(folder, &["-Q", "-f", "krl", name]);
        assert_eq!(has(&revoked, &line), by_openssh, "{name}: {specification}");
        by_openssh
    });
    found
}

/// A list that is cut is refused, unless it is cut between two sections, which cannot be noticed.
fn assert_no_part_is_taken_for_the_whole(krl: &[u8]) {
    let taken = (0..krl.len())
        .filter(|&length| RevokedKeys::parse(&krl[..length]).is_ok())
        .count();
    assert!(taken <= 8, "{taken} parts of {} bytes are taken", krl.len());
    let followed = [krl, &[0]].concat();
    RevokedKeys::parse(&followed).unwrap_err();
}

#[test]
fn certificates_are_revoked_as_ssh_keygen_says() {
    let folder = folder();
    let folder = folder.path();
    let of_ca = ["-s", "ca.pub"];
    for (specification, revoked) in [
        ("serial: 5\n", &["ca5-cert.pub"][..]),
        (
            "serial: 5-7\n",
            &["ca5-cert.pub", "ca6-cert.pub", "ca7-cert.pub"],
        ),
        (
            "serial: 18446744073709551615\n",
            &["ca18446744073709551615-cert.pub"],
        ),
        ("id: id-ca64\n", &["ca64-cert.pub"]),
        ("id: id-other5\nserial: 1000\n", &["ca1000-cert.pub"]),
    ] {
        assert_eq!(
            revoked_by(folder, &of_ca, specification),
            revoked,
            "{specification}"
        );
    }
    // Dense enough for ssh-keygen to write a bitmap.
    let dense: String = (1..200_u32)
        .filter(|serial| serial % 3 != 0)
        .map(|serial| format!("serial: {serial}\n"))
        .collect();
    let revoked = revoked_by(folder, &of_ca, &dense);
    assert_eq!(
        revoked,
        [
            "ca1-cert.pub",
            "ca5-cert.pub",
            "ca64-cert.pub",
            "ca7-cert.pub"
        ]
    );
    // Certificates of any authority.
    let revoked = revoked_by(folder, &["-s", "none"], "serial: 5\nid: id-other6\n");
    assert_eq!(
        revoked,
        ["ca5-cert.pub", "other5-cert.pub", "other6-cert.pub"]
    );
}

#[test]
fn keys_are_revoked_as_ssh_keygen_says() {
    let folder = folder();
    let folder = folder.path();
    let line = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let fingerprint = |name: &str| {
        let key = PublicKey::from_openssh(&line(name)).unwrap();
        key.fingerprint(Default::default()).to_string()
    };
    let with_certificates = |key: &str, authority: &str| {
        let mut names = publics(folder);
        names.retain(|name| {
            name == key || name.starts_with(authority) && name.ends_with("-cert.pub")
        });
        names
    };
    assert_eq!(revoked_by(folder, &[], &line("b.pub")), ["b.pub"]);
    assert_eq!(
        revoked_by(folder, &[], &format!("sha1: {}", line("c.pub"))),
        ["c.pub"]
    );
    assert_eq!(
        revoked_by(folder, &[], &format!("sha256: {}", line("b.pub"))),
        ["b.pub"]
    );
    assert_eq!(
        revoked_by(folder, &[], &format!("hash: {}\n", fingerprint("c.pub"))),
        ["c.pub"]
    );
    // A revoked authority revokes its certificates, and a revoked key those that certify it.
    for kind in ["", "sha1: ", "sha256: "] {
        let specification = format!("{kind}{}", line("other.pub"));
        assert_eq!(
            revoked_by(folder, &[], &specification),
            with_certificates("other.pub", "other")
        );
    }
    assert_eq!(revoked_by(folder, &[], &line("a.pub")).len(), 1 + 10 + 10);
    assert_eq!(revoked_by(folder, &[], ""), [""; 0]);
}

#[test]
fn keys_one_a_line_are_revoked_and_other_lines_refuse_the_whole() {
    let folder = folder();
    let line = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let list = format!("# lost\n\n{}\r\n{}", line("a.pub").trim(), line("c.pub"));
    let revoked = RevokedKeys::parse(list.as_bytes()).unwrap();
    assert!(has(&revoked, &line("a.pub")) && has(&revoked, &line("c.pub")));
    assert!(has(&revoked, &line("ca5-cert.pub")) && !has(&revoked, &line("b.pub")));
    let authority = RevokedKeys::parse(line("ca.pub").as_bytes()).unwrap();
    assert!(has(&authority, &line("ca5-cert.pub")) && !has(&authority, &line("other5-cert.pub")));
    for wrong in [
        format!("{list}nonsense\n"),
        format!("{list}ssh-ed25519\n"),
        format!("{list}ssh-ed25519 AAAA\n"),
        format!("{list}{}", line("b.pub").replacen("ecdsa", "ssh", 1)),
        format!("{list}no-pty {}", line("b.pub")),
        format!("{list}{}", line("ca5-cert.pub")),
    ] {
        let number = list.lines().count() + 1;
        let refused = RevokedKeys::parse(wrong.as_bytes());
        assert_eq!(refused, Err(RevokedKeysError::Line(number)), "{wrong}");
    }
    assert_eq!(RevokedKeys::parse(b""), Err(RevokedKeysError::Empty));
    assert_eq!(RevokedKeys::parse(b"# none\n"), Ok(RevokedKeys::default()));
}

#[test]
fn what_is_not_understood_is_not_passed_over() {
    let header = |version: u32| {
        let mut krl = b"SSHKRL\n\0".to_vec();
        krl.extend(version.to_be_bytes());
        krl.extend([0; 24 + 8]);
        krl
    };
    let section = |kind: u8, content: &[u8]| {
        let mut krl = header(1);
        krl.push(kind);
        krl.extend((content.len() as u32).to_be_bytes());
        krl.extend(content);
        RevokedKeys::parse(&krl)
    };
    let extension = |critical: u8| [&[0, 0, 0, 1, b'x', critical][..], &[0; 4]].concat();
    assert_eq!(RevokedKeys::parse(&header(1)), Ok(RevokedKeys::default()));
    assert_eq!(
        RevokedKeys::parse(&header(2)),
        Err(DecodeError::UnknownVersion.into())
    );
    assert_eq!(section(255, &extension(0)), Ok(RevokedKeys::default()));
    for (kind, content) in [(255, extension(1)), (4, Vec::new())] {
        let refused = section(kind, &content);
        assert!(
            matches!(refused, Err(RevokedKeysError::NotUnderstood(_))),
            "{kind}"
        );
    }
    assert_eq!(section(6, &[]), Err(DecodeError::UnknownType.into()));
    let certificates = |kind: u8, content: &[u8]| {
        let mut part = vec![0; 8];
        part.push(kind);
        part.extend((content.len() as u32).to_be_bytes());
        part.extend(content);
        section(1, &part)
    };
    let malformed = |field| Err(DecodeError::Malformed { field }.into());
    let numbers = |first: u64, last: u64| [first.to_be_bytes(), last.to_be_bytes()].concat();
    assert!(certificates(0x21, &numbers(2, 2)).is_ok());
    assert_eq!(certificates(0x21, &numbers(2, 1)), malformed("range"));
    let bitmap = |first: u64, bytes: &[u8]| {
        let length = (bytes.len() as u32).to_be_bytes();
        certificates(0x22, &[&first.to_be_bytes()[..], &length, bytes].concat())
    };
    assert!(bitmap(u64::MAX, &[1]).is_ok() && bitmap(1, &[0, 0x80]).is_ok());
    for (first, bytes) in [(u64::MAX, &[2][..]), (1, &[0x80]), (1, &[0, 1]), (1, &[0])] {
        assert_eq!(
            bitmap(first, bytes),
            malformed("bitmap"),
            "{first} {bytes:?}"
        );
    }
    assert!(certificates(0x39, &extension(0)).is_ok());
    assert!(matches!(
        certificates(0x39, &extension(1)),
        Err(RevokedKeysError::NotUnderstood(_))
    ));
    assert_eq!(
        certificates(0x24, &[]),
        Err(DecodeError::UnknownType.into())
    );
    let long = vec![b'#'; usher_proto::MAX_REVOKED_KEYS + 1];
    assert_eq!(
        RevokedKeys::parse(&long),
        Err(DecodeError::Oversized.into())
    );
}
