//! `usher user`: who is known on this host. Takes effect at once, and on the users only: policy
//! files that are being edited stay out of force until `usher policy apply`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use usher_local::clock::unix_time;
use usher_local::error::ConfigurationError;
use usher_local::files::{Owner, optional, read_bounded, write_atomically_for};
use usher_local::keys::{list_name, private_key_name};
use usher_local::roles::{self, HasRole};
use usher_local::signing_key::{Credential, SigningKey, certificate_of, split};
use usher_local::{control, paths};
use usher_policy::Name;
use usher_proto::name::UserName;
use usher_proto::refusal::Refusal;
use usher_proto::sshsig::{is_security_key, is_supported};
use zeroize::Zeroizing;

use super::configuration::{self, OnRefusal};
use super::key_list::{self, Expiry};
use crate::accounts;
use crate::failure::{At, Failure};
use crate::output::{Output, table, warn};

/// What `usher user add` is told.
pub struct Addition<'a> {
    /// File with public keys.
    pub public_key: Option<&'a Path>,
    /// Until when they are admitted.
    pub expires: Option<Expiry>,
    /// File with a private key.
    pub private_key: Option<&'a Path>,
    /// File with the public key that the user's agent signs with.
    pub agent_key: Option<&'a Path>,
    /// File with the certificate of what the user signs with.
    pub certificate: Option<&'a Path>,
    /// What the keys are for.
    pub purpose: Option<&'a Name>,
}

/// Makes a user known.
///
/// # Errors
/// When a key is none that Usher takes, or a file cannot be written.
pub fn add(output: &Output, user: &UserName, addition: &Addition<'_>) -> Result<(), Failure> {
    let Addition {
        public_key,
        expires,
        private_key,
        agent_key,
        certificate,
        purpose,
    } = *addition;
    match nix::unistd::User::from_name(user.as_ref()) {
        Ok(Some(account)) if account.uid.is_root() => {
            return Err(Failure::Host(format!(
                "{user} has user id 0; root is never a user of Usher"
            )));
        }
        Ok(Some(_)) => {}
        Ok(None) => warn(&format!(
            "there is no account {user} on this host yet; make it first"
        )),
        Err(error) => warn(&format!("cannot look up the account {user}: {error}")),
    }
    let lock = configuration::lock()?;
    // Everything is read and checked before anything is written.
    let public = public_key
        .map(|path| key_list::read(user, path, expires))
        .transpose()?;
    let private = private_key.map(read_private_key).transpose()?;
    let agent = agent_key.map(read_agent_key).transpose()?;
    let signing = match certificate {
        Some(path) => {
            let kept = private_key_path(user, purpose);
            let key = private.or(agent).map_or_else(|| kept_key(&kept), Ok)?;
            Some(with_certificate(&key, path)?)
        }
        None => private.or(agent),
    };
    let folder = user_folder(user);
    std::fs::create_dir_all(&folder).at(&folder)?;
    if let Some(public) = public {
        key_list::add(user, &folder.join(list_name(purpose)), &public)?;
    }
    if let Some(signing) = signing {
        store_signing_key(&private_key_path(user, purpose), &signing)?;
    }
    put_users_in_force(output, &lock)
}

