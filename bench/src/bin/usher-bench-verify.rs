//! Measures the verifier's time for an authenticator: everything from a frame's bytes to the
//! keeper's record, by its own code, with the configuration of a host with a thousand users.
//! Prints nanoseconds of processor time per authenticator, averaged over a round, one line per
//! round: of the whole, and, alternating with it, of the Ed25519 verification alone, by the
//! verifier's library and by that of its TLS.
#![forbid(unsafe_code)]

// The verifier's own source, because a daemon has no library.
#[path = "../../../crates/usherd/src/verifier/authenticate.rs"]
#[allow(dead_code, reason = "what the daemon needs and this does not")]
mod authenticate;
#[path = "../../../crates/usherd/src/opening.rs"]
mod opening;

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use authenticate::authenticate;
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use ed25519_dalek::Verifier as _;
use opening::Claim;
use rustix::time::{ClockId, clock_gettime};
use usher_base::{ConnectionTuple, HostName};
use usher_lab::hostile::{fresh_user_key, random};
use usher_local::applied::{Applied, UserEntry};
use usher_local::checked::Checked;
use usher_proto::frame::{ClientBody, ClientFrame};
use usher_proto::host_key::HostPublicKey;
use usher_proto::keeper_record::{KeeperBody, KeeperRequest};
use usher_proto::log_record::{AuthenticationRecord, Record};
use usher_proto::session_id;
use usher_proto::ssh_key::public::KeyData;
use usher_proto::ssh_key::{PrivateKey, SshSig};
use usher_proto::{Announcement, Authentication, Authenticator, Chain, Statement};

const USERS: usize = 1000;
/// The number of different authenticators that are checked in turn.
const AUTHENTICATORS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rounds] = arguments.as_slice() else {
        return Err("usage: ROUNDS".into());
    };
    let keys: Vec<PrivateKey> = (0..USERS).map(|_| fresh_user_key()).collect();
    let [client_key, own_key] =
        [fresh_user_key(), fresh_user_key()].map(|key| key.public_key().to_openssh());
    let (client_key, own_key) = (client_key?, own_key?);
    let checked = configuration(&keys, &client_key, &own_key)?;
    let host: HostName = "laptop".parse()?;
    let hosts = (client_key.parse()?, own_key.parse()?);
    let asked = (0..AUTHENTICATORS)
        .map(|number| Asked::new(number, &keys[number * 7 % USERS], hosts))
        .collect::<Result<Vec<_>, _>>()?;

    for _ in 0..rounds.parse::<usize>()? {
        let whole = average(&asked, |asked| {
            let frame = ClientFrame::decode(&asked.payload)?;
            let ClientBody::Open { authenticator, .. } = frame.body else {
                return Err("another frame".into());
            };
            let claim = Claim {
                host: &host,
                host_keys: std::slice::from_ref(&hosts.0),
                own_key: &hosts.1,
                now: asked.issued,
            };
            let statement = Statement::decode(&authenticator.statement)?;
            let (opening, public_key) = authenticate(&checked, &claim, &authenticator, &statement)?;
            std::hint::black_box(session_id(&authenticator.statement));
            let record = Record::Authentication(AuthenticationRecord {
                authenticator,
                public_key,
            });
            let open = KeeperRequest {
                request: 1,
                host: host.clone(),
                body: KeeperBody::Open {
                    authentication: Box::new(Authentication {
                        opening,
                        record: record.encode(),
                    }),
                    first: None,
                },
            };
            std::hint::black_box(open.encode());
            Ok(())
        })?;
        let dalek = average(&asked, |asked| {
            let key = ed25519_dalek::VerifyingKey::from_bytes(&asked.signed.key)?;
            let signature = asked.signed.signature.into();
            Ok(key.verify(&asked.signed.message, &signature)?)
        })?;
        let aws = average(&asked, |asked| {
            UnparsedPublicKey::new(&ED25519, &asked.signed.key)
                .verify(&asked.signed.message, &asked.signed.signature)
                .map_err(|_| "not verified".into())
        })?;
        println!("{whole} {dalek} {aws}");
    }
    Ok(())
}

