//! Checkpoints: the size and root of the tree, signed by the log (C2SP tlog-checkpoint, a
//! signed-note), and the keys that sign and verify them.

use std::fmt;
use std::iter;

use base64ct::{Base64, Encoding};
use ed25519_dalek::Signer as _;
use signed_note::{Note, StandardVerifier, Verifier as _, VerifierList};
use usher_proto::log_record::{EndRecord, KeyChangeRecord};
use usher_proto::ssh_key::PrivateKey;
use usher_proto::ssh_key::private::KeypairData;
use usher_proto::{KeyChange, LogKey, SessionEnd};

use crate::merkle::{Frontier, Hash};

/// Longest signed checkpoint in bytes: room for the cosignatures of many witnesses.
pub const MAX_CHECKPOINT: usize = 64 * 1024;

/// Signature type of Ed25519 in C2SP signed-note.
const ED25519: u8 = 1;

/// Reasons to refuse a key or a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The origin cannot be the name of a key.
    #[error("{0:?} cannot name a log: 1 to 255 characters, no space, no control character, no +")]
    Origin(String),
    /// The private key is of another kind, or has a passphrase.
    #[error("a log's key is Ed25519 and without a passphrase: make one with ssh-keygen -t ed25519")]
    PrivateKey,
    /// The text is no verifier key.
    #[error("not a verifier key (NAME+HASH+KEY, one line)")]
    VerifyingKey,
    /// There is no checkpoint.
    #[error("there is no checkpoint, so the former state of the log is unknown")]
    Missing,
    /// The text is not a checkpoint, or not in its one spelling.
    #[error("not a signed checkpoint")]
    Malformed,
    /// The checkpoint is of another log.
    #[error("this is a checkpoint of {found}, not of {expected}")]
    OtherLog {
        /// The expected log.
        expected: String,
        /// The log that the checkpoint names.
        found: String,
    },
    /// The log's key did not sign the checkpoint.
    #[error("the checkpoint is not signed by the key of {0}")]
    Signature(String),
    /// Signing failed.
    #[error("cannot sign with the log's key")]
    Signing,
}

/// The private key of a log, with the log's name.
pub struct SigningKey {
    verifying: VerifyingKey,
    /// Derived once: `ssh-key` would derive the public key again for each signature.
    key: ed25519_dalek::SigningKey,
}

impl SigningKey {
    /// Makes a log's key. `origin` names the log in every checkpoint; it should be globally unique
    /// (`mailhost.example.org/usher`) and never change.
    ///
    /// # Errors
    /// [`CheckpointError::Origin`], [`CheckpointError::PrivateKey`].
    pub fn new(origin: &str, key: &PrivateKey) -> Result<Self, CheckpointError> {
        let KeypairData::Ed25519(key) = key.key_data() else {
            return Err(CheckpointError::PrivateKey);
        };
        let key = ed25519_dalek::SigningKey::from_bytes(key.private.as_ref());
        Ok(Self {
            verifying: VerifyingKey::new(origin, key.verifying_key().as_bytes())?,
            key,
        })
    }

    /// The public side.
    #[must_use]
    pub fn verifying_key(&self) -> &VerifyingKey {
        &self.verifying
    }

    /// Signs the state of a tree, with `next` as well while that key takes this one's place.
    pub(crate) fn sign(
        &self,
        tree: &Frontier,
        next: Option<&Self>,
    ) -> Result<SignedCheckpoint, CheckpointError> {
        let checkpoint = Checkpoint {
            origin: self.verifying.origin().to_owned(),
            size: tree.size(),
            root: tree.root(),
        };
        let text = checkpoint.to_string();
        let mut note = Note::new(text.as_bytes(), &[]).map_err(|_| CheckpointError::Malformed)?;
        for key in iter::once(self).chain(next) {
            note.add_sigs(&[key])
                .map_err(|_| CheckpointError::Signing)?;
        }
        let note = String::from_utf8(note.to_bytes()).map_err(|_| CheckpointError::Malformed)?;
        Ok(SignedCheckpoint { checkpoint, note })
    }

