//! Keys that sign only by an ssh-agent: RSA and ECDSA P-521. The real ssh-keygen and ssh-agent sign.
#![forbid(unsafe_code)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::ssh_keygen::{does, make_key, ssh_keygen};
use common::{blob, statement};
use ssh_encoding::base64::{Base64, Encoding};
use tempfile::TempDir;
use usher_base::codec::put_string;
use usher_proto::agent::{self, AgentAnswer, MAX_AGENT_ANSWER, sign_request};
use usher_proto::key::{UnsuitableKey, require_suitable};
use usher_proto::ssh_key::public::{KeyData, RsaPublicKey};
use usher_proto::ssh_key::{Mpint, PublicKey};
use usher_proto::{
    Authenticator, Certificate, MAX_CERTIFICATE_SIZE, MAX_SIGNATURE_SIZE, NAMESPACE, Refusal,
};

/// Keys that are accepted. The last one is of ECDSA P-521.
const KEYS: [&str; 3] = ["rsa-2048", "rsa-4096", "ecdsa-521"];
/// Keys that are refused, and their bits.
const REFUSED: [(&str, usize); 2] = [("rsa-1024", 1024), ("rsa-4160", 4160)];

/// A folder with a key pair `key`, `key.pub` made by ssh-keygen. Each key is made once, because a large RSA key
/// takes seconds.
fn folder_with_key(name: &str) -> TempDir {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let names = KEYS.into_iter().chain(REFUSED.map(|(name, _)| name));
        let running: Vec<Child> = names
            .map(|name| {
                let (kind, bits) = name.split_once('-').unwrap();
                let mut keygen = ssh_keygen(folder.path());
                let keygen = keygen.args(["-q", "-N", "", "-f", name]);
                keygen.args(["-t", kind, "-b", bits]).spawn().unwrap()
            })
            .collect();
        for mut keygen in running {
            assert!(keygen.wait().unwrap().success());
        }
        folder
    });
    let folder = tempfile::tempdir().unwrap();
    copy_key(made.path(), name, folder.path(), "key");
    folder
}

fn copy_key(from: &Path, name: &str, to: &Path, new_name: &str) {
    for suffix in ["", ".pub"] {
        let old = from.join(format!("{name}{suffix}"));
        fs::copy(old, to.join(format!("{new_name}{suffix}"))).unwrap();
    }
}

fn public_key(folder: &Path) -> PublicKey {
    PublicKey::from_openssh(&fs::read_to_string(folder.join("key.pub")).unwrap()).unwrap()
}

/// `ssh-keygen -Y sign` with the key or certificate in a file.
fn sign(folder: &Path, file: &str) -> Authenticator {
    let statement = statement().encode();
    fs::write(folder.join("statement"), &statement).unwrap();
    fs::remove_file(folder.join("statement.sig")).ok();
    let sign = ["-q", "-Y", "sign", "-f", file, "-n", NAMESPACE, "statement"];
    assert!(does(folder, &sign));
    Authenticator {
        statement,
        signature: blob(&fs::read_to_string(folder.join("statement.sig")).unwrap()),
    }
}

/// `key-cert.pub`, made with `ca` and these options.
fn certify(folder: &Path, options: &[&str]) -> Result<Certificate, Refusal> {
    let sign = [
        &["-q", "-s", "ca", "-I", "id", "-n", "alice"],
        options,
        &["key.pub"],
    ]
    .concat();
    assert!(does(folder, &sign), "{options:?}");
    Certificate::parse(&fs::read_to_string(folder.join("key-cert.pub")).unwrap())
}

// Threat model: A173
#[test]
fn we_verify_what_ssh_keygen_signs() {
    for name in KEYS {
        let folder = folder_with_key(name);
        let key = public_key(folder.path());
        assert_eq!(require_suitable(key.key_data()), Ok(()), "{name}");
        // ECDSA numbers vary in length: try some signatures.
        for _ in 0..4 {
            let mut signed = sign(folder.path(), "key");
            let found = signed.verify_signature().unwrap();
            assert_eq!(found.key.key_data(), key.key_data(), "{name}");
            assert!(signed.signature_pem().is_ok());
            signed.statement[30] ^= 1;
            assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));
            signed.statement[30] ^= 1;
            *signed.signature.last_mut().unwrap() ^= 1;
            assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));
        }
    }
}

