//! `usher user add` and `list`. Changes take effect at once, and for users only: edited policy files stay
//! out of force until `usher policy apply`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_daemon::control;
use usher_daemon::files::{Owner, write_atomically_for};
use usher_daemon::role::HasRole;
use usher_local::error::ConfigurationError;
use usher_local::keys::{list_name, private_key_name};
use usher_local::reading::{optional, read_bounded};
use usher_local::roles;
use usher_local::signing_key::{Credential, SigningKey, SigningKeyError, certificate_of, split};
use usher_local::{paths, requests};
use usher_policy::Name;
use usher_proto::refusal::Refusal;
use zeroize::Zeroizing;

use super::configuration::{self, OnRefusal};
use super::key_list::{self, Expiry};
use super::log::fingerprint;
use crate::accounts;
use crate::failure::{At, Failure};
use crate::output::{Output, row, table, warn};

/// Options of `usher user add`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what")
    .required(true)
    .multiple(true)
    .args(["public_key", "private_key", "agent_key", "certificate"])))]
pub struct Addition {
    /// Local account
    name: UserName,
    /// Public key that identifies the user here (server side)
    #[arg(long, value_name = "FILE")]
    public_key: Option<PathBuf>,
    /// When the public key expires: 2d, 8h, 2026-12-31T18:00Z, or OpenSSH's YYYYMMDD[HHMM[SS]][Z]
    #[arg(long, value_name = "TIME", requires = "public_key")]
    expires: Option<Expiry>,
    /// Private key for the signer to copy (client side); the file is not changed
    #[arg(long, value_name = "FILE")]
    private_key: Option<PathBuf>,
    /// Public key whose private key is in the user's ssh-agent (client side)
    #[arg(long, value_name = "FILE", conflicts_with = "private_key")]
    agent_key: Option<PathBuf>,
    /// Certificate (-cert.pub) of the private key or agent key, which is given too or already
    /// stored
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Purpose of the keys: a name that `keys` or `key` of the policy uses
    #[arg(long, value_name = "NAME")]
    key: Option<Name>,
}

/// Adds a user, or keys of a user.
pub fn add_user(output: &Output, addition: &Addition) -> Result<(), Failure> {
    let (user, purpose) = (&addition.name, addition.key.as_ref());
    match accounts::look_up(user.as_ref()) {
        Ok(Some(account)) if account.uid.is_root() => {
            return Err(Failure::Refused(format!(
                "{user} has user id 0; root cannot be a user of Usher"
            )));
        }
        Ok(Some(_)) => {}
        Ok(None) => warn(&format!(
            "there is no account {user} on this host yet; create it first"
        )),
        Err(failure) => warn(&failure.to_string()),
    }
    let lock = configuration::lock()?;
    // Everything is read and checked before anything is written.
    let read = |path| key_list::read_key_list(user, path, addition.expires);
    let public = addition.public_key.as_deref().map(read).transpose()?;
    let private = addition.private_key.as_deref().map(read_private_key);
    let private = private.transpose()?;
    let agent = addition.agent_key.as_deref().map(read_agent_key);
    let agent = agent.transpose()?;
    let signing = match &addition.certificate {
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
        key_list::add_keys(user, &folder.join(list_name(purpose)), &public)?;
    }
    if let Some(signing) = signing {
        store_signing_key(&private_key_path(user, purpose), &signing)?;
    }
    put_users_in_force(output, &lock)
}