    /// Signs how a session ended.
    ///
    /// # Errors
    /// [`CheckpointError::Signing`]; no known input causes it.
    pub fn sign_end(&self, end: &SessionEnd) -> Result<EndRecord, CheckpointError> {
        let signed = EndRecord::signed_data(end).map_err(|_| CheckpointError::Signing)?;
        let signature = self.key.sign(&signed).to_bytes();
        Ok(EndRecord::new(end, self.verifying.public, &signature))
    }

    /// Signs that another key takes this one's place in the log, after the records of this tree.
    pub(crate) fn sign_change(
        &self,
        next: &Self,
        tree: &Frontier,
        changed: u64,
    ) -> Result<KeyChangeRecord, CheckpointError> {
        let change = KeyChange {
            former: self.verifying.public,
            next: next.verifying.public,
            index: tree.size(),
            root: tree.root(),
            changed,
        };
        let signed = KeyChangeRecord::signed_data(&change).map_err(|_| CheckpointError::Signing)?;
        let signature = |key: &Self| key.key.sign(&signed).to_bytes();
        Ok(KeyChangeRecord::new(
            &change,
            &signature(self),
            &signature(next),
        ))
    }
}

impl fmt::Debug for SigningKey {
    /// The public side only.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SigningKey({})", self.verifying)
    }
}

impl signed_note::Signer for SigningKey {
    fn name(&self) -> &str {
        self.verifying.origin()
    }

    fn key_id(&self) -> u32 {
        self.verifying.verifier.key_id()
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        Ok(self.key.sign(message).to_bytes().to_vec())
    }
}

/// The public key of a log, with the log's name. An auditor keeps it beside a checkpoint.
#[derive(Clone)]
pub struct VerifyingKey {
    text: String,
    verifier: StandardVerifier,
    public: LogKey,
}

impl VerifyingKey {
    fn new(origin: &str, public: &[u8; 32]) -> Result<Self, CheckpointError> {
        let refused = |letter: char| letter.is_whitespace() || letter.is_control();
        if origin.len() > 255 || origin.contains(refused) || !signed_note::is_key_name_valid(origin)
        {
            return Err(CheckpointError::Origin(origin.to_owned()));
        }
        let key = [&[ED25519], public.as_slice()].concat();
        let text = format!(
            "{origin}+{:08x}+{}",
            signed_note::key_id(origin, &key),
            Base64::encode_string(&key)
        );
        let verifier = StandardVerifier::new(&text).map_err(|_| CheckpointError::PrivateKey)?;
        let public = LogKey::from_bytes(*public);
        Ok(Self {
            text,
            verifier,
            public,
        })
    }

    /// The key without the name, which verifies the ends of sessions.
    #[must_use]
    pub fn public_key(&self) -> LogKey {
        self.public
    }

    /// Another key of the same log.
    ///
    /// # Errors
    /// [`CheckpointError::VerifyingKey`]; no known input causes it.
    pub(crate) fn with(&self, public: LogKey) -> Result<Self, CheckpointError> {
        Self::new(self.origin(), public.as_bytes())
    }