// Threat model: A173
#[test]
fn rsa_keys_of_another_size_are_refused() {
    for (name, bits) in REFUSED {
        let folder = folder_with_key(name);
        let path = folder.path();
        let key = public_key(path);
        let fault = require_suitable(key.key_data());
        assert_eq!(fault, Err(UnsuitableKey::RsaBits(bits)));
        let refused = Err(Refusal::UnsuitableRsaKey);
        assert_eq!(sign(path, "key").verify_signature(), refused, "{bits}");
        // The key's certificate is refused, too, and so are certificates of such an authority.
        copy_key(path, "key", path, "ca");
        make_key(path, "other", "ed25519");
        let by_it = ["-q", "-s", "ca", "-I", "id", "-n", "alice", "other.pub"];
        assert!(does(path, &by_it));
        let line = fs::read_to_string(path.join("other-cert.pub")).unwrap();
        let refused = Err(Refusal::UnsuitableRsaKey);
        assert_eq!(Certificate::parse(&line), refused, "{bits}");
        copy_key(path, "other", path, "ca");
        assert_eq!(certify(path, &[]), refused, "{bits}");
    }
    // The very limits.
    for (bits, is_suitable) in [(2047, false), (2048, true), (4096, true), (4097, false)] {
        let mut modulus = vec![0; usize::div_ceil(bits, 8)];
        modulus[0] = 1 << ((bits - 1) % 8);
        let n = Mpint::from_positive_bytes(&modulus).unwrap();
        let e = Mpint::from_positive_bytes(&[1, 0, 1]).unwrap();
        let checked = require_suitable(&KeyData::Rsa(RsaPublicKey { e, n }));
        let fault = UnsuitableKey::RsaBits(bits);
        assert_eq!(checked, if is_suitable { Ok(()) } else { Err(fault) });
    }
}

// Threat model: A173
#[test]
fn an_rsa_exponent_under_which_anyone_signs_is_refused() {
    let folder = folder_with_key("rsa-2048");
    let key = public_key(folder.path());
    let KeyData::Rsa(numbers) = key.key_data() else {
        panic!("another kind");
    };
    let with = |exponent: &[u8]| {
        let e = Mpint::from_positive_bytes(exponent).unwrap();
        let n = numbers.n.clone();
        require_suitable(&KeyData::Rsa(RsaPublicKey { e, n }))
    };
    for good in [&[3][..], &[35], &[1, 0, 1], &[0xff; 4]] {
        assert_eq!(with(good), Ok(()), "{good:?}");
    }
    for wrong in [&[0][..], &[1], &[2], &[1, 0, 0], &[1, 0, 0, 0, 1]] {
        assert_eq!(with(wrong), Err(UnsuitableKey::RsaExponent), "{wrong:?}");
    }
    let forged = with_exponent_1(&sign(folder.path(), "key"), &key);
    assert_eq!(forged.verify_signature(), Err(Refusal::UnsuitableRsaKey));
}

/// The signature with another exponent in its key, under which the padded hash is its own signature.
fn with_exponent_1(signed: &Authenticator, key: &PublicKey) -> Authenticator {
    let mut forged = signed.clone();
    let length = key.to_bytes().unwrap().len();
    let place = 14..14 + length;
    assert_eq!(forged.signature[place.clone()], key.to_bytes().unwrap());
    let KeyData::Rsa(numbers) = key.key_data() else {
        panic!("another kind");
    };
    let mut other = Vec::new();
    for part in [&b"ssh-rsa"[..], &[1], numbers.n.as_bytes()] {
        put_string(&mut other, part);
    }
    forged.signature.splice(place, other.iter().copied());
    forged.signature[10..14].copy_from_slice(&u32::try_from(other.len()).unwrap().to_be_bytes());
    forged
}

