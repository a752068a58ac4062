//! The authenticators that a verifier refuses, each with an accepted twin.
#![forbid(unsafe_code)]

mod common;

use common::{NOW, authenticator, client_key, server_key, statement, user_key};
use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::{EdwardsPoint, Scalar};
use proptest::prelude::*;
use sha2::{Digest, Sha512};
use ssh_encoding::Decode as _;
use usher_proto::ssh_key::private::Ed25519Keypair;
use usher_proto::ssh_key::{HashAlg, PrivateKey, PublicKey, SshSig};
use usher_proto::{
    Authenticator, Expectation, HostPublicKey, MAX_CHAIN_LENGTH, MAX_SIGNATURE_SIZE,
    MAX_STATEMENT_SIZE, NAMESPACE, Refusal, Statement,
};

struct Verifier {
    now: u64,
    client: Vec<HostPublicKey>,
    server: Vec<HostPublicKey>,
}

impl Verifier {
    fn check(&self, statement: &Statement) -> Result<(), Refusal> {
        statement.check(&Expectation {
            now: self.now,
            client_host_keys: &self.client,
            server_host_keys: &self.server,
            maximum_age: 60,
            maximum_skew: 30,
            maximum_lifetime: 86_400,
        })
    }
}

fn verifier() -> Verifier {
    Verifier {
        now: NOW,
        client: vec![client_key()],
        server: vec![server_key()],
    }
}

#[test]
fn a_good_statement_is_accepted() {
    assert_eq!(verifier().check(&statement()), Ok(()));
}

#[test]
fn a_statement_for_another_server_is_refused() {
    let other = Verifier {
        server: vec![HostPublicKey::from_bytes([1; 32])],
        ..verifier()
    };
    assert_eq!(other.check(&statement()), Err(Refusal::WrongServerHost));
}

#[test]
fn a_statement_may_name_either_key_of_a_host_that_replaces_its_key() {
    let [other, third] = [1, 2].map(|byte| HostPublicKey::from_bytes([byte; 32]));
    for present in [[other, server_key()], [server_key(), other]] {
        let server = present.to_vec();
        let verifier = Verifier {
            server,
            ..verifier()
        };
        assert_eq!(verifier.check(&statement()), Ok(()));
    }
    let server = vec![other, third];
    let verifier = Verifier {
        server,
        ..verifier()
    };
    assert_eq!(verifier.check(&statement()), Err(Refusal::WrongServerHost));
}

#[test]
fn a_statement_from_another_client_is_refused() {
    let other = Verifier {
        client: vec![HostPublicKey::from_bytes([1; 32])],
        ..verifier()
    };
    assert_eq!(other.check(&statement()), Err(Refusal::WrongClientHost));
}

#[test]
fn a_statement_is_accepted_to_the_second_of_its_limits() {
    let at = |now| {
        Verifier { now, ..verifier() }.check(&Statement {
            expires: NOW + 86_400,
            ..statement()
        })
    };
    assert_eq!(at(NOW - 30), Ok(()));
    assert_eq!(at(NOW - 31), Err(Refusal::FutureDated));
    assert_eq!(at(NOW + 60), Ok(()));
    assert_eq!(at(NOW + 61), Err(Refusal::Stale));
}

#[test]
fn an_expired_statement_is_refused() {
    let short = Statement {
        expires: NOW + 10,
        ..statement()
    };
    let at = |now| Verifier { now, ..verifier() }.check(&short);
    assert_eq!(at(NOW + 9), Ok(()));
    assert_eq!(at(NOW + 10), Err(Refusal::Expired));
    // The statement is issued a little ahead of the verifier's clock, and expires at that moment.
    let inverted = Statement {
        issued: NOW + 20,
        expires: NOW + 20,
        ..statement()
    };
    assert_eq!(verifier().check(&inverted), Err(Refusal::Expired));
}

#[test]
fn too_long_a_session_is_refused() {
    let lasting = |seconds| Statement {
        expires: NOW + seconds,
        ..statement()
    };
    assert_eq!(verifier().check(&lasting(86_400)), Ok(()));
    assert_eq!(
        verifier().check(&lasting(86_401)),
        Err(Refusal::LifetimeTooLong)
    );
    let forever = Statement {
        expires: u64::MAX,
        ..statement()
    };
    assert_eq!(verifier().check(&forever), Err(Refusal::LifetimeTooLong));
}