    /// Reads `NAME+HASH+KEY`, the form that tools for C2SP notes use; ignores one newline at the end.
    ///
    /// # Errors
    /// [`CheckpointError::VerifyingKey`], also for another spelling of a key.
    pub fn parse(text: &str) -> Result<Self, CheckpointError> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let parts: Vec<&str> = text.split('+').collect();
        // Base64 also uses +.
        let [origin, _, key @ ..] = parts.as_slice() else {
            return Err(CheckpointError::VerifyingKey);
        };
        let key = Base64::decode_vec(&key.join("+")).ok();
        match key.as_deref().and_then(<[u8]>::split_first) {
            Some((&ED25519, public)) => <&[u8; 32]>::try_from(public)
                .ok()
                .and_then(|public| Self::new(origin, public).ok())
                .filter(|key| key.text == text)
                .ok_or(CheckpointError::VerifyingKey),
            _ => Err(CheckpointError::VerifyingKey),
        }
    }

    /// The name of the log.
    #[must_use]
    pub fn origin(&self) -> &str {
        self.verifier.name()
    }

    /// Reads a checkpoint that this key has signed. Ignores signatures of other keys.
    ///
    /// # Errors
    /// [`CheckpointError::Malformed`], [`CheckpointError::OtherLog`],
    /// [`CheckpointError::Signature`].
    pub fn open(&self, note: &str) -> Result<SignedCheckpoint, CheckpointError> {
        let (parsed, checkpoint) = parse_note(note)?;
        if checkpoint.origin != self.origin() {
            return Err(CheckpointError::OtherLog {
                expected: self.origin().to_owned(),
                found: checkpoint.origin,
            });
        }
        parsed
            .verify(&VerifierList::new(vec![Box::new(self.verifier.clone())]))
            .map_err(|_| CheckpointError::Signature(self.origin().to_owned()))?;
        Ok(SignedCheckpoint {
            checkpoint,
            note: note.to_owned(),
        })
    }
}

impl fmt::Display for VerifyingKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "VerifyingKey({self})")
    }
}

impl PartialEq for VerifyingKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for VerifyingKey {}

/// The contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log's name.
    pub origin: String,
    /// Number of records.
    pub size: u64,
    /// Root of the tree over them.
    pub root: Hash,
}

impl Checkpoint {
    /// Reads the three lines; refuses extension lines, which no auditor could check.
    fn parse(text: &str) -> Result<Self, CheckpointError> {
        let mut lines = text.split('\n');
        let origin = lines.next().ok_or(CheckpointError::Malformed)?.to_owned();
        let size = lines.next().and_then(|line| line.parse().ok());
        let root = lines.next().and_then(|line| {
            let bytes = Base64::decode_vec(line).ok()?;
            Hash::try_from(bytes).ok()
        });
        let checkpoint = Self {
            origin,
            size: size.ok_or(CheckpointError::Malformed)?,
            root: root.ok_or(CheckpointError::Malformed)?,
        };
        // Numbers and Base64 have more than one spelling, a checkpoint has one.
        if checkpoint.to_string() != text {
            return Err(CheckpointError::Malformed);
        }
        Ok(checkpoint)
    }

    /// The root in Base64, as in the text.
    #[must_use]
    pub fn root_text(&self) -> String {
        Base64::encode_string(&self.root)
    }
}

impl fmt::Display for Checkpoint {
    /// The signed text.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.root_text();
        write!(formatter, "{}\n{}\n{root}\n", self.origin, self.size)
    }
}

/// The number of records that a checkpoint is about, before its signature is checked.
pub(crate) fn size_of_note(note: &str) -> Result<u64, CheckpointError> {
    let (_, checkpoint) = parse_note(note)?;
    Ok(checkpoint.size)
}

fn parse_note(note: &str) -> Result<(Note, Checkpoint), CheckpointError> {
    if note.len() > MAX_CHECKPOINT {
        return Err(CheckpointError::Malformed);
    }
    let parsed = Note::from_bytes(note.as_bytes()).map_err(|_| CheckpointError::Malformed)?;
    let text = std::str::from_utf8(parsed.text()).map_err(|_| CheckpointError::Malformed)?;
    let checkpoint = Checkpoint::parse(text)?;
    Ok((parsed, checkpoint))
}

/// A checkpoint with its signatures. Only [`VerifyingKey::open`] and the log make one, so its
/// signature is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCheckpoint {
    checkpoint: Checkpoint,
    note: String,
}

impl SignedCheckpoint {
    /// The checkpoint's contents.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The whole signed note: the contents of the file `checkpoint`, and the text to keep elsewhere.
    #[must_use]
    pub fn note(&self) -> &str {
        &self.note
    }
}