// Threat model: A173
#[test]
fn a_certified_signature_is_the_same_as_of_ssh_keygen() {
    for name in KEYS {
        let folder = folder_with_key(name);
        let path = folder.path();
        // The key is its own authority.
        copy_key(path, "key", path, "ca");
        let is_rsa = name.starts_with("rsa");
        let algorithms = [&[][..], &["-t", "rsa-sha2-256"], &["-t", "rsa-sha2-512"]];
        for algorithm in &algorithms[..if is_rsa { 3 } else { 1 }] {
            let certificate = certify(path, algorithm).unwrap();
            assert_eq!(certificate.verify(), Ok(()));
            let mut signed = sign(path, "key-cert.pub");
            let found = signed.verify_signature().unwrap();
            assert_eq!(found.certificate.as_ref(), Some(&certificate));
            assert_eq!(found.public_key, certificate.as_bytes());
            let plain = sign(path, "key");
            let ours = plain.with_certificate(&certificate).unwrap();
            assert!(ours.verify_signature().is_ok());
            signed.statement[30] ^= 1;
            assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));
        }
        if is_rsa {
            let refused = certify(path, &["-t", "ssh-rsa"]);
            assert_eq!(refused, Err(Refusal::Sha1Signature));
        }
    }
}

/// The largest key, certified by the largest authority for as many principals as are possible.
#[test]
fn the_largest_certificate_and_its_signature_fit() {
    let folder = folder_with_key("rsa-4096");
    let path = folder.path();
    copy_key(path, "key", path, "ca");
    let long = "i".repeat(100);
    let names = vec!["p"; 256].join(",");
    let make = ["-q", "-s", "ca", "-I", &long, "-n", &names, "key.pub"];
    assert!(does(path, &make));
    let line = fs::read_to_string(path.join("key-cert.pub")).unwrap();
    let certificate = Certificate::parse(&line);
    let size = certificate.map(|certificate| certificate.as_bytes().len());
    // 256 names of one byte take 1,280 bytes.
    assert_eq!(size, Err(Refusal::Oversized), "256 principals");
    let names = vec!["pp"; 170].join(",");
    let make = ["-q", "-s", "ca", "-I", &long, "-n", &names, "key.pub"];
    assert!(does(path, &make));
    let line = fs::read_to_string(path.join("key-cert.pub")).unwrap();
    let certificate = Certificate::parse(&line).unwrap();
    let rest = MAX_CERTIFICATE_SIZE - certificate.as_bytes().len();
    let signed = sign(path, "key-cert.pub");
    assert!(signed.verify_signature().is_ok());
    // The signature would fit with the longest possible certificate as well.
    assert!(signed.signature.len() + rest <= MAX_SIGNATURE_SIZE);
    assert_eq!(sign(path, "key").signature.len(), 1122);
}

/// A running ssh-agent, which ends with this.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        drop((self.0.kill(), self.0.wait()));
    }
}