#[test]
fn chains_of_impossible_length_are_refused() {
    let of_length = |chain_length| {
        verifier().check(&Statement {
            chain_length,
            ..statement()
        })
    };
    assert_eq!(of_length(1), Ok(()));
    assert_eq!(of_length(MAX_CHAIN_LENGTH), Ok(()));
    assert_eq!(of_length(0), Err(Refusal::Malformed));
    assert_eq!(of_length(MAX_CHAIN_LENGTH + 1), Err(Refusal::Malformed));
}

#[test]
fn extreme_clocks_do_not_overflow() {
    for (now, issued, expires) in [
        (0, u64::MAX, 0),
        (u64::MAX, 0, u64::MAX),
        (u64::MAX, u64::MAX, u64::MAX),
    ] {
        let extreme = Statement {
            issued,
            expires,
            ..statement()
        };
        assert!(Verifier { now, ..verifier() }.check(&extreme).is_err());
    }
}

#[test]
fn the_signing_key_comes_out() {
    let key = authenticator().verify_signature().unwrap().key;
    assert_eq!(key.key_data(), user_key().public_key().key_data());
}

#[test]
fn a_signature_by_another_key_does_not_verify_under_the_first() {
    let other: PrivateKey = Ed25519Keypair::from_seed(&[8; 32]).into();
    let first = authenticator();
    let second = Authenticator::sign(&statement(), &other).unwrap();
    // The first signature's key in the second one's envelope: both keys have the same length.
    let mut mixed = second.clone();
    let key_at = 6 + 4 + 4;
    mixed.signature[key_at..key_at + 51].copy_from_slice(&first.signature[key_at..key_at + 51]);
    assert_ne!(mixed, second);
    assert_eq!(mixed.verify_signature(), Err(Refusal::BadSignature));
    second.verify_signature().unwrap();
}

fn signed_with(namespace: &str, hash: HashAlg) -> Authenticator {
    let statement = statement().encode();
    let pem = user_key()
        .sign(namespace, hash, &statement)
        .unwrap()
        .to_string();
    Authenticator {
        statement,
        signature: common::blob(&pem),
    }
}

#[test]
fn signatures_for_another_purpose_are_refused() {
    signed_with("authenticator@usher", HashAlg::Sha512)
        .verify_signature()
        .unwrap();
    for namespace in ["git", "file", "authenticator@usher2", "Authenticator@usher"] {
        assert_eq!(
            signed_with(namespace, HashAlg::Sha512).verify_signature(),
            Err(Refusal::BadSignature)
        );
    }
}

#[test]
fn another_hash_is_refused() {
    assert_eq!(
        signed_with("authenticator@usher", HashAlg::Sha256).verify_signature(),
        Err(Refusal::UnsupportedKey)
    );
}

#[test]
fn keys_of_small_order_are_refused() {
    // The neutral element of the curve: R = identity, s = 0 verifies every message without any
    // private key when small orders are let through.
    let mut weak = authenticator();
    let key_at = 6 + 4 + 4 + 4 + 11 + 4;
    let identity = {
        let mut point = [0; 32];
        point[0] = 1;
        point
    };
    weak.signature[key_at..key_at + 32].copy_from_slice(&identity);
    let length = weak.signature.len();
    weak.signature[length - 64..length - 32].copy_from_slice(&identity);
    weak.signature[length - 32..].fill(0);
    assert_eq!(weak.verify_signature(), Err(Refusal::UnsupportedKey));
}

#[test]
fn unsupported_kinds_of_key_are_told_apart_from_broken_ones() {
    let mut other = authenticator();
    let name_at = 6 + 4 + 4 + 4;
    assert_eq!(&other.signature[name_at..name_at + 11], b"ssh-ed25519");
    other.signature[name_at..name_at + 11].copy_from_slice(b"ssh-ed99999");
    assert_eq!(other.verify_signature(), Err(Refusal::UnsupportedKey));
    other.signature[name_at] = 0xff;
    assert_eq!(other.verify_signature(), Err(Refusal::Malformed));
}

#[test]
fn another_version_of_the_envelope_is_refused() {
    let mut newer = authenticator();
    newer.signature[9] = 2;
    assert_eq!(newer.verify_signature(), Err(Refusal::UnknownVersion));
}

#[test]
fn sizes_are_bounded() {
    let mut big = authenticator();
    big.statement = vec![0; MAX_STATEMENT_SIZE + 1];
    assert_eq!(big.verify_signature(), Err(Refusal::Oversized));
    let mut big = authenticator();
    big.signature = vec![0; MAX_SIGNATURE_SIZE + 1];
    assert_eq!(big.verify_signature(), Err(Refusal::Oversized));
    let mut short = authenticator();
    short.signature.pop();
    assert_eq!(short.verify_signature(), Err(Refusal::Truncated));
    short.signature.clear();
    assert_eq!(short.verify_signature(), Err(Refusal::Truncated));
}