/// Prints the users of this host.
pub fn list_users(output: &Output) -> Result<(), Failure> {
    let applied = configuration::in_force()?;
    let checked = configuration::check_applied(&applied)?;
    let (revoked, now) = (&checked.revoked, unix_time());
    let lent = lent_agents();
    let (mut views, mut descriptions) = (Vec::new(), Vec::new());
    for (user, entry) in &applied.users {
        let keys = checked.keys.get(user).map_or(&[][..], Vec::as_slice);
        let public_keys = keys.iter().map(|key| {
            let principals = key.options.principals.as_ref();
            // JSON object [`public_key`]:
            //   fingerprint: Its fingerprint, as `ssh-keygen -l` shows it.
            //   for: The purpose of the key: services with `keys` of this name. Null: all others.
            //   expires: When it expires, or null.
            //   expired: True if that has passed.
            //   revoked: True if the key is on the list of revoked keys.
            //   authority: True if certificates of this key admit the user.
            //   principals: List of texts: the names that such a certificate may have instead of the user's. Null: the user's only.
            json!({
                "fingerprint": fingerprint(&key.key), "for": key.purpose,
                "expires": key.options.expires, "expired": key.has_expired(now),
                "revoked": revoked.has_key(&key.key), "authority": key.options.authority,
                "principals": principals.map(|names| names.names().collect::<Vec<_>>()),
            })
        });
        // An error: only the signer and root may read the folder.
        let signing = signing_key(user).ok();
        let is = |kind: fn(&SigningKey) -> bool| {
            let signing = signing.as_ref()?.as_ref();
            Some(signing.is_some_and(|found| kind(&found.key)))
        };
        let certificate = signing.as_ref().and_then(Option::as_ref);
        let certificate = certificate.and_then(|found| found.certificate.as_deref());
        let certificate = certificate.map(|certificate| {
            // JSON object [`signing_certificate`]:
            //   key_id: Its key id.
            //   serial: Its serial number; 0: none.
            //   principals: List of texts: the names that its holder may use.
            //   valid_after: When it begins to be valid.
            //   valid_before: When it expires.
            //   authority: The fingerprint of the authority's key.
            json!({
                "key_id": certificate.key_id, "serial": certificate.serial,
                "principals": certificate.principals.names().collect::<Vec<_>>(),
                "valid_after": certificate.valid_after, "valid_before": certificate.valid_before,
                "authority": fingerprint(&certificate.authority),
            })
        });
        // JSON object [`user`]:
        //   user: The user's name.
        //   disabled: The reason that the user is disabled, or null.
        //   public_keys: List of [`public_key`].
        //   private_key: True if the signer has a private key of the user. Null: only root learns it.
        //   agent_key: True if the user signs by an ssh-agent. Null: only root learns it.
        //   certificate: The [`signing_certificate`] of the signing key, or null.
        //   agent_lent: True if `usher agent` is connected for the user. Null: the signer does not say.
        views.push(json!({
            "user": user, "disabled": entry.disabled,
            "public_keys": public_keys.collect::<Vec<_>>(),
            "private_key": is(|key| matches!(key, SigningKey::Private(_))),
            "agent_key": is(|key| matches!(key, SigningKey::Agent(_))),
            "certificate": certificate,
            "agent_lent": lent.as_ref().map(|lent| lent.contains(user)),
        }));
        descriptions.push(key_list::describe(keys, revoked));
    }
    // JSON of `usher user list`: a list of [`user`].
    output.print(&views, || {
        let rows = views.iter().zip(&descriptions).map(|(view, public)| {
            let is = |name: &str| view[name].as_bool();
            let signs = match (is("private_key"), is("agent_key"), is("agent_lent")) {
                (None, ..) => "? (ask as root)",
                (Some(true), ..) => "private key",
                (_, Some(true), Some(true)) => "agent, lent",
                (_, Some(true), Some(false)) => "agent, not lent",
                (_, Some(true), None) => "agent",
                _ => "-",
            };
            let disabled = view["disabled"].as_str();
            row![
                view["user"].as_str().unwrap_or_default(),
                disabled.map_or("yes".into(), |why| format!("no: {why}")),
                public,
                match validity(&view["certificate"]) {
                    Some(validity) => format!("{signs}, certificate {validity}"),
                    None => signs.to_owned(),
                },
            ]
        });
        if views.is_empty() {
            "no users\n".to_owned()
        } else {
            table(["USER", "ADMITTED", "PUBLIC KEYS", "SIGNS BY"], rows)
        }
    });
    Ok(())
}

/// The validity of a certificate, for people.
fn validity(certificate: &serde_json::Value) -> Option<String> {
    let (after, before) = (
        certificate["valid_after"].as_u64()?,
        certificate["valid_before"].as_u64()?,
    );
    let now = unix_time();
    Some(if now < after {
        format!("from {}", super::log::utc(after))
    } else if now >= before {
        "expired".into()
    } else if before == u64::MAX {
        "for ever".into()
    } else {
        format!("until {}", super::log::utc(before))
    })
}