/// ssh-agent with the folder's key.
fn ssh_agent(folder: &Path) -> Agent {
    let socket = folder.join("socket");
    let mut command = Command::new("ssh-agent");
    command
        .args(["-D", "-a"])
        .arg(&socket)
        .stdout(Stdio::null());
    let agent = Agent(command.spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(60);
    while !socket.exists() {
        assert!(Instant::now() < end, "no agent");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut add = Command::new("ssh-add");
    add.args(["-q", "key"])
        .current_dir(folder)
        .env("SSH_AUTH_SOCK", &socket);
    assert!(add.status().unwrap().success());
    agent
}

fn ask(folder: &Path, request: &[u8]) -> Vec<u8> {
    let mut agent = UnixStream::connect(folder.join("socket")).unwrap();
    agent.write_all(request).unwrap();
    let mut prefix = [0; 4];
    agent.read_exact(&mut prefix).unwrap();
    let mut answer = vec![0; agent::answer_length(prefix, MAX_AGENT_ANSWER).unwrap()];
    agent.read_exact(&mut answer).unwrap();
    match AgentAnswer::decode(&answer).unwrap() {
        AgentAnswer::Signature(signature) => signature,
        AgentAnswer::Failure => panic!("the agent does not sign"),
    }
}

/// The request with other flags.
fn with_flags(mut request: Vec<u8>, flags: u32) -> Vec<u8> {
    let at = request.len() - 4;
    request[at..].copy_from_slice(&flags.to_be_bytes());
    request
}

// Threat model: A173
#[test]
fn an_agents_signature_counts_as_requested_and_never_with_sha_1() {
    for name in KEYS {
        let folder = folder_with_key(name);
        let path = folder.path();
        let _agent = ssh_agent(path);
        let key = public_key(path);
        let encoded = statement().encode();
        let data = Authenticator::signed_data(&encoded).unwrap();
        let request = sign_request(&key.to_bytes().unwrap(), &data);
        let join =
            |signature: &[u8]| Authenticator::from_signature(encoded.clone(), &key, signature);
        let signature = ask(path, &request);
        let ours = join(&signature).unwrap();
        // A verifier accepts both hashes, because ssh-keygen may use either.
        let by_verifier = |other: &[u8]| {
            let mut changed = ours.clone();
            let length = changed.signature.len() - signature.len() - 4;
            changed.signature.truncate(length);
            put_string(&mut changed.signature, other);
            changed.verify_signature()
        };
        assert!(by_verifier(&signature).is_ok());
        if !name.starts_with("rsa") {
            continue;
        }
        // Agents that ignore the flags make a valid signature with SHA-1.
        let sha1 = ask(path, &with_flags(request.clone(), 0));
        assert!(sha1.starts_with(b"\0\0\0\x07ssh-rsa"));
        assert_eq!(join(&sha1), Err(Refusal::Sha1Signature));
        assert_eq!(by_verifier(&sha1), Err(Refusal::Sha1Signature));
        // The same signature under the name of the requested algorithm.
        let mut renamed = Vec::new();
        put_string(&mut renamed, b"rsa-sha2-512");
        renamed.extend_from_slice(&sha1[11..]);
        assert_eq!(join(&renamed), Err(Refusal::BadSignature));
        assert_eq!(by_verifier(&renamed), Err(Refusal::BadSignature));
        // Another algorithm than requested.
        let sha256 = ask(path, &with_flags(request.clone(), 2));
        assert!(sha256.starts_with(b"\0\0\0\x0crsa-sha2-256"));
        assert_eq!(join(&sha256), Err(Refusal::Malformed));
        assert!(by_verifier(&sha256).is_ok());
    }
}

/// A signature that begins with a zero is as valid without it.
#[test]
fn an_agents_signature_without_leading_zeros_counts() {
    let folder = folder_with_key("rsa-2048");
    let path = folder.path();
    let _agent = ssh_agent(path);
    let key = public_key(path);
    let public = key.to_bytes().unwrap();
    let mut told = statement();
    for attempt in 0_u64.. {
        told.expires = told.issued + 1 + attempt;
        let encoded = told.encode();
        let data = Authenticator::signed_data(&encoded).unwrap();
        let signature = ask(path, &sign_request(&public, &data));
        // The signature's value is after the algorithm and the length.
        const VALUE: usize = 4 + 12 + 4;
        if signature[VALUE] != 0 {
            continue;
        }
        let zeros = signature[VALUE..]
            .iter()
            .take_while(|byte| **byte == 0)
            .count();
        let mut short = Vec::new();
        put_string(&mut short, b"rsa-sha2-512");
        put_string(&mut short, &signature[VALUE + zeros..]);
        let whole = Authenticator::from_signature(encoded.clone(), &key, &signature).unwrap();
        let padded = Authenticator::from_signature(encoded, &key, &short);
        assert_eq!(padded, Ok(whole));
        return;
    }
}

/// Prints microseconds for each kind of key, for docs/performance.md.
#[test]
#[ignore = "measures; run it with --release --nocapture"]
fn costs_of_a_verification() {
    let others = [["ed25519", "256"], ["ecdsa", "256"], ["ecdsa", "384"]];
    let others = others.map(|[kind, bits]| {
        let folder = tempfile::tempdir().unwrap();
        let make = ["-q", "-N", "", "-f", "key", "-t", kind, "-b", bits];
        assert!(does(folder.path(), &make));
        (format!("{kind}-{bits}"), folder)
    });
    let these = KEYS.map(|name| (name.to_owned(), folder_with_key(name)));
    for (name, folder) in others.into_iter().chain(these) {
        let path = folder.path();
        copy_key(path, "key", path, "ca");
        certify(path, &[]).unwrap();
        for file in ["key", "key-cert.pub"] {
            let signed = sign(path, file);
            let rounds = (0..20).map(|_| {
                let start = Instant::now();
                for _ in 0..50 {
                    signed.verify_signature().unwrap();
                }
                start.elapsed() / 50
            });
            let fastest = rounds.min().unwrap().as_nanos() / 100;
            println!("{name} {file}: {}.{} us", fastest / 10, fastest % 10);
        }
    }
}

/// Writes the corpus's files that have these keys. Not a test of anything.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    let put = |folder: &str, name: &str, bytes: &[u8]| {
        fs::write(corpus.join(folder).join(name), bytes).unwrap();
    };
    for name in KEYS {
        let folder = folder_with_key(name);
        let path = folder.path();
        let key = public_key(path);
        let _agent = ssh_agent(path);
        let data = Authenticator::signed_data(&statement().encode()).unwrap();
        let request = sign_request(&key.to_bytes().unwrap(), &data);
        let answer = |signature: &[u8]| {
            let mut answer = vec![14];
            put_string(&mut answer, signature);
            answer
        };
        put(
            "agent",
            &format!("malformed-signature-{name}.bin"),
            &answer(&ask(path, &request)),
        );
        let signed = sign(path, "key");
        put(
            "authenticator",
            &format!("accepted-{name}.bin"),
            &signed.signature,
        );
        let mut wrong = signed.signature.clone();
        *wrong.last_mut().unwrap() ^= 1;
        put(
            "authenticator",
            &format!("bad_signature-{name}.bin"),
            &wrong,
        );
        copy_key(path, "key", path, "ca");
        let certificate = certify(path, &[]).unwrap();
        let bytes = certificate.as_bytes();
        put("certificate", &format!("accepted-{name}.bin"), bytes);
        put(
            "certificate",
            &format!("truncated-{name}-cut.bin"),
            &bytes[..bytes.len() - 1],
        );
        let certified = sign(path, "key-cert.pub");
        put(
            "authenticator",
            &format!("accepted-certified-{name}.bin"),
            &certified.signature,
        );
        if name == "rsa-2048" {
            let forged = with_exponent_1(&signed, &key);
            let sha1 = ask(path, &with_flags(request, 0));
            put(
                "authenticator",
                "unsuitable_rsa_key-exponent-1.bin",
                &forged.signature,
            );
            put("agent", "sha1_signature-signature-rsa.bin", &answer(&sha1));
            let mut by_sha1 = signed.signature.clone();
            let length =
                by_sha1.len() - ask(path, &sign_request(&key.to_bytes().unwrap(), &data)).len();
            by_sha1.truncate(length - 4);
            put_string(&mut by_sha1, &sha1);
            put("authenticator", "sha1_signature-rsa.bin", &by_sha1);
            assert_eq!(
                certify(path, &["-t", "ssh-rsa"]),
                Err(Refusal::Sha1Signature)
            );
            let line = fs::read_to_string(path.join("key-cert.pub")).unwrap();
            let bytes = Base64::decode_vec(line.split(' ').nth(1).unwrap()).unwrap();
            put("certificate", "sha1_signature-rsa.bin", &bytes);
        }
    }
    for (name, _) in REFUSED {
        let folder = folder_with_key(name);
        let signed = sign(folder.path(), "key");
        put(
            "authenticator",
            &format!("unsuitable_rsa_key-{name}.bin"),
            &signed.signature,
        );
    }
}