/// Whether ssh-key, with its own older dalek, accepts the signature, too.
fn ssh_key_verifies(authenticator: &Authenticator) -> bool {
    let Ok(blob) = SshSig::decode(&mut authenticator.signature.as_slice()) else {
        return false;
    };
    let key = PublicKey::from(blob.public_key().clone());
    key.verify(NAMESPACE, &authenticator.statement, &blob)
        .is_ok()
}

/// The ranges of an Ed25519 signature's value and scalar, and of its key, in a blob.
fn ed25519_parts(authenticator: &Authenticator) -> [std::ops::Range<usize>; 3] {
    let key_at = 6 + 4 + 4 + 4 + 11 + 4;
    let length = authenticator.signature.len();
    [
        key_at..key_at + 32,
        length - 64..length - 32,
        length - 32..length,
    ]
}

proptest! {
    /// Our code for AVX-512 and that of ssh-key are different, and agree wherever something was changed.
    #[test]
    fn ed25519_is_verified_as_by_another_implementation(
        seed: [u8; 32],
        nonce: [u8; 16],
        part in 0..4_usize,
        byte: proptest::sample::Index,
        bits: u8,
    ) {
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&seed));
        let statement = Statement { nonce, ..statement() };
        let mut changed = Authenticator::sign(&statement, &key).unwrap();
        prop_assert!(changed.verify_signature().is_ok());
        prop_assert!(ssh_key_verifies(&changed));
        if let Some(part) = ed25519_parts(&changed).get(part) {
            let byte = part.start + byte.index(part.len());
            changed.signature[byte] ^= bits;
        } else {
            let byte = byte.index(changed.statement.len());
            changed.statement[byte] ^= bits;
        }
        prop_assert_eq!(changed.verify_signature().is_ok(), ssh_key_verifies(&changed));
        prop_assert_eq!(changed.verify_signature().is_ok(), bits == 0);
    }
}

#[test]
fn a_signature_has_one_scalar_and_no_nonce_of_small_order() {
    // The order of the base point (RFC 8032 section 5.1), little-endian.
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde,
        0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let good = authenticator();
    let [_, nonce, scalar] = ed25519_parts(&good);
    let mut longer = good.clone();
    let mut carry = 0;
    for (byte, order) in longer.signature[scalar].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        *byte = sum as u8;
        carry = sum >> 8;
    }
    assert_eq!(carry, 0);
    let mut identity = good;
    identity.signature[nonce.clone()].fill(0);
    identity.signature[nonce.start] = 1;
    for forged in [longer, identity] {
        assert_eq!(forged.verify_signature(), Err(Refusal::BadSignature));
        assert!(!ssh_key_verifies(&forged));
    }
}

/// Implementations differ about keys of mixed order, which their owner can make: here, about one in
/// eight of such signatures. The log must hold only signatures that `ssh-keygen -Y verify` accepts.
#[test]
fn mixed_order_keys_verify_as_by_another_implementation() {
    let secret = Scalar::from_bytes_mod_order([7; 32]);
    let key = EdwardsPoint::mul_base(&secret) + EIGHT_TORSION[1];
    let key = key.compress().to_bytes();
    let mut taken = 0;
    const TRIED: u8 = 64;
    for number in 0..TRIED {
        let mut forged = Authenticator {
            statement: Statement {
                nonce: [number; 16],
                ..statement()
            }
            .encode(),
            ..authenticator()
        };
        let message = Authenticator::signed_data(&forged.statement).unwrap();
        let blinding = Scalar::from_bytes_mod_order([number + 1; 32]);
        let point = EdwardsPoint::mul_base(&blinding).compress().to_bytes();
        let hash = Sha512::new()
            .chain_update(point)
            .chain_update(key)
            .chain_update(message);
        let challenge = Scalar::from_bytes_mod_order_wide(&hash.finalize().into());
        let answer = (blinding + challenge * secret).to_bytes();
        let [key_at, point_at, answer_at] = ed25519_parts(&forged);
        for (at, bytes) in [(key_at, key), (point_at, point), (answer_at, answer)] {
            forged.signature[at].copy_from_slice(&bytes);
        }
        let verified = forged.verify_signature().is_ok();
        assert_eq!(verified, ssh_key_verifies(&forged), "{number}");
        taken += u8::from(verified);
    }
    assert!((1..TRIED).contains(&taken), "{taken}");
}