/// An authenticator in the form in which it arrives.
struct Asked {
    payload: Vec<u8>,
    issued: u64,
    signed: Signed,
}

/// The part of it that is signed.
struct Signed {
    key: [u8; 32],
    message: Vec<u8>,
    signature: [u8; 64],
}

impl Asked {
    fn new(
        number: usize,
        key: &PrivateKey,
        (client, own): (HostPublicKey, HostPublicKey),
    ) -> Result<Self, Box<dyn Error>> {
        let mut chain = Chain::generate(1, random(), random());
        let server = ([192, 0, 2, 2], 143).into();
        let issued = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let statement = Statement {
            user: format!("user{}", number * 7 % USERS).parse()?,
            service: "imap".parse()?,
            client_host_key: client,
            server_host_key: own,
            server,
            issued,
            expires: issued + 8 * 3600,
            nonce: random(),
            chain_anchor: chain.anchor(),
            token_anchor: random(),
            chain_length: 1024,
            chain_salt: chain.salt(),
        };
        let authenticator = Authenticator::sign(&statement, key)?;
        let signed = Signed::of(&authenticator)?;
        let first = Announcement {
            element: chain.next().ok_or("an empty chain")?,
            connection: ConnectionTuple {
                client: ([192, 0, 2, 1], 40000).into(),
                server,
            },
        };
        let frame = ClientFrame {
            request: number as u64,
            body: ClientBody::Open {
                authenticator,
                first: Some(first),
            },
        };
        Ok(Self {
            // Without the length, as the frame buffer returns it.
            payload: frame.encode().split_off(4),
            issued,
            signed,
        })
    }
}

impl Signed {
    fn of(authenticator: &Authenticator) -> Result<Self, Box<dyn Error>> {
        let blob = SshSig::from_pem(authenticator.signature_pem()?)?;
        let KeyData::Ed25519(key) = blob.public_key() else {
            return Err("not an Ed25519 key".into());
        };
        let statement = &authenticator.statement;
        Ok(Self {
            key: key.0,
            message: SshSig::signed_data(blob.namespace(), blob.hash_alg(), statement)?,
            signature: blob.signature_bytes().try_into()?,
        })
    }
}

/// Nanoseconds of this thread's processor time that `act` takes, averaged over all.
fn average(
    asked: &[Asked],
    act: impl Fn(&Asked) -> Result<(), Box<dyn Error>>,
) -> Result<u128, Box<dyn Error>> {
    let begun = processor_time();
    for asked in asked {
        act(asked)?;
    }
    Ok((processor_time() - begun).as_nanos() / asked.len() as u128)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The configuration of a host with these users and one service.
fn configuration(keys: &[PrivateKey], client: &str, own: &str) -> Result<Checked, Box<dyn Error>> {
    let members: Vec<String> = (0..USERS).map(|number| format!("user{number}")).collect();
    let text = format!(
        "host laptop {{ address 192.0.2.1; key \"{client}\"; }}\n\
         host mailhost {{ address 192.0.2.2; key \"{own}\"; }}\n\
         users all {{ member {}; }}\n\
         service imap {{ program \"/bin/true\"; listen 143; users all; hosts laptop; \
         style user; }}\n",
        members.join(", ")
    );
    let mut applied = Applied {
        sources: vec![usher_policy::Source {
            name: "bench.policy".into(),
            text,
        }],
        ..Applied::default()
    };
    for (member, key) in members.iter().zip(keys) {
        let entry = UserEntry {
            authorized_keys: key.public_key().to_openssh()?,
            ..UserEntry::default()
        };
        applied.users.insert(member.parse()?, entry);
    }
    Ok(applied.check()?)
}