/// Prints the users known on this host.
///
/// # Errors
/// When the configuration cannot be read.
pub fn list(output: &Output) -> Result<(), Failure> {
    let applied = configuration::in_force()?;
    let checked = configuration::check(&applied)?;
    let (revoked, now) = (&checked.revoked, unix_time());
    let lent = lent_agents();
    let views: Vec<_> = applied
        .users
        .iter()
        .map(|(user, entry)| {
            let keys = checked.keys.get(user).map_or(&[][..], Vec::as_slice);
            let views: Vec<_> = keys
                .iter()
                .map(|key| {
                    serde_json::json!({
                        "fingerprint": key.key.fingerprint(ssh_key::HashAlg::Sha256).to_string(),
                        "for": key.purpose,
                        "expires": key.options.expires,
                        "expired": key.has_expired(now),
                        "revoked": revoked.has_key(&key.key),
                        "authority": key.options.authority,
                        "principals": key.options.principals.as_ref()
                            .map(|principals| principals.names().collect::<Vec<_>>()),
                    })
                })
                .collect();
            // None: the folder is the signer's and root's, others cannot look.
            let signing = signing_key(user).ok();
            let is = |kind: fn(&SigningKey) -> bool| {
                signing
                    .as_ref()
                    .map(|found| found.as_ref().is_some_and(|found| kind(&found.key)))
            };
            let certificate = signing.as_ref().and_then(Option::as_ref);
            let certificate = certificate.and_then(|found| found.certificate.as_deref());
            let certificate = certificate.map(|certificate| {
                serde_json::json!({
                    "key_id": certificate.key_id, "serial": certificate.serial,
                    "principals": certificate.principals.names().collect::<Vec<_>>(),
                    "valid_after": certificate.valid_after,
                    "valid_before": certificate.valid_before,
                    "authority": certificate.authority
                        .fingerprint(ssh_key::HashAlg::Sha256).to_string(),
                })
            });
            let view = serde_json::json!({
                "user": user, "disabled": entry.disabled, "public_keys": views,
                "private_key": is(|key| matches!(key, SigningKey::Private(_))),
                "agent_key": is(|key| matches!(key, SigningKey::Agent(_))),
                "certificate": certificate,
                "agent_lent": lent.as_ref().map(|lent| lent.contains(user)),
            });
            (view, key_list::describe(keys, revoked))
        })
        .collect();
    let (views, descriptions): (Vec<_>, Vec<_>) = views.into_iter().unzip();
    output.print(&views, || {
        let rows: Vec<Vec<String>> = views
            .iter()
            .zip(&descriptions)
            .map(|(view, public)| {
                let is = |name: &str| view[name].as_bool();
                let signs = match (is("private_key"), is("agent_key"), is("agent_lent")) {
                    (None, ..) => "? (ask as root)",
                    (Some(true), ..) => "private key",
                    (_, Some(true), Some(true)) => "agent, lent",
                    (_, Some(true), Some(false)) => "agent, not lent",
                    (_, Some(true), None) => "agent",
                    _ => "-",
                };
                vec![
                    view["user"].as_str().unwrap_or_default().to_owned(),
                    view["disabled"]
                        .as_str()
                        .map_or("yes".into(), |why| format!("no: {why}")),
                    public.clone(),
                    match validity(&view["certificate"]) {
                        Some(validity) => format!("{signs}, certificate {validity}"),
                        None => signs.to_owned(),
                    },
                ]
            })
            .collect();
        table(&["USER", "ADMITTED", "PUBLIC KEYS", "SIGNS BY"], &rows)
    });
    Ok(())
}

/// Until when a certificate is valid, for people.
fn validity(certificate: &serde_json::Value) -> Option<String> {
    let (after, before) = (
        certificate["valid_after"].as_u64()?,
        certificate["valid_before"].as_u64()?,
    );
    let now = unix_time();
    Some(if now < after {
        format!("from {} on", super::log::utc(after))
    } else if now >= before {
        "expired".into()
    } else if before == u64::MAX {
        "for ever".into()
    } else {
        format!("until {}", super::log::utc(before))
    })
}

/// Whose agents are lent; nothing when the signer does not say.
fn lent_agents() -> Option<BTreeSet<UserName>> {
    // An error: the signer does not run here, or the caller is not root.
    let view = control::ask(roles::Signer, &control::Agents {}).ok()?;
    let lent = view.agents.into_iter().filter(|agent| agent.lent);
    Some(lent.map(|agent| agent.user).collect())
}

/// With what a user signs here, if with anything.
fn signing_key(user: &UserName) -> Result<Option<Credential>, ConfigurationError> {
    let text = optional(read_bounded(&private_key_path(user, None)))?.map(Zeroizing::new);
    Ok(text.and_then(|text| Credential::parse(&text).ok()))
}

pub(super) fn user_folder(user: &UserName) -> PathBuf {
    Path::new(paths::USERS_DIRECTORY).join(user.as_ref())
}

pub(super) fn private_key_path(user: &UserName, purpose: Option<&Name>) -> PathBuf {
    Path::new(paths::PRIVATE_KEYS_DIRECTORY).join(private_key_name(user, purpose))
}

pub(super) fn known(user: &UserName) -> Result<PathBuf, Failure> {
    let folder = user_folder(user);
    if folder.is_dir() {
        Ok(folder)
    } else {
        Err(Failure::UnknownUser(user.clone()))
    }
}

