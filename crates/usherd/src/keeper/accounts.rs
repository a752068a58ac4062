//! From a user's name to a local account, through the system's name service (NSS).

use std::collections::HashMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, User, getgrouplist};
use usher_proto::name::UserName;
use usher_proto::refusal::Refusal;

/// A local account, with what a process of it is started with.
#[derive(Debug, Clone)]
pub struct Account {
    /// Its name.
    pub name: UserName,
    /// User id; never 0.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All its groups.
    pub groups: Vec<u32>,
    /// Home folder.
    pub home: PathBuf,
    /// Login shell.
    pub shell: PathBuf,
}

/// Looks a user up. NSS may ask other hosts, so not on the reactor's thread.
///
/// # Errors
/// [`Refusal::NoLocalAccount`]; [`Refusal::PrivilegedAccount`] for root, whom no policy can admit.
pub async fn by_name(user: UserName) -> Result<Account, Refusal> {
    tokio::task::spawn_blocking(move || find(&user))
        .await
        .map_err(|error| {
            tracing::error!(%error, "looking up an account");
            Refusal::NoLocalAccount
        })?
}

/// How long what was found of a service's account is believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// Accounts of services, each looked up once a second at most: every local process can make the
/// keeper look. One that takes long keeps only those waiting who ask for it.
#[derive(Default)]
pub struct ServiceAccounts(Mutex<HashMap<UserName, Arc<Known>>>);

/// When an account was looked up, and what was found.
type Known = tokio::sync::Mutex<Option<(Instant, Result<u32, Refusal>)>>;

impl ServiceAccounts {
    /// The account's user id.
    ///
    /// # Errors
    /// As [`by_name`].
    pub async fn uid(&self, account: &UserName) -> Result<u32, Refusal> {
        let known = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(account.clone()).or_default())
        };
        // Held while somebody looks: the others wait for what that one finds.
        let mut known = known.lock().await;
        match &*known {
            Some((at, found)) if at.elapsed() < BELIEVED => *found,
            _ => {
                let found = by_name(account.clone()).await.map(|found| found.uid);
                *known = Some((Instant::now(), found));
                found
            }
        }
    }
}

fn find(name: &UserName) -> Result<Account, Refusal> {
    let user = User::from_name(name.as_ref())
        .map_err(|error| {
            tracing::error!(%name, %error, "looking up an account");
            Refusal::NoLocalAccount
        })?
        .ok_or(Refusal::NoLocalAccount)?;
    if user.uid.is_root() {
        return Err(Refusal::PrivilegedAccount);
    }
    let c_name = CString::new(name.as_ref()).map_err(|_| Refusal::NoLocalAccount)?;
    let groups = getgrouplist(&c_name, user.gid).map_err(|error| {
        tracing::error!(%name, %error, "looking up groups");
        Refusal::NoLocalAccount
    })?;
    Ok(Account {
        name: name.clone(),
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        groups: groups.into_iter().map(Gid::as_raw).collect(),
        home: user.dir,
        shell: user.shell,
    })
}
