//! Finds a user's local account through the system's name service (NSS).

use std::ffi::CString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::unistd::{Gid, User, getgrouplist};
use usher_base::UserName;
use usher_label::Label;
use usher_proto::refusal::Refusal;
use usher_system_label::login::{Person, wanted_by};

use super::cache::Cache;

/// A local account.
#[derive(Debug, Clone)]
pub struct Account {
    pub name: UserName,
    /// User id; never 0.
    pub uid: u32,
}

/// The present state of an account whose user was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is the same.
    Stands,
    /// There is none of this name.
    Missing,
    /// The name now belongs to another account, which for this reason is not the user's.
    Another(Refusal),
}

/// The attributes with which a process of an account is started, besides the user id.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Primary group.
    pub gid: u32,
    /// All its groups.
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: PathBuf,
    /// The label that its processes get, by mac.login.
    pub label: Option<Label>,
}

impl Account {
    /// Looks up the attributes of the account's processes. NSS may ask other hosts, so this must not run
    /// on the reactor's thread; see [`super::identities`].
    ///
    /// # Errors
    /// [`Refusal::NoLocalAccount`], also when the name now has another user id.
    /// [`Refusal::KeeperUnavailable`] when the name service cannot tell, and [`Refusal::LoginLabelUnknown`],
    /// both of which are logged.
    pub fn identity(&self) -> Result<Identity, Refusal> {
        let user = find(&self.name)?;
        if user.uid.as_raw() != self.uid {
            return Err(Refusal::NoLocalAccount);
        }
        let name = &self.name;
        let c_name = CString::new(name.as_ref()).map_err(|_| Refusal::NoLocalAccount)?;
        let groups = getgrouplist(&c_name, user.gid).map_err(|error| {
            tracing::error!(%name, %error, "cannot look up the user's groups");
            Refusal::KeeperUnavailable
        })?;
        let person = Person {
            name: user.name,
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        };
        let line = wanted_by(&person).map_err(|error| {
            tracing::error!(user = %name, %error, "cannot find the user's label, so no process is \
                started");
            Refusal::LoginLabelUnknown
        })?;
        Ok(Identity {
            gid: user.gid.as_raw(),
            groups: person.groups,
            label: line.and_then(|line| line.label),
            home: user.dir,
            shell: user.shell,
        })
    }
}

/// The time for which a user id is cached.
const BELIEVED: Duration = Duration::from_secs(1);
/// The time limit of a look-up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limit of cached names.
const KEPT: usize = 4096;

/// The user ids of accounts. Each is looked up at most once a second, because every local process
/// and every client host can cause a look-up.
pub struct Accounts(Cache<UserName, Known>);

/// The time of a look-up, and its result.
type Known = (Instant, Result<u32, Refusal>);

impl Accounts {
    /// No account is known yet.
    pub fn new() -> Self {
        Self(Cache::new(KEPT, PATIENCE, |(at, _)| {
            at.elapsed() < BELIEVED
        }))
    }

    /// The account of this name. A missing account is looked up again, so that a new one is found.
    ///
    /// # Errors
    /// [`Refusal::NoLocalAccount`]; [`Refusal::PrivilegedAccount`] for root, whom no policy can
    /// admit.
    pub async fn by_name(&self, name: &UserName) -> Result<Account, Refusal> {
        self.find(name, Result::is_ok).await
    }

    /// As [`Accounts::by_name`], for callers who may ask as often as they like: a missing account is
    /// cached as well.
    pub async fn asked_freely(&self, name: &UserName) -> Result<Account, Refusal> {
        self.find(name, |_| true).await
    }

    /// The present state of an account; none if it cannot be found out now.
    pub async fn standing(&self, account: &Account) -> Option<Standing> {
        match self.by_name(&account.name).await {
            Ok(found) if found.uid == account.uid => Some(Standing::Stands),
            Ok(_) => Some(Standing::Another(Refusal::NoLocalAccount)),
            Err(Refusal::NoLocalAccount) => Some(Standing::Missing),
            Err(refusal @ Refusal::PrivilegedAccount) => Some(Standing::Another(refusal)),
            Err(_) => None,
        }
    }

    async fn find(
        &self,
        name: &UserName,
        believable: impl Fn(&Result<u32, Refusal>) -> bool,
    ) -> Result<Account, Refusal> {
        let asked = name.clone();
        let look_up = move || {
            // The age of an answer counts from its question.
            let at = Instant::now();
            (at, find(&asked).map(|user| user.uid.as_raw()))
        };
        let counts = |(_, found): &Known| believable(found);
        let (_, uid) = self.0.find(name, counts, look_up).await?;
        Ok(Account {
            name: name.clone(),
            uid: uid?,
        })
    }
}

/// Looks an account up. An error of the name service does not mean that the account is missing: for a missing
/// account the C library returns no error, and ENOENT or ESRCH mean that a source is unavailable (glibc's
/// nss/getXXbyYY_r.c).
fn find(name: &UserName) -> Result<User, Refusal> {
    let user = match User::from_name(name.as_ref()) {
        Ok(found) => found.ok_or(Refusal::NoLocalAccount)?,
        Err(error) => {
            tracing::error!(%name, %error, "cannot look up an account");
            return Err(Refusal::KeeperUnavailable);
        }
    };
    if user.uid.is_root() {
        return Err(Refusal::PrivilegedAccount);
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> UserName {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_user_id_is_believed_for_a_while_and_then_looked_up_again() {
        let accounts = Accounts::new();
        let daemon = name("daemon");
        let uid = accounts.by_name(&daemon).await.unwrap().uid;
        assert_ne!(uid, 0);
        *accounts.0.answer(&daemon).lock().await = Some((Instant::now(), Ok(uid + 1)));
        assert_eq!(accounts.by_name(&daemon).await.unwrap().uid, uid + 1);
        let old = Instant::now().checked_sub(BELIEVED).unwrap();
        *accounts.0.answer(&daemon).lock().await = Some((old, Ok(uid + 1)));
        assert_eq!(accounts.by_name(&daemon).await.unwrap().uid, uid);
    }

    #[tokio::test]
    async fn a_missing_account_is_believed_only_of_free_askers() {
        let accounts = Accounts::new();
        let daemon = name("daemon");
        let missing = (Instant::now(), Err(Refusal::NoLocalAccount));
        *accounts.0.answer(&daemon).lock().await = Some(missing);
        let freely = accounts.asked_freely(&daemon).await;
        assert_eq!(freely.unwrap_err(), Refusal::NoLocalAccount);
        assert!(accounts.by_name(&daemon).await.is_ok());
        assert!(accounts.asked_freely(&daemon).await.is_ok());
    }

    #[tokio::test]
    async fn root_and_who_has_no_account_are_refused() {
        let accounts = Accounts::new();
        let root = accounts.by_name(&name("root")).await;
        assert_eq!(root.unwrap_err(), Refusal::PrivilegedAccount);
        let nobody = accounts.by_name(&name("no-such-account")).await;
        assert_eq!(nobody.unwrap_err(), Refusal::NoLocalAccount);
    }

    #[tokio::test]
    async fn a_worker_starts_only_for_an_unchanged_account() {
        let accounts = Accounts::new();
        let mut daemon = accounts.by_name(&name("daemon")).await.unwrap();
        let identity = daemon.identity().unwrap();
        assert!(identity.groups.contains(&identity.gid));
        daemon.uid += 1;
        assert_eq!(daemon.identity().unwrap_err(), Refusal::NoLocalAccount);
    }
}