/// The text of the key that is kept for a user.
fn kept_key(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = optional(read_bounded(path))?.map(Zeroizing::new);
    text.ok_or_else(|| {
        Failure::PublicKey(
            "the user has no key here that a certificate could be for; give it as well, with \
             --private-key or --agent-key"
                .into(),
        )
    })
}

/// A key's text, with the certificate in a file in the place of one that it may have.
fn with_certificate(key: &str, path: &Path) -> Result<Zeroizing<String>, Failure> {
    let problem = |reason: String| Failure::PublicKey(format!("{}: {reason}", path.display()));
    let line = read_bounded(path)?;
    let (key, _) = split(key);
    let parsed = Credential::parse(key).map_err(|error| problem(error.to_string()))?;
    let certificate = certificate_of(&parsed.key, &line).map_err(|error| {
        problem(format!(
            "{error}; give the -cert.pub file that ssh-keygen -s has made of this key"
        ))
    })?;
    if let Err(refusal) = certificate.check(unix_time()) {
        match refusal {
            // It will be.
            Refusal::CertificateNotYetValid => warn(&refusal.to_string()),
            _ => return Err(problem(refusal.to_string())),
        }
    }
    if certificate.principals.names().next().is_none() {
        return Err(problem(
            "the certificate has no principals, and is nobody's: have it signed with `ssh-keygen -s \
             ... -n USER`"
                .into(),
        ));
    }
    let key = key.trim_end();
    Ok(Zeroizing::new(format!("{key}\n{}\n", certificate.line())))
}

fn read_private_key(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = Zeroizing::new(read_bounded(path)?);
    let problem = |reason: &str| Failure::PrivateKey {
        path: path.into(),
        reason: reason.into(),
    };
    let key = ssh_key::PrivateKey::from_openssh(text.as_bytes()).map_err(|error| {
        problem(&format!(
            "not a private key in OpenSSH's format ({error}); make one with ssh-keygen -t ed25519"
        ))
    })?;
    if key.is_encrypted() {
        return Err(problem(
            "has a passphrase, which the signer could not ask for; give a copy without one \
             (ssh-keygen -p -N '' -f COPY), or leave it with an ssh-agent (--agent-key)",
        ));
    }
    match key.algorithm() {
        kind if is_security_key(&kind) => Err(problem(
            "refers to a security key, which only an agent can use; give its .pub file with \
             --agent-key",
        )),
        kind if is_supported(&kind) => Ok(text),
        other => Err(problem(&format!(
            "{other} keys are not taken; use Ed25519 or ECDSA"
        ))),
    }
}

/// The one public key in a file.
fn read_agent_key(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = Zeroizing::new(read_bounded(path)?);
    let problem = |reason: String| {
        Failure::PublicKey(format!(
            "{}: {reason}; give the .pub file of the key that the agent has, as ssh-keygen or \
             ssh-add -L writes it",
            path.display()
        ))
    };
    match Credential::parse(&text).map(|found| found.key) {
        Ok(SigningKey::Agent(_)) => Ok(text),
        Ok(SigningKey::Private(_)) => Err(problem("a private key".into())),
        Err(error) => Err(problem(error.to_string())),
    }
}

/// Stores a key for the signer, which nobody else can read at any time.
fn store_signing_key(path: &Path, key: &str) -> Result<(), Failure> {
    let signer = accounts::of(roles::Signer::ROLE)?;
    let owner = Owner {
        uid: signer.uid.as_raw(),
        gid: signer.gid.as_raw(),
    };
    let folder = Path::new(paths::PRIVATE_KEYS_DIRECTORY);
    std::fs::create_dir_all(folder).at(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).at(folder)?;
    std::os::unix::fs::chown(folder, Some(owner.uid), Some(owner.gid)).at(folder)?;
    write_atomically_for(path, key.as_bytes(), 0o400, owner).at(path)
}

/// The policy in force stays; the users are those below /etc/usher now.
pub(super) fn put_users_in_force(
    output: &Output,
    lock: &configuration::Lock,
) -> Result<(), Failure> {
    let mut fresh = configuration::in_force()?;
    fresh.users = configuration::collect_users()?;
    let outcome = configuration::put_in_force(lock, fresh, OnRefusal::RollBack)?;
    output.print(&outcome, || configuration::describe(&outcome));
    Ok(())
}