/// The users whose agents are lent; none if the signer cannot be asked.
fn lent_agents() -> Option<BTreeSet<UserName>> {
    // An error: the signer does not run here, or the caller is not root.
    let view = control::ask_daemon(roles::Signer, &requests::Agents {}).ok()?;
    let lent = view.agents.into_iter().filter(|agent| agent.lent);
    Some(lent.map(|agent| agent.user).collect())
}

/// The key with which a user signs here, if there is one.
pub(super) fn signing_key(user: &UserName) -> Result<Option<Credential>, ConfigurationError> {
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

/// The text of a user's stored key.
fn kept_key(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = optional(read_bounded(path))?.map(Zeroizing::new);
    text.ok_or_else(|| {
        Failure::refused(
            "this host has no key of the user for the certificate; give the key too, with \
             --private-key or --agent-key",
        )
    })
}

/// A key's text with the certificate in a file, which replaces an earlier certificate.
fn with_certificate(key: &str, path: &Path) -> Result<Zeroizing<String>, Failure> {
    let line = read_bounded(path)?;
    let (key, _) = split(key);
    let parsed = Credential::parse(key).map_err(|error| Failure::of_file(path, error))?;
    let certificate = certificate_of(&parsed.key, &line).map_err(|error| {
        let remedy = "give the -cert.pub file that ssh-keygen -s made from this key";
        Failure::of_file(path, format_args!("{error}; {remedy}"))
    })?;
    match certificate.check(unix_time()) {
        // The certificate becomes valid later.
        Err(refusal @ Refusal::CertificateNotYetValid) => warn(&refusal.to_string()),
        checked => checked.map_err(|refusal| Failure::of_file(path, refusal))?,
    }
    if certificate.principals.names().next().is_none() {
        let reason = "the certificate has no principals, so it is for no user; have it signed with \
                      `ssh-keygen -s ... -n USER`";
        return Err(Failure::of_file(path, reason));
    }
    let key = key.trim_end();
    Ok(Zeroizing::new(format!("{key}\n{}\n", certificate.line())))
}

fn read_private_key(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = Zeroizing::new(read_bounded(path)?);
    let reason = match SigningKey::parse(&text) {
        Ok(SigningKey::Private(_)) => return Ok(text),
        Ok(SigningKey::Agent(_)) => {
            "a public key; give the private key, which ssh-keygen has written beside it, in the file \
             without .pub at its end"
                .to_owned()
        }
        Err(SigningKeyError::Encrypted) => {
            "has a passphrase, which the signer cannot ask for; give a copy without one \
             (ssh-keygen -p -N '' -f COPY), or leave the key in an ssh-agent (--agent-key)"
                .to_owned()
        }
        Err(SigningKeyError::SecurityKey) => {
            "belongs to a security key, which only an agent can use; give its .pub file with \
             --agent-key"
                .to_owned()
        }
        Err(SigningKeyError::NotAKey(error)) => format!(
            "not a private key in OpenSSH's format ({error}); make one with ssh-keygen -t ed25519, or \
             convert a copy of another format (ssh-keygen -p -f COPY)"
        ),
        Err(other) => other.to_string(),
    };
    Err(Failure::of_file(path, reason))
}

/// The one public key in a file.
fn read_agent_key(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = Zeroizing::new(read_bounded(path)?);
    let found = match Credential::parse(&text).map(|found| found.key) {
        Ok(SigningKey::Agent(_)) => return Ok(text),
        Ok(SigningKey::Private(_)) => "a private key".to_owned(),
        Err(error) => error.to_string(),
    };
    let remedy = "give the .pub file of the agent's key, as ssh-keygen or ssh-add -L writes it";
    Err(Failure::of_file(path, format_args!("{found}; {remedy}")))
}

/// Stores a key for the signer. At no time can another account read it.
fn store_signing_key(path: &Path, key: &str) -> Result<(), Failure> {
    let signer = accounts::account_of_role(roles::Signer::ROLE)?;
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

/// Puts the users below /etc/usher in force with the policy that is in force.
pub(super) fn put_users_in_force(
    output: &Output,
    lock: &configuration::Lock,
) -> Result<(), Failure> {
    let mut fresh = configuration::in_force()?;
    fresh.users = configuration::collect_users()?;
    let outcome = configuration::put_in_force(lock, fresh, OnRefusal::RollBack)?;
    // JSON of `usher user add`, `usher user enable`: [`Outcome`].
    output.print(&outcome, || configuration::describe(&outcome));
    Ok(())
}
